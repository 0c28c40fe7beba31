use std::time::Duration;

use super::*;

/// A clock that advances only when set.
struct FixedClock(u64);

impl Clock for FixedClock {
    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.0)
    }

    fn unix(&self) -> Duration {
        Duration::from_secs(1_700_000_000 + self.0)
    }
}

const HASHER: FixedState = FixedState::with_seed(7);

fn store(blocks: usize) -> Store {
    Store::new(blocks * (BLOCK + 4), 1 << 20, HASHER).unwrap()
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { bytes, hash: Store::hash(&HASHER, bytes) }
}

fn put_until(store: &mut Store, name: &str, value: &[u8], exptime: i32) -> Result<(), AllocError> {
    let key = key(name.as_bytes());
    let attributes = Attributes { flags: 0, exptime };
    let mut pending = store.allocate(key, attributes, value.len(), &FixedClock(0))?;
    store.fill(&mut pending, value);
    assert_eq!(store.store(Verb::Set, &pending, key.hash), Outcome::Stored);
    Ok(())
}

fn put(store: &mut Store, name: &str, value: &[u8]) -> Result<(), AllocError> {
    put_until(store, name, value, 0)
}

fn get(store: &mut Store, name: &str) -> Option<Vec<u8>> {
    let found = store.get(key(name.as_bytes()))?;
    let mut value = Vec::new();
    store.read_whole(found, &mut value);
    Some(value)
}

#[test]
fn least_recently_used_is_evicted() {
    let mut store = store(3);
    for name in ["a", "b", "c"] {
        put(&mut store, name, b"x").unwrap();
    }
    assert!(get(&mut store, "a").is_some());
    put(&mut store, "d", b"x").unwrap();
    let kept = ["a", "b", "c", "d"].map(|name| get(&mut store, name).is_some());
    assert_eq!(kept, [true, false, true, true]);
    assert_eq!((store.stats.evictions, store.usage().items), (1, 3));
}

#[test]
fn recently_used_values_are_not_evicted() {
    let mut store = store(100);
    for n in 0..100 {
        put(&mut store, &n.to_string(), b"x").unwrap();
    }
    for n in 100..1_000 {
        // Read once per 70 puts, with room for 100.
        if (n - 100) % 70 == 0 {
            assert!(get(&mut store, "7").is_some(), "{n}");
        }
        put(&mut store, &n.to_string(), b"x").unwrap();
    }
    assert!(get(&mut store, "8").is_none());
}

#[test]
fn every_block_is_freed() {
    let mut store = store(100);
    for len in [10, 2_000, 10, 300] {
        put(&mut store, "a", &vec![b'x'; len]).unwrap();
    }
    assert_eq!(store.blocks.used(), Blocks::count_for(301));
    assert!(store.delete(key(b"a")));
    assert!(!store.delete(key(b"a")));
    assert_eq!((store.blocks.used(), store.usage().items), (0, 0));
}

#[test]
fn value_that_does_not_fit_evicts_nothing() {
    let mut store = store(10);
    put(&mut store, "a", b"x").unwrap();
    assert_eq!(put(&mut store, "b", &[b'x'; 2_000]), Err(AllocError::NoMemory));
    assert_eq!(put(&mut store, "b", &vec![b'x'; 1 << 20]), Err(AllocError::TooLarge));
    assert_eq!((store.usage().items, store.stats.evictions), (1, 0));
}

#[test]
fn maximum_value_size_matches_memcached() {
    for (name, flags, max) in
        [("a", 0, 1_048_516), ("a", 5, 1_048_512), ("0123456789", 5, 1_048_503)]
    {
        let mut store = store(10_000);
        let attributes = Attributes { flags, exptime: 0 };
        let allocate = |store: &mut Store, len| {
            store.allocate(key(name.as_bytes()), attributes, len, &FixedClock(0)).map(|pending| {
                store.abandon(&pending);
            })
        };
        assert_eq!(allocate(&mut store, max), Ok(()));
        assert_eq!(allocate(&mut store, max + 1), Err(AllocError::TooLarge));
        assert_eq!(store.blocks.used(), 0);
    }
}

#[test]
fn values_being_received_are_not_evicted() {
    let mut store = store(10);
    let pending = store
        .allocate(key(b"a"), Attributes { flags: 0, exptime: 0 }, 900, &FixedClock(0))
        .unwrap();
    assert_eq!(put(&mut store, "b", &[b'x'; 900]), Err(AllocError::NoMemory));
    store.abandon(&pending);
    put(&mut store, "b", &[b'x'; 900]).unwrap();
}

#[test]
fn value_being_read_does_not_change() {
    let mut store = store(100);
    let old = [b'o'; 1_000];
    put(&mut store, "a", &old).unwrap();
    let found = store.get(key(b"a")).unwrap();
    let mut reading = store.begin_reading(found).unwrap();
    let mut read = Vec::new();
    assert!(!store.read(&mut reading, 400, &mut read));
    put(&mut store, "a", b"1").unwrap();
    assert!(store.delete(key(b"a")));
    for n in 0..1_000 {
        put(&mut store, &n.to_string(), b"x").unwrap();
    }
    assert!(store.read(&mut reading, 1_000, &mut read));
    assert_eq!(read, old);
    let used = store.blocks.used();
    store.release_reading(&reading);
    assert_eq!(store.blocks.used(), used - Blocks::count_for(1_001));
}

#[test]
fn number_being_read_is_not_changed_in_place() {
    let mut store = store(100);
    put(&mut store, "a", b"100").unwrap();
    let found = store.get(key(b"a")).unwrap();
    let mut reading = store.begin_reading(found).unwrap();
    assert_eq!(store.count(key(b"a"), 1, false), Counted::Now(99));
    let mut read = Vec::new();
    assert!(store.read(&mut reading, 10, &mut read));
    store.release_reading(&reading);
    assert_eq!((&read[..], &get(&mut store, "a").unwrap()[..]), (&b"100"[..], &b"99"[..]));
}

#[test]
fn expired_values_are_swept_without_requests() {
    let mut store = store(1_000);
    for n in 0..100 {
        put_until(&mut store, &n.to_string(), b"x", 10).unwrap();
    }
    put(&mut store, "stays", b"x").unwrap();
    store.tick(&FixedClock(9));
    assert_eq!(store.usage().items, 101);
    // 512 buckets, 256 of them per second.
    store.tick(&FixedClock(10));
    store.tick(&FixedClock(11));
    assert_eq!((store.usage().items, store.blocks.used()), (1, 1));
    assert_eq!((store.stats.crawler_reclaimed, store.stats.expired_unfetched), (100, 100));
    assert_eq!(store.index.expiring, 0);
}

#[test]
fn time_does_not_go_back() {
    let mut store = store(10);
    put_until(&mut store, "a", b"x", 10).unwrap();
    store.tick(&FixedClock(10));
    store.tick(&FixedClock(5));
    assert_eq!(get(&mut store, "a"), None);
}

#[test]
fn flush_removes_earlier_values_and_frees_their_memory() {
    let mut store = store(1_000);
    for n in 0..100 {
        put(&mut store, &n.to_string(), b"x").unwrap();
    }
    store.flush(0, &FixedClock(0));
    put(&mut store, "new", b"x").unwrap();
    assert_eq!((get(&mut store, "7"), get(&mut store, "new")), (None, Some(b"x".to_vec())));
    store.tick(&FixedClock(1));
    store.tick(&FixedClock(2));
    assert_eq!(store.usage().items, 1);
}

#[test]
fn delayed_flush_can_be_replaced() {
    let mut store = store(1_000);
    put(&mut store, "a", b"x").unwrap();
    store.flush(10, &FixedClock(0));
    store.flush(20, &FixedClock(0));
    store.tick(&FixedClock(10));
    put(&mut store, "b", b"x").unwrap();
    assert!(get(&mut store, "a").is_some());
    store.tick(&FixedClock(20));
    put(&mut store, "c", b"x").unwrap();
    let kept = ["a", "b", "c"].map(|name| get(&mut store, name).is_some());
    assert_eq!(kept, [false, false, true]);
}

#[test]
fn append_that_evicts_keeps_its_own_value() {
    let mut store = store(20);
    put(&mut store, "a", &[b'a'; 900]).unwrap();
    for n in 0..5 {
        put(&mut store, &n.to_string(), b"x").unwrap();
    }
    let attributes = Attributes { flags: 0, exptime: 0 };
    let append = |store: &mut Store, len| {
        let mut pending = store.allocate(key(b"a"), attributes, len, &FixedClock(0)).unwrap();
        store.fill(&mut pending, &vec![b'b'; len]);
        store.store(Verb::Append, &pending, key(b"a").hash)
    };
    assert_eq!(append(&mut store, 10), Outcome::Stored);
    assert_eq!(get(&mut store, "a"), Some([&[b'a'; 900][..], &[b'b'; 10]].concat()));
    // Twice the value does not fit.
    assert_eq!(append(&mut store, 500), Outcome::NotStored);
    assert!(store.blocks.used() <= 20);
}

#[test]
fn append_that_failed_removed_the_value() {
    let mut store = store(20);
    put(&mut store, "other", b"x").unwrap();
    put(&mut store, "a", &[b'a'; 900]).unwrap();
    let attributes = Attributes { flags: 0, exptime: 0 };
    for verb in [Verb::Append, Verb::Prepend] {
        let mut pending = store.allocate(key(b"a"), attributes, 500, &FixedClock(0)).unwrap();
        store.fill(&mut pending, &[b'b'; 500]);
        assert_eq!(store.store(verb, &pending, key(b"a").hash), Outcome::NotStored);
        assert_eq!(get(&mut store, "a"), Some(vec![b'a'; 900]));
        assert_eq!(get(&mut store, "other"), Some(b"x".to_vec()));
    }
    assert_eq!((store.stats.evictions, store.held), (0, 0));
    assert_eq!(store.blocks.used(), 1 + Blocks::count_for(901));
}

#[test]
fn numbers_of_blocks_wrapped_around_beyond_512_gib() {
    assert_eq!(Store::capacity(1320), 10);
    // The last block has this number, as the first is never used.
    assert!(u32::try_from(Store::capacity(usize::MAX)).is_ok());
}
