//! Deferred event delivery (DED, section 3.2).

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::{AddError, Event, PairId, PairState, PairTable, Readiness};

/// The longest delay, within what an [`Instant`] holds.
const MAX_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);

/// Bounds of an [`EventManager`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Maximum number of pairs.
    pub max_pairs: usize,
    /// Maximum number of deferred events of all pairs.
    pub max_deferred: usize,
    /// Maximum time that an event is deferred; at most one year.
    pub max_delay: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config { max_pairs: 1024, max_deferred: 4096, max_delay: Duration::from_secs(10) }
    }
}

/// The decision about a pre-event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery<T> {
    /// The caller delivers this event now. It is an earlier one of the same pair if the manager
    /// holds its maximum number of events; the new one is deferred in its place.
    Now(T),
    /// The pair is in state RW; [`EventManager::next`] returns the event later.
    Deferred,
}

/// Numbers of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Events delivered at once, as the post-event was ready.
    pub immediate: u64,
    /// Events that were deferred.
    pub deferred: u64,
    /// Deferred events that were delivered when the post-event became ready.
    pub released: u64,
    /// Deferred events that were delivered after the maximum time.
    pub expired: u64,
    /// Events that were delivered before their turn, as the maximum number was deferred: in state RW, or in state RR in
    /// place of a later one of the pair.
    pub displaced: u64,
    /// Deferred events that were returned when their pair was removed.
    pub removed: u64,
}

/// Defers the delivery of pre-events whose post-event would block.
///
/// The caller reports each pre-event to [`deliver`](EventManager::deliver), and changes of the
/// post-events' states to [`set`](EventManager::set) or [`set_post`](EventManager::set_post). Then
/// it takes the events that can be delivered from [`next`](EventManager::next). Events of a pair
/// keep their order. All memory is allocated at the start.
#[derive(Debug)]
pub struct EventManager<T, K = i32> {
    table: PairTable<K>,
    queues: Vec<PairEvents>,
    held: Vec<Held<T>>,
    /// First unused element of `held`, which `next_of_pair` links.
    unused: Option<u32>,
    /// Oldest and newest deferred event.
    oldest: Option<u32>,
    newest: Option<u32>,
    /// Indices of pairs that were in state RR with deferred events, each at most once.
    ready: VecDeque<u32>,
    max_delay: Duration,
    counters: Counters,
}

/// Deferred events of a pair.
#[derive(Clone, Copy, Debug, Default)]
struct PairEvents {
    id: Option<PairId>,
    first: Option<u32>,
    last: Option<u32>,
    /// The pair is in `ready`.
    is_queued: bool,
}

#[derive(Debug)]
struct Held<T> {
    event: Option<T>,
    pair: u32,
    until: Instant,
    next_of_pair: Option<u32>,
    older: Option<u32>,
    newer: Option<u32>,
}

impl<T, K: Copy + Eq + Hash> EventManager<T, K> {
    /// Creates a manager without pairs.
    ///
    /// # Panics
    /// If a maximum is 2^32 - 1 or more.
    pub fn new(config: &Config) -> Self {
        let &Config { max_pairs, max_deferred, max_delay } = config;
        assert!(
            u32::try_from(max_deferred).is_ok_and(|max| max < u32::MAX),
            "at most {max_deferred} deferred events"
        );
        EventManager {
            table: PairTable::new(max_pairs),
            queues: vec![PairEvents::default(); max_pairs],
            held: Vec::with_capacity(max_deferred),
            unused: None,
            oldest: None,
            newest: None,
            ready: VecDeque::with_capacity(max_pairs),
            max_delay: max_delay.min(MAX_DELAY),
            counters: Counters::default(),
        }
    }

    /// Returns the pairs.
    pub fn table(&self) -> &PairTable<K> {
        &self.table
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Adds the pair `pre => post`, whose post-event has a state now.
    ///
    /// # Errors
    /// Those of [`PairTable::add`].
    pub fn add(
        &mut self,
        pre: Event<K>,
        post: Event<K>,
        post_is: Readiness,
    ) -> Result<PairId, AddError> {
        let id = self.table.add(pre, post)?;
        self.table.set_post(id, post_is);
        self.queues[id.index()].id = Some(id);
        Ok(id)
    }

    /// Removes a pair, and passes its deferred events to `released`. Returns whether it existed.
    pub fn remove(&mut self, id: PairId, mut released: impl FnMut(T)) -> bool {
        if self.table.state(id).is_none() {
            return false;
        }
        while let Some(index) = self.queues[id.index()].first {
            self.counters.removed += 1;
            released(self.take(index));
        }
        self.queues[id.index()].id = None;
        self.table.remove(id).is_some()
    }

    /// Removes all pairs with an event of this object, as it is closed, and passes their deferred
    /// events to `released`.
    pub fn remove_object(&mut self, object: K, mut released: impl FnMut(PairId, T)) {
        loop {
            let before = self.table.pairs_before(object).next();
            let Some(id) = before.or_else(|| self.table.pairs_after(object).next()) else { return };
            self.remove(id, |event| released(id, event));
        }
    }

    /// Reports that a pre-event has happened. The event of an unknown pair is delivered now.
    pub fn deliver(&mut self, id: PairId, event: T, now: Instant) -> Delivery<T> {
        let Some(state) = self.table.state(id) else { return Delivery::Now(event) };
        let queue = self.queues[id.index()];
        if queue.first.is_none() && state.post() == Readiness::Ready {
            self.counters.immediate += 1;
            return Delivery::Now(event);
        }
        let displaced = if self.has_room() {
            None
        } else {
            self.counters.displaced += 1;
            let Some(first) = queue.first else { return Delivery::Now(event) };
            Some(self.take(first))
        };
        self.counters.deferred += 1;
        self.hold(id, event, now + self.max_delay);
        self.table.set_pre(id, Readiness::Ready);
        self.note_ready(id);
        displaced.map_or(Delivery::Deferred, Delivery::Now)
    }

    /// Sets the state of a pair's post-event. Returns false if the pair was removed.
    pub fn set_post(&mut self, id: PairId, to: Readiness) -> bool {
        let exists = self.table.set_post(id, to).is_some();
        self.note_ready(id);
        exists
    }

    /// Sets the state of an event in all pairs that it ends, such as that of a socket's
    /// [`NetworkWriteRequest`](crate::EventKind::NetworkWriteRequest) when its send buffer has room.
    pub fn set(&mut self, post: Event<K>, to: Readiness) {
        let EventManager { table, queues, ready, .. } = self;
        table.set_as_post(post, to, |id, _, after| queues[id.index()].note(id, after, ready));
    }

    /// Returns the next event to deliver: one that was deferred for the maximum time, or one whose
    /// pair is in state RR. While the caller handles it, it reports if the post-event waits again.
    pub fn next(&mut self, now: Instant) -> Option<(PairId, T)> {
        if let Some(oldest) = self.oldest
            && self.held[oldest as usize].until <= now
        {
            self.counters.expired += 1;
            let pair = self.held[oldest as usize].pair;
            // Earlier events of the same pair are older.
            return self.queues[pair as usize].id.map(|id| (id, self.take(oldest)));
        }
        while let Some(&pair) = self.ready.front() {
            let PairEvents { id, first, .. } = self.queues[pair as usize];
            if let (Some(id), Some(first)) = (id, first)
                && self.table.state(id) == Some(PairState::RR)
            {
                self.counters.released += 1;
                // Those of other pairs come before the next one of this pair.
                self.ready.rotate_left(1);
                return Some((id, self.take(first)));
            }
            self.ready.pop_front();
            self.queues[pair as usize].is_queued = false;
        }
        None
    }

    /// Returns when the oldest deferred event has to be delivered.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.oldest.map(|oldest| self.held[oldest as usize].until)
    }

    fn has_room(&self) -> bool {
        self.unused.is_some() || self.held.len() < self.held.capacity()
    }

    fn note_ready(&mut self, id: PairId) {
        if let Some(state) = self.table.state(id) {
            self.queues[id.index()].note(id, state, &mut self.ready);
        }
    }

    /// Appends an event to the queue of its pair and to the list by age. There is room.
    fn hold(&mut self, id: PairId, event: T, until: Instant) {
        let older = self.newest;
        let pair = id.index() as u32;
        let new = Held { event: Some(event), pair, until, next_of_pair: None, older, newer: None };
        let index = match self.unused {
            Some(index) => {
                self.unused = self.held[index as usize].next_of_pair;
                self.held[index as usize] = new;
                index
            }
            None => {
                self.held.push(new);
                self.held.len() as u32 - 1
            }
        };
        match older {
            Some(older) => self.held[older as usize].newer = Some(index),
            None => self.oldest = Some(index),
        }
        self.newest = Some(index);
        let queue = &mut self.queues[id.index()];
        match queue.last.replace(index) {
            Some(last) => self.held[last as usize].next_of_pair = Some(index),
            None => queue.first = Some(index),
        }
    }

    /// Takes the first event of its pair out of all lists.
    fn take(&mut self, index: u32) -> T {
        let held = &mut self.held[index as usize];
        let event = held.event.take().expect("a held event");
        let Held { pair, next_of_pair, older, newer, .. } = *held;
        held.next_of_pair = self.unused;
        self.unused = Some(index);
        match older {
            Some(older) => self.held[older as usize].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.held[newer as usize].older = older,
            None => self.newest = older,
        }
        let queue = &mut self.queues[pair as usize];
        debug_assert_eq!(queue.first, Some(index), "events of a pair are taken in order");
        queue.first = next_of_pair;
        if next_of_pair.is_none() {
            queue.last = None;
            if let Some(id) = queue.id {
                self.table.set_pre(id, Readiness::Wait);
            }
        }
        event
    }
}

impl PairEvents {
    /// Queues a pair that has deferred events, if it is in state RR.
    fn note(&mut self, id: PairId, state: PairState, ready: &mut VecDeque<u32>) {
        if state == PairState::RR && !self.is_queued && self.first.is_some() {
            self.is_queued = true;
            ready.push_back(id.index() as u32);
        }
    }
}
