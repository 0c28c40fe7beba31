//! Storing of values: allocates memory, receives the bytes in place and links the item.

use super::blocks::{Blocks, NONE};
use super::{Clock, Cursor, Key, Store, time};

/// Attributes of a value besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) flags: u32,
    pub(crate) exptime: i32,
}

/// The condition for storing a value, and the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Unconditionally.
    Set,
    /// If the key has no value.
    Add,
    /// If the key has a value.
    Replace,
    /// After the existing value.
    Append,
    /// Before the existing value.
    Prepend,
    /// If the existing value has this number.
    Cas(u64),
}

/// Result of storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Stored,
    NotStored,
    Exists,
    NotFound,
}

/// The reason why no memory was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocError {
    /// The value exceeds the maximum size.
    TooLarge,
    /// All other memory is in use, or there is too little.
    NoMemory,
}

/// A value being received. It must be [stored](Store::store) or [abandoned](Store::abandon).
#[derive(Debug)]
#[must_use]
pub(crate) struct PendingItem {
    pub(super) item: u32,
    pub(super) cursor: Cursor,
}

/// Overhead that memcached adds to an item before it compares the size with the maximum; equal here, so
/// that the same values are rejected.
const ITEM_HEADER: usize = 59;

/// Overhead of flags other than 0.
const FLAGS: usize = 4;

/// Returns an item's size as memcached counts it.
pub(super) fn counted(key_len: usize, flags: u32, len: usize) -> usize {
    key_len + len + ITEM_HEADER + if flags == 0 { 0 } else { FLAGS }
}

impl Store {
    /// Allocates memory for a value.
    pub(crate) fn allocate(
        &mut self,
        key: Key<'_>,
        attributes: Attributes,
        len: usize,
        clock: &impl Clock,
    ) -> Result<PendingItem, AllocError> {
        let expires = time::expiry(attributes.exptime, clock);
        let allocated = self.new_item(key.bytes, attributes.flags, expires, len);
        match allocated {
            Err(AllocError::TooLarge) => self.stats.store_too_large += 1,
            Err(AllocError::NoMemory) => self.stats.store_no_memory += 1,
            Ok(_) => {}
        }
        self.sweep(Self::SWEPT_PER_STORE);
        allocated
    }

    /// Creates an item with its key, held by one connection. The cursor is at the start of its value.
    pub(super) fn new_item(
        &mut self,
        key: &[u8],
        flags: u32,
        expires: u32,
        len: usize,
    ) -> Result<PendingItem, AllocError> {
        if counted(key.len(), flags, len) > self.max_item {
            return Err(AllocError::TooLarge);
        }
        let n = Blocks::count_for(key.len() + len);
        self.make_room(n)?;
        let (item, last) = self.blocks.take(n);
        let blocks = &mut self.blocks;
        blocks.set_last(item, last);
        blocks.set_chained(item, NONE);
        blocks.set_flags(item, flags);
        blocks.set_expires(item, expires);
        blocks.set_value_len(item, len as u32);
        blocks.set_unique(item, 0);
        blocks.set_holders(item, 1);
        blocks.set_key_len(item, key.len() as u8);
        blocks.set_state(item, 0);
        let mut cursor = Blocks::cursor(item);
        blocks.write(&mut cursor, key);
        self.held += n;
        Ok(PendingItem { item, cursor })
    }

    /// Evicts the least recently used items until `n` blocks are available; none if all of them were too few.
    fn make_room(&mut self, n: usize) -> Result<(), AllocError> {
        if n > self.blocks.capacity() - self.held {
            return Err(AllocError::NoMemory);
        }
        while self.blocks.available() < n {
            let oldest = self.index.oldest().ok_or(AllocError::NoMemory)?;
            self.evict(oldest);
        }
        Ok(())
    }

    fn evict(&mut self, item: u32) {
        if self.stale(item).is_some() {
            self.stats.reclaimed += 1;
            self.count_unfetched(item);
        } else {
            self.stats.evictions += 1;
            let fetched = self.blocks.state(item) & super::FETCHED != 0;
            self.stats.evicted_unfetched += u64::from(!fetched);
        }
        let hash = self.hash_of(item);
        self.remove(item, hash);
    }

    /// Appends to a value being received. The caller appends no more than it has allocated.
    pub(crate) fn fill(&mut self, pending: &mut PendingItem, bytes: &[u8]) {
        self.blocks.write(&mut pending.cursor, bytes);
    }

    /// Frees the memory of a value that is not stored.
    pub(crate) fn abandon(&mut self, pending: &PendingItem) {
        self.release(pending.item);
    }

    /// Stores a received value if its verb permits it.
    pub(crate) fn store(&mut self, verb: Verb, pending: &PendingItem, hash: u64) -> Outcome {
        let new = pending.item;
        let key = self.key(new);
        let old = self.find(Key { bytes: key.bytes(), hash });
        let stored = match (verb, old) {
            (Verb::Set, old) => self.put(new, old, hash),
            (Verb::Replace, Some(old)) => self.put(new, Some(old), hash),
            (Verb::Add, None) => self.put(new, None, hash),
            (Verb::Add, Some(old)) => {
                self.index.used(&mut self.blocks, old);
                Outcome::NotStored
            }
            (Verb::Append | Verb::Prepend, Some(old)) => {
                self.extend(new, old, key.bytes(), hash, verb == Verb::Append)
            }
            (Verb::Replace | Verb::Append | Verb::Prepend, None) => Outcome::NotStored,
            (Verb::Cas(unique), old) => self.compare_and_swap(new, old, unique, hash),
        };
        self.release(new);
        stored
    }

    fn compare_and_swap(&mut self, new: u32, old: Option<u32>, unique: u64, hash: u64) -> Outcome {
        match old {
            None => {
                self.stats.cas_misses += 1;
                Outcome::NotFound
            }
            Some(old) if self.blocks.unique(old) == unique => {
                self.stats.cas_hits += 1;
                self.put(new, Some(old), hash)
            }
            Some(_) => {
                self.stats.cas_badval += 1;
                Outcome::Exists
            }
        }
    }

    /// Links an item, replacing the old one if any.
    pub(super) fn put(&mut self, new: u32, old: Option<u32>, hash: u64) -> Outcome {
        if let Some(old) = old {
            self.remove(old, hash);
        }
        self.unique += 1;
        self.blocks.set_unique(new, self.unique);
        self.index.link(&mut self.blocks, new, hash);
        self.stats.total_items += 1;
        Outcome::Stored
    }

    /// Joins two values in a third item, which replaces the old one.
    fn extend(&mut self, new: u32, old: u32, key: &[u8], hash: u64, append: bool) -> Outcome {
        let (flags, expires) = (self.blocks.flags(old), self.blocks.expires(old));
        let len = |item| self.blocks.value_len(item) as usize;
        let (old_len, new_len) = (len(old), len(new));
        // Eviction must not free it.
        if self.hold(old).is_none() {
            return Outcome::NotStored;
        }
        let whole = self.new_item(key, flags, expires, old_len + new_len);
        let stored = match whole {
            Err(_) => Outcome::NotStored,
            Ok(mut whole) => {
                let parts = [(old, old_len), (new, new_len)];
                let parts = if append { parts } else { [parts[1], parts[0]] };
                for (part, len) in parts {
                    let mut from = Blocks::cursor(part);
                    self.blocks.advance(&mut from, key.len());
                    self.blocks.copy(&mut from, &mut whole.cursor, len);
                }
                let linked = self.blocks.state(old) & super::LINKED != 0;
                let stored = self.put(whole.item, linked.then_some(old), hash);
                self.release(whole.item);
                stored
            }
        };
        self.release(old);
        stored
    }

    /// Copies an item's key.
    pub(super) fn key(&self, item: u32) -> KeyCopy {
        let mut copy =
            KeyCopy { bytes: [0; Store::MAX_KEY], len: self.blocks.key_len(item).into() };
        self.blocks.read_into(Blocks::cursor(item), &mut copy.bytes[..copy.len]);
        copy
    }
}

/// A key on the stack.
pub(super) struct KeyCopy {
    bytes: [u8; Store::MAX_KEY],
    len: usize,
}

impl KeyCopy {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
