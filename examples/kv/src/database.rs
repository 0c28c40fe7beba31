//! All values of a server: one store, or several that workers share.

use std::collections::TryReserveError;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use foldhash::fast::FixedState;

use crate::store::{Clock, Key, Stats, Store, Usage};

/// How much a server may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory for values, their headers and the table by which they are found, in bytes.
    pub memory: usize,
    /// The largest item in bytes, as memcached counts them: its key, its value and about 60 more.
    pub max_item: usize,
    /// Connections at a time; `stats` says so, [`Config`](evring::Config) enforces it.
    pub connections: u32,
}

impl Default for Limits {
    /// The defaults of memcached.
    fn default() -> Self {
        Limits { memory: 64 << 20, max_item: 1 << 20, connections: 1024 }
    }
}

/// The values of a server. Clones of a [shared](Database::shared) one have the same values.
pub struct Database {
    stores: Stores,
    hasher: FixedState,
    pub(crate) limits: Limits,
    pub(crate) common: Arc<Common>,
}

enum Stores {
    /// That of a single worker, without a lock.
    Own(Box<Store>),
    /// Those of several workers. A key's hash says which of them has its value.
    Shared(Arc<[Mutex<Store>]>),
}

/// What workers share besides values.
#[derive(Debug, Default)]
pub(crate) struct Common {
    started: OnceLock<Instant>,
    pub(crate) workers: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) accepted: AtomicU64,
}

impl Common {
    /// When the first worker was asked for something.
    pub(crate) fn started(&self, now: Instant) -> Instant {
        *self.started.get_or_init(|| now)
    }
}

/// A store that can be used, with its lock if it has one.
pub(crate) enum Access<'a> {
    Own(&'a mut Store),
    Locked(MutexGuard<'a, Store>),
}

impl Deref for Access<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        match self {
            Access::Own(store) => store,
            Access::Locked(store) => store,
        }
    }
}

impl DerefMut for Access<'_> {
    fn deref_mut(&mut self) -> &mut Store {
        match self {
            Access::Own(store) => store,
            Access::Locked(store) => store,
        }
    }
}

impl Database {
    /// Stores for each worker, so that two rarely want the same one.
    const STORES: usize = 4;

    /// Makes a database for one worker. The seed should be secret, so that no client can choose keys
    /// that fall into one bucket.
    ///
    /// # Errors
    /// When there is not that much memory.
    pub fn new(limits: Limits, seed: u64) -> Result<Self, TryReserveError> {
        let hasher = FixedState::with_seed(seed);
        let store = Store::new(limits.memory, limits.max_item, hasher.clone())?;
        let stores = Stores::Own(Box::new(store));
        Ok(Database { stores, hasher, limits, common: Arc::default() })
    }

    /// Makes a database that `workers` share by cloning it: each value belongs to one of several
    /// stores, which have a lock and an equal part of the memory each.
    ///
    /// # Errors
    /// When there is not that much memory.
    pub fn shared(limits: Limits, seed: u64, workers: usize) -> Result<Self, TryReserveError> {
        let hasher = FixedState::with_seed(seed);
        // A store that holds but a few of the largest items would evict too early.
        let most = (limits.memory / limits.max_item.max(1) / 4).max(1);
        let n = (workers.next_power_of_two() * Self::STORES).min(1 << most.ilog2());
        let store =
            || Store::new(limits.memory / n, limits.max_item, hasher.clone()).map(Mutex::new);
        let stores = (0..n).map(|_| store()).collect::<Result<Arc<[_]>, _>>()?;
        Ok(Database { stores: Stores::Shared(stores), hasher, limits, common: Arc::default() })
    }

    /// The same values, for another worker; none if they are not [shared](Database::shared).
    pub fn share(&self) -> Option<Self> {
        let Stores::Shared(stores) = &self.stores else { return None };
        Some(Database {
            stores: Stores::Shared(Arc::clone(stores)),
            hasher: self.hasher.clone(),
            limits: self.limits,
            common: Arc::clone(&self.common),
        })
    }

    /// A key with its hash.
    pub(crate) fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key { bytes, hash: Store::hash(&self.hasher, bytes) }
    }

    /// Returns the store that has the keys of this hash, set to the current time.
    pub(crate) fn store(&mut self, hash: u64, clock: &impl Clock) -> Access<'_> {
        let mut store = self.store_as_of_before(hash);
        store.tick(clock);
        store
    }

    /// The same, where there is no clock.
    pub(crate) fn store_as_of_before(&mut self, hash: u64) -> Access<'_> {
        match &mut self.stores {
            Stores::Own(store) => Access::Own(store),
            // The lower bits choose the bucket.
            Stores::Shared(stores) => {
                Access::Locked(lock(&stores[(hash >> 32) as usize % stores.len()]))
            }
        }
    }

    /// All stores, one after the other.
    pub(crate) fn each(&mut self, clock: &impl Clock, mut visit: impl FnMut(&mut Store)) {
        let mut ticked = |store: &mut Store| {
            store.tick(clock);
            visit(store);
        };
        match &mut self.stores {
            Stores::Own(store) => ticked(store),
            Stores::Shared(stores) => stores.iter().for_each(|store| ticked(&mut lock(store))),
        }
    }

    /// What was done, and what is held.
    pub(crate) fn totals(&mut self, clock: &impl Clock) -> (Stats, Usage) {
        let mut totals = (Stats::default(), Usage::default());
        self.each(clock, |store| {
            totals.0.add(&store.stats);
            totals.1.add(&store.usage());
        });
        totals
    }

    /// Counts a worker's connection.
    pub(crate) fn connected(&self) {
        self.common.connections.fetch_add(1, Ordering::Relaxed);
        self.common.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts its end.
    pub(crate) fn disconnected(&self) {
        self.common.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A worker that panics ends the program, so what it leaves behind does not matter.
fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("limits", &self.limits).finish_non_exhaustive()
    }
}
