//! Values under a limit of memory; the least recently used make room.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Instant;

use bytes::Bytes;

use super::LINE_END;

/// A stored value.
#[derive(Debug)]
pub(super) struct Item {
    flags: u32,
    expires: Option<Instant>,
    /// The value and the line end behind it, as they are sent.
    pub data: Bytes,
    /// Its number among all that were ever stored.
    unique: u64,
    /// Its place in the order of use.
    used: u64,
}

impl Item {
    pub(super) fn new(flags: u32, expires: Option<Instant>, data: Bytes) -> Self {
        Item { flags, expires, data, unique: 0, used: 0 }
    }

    fn expired(&self, now: Instant) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }

    /// Appends the line that precedes the value in a reply.
    pub(super) fn write_header(&self, to: &mut Vec<u8>, key: &[u8], unique: bool) {
        to.extend_from_slice(b"VALUE ");
        to.extend_from_slice(key);
        let len = self.data.len() - LINE_END.len();
        let _ = write!(to, " {} {len}", self.flags);
        if unique {
            let _ = write!(to, " {}", self.unique);
        }
        to.extend_from_slice(LINE_END);
    }
}

/// All values. Trees, for a hash table would take its seed from elsewhere than the mechanism.
#[derive(Debug)]
pub(super) struct Store {
    items: BTreeMap<Bytes, Item>,
    /// The keys in the order of their last use.
    order: BTreeMap<u64, Bytes>,
    /// Counts uses and stores.
    clock: u64,
    bytes: usize,
    limit: usize,
    evicted: u64,
}

impl Store {
    /// What an item costs besides its bytes: its part of two trees.
    const OVERHEAD: usize = 200;

    pub(super) fn new(limit: usize) -> Self {
        let (items, order) = (BTreeMap::new(), BTreeMap::new());
        Store { items, order, clock: 0, bytes: 0, limit, evicted: 0 }
    }

    /// What a value of `len` bytes, with its line end, takes from the limit.
    pub(super) fn cost(key: &[u8], len: usize) -> usize {
        key.len() + len + Self::OVERHEAD
    }

    /// Sets memory aside for a value that is coming; false when there would not be enough, even
    /// without all that is stored.
    pub(super) fn reserve(&mut self, cost: usize) -> bool {
        if cost > self.limit {
            return false;
        }
        while self.bytes + cost > self.limit {
            let Some((_, key)) = self.order.pop_first() else { return false };
            self.drop_item(&key);
            self.evicted += 1;
        }
        self.bytes += cost;
        true
    }

    /// Gives back memory that was set aside.
    pub(super) fn release(&mut self, cost: usize) {
        self.bytes -= cost;
    }

    /// Stores a value that memory was set aside for.
    pub(super) fn insert(&mut self, key: Bytes, mut item: Item) {
        self.drop_item(&key);
        self.clock += 1;
        (item.unique, item.used) = (self.clock, self.clock);
        self.order.insert(self.clock, key.clone());
        self.items.insert(key, item);
    }

    /// Finds a value and makes it the last to make room.
    pub(super) fn get(&mut self, key: &[u8], now: Instant) -> Option<&Item> {
        if self.items.get(key)?.expired(now) {
            self.drop_item(key);
            return None;
        }
        let item = self.items.get_mut(key)?;
        self.clock += 1;
        let name = self.order.remove(&item.used)?;
        item.used = self.clock;
        self.order.insert(self.clock, name);
        Some(item)
    }

    /// Removes a value; says whether there was one.
    pub(super) fn remove(&mut self, key: &[u8], now: Instant) -> bool {
        self.drop_item(key).is_some_and(|item| !item.expired(now))
    }

    fn drop_item(&mut self, key: &[u8]) -> Option<Item> {
        let (key, item) = self.items.remove_entry(key)?;
        self.order.remove(&item.used);
        self.bytes -= Self::cost(&key, item.data.len());
        Some(item)
    }

    /// The reply to `stats`.
    pub(super) fn stats(&self) -> String {
        let (items, Store { bytes, limit, evicted, .. }) = (self.items.len(), self);
        format!(
            "STAT curr_items {items}\r\nSTAT bytes {bytes}\r\nSTAT limit_maxbytes {limit}\r\n\
             STAT evictions {evicted}\r\nEND\r\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &mut Store, key: &'static str, len: usize) -> bool {
        let fits = store.reserve(Store::cost(key.as_bytes(), len));
        if fits {
            store.insert(key.into(), Item::new(0, None, vec![b'x'; len].into()));
        }
        fits
    }

    fn has(store: &mut Store, key: &str) -> bool {
        store.get(key.as_bytes(), Instant::now()).is_some()
    }

    #[test]
    fn the_least_recently_used_makes_room() {
        let mut store = Store::new(3 * Store::cost(b"a", 10));
        assert!(["a", "b", "c"].into_iter().all(|key| put(&mut store, key, 10)));
        assert!(has(&mut store, "a"));
        assert!(put(&mut store, "d", 10));
        let kept: Vec<_> = ["a", "b", "c", "d"].map(|key| has(&mut store, key)).into();
        assert_eq!(kept, [true, false, true, true]);
        assert_eq!((store.evicted, store.items.len(), store.order.len()), (1, 3, 3));
    }

    #[test]
    fn memory_is_given_back_to_the_last_byte() {
        let mut store = Store::new(1 << 20);
        for len in [10, 20, 10] {
            assert!(put(&mut store, "a", len));
        }
        assert_eq!(store.bytes, Store::cost(b"a", 10));
        assert!(store.remove(b"a", Instant::now()));
        assert!(!store.remove(b"a", Instant::now()));
        assert_eq!((store.bytes, store.order.len()), (0, 0));
    }

    #[test]
    fn what_does_not_fit_alone_is_refused() {
        let mut store = Store::new(1000);
        assert!(put(&mut store, "a", 10));
        assert!(!put(&mut store, "b", 1000));
        assert_eq!((store.items.len(), store.evicted), (1, 0));
        assert!(store.reserve(900), "`a` makes room");
        assert!(!store.reserve(900), "and values that are arriving can't");
    }

    #[test]
    fn an_expired_value_is_gone_and_its_memory_free() {
        let (mut store, now) = (Store::new(1000), Instant::now());
        assert!(store.reserve(Store::cost(b"a", 10)));
        store.insert("a".into(), Item::new(0, Some(now), vec![b'x'; 10].into()));
        assert!(store.get(b"a", now).is_none());
        assert_eq!(store.bytes, 0);
    }
}
