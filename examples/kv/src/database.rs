//! All values of a server: one store, or several that workers share.

use std::collections::TryReserveError;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use foldhash::fast::FixedState;

use crate::mirror::Mirror;
use crate::store::{Clock, Key, Stats, Store, Usage};

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory for values, their headers and the hash table, in bytes.
    pub memory: usize,
    /// Maximum size of an item in bytes, as memcached counts it: key, value and about 60 bytes more.
    pub max_item: usize,
    /// Maximum number of connections. `stats` reports it, [`Config`](evring::Config) enforces it for each worker. The
    /// workers of a [shared](Database::shared) database refuse a connection if they have as many together.
    pub connections: u32,
}

impl Limits {
    /// Maximum of [`Limits::memory`]. A store uses no more, as a block has a number of 32 bits.
    pub const MAX_MEMORY: usize = 512 << 30;
}

impl Default for Limits {
    /// Returns the defaults of memcached.
    fn default() -> Self {
        Limits { memory: 64 << 20, max_item: 1 << 20, connections: 1024 }
    }
}

/// The values of a server. Clones of a [shared](Database::shared) database contain the same values.
pub struct Database {
    stores: Stores,
    hasher: FixedState,
    pub(crate) limits: Limits,
    pub(crate) common: Arc<Common>,
}

enum Stores {
    /// Store of a single worker, without a lock.
    Own(Box<Store>),
    /// Stores shared by several workers. The hash of a key selects its store.
    Shared(Arc<[Mutex<Store>]>),
}

/// State shared by workers, besides values.
#[derive(Debug, Default)]
pub(crate) struct Common {
    started: OnceLock<Instant>,
    pub(crate) workers: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) hits: HandlerHits,
}

/// Counts the hits of handlers, since the last reset of the statistics.
#[derive(Default)]
pub(crate) struct HandlerHits {
    counters: Mutex<Vec<Box<HitCounter>>>,
    reset_at: AtomicU64,
}

type HitCounter = dyn Fn() -> u64 + Send + Sync;

impl HandlerHits {
    /// Adds the counter of a handler.
    #[cfg(feature = "sandbox")]
    pub(crate) fn add(&self, counter: impl Fn() -> u64 + Send + Sync + 'static) {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(counter));
    }

    fn total(&self) -> u64 {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|counter| counter()).sum()
    }

    fn reset(&self) {
        self.reset_at.store(self.total(), Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.total().saturating_sub(self.reset_at.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for HandlerHits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerHits").field(&self.total()).finish()
    }
}

impl Common {
    /// Returns when the clocks of the server began: at the first call, by [`Database::start`], for a request to any worker
    /// or for its handler.
    pub(crate) fn started(&self, now: Instant) -> Instant {
        *self.started.get_or_init(|| now)
    }
}

/// Access to a store, with its lock if shared.
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
    /// Stores per worker, so that two workers rarely need the same one.
    const STORES: usize = 4;

    /// The minimum of the largest items for which a store has room, if all of the memory has: a few values that clients
    /// begin to send and do not finish must not take all of a store.
    const LARGEST_ITEMS: usize = 16;

    /// Creates a database for one worker. The seed should be secret, so that clients cannot choose keys
    /// that fall into one bucket.
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated.
    pub fn new(limits: Limits, seed: u64) -> Result<Self, TryReserveError> {
        let hasher = FixedState::with_seed(seed);
        let store = Store::new(limits.memory, limits.max_item, hasher.clone())?;
        let stores = Stores::Own(Box::new(store));
        Ok(Database { stores, hasher, limits, common: Arc::default() })
    }

    /// Creates a database that `workers` share by cloning it. Its values are divided among several stores,
    /// each with a lock and an equal part of the memory: four for each worker, if each then has room for 16 of the
    /// largest items.
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated.
    pub fn shared(limits: Limits, seed: u64, workers: usize) -> Result<Self, TryReserveError> {
        let hasher = FixedState::with_seed(seed);
        let max_stores = (limits.memory / limits.max_item.max(1) / Self::LARGEST_ITEMS).max(1);
        let n = (workers.next_power_of_two() * Self::STORES).min(1 << max_stores.ilog2());
        let store =
            || Store::new(limits.memory / n, limits.max_item, hasher.clone()).map(Mutex::new);
        let stores = (0..n).map(|_| store()).collect::<Result<Arc<[_]>, _>>()?;
        Ok(Database { stores: Stores::Shared(stores), hasher, limits, common: Arc::default() })
    }

    /// Begins the time of the server, which `stats` reports. Otherwise it begins with the first request.
    pub fn start(&self, now: Instant) {
        self.common.started(now);
    }

    /// Lets the database write replies for handlers. Called before it is shared.
    #[must_use]
    pub fn mirrored(mut self, mirror: &Mirror) -> Self {
        match &mut self.stores {
            Stores::Own(store) => store.set_mirror(mirror.clone()),
            Stores::Shared(stores) => {
                stores.iter().for_each(|store| lock(store).set_mirror(mirror.clone()));
            }
        }
        self
    }

    /// Returns a handle for another worker; `None` if the database is not [shared](Database::shared).
    pub fn share(&self) -> Option<Self> {
        let Stores::Shared(stores) = &self.stores else { return None };
        Some(Database {
            stores: Stores::Shared(Arc::clone(stores)),
            hasher: self.hasher.clone(),
            limits: self.limits,
            common: Arc::clone(&self.common),
        })
    }

    /// Returns a key with its hash.
    pub(crate) fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key { bytes, hash: Store::hash(&self.hasher, bytes) }
    }

    /// Returns the store for this hash, with its time updated.
    pub(crate) fn store(&mut self, hash: u64, clock: &impl Clock) -> Access<'_> {
        let mut store = self.store_without_tick(hash);
        store.tick(clock);
        store
    }

    /// Returns the store for this hash without updating its time.
    pub(crate) fn store_without_tick(&mut self, hash: u64) -> Access<'_> {
        match &mut self.stores {
            Stores::Own(store) => Access::Own(store),
            // The lower bits select the bucket.
            Stores::Shared(stores) => {
                Access::Locked(lock(&stores[(hash >> 32) as usize % stores.len()]))
            }
        }
    }

    /// Visits all stores in turn.
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

    /// Flushes all values, at once or after a delay.
    pub(crate) fn flush(&mut self, delay: i32, clock: &impl Clock) {
        self.each(clock, |store| store.flush(delay, clock));
        // One command, however many stores there are.
        self.store_without_tick(0).stats.cmd_flush += 1;
    }

    /// Returns the statistics and usage of all stores.
    pub(crate) fn totals(&mut self, clock: &impl Clock) -> (Stats, Usage) {
        let mut totals = (Stats::default(), Usage::default());
        self.each(clock, |store| {
            totals.0.add(&store.stats);
            totals.1.add(&store.usage());
        });
        let hits = self.common.hits.count();
        totals.0.cmd_get += hits;
        totals.0.get_hits += hits;
        totals
    }

    /// Resets the statistics.
    pub(crate) fn reset_stats(&mut self, clock: &impl Clock) {
        self.each(clock, |store| store.reset_stats());
        self.common.hits.reset();
        self.common.accepted.store(0, Ordering::Relaxed);
    }

    /// Counts a new connection of a worker. Returns false, and counts nothing, if the workers of a shared database have as
    /// many together as they may.
    pub(crate) fn connected(&self) -> bool {
        let max = match self.stores {
            Stores::Own(_) => u64::MAX,
            Stores::Shared(_) => self.limits.connections.into(),
        };
        let one_more = |connections| (connections < max).then_some(connections + 1);
        let counted =
            self.common.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        self.common.accepted.fetch_add(counted.is_ok().into(), Ordering::Relaxed);
        counted.is_ok()
    }

    /// Counts a closed connection.
    pub(crate) fn disconnected(&self) {
        self.common.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Locks a store. A panicking worker ends the program, so a poisoned lock is ignored.
fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("limits", &self.limits).finish_non_exhaustive()
    }
}
