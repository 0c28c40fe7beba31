//! Values under a memory limit, with LRU eviction.
//!
//! A store is a plain data structure without sockets or protocol; time is an argument. All its memory is in
//! its blocks and its table.

mod arithmetic;
mod blocks;
mod index;
mod item;
mod stats;
mod sweep;
mod time;
mod write;

use std::collections::TryReserveError;
use std::fmt;
use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;

use crate::database::Limits;
use crate::mirror::Mirror;
pub(crate) use blocks::Cursor;
use blocks::{BLOCK, Blocks};
use index::Index;
pub(crate) use index::Key;
use item::{FETCHED, LINKED, MIRRORED};
pub(crate) use stats::{Stats, Usage};
pub use time::Clock;
pub(crate) use write::{AllocError, Attributes, Outcome, PendingItem, Verb};

pub(crate) use arithmetic::Counted;

/// Values by key.
pub(crate) struct Store {
    blocks: Blocks,
    index: Index,
    hasher: FixedState,
    max_item: usize,
    /// Blocks of items that connections hold. Eviction does not free them.
    held: usize,
    /// The current second.
    now: u32,
    /// The `cas` number of the newest value.
    unique: u64,
    /// Values with smaller numbers are flushed.
    flushed: u64,
    /// The second in which all values will be flushed; 0 for none.
    flush_at: u32,
    /// The next bucket to sweep.
    next_bucket: usize,
    /// Number of buckets to sweep since a flush.
    to_sweep: usize,
    /// Replies for handlers.
    mirror: Option<Mirror>,
    pub(crate) stats: Stats,
}

/// A value that was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    item: u32,
    pub(crate) flags: u32,
    pub(crate) len: usize,
    pub(crate) unique: u64,
}

/// A value being read. It does not change until it is [released](Store::release_reading).
#[derive(Debug)]
#[must_use]
pub(crate) struct Reading {
    item: u32,
    cursor: Cursor,
    remaining: usize,
}

/// The reason why a value in the table is stale.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stale {
    Expired,
    Flushed,
}

impl Store {
    /// Maximum length of a key in bytes.
    pub(crate) const MAX_KEY: usize = 250;

    /// Creates a store that takes at most `memory` bytes.
    pub(crate) fn new(
        memory: usize,
        max_item: usize,
        hasher: FixedState,
    ) -> Result<Self, TryReserveError> {
        let capacity = Self::capacity(memory);
        Ok(Store {
            blocks: Blocks::new(capacity)?,
            index: Index::new(capacity)?,
            hasher,
            max_item,
            held: 0,
            now: 1,
            unique: 0,
            flushed: 0,
            flush_at: 0,
            next_bucket: 0,
            to_sweep: 0,
            mirror: None,
            stats: Stats::default(),
        })
    }

    /// Returns the number of blocks for so many bytes. Each has at most one bucket.
    fn capacity(memory: usize) -> usize {
        memory.min(Limits::MAX_MEMORY) / (BLOCK + size_of::<u32>())
    }

    /// Updates the time, which never goes back.
    #[inline]
    pub(crate) fn tick(&mut self, clock: &impl Clock) {
        let now = time::second(clock.elapsed());
        if now > self.now {
            self.now = now;
            self.next_second();
        }
    }

    fn next_second(&mut self) {
        if self.flush_at != 0 && self.flush_at <= self.now {
            self.flush_at = 0;
            self.flush_older_than(self.unique + 1);
        }
        self.sweep(Self::SWEPT_PER_SECOND);
    }

    /// Looks up a value for a `get`.
    pub(crate) fn get(&mut self, key: Key<'_>) -> Option<Found> {
        self.stats.cmd_get += 1;
        let Some(item) = self.look_up(key) else {
            self.stats.get_misses += 1;
            return None;
        };
        self.stats.get_hits += 1;
        Some(self.fetch(item))
    }

    /// Looks up a value and sets its expiry time.
    pub(crate) fn touch(
        &mut self,
        key: Key<'_>,
        exptime: i32,
        clock: &impl Clock,
    ) -> Option<Found> {
        self.stats.cmd_touch += 1;
        let Some(item) = self.look_up(key) else {
            self.stats.touch_misses += 1;
            return None;
        };
        self.stats.touch_hits += 1;
        self.void_reply(item);
        let found = self.fetch(item);
        self.index.set_expires(&mut self.blocks, item, time::expiry(exptime, clock));
        Some(found)
    }

    fn fetch(&mut self, item: u32) -> Found {
        let Store { blocks, index, .. } = self;
        index.used(blocks, item);
        let state = blocks.state(item);
        if state & FETCHED == 0 {
            blocks.set_state(item, state | FETCHED);
        }
        Found {
            item,
            flags: blocks.flags(item),
            len: blocks.value_len(item) as usize,
            unique: blocks.unique(item),
        }
    }

    /// Removes a value. Returns whether there was one.
    pub(crate) fn delete(&mut self, key: Key<'_>) -> bool {
        let found = self.look_up(key);
        match found {
            Some(item) => {
                self.stats.delete_hits += 1;
                self.remove(item, key.hash);
            }
            None => self.stats.delete_misses += 1,
        }
        found.is_some()
    }

    /// Removes a value, if any, without counting.
    pub(crate) fn discard(&mut self, key: Key<'_>) {
        if let Some(item) = self.find(key) {
            self.remove(item, key.hash);
        }
    }

    /// Flushes all values, at once or after a delay.
    pub(crate) fn flush(&mut self, delay: i32, clock: &impl Clock) {
        if delay > 0 {
            self.flush_at = time::expiry(delay, clock);
            if self.flush_at > self.now {
                // Replies are valid until then at most.
                self.void_replies();
                return;
            }
        }
        self.flush_at = 0;
        self.unique += 1;
        self.flush_older_than(self.unique);
    }

    fn flush_older_than(&mut self, unique: u64) {
        self.flushed = unique;
        self.to_sweep = self.index.buckets();
        self.void_replies();
    }

    /// Lets the store write replies for handlers.
    pub(crate) fn set_mirror(&mut self, mirror: Mirror) {
        self.mirror = Some(mirror);
    }

    /// Seconds after which a `get` has to mark a value as used.
    const MIRRORED_SECONDS: u32 = 2;

    /// Lets handlers send the reply to a `get`, without the final `END`. The value was just found.
    pub(crate) fn publish_reply(&mut self, key: Key<'_>, found: Found, reply: &[u8]) {
        let Some(mirror) = &self.mirror else { return };
        let ends = [self.blocks.expires(found.item), self.flush_at];
        let ends = ends.into_iter().filter(|second| *second != 0);
        let deadline = ends.fold(self.now.saturating_add(Self::MIRRORED_SECONDS), u32::min);
        if mirror.publish(key.bytes, reply, time::start_of(deadline)) {
            self.blocks.set_state(found.item, self.blocks.state(found.item) | MIRRORED);
        }
    }

    /// Voids the reply with a value that is about to change.
    fn void_reply(&mut self, item: u32) {
        let state = self.blocks.state(item);
        if state & MIRRORED == 0 {
            return;
        }
        self.blocks.set_state(item, state & !MIRRORED);
        if let Some(mirror) = &self.mirror {
            mirror.void(self.key(item).bytes());
        }
    }

    fn void_replies(&self) {
        if let Some(mirror) = &self.mirror {
            mirror.void_all();
        }
    }

    /// Begins to read a value; `None` if too many connections read it.
    pub(crate) fn begin_reading(&mut self, found: Found) -> Option<Reading> {
        let Found { item, len, .. } = found;
        self.hold(item)?;
        Some(Reading { item, cursor: self.value(item), remaining: len })
    }

    /// Appends at most `max` bytes of a value. Returns whether these were the last.
    pub(crate) fn read(&self, reading: &mut Reading, max: usize, to: &mut Vec<u8>) -> bool {
        let n = reading.remaining.min(max);
        self.blocks.read(&mut reading.cursor, n, to);
        reading.remaining -= n;
        reading.remaining == 0
    }

    /// Appends a whole value that was just found.
    pub(crate) fn read_whole(&self, found: Found, to: &mut Vec<u8>) {
        self.blocks.read(&mut self.value(found.item), found.len, to);
    }

    /// Ends reading a value.
    pub(crate) fn release_reading(&mut self, reading: &Reading) {
        self.release(reading.item);
    }

    /// Returns the usage.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            items: self.index.items as u64,
            blocks: self.blocks.used() as u64,
            max_blocks: self.blocks.capacity() as u64,
            buckets: self.index.buckets() as u64,
        }
    }

    /// Resets the statistics.
    pub(crate) fn reset_stats(&mut self) {
        self.stats = Stats::default();
    }

    /// Returns the hash of a key.
    pub(crate) fn hash(hasher: &FixedState, key: &[u8]) -> u64 {
        hasher.hash_one(key)
    }

    fn hash_of(&self, item: u32) -> u64 {
        Self::hash(&self.hasher, self.key(item).bytes())
    }

    /// Finds a live value. Counts a stale one, and removes it.
    fn look_up(&mut self, key: Key<'_>) -> Option<u32> {
        let item = self.index.find(&self.blocks, key)?;
        match self.stale(item) {
            Some(Stale::Expired) => self.stats.get_expired += 1,
            Some(Stale::Flushed) => self.stats.get_flushed += 1,
            None => return Some(item),
        }
        self.find(key)
    }

    /// Finds a live value for a command that stores one. Removes a stale one.
    fn find(&mut self, key: Key<'_>) -> Option<u32> {
        let item = self.index.find(&self.blocks, key)?;
        if self.stale(item).is_none() {
            return Some(item);
        }
        self.count_unfetched(item);
        self.remove(item, key.hash);
        None
    }

    /// Returns the reason why a value is stale, if it is.
    fn stale(&self, item: u32) -> Option<Stale> {
        let expires = self.blocks.expires(item);
        if self.blocks.unique(item) < self.flushed {
            Some(Stale::Flushed)
        } else if expires != 0 && expires <= self.now {
            Some(Stale::Expired)
        } else {
            None
        }
    }

    fn count_unfetched(&mut self, item: u32) {
        self.stats.expired_unfetched += u64::from(self.blocks.state(item) & FETCHED == 0);
    }

    /// Removes an item; its memory is freed once no connection holds it.
    fn remove(&mut self, item: u32, hash: u64) {
        self.void_reply(item);
        self.index.unlink(&mut self.blocks, item, hash);
        if self.blocks.holders(item) == 0 {
            self.free(item);
        }
    }

    /// Holds an item, so that it is not freed; `None` if too many connections hold it.
    fn hold(&mut self, item: u32) -> Option<()> {
        let holders = self.blocks.holders(item).checked_add(1)?;
        self.blocks.set_holders(item, holders);
        if holders == 1 {
            self.held += self.blocks_of(item);
        }
        Some(())
    }

    /// Releases an item held by a connection.
    fn release(&mut self, item: u32) {
        let holders = self.blocks.holders(item) - 1;
        self.blocks.set_holders(item, holders);
        if holders == 0 {
            self.held -= self.blocks_of(item);
            if self.blocks.state(item) & LINKED == 0 {
                self.free(item);
            }
        }
    }

    fn free(&mut self, item: u32) {
        self.blocks.give(item, self.blocks.last(item), self.blocks_of(item));
    }

    /// Returns the number of an item's blocks.
    fn blocks_of(&self, item: u32) -> usize {
        let len = usize::from(self.blocks.key_len(item)) + self.blocks.value_len(item) as usize;
        Blocks::count_for(len)
    }
}

impl Usage {
    /// Returns the size of all its blocks in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks * BLOCK as u64
    }

    /// Size of a block in bytes.
    pub(crate) const BLOCK: u64 = BLOCK as u64;
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
