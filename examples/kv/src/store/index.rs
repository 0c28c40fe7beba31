//! Index of items: a hash table of keys, and a list in LRU order.

use std::collections::TryReserveError;

use super::blocks::{Blocks, NONE};
use super::item::LINKED;

/// The table has its full size from the start, so growth never blocks the server.
pub(super) struct Index {
    buckets: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// Number of items.
    pub(super) items: usize,
    /// Number of items with an expiry time.
    pub(super) expiring: usize,
    /// Number of times that an item became the newest.
    moves: u32,
}

/// A key with its hash.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) hash: u64,
}

impl Index {
    /// Returns the number of buckets for this many blocks: at most two blocks per bucket.
    pub(super) fn buckets_for(blocks: usize) -> usize {
        1 << blocks.max(1).ilog2()
    }

    pub(super) fn new(blocks: usize) -> Result<Self, TryReserveError> {
        let mut buckets = Vec::new();
        let n = Self::buckets_for(blocks);
        buckets.try_reserve_exact(n)?;
        buckets.resize(n, NONE);
        Ok(Index { buckets, newest: NONE, oldest: NONE, items: 0, expiring: 0, moves: 0 })
    }

    pub(super) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Returns the least recently used item.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Finds the item of a key.
    pub(super) fn find(&self, blocks: &Blocks, key: Key<'_>) -> Option<u32> {
        let mut item = self.buckets[self.bucket(key.hash)];
        while item != NONE {
            if usize::from(blocks.key_len(item)) == key.bytes.len()
                && blocks.is_next(&mut Blocks::cursor(item), key.bytes)
            {
                return Some(item);
            }
            item = blocks.chained(item);
        }
        None
    }

    /// Iterates over the items of a bucket.
    pub(super) fn chain(&self, blocks: &Blocks, bucket: usize) -> impl Iterator<Item = u32> {
        let some = |item: u32| (item != NONE).then_some(item);
        std::iter::successors(some(self.buckets[bucket]), move |item| some(blocks.chained(*item)))
    }

    /// Adds an item with a unique key as the newest.
    pub(super) fn link(&mut self, blocks: &mut Blocks, item: u32, hash: u64) {
        let bucket = self.bucket(hash);
        blocks.set_chained(item, self.buckets[bucket]);
        self.buckets[bucket] = item;
        blocks.set_state(item, blocks.state(item) | LINKED);
        self.push(blocks, item);
        self.items += 1;
        self.expiring += usize::from(blocks.expires(item) != 0);
    }

    /// Removes an item.
    pub(super) fn unlink(&mut self, blocks: &mut Blocks, item: u32, hash: u64) {
        let next = blocks.chained(item);
        let bucket = self.bucket(hash);
        let mut at = self.buckets[bucket];
        if at == item {
            self.buckets[bucket] = next;
        } else {
            while blocks.chained(at) != item {
                at = blocks.chained(at);
            }
            blocks.set_chained(at, next);
        }
        blocks.set_state(item, blocks.state(item) & !LINKED);
        self.pull(blocks, item);
        self.items -= 1;
        self.expiring -= usize::from(blocks.expires(item) != 0);
    }

    /// Sets the expiry time of an item.
    pub(super) fn set_expires(&mut self, blocks: &mut Blocks, item: u32, expires: u32) {
        self.expiring -= usize::from(blocks.expires(item) != 0);
        self.expiring += usize::from(expires != 0);
        blocks.set_expires(item, expires);
    }

    /// Marks an item as used. An item among the newest quarter stays in place, so frequent use causes no
    /// writes to its neighbors.
    pub(super) fn used(&mut self, blocks: &mut Blocks, item: u32) {
        let since = self.moves.wrapping_sub(blocks.stamp(item)) as usize;
        if since > self.items / 4 {
            self.pull(blocks, item);
            self.push(blocks, item);
        }
    }

    fn push(&mut self, blocks: &mut Blocks, item: u32) {
        self.moves = self.moves.wrapping_add(1);
        blocks.set_stamp(item, self.moves);
        blocks.set_newer(item, NONE);
        blocks.set_older(item, self.newest);
        match self.newest {
            NONE => self.oldest = item,
            newest => blocks.set_newer(newest, item),
        }
        self.newest = item;
    }

    fn pull(&mut self, blocks: &mut Blocks, item: u32) {
        let (newer, older) = (blocks.newer(item), blocks.older(item));
        match newer {
            NONE => self.newest = older,
            newer => blocks.set_older(newer, older),
        }
        match older {
            NONE => self.oldest = newer,
            older => blocks.set_newer(older, newer),
        }
    }
}
