use std::os::fd::OwnedFd;

use evring::files::{File, FileKind};

use super::*;
use crate::decision::representation::RepresentationHeaders;
use crate::response::clock::Clock;

fn cache(max_files: usize, max_bytes: usize) -> Cache {
    let (cache_files, cache_bytes) = (max_files, max_bytes);
    Cache::new(&Limits { cache_files, cache_bytes, ..Limits::default() })
}

fn prepared(body: &[u8]) -> PreparedResponse {
    PreparedResponse::new(RepresentationHeaders::plain("text/plain"), body, &Clock::new())
}

fn source(len: u64) -> Option<CachedFile> {
    let meta = Metadata { kind: FileKind::Regular, len, modified_ns: 0, changed_ns: 0, inode: 1 };
    Some(CachedFile {
        paths: Paths::new(Path::new("path")),
        meta,
        codings: Codings::default(),
        is_dated: true,
    })
}

fn is_fresh(cache: &mut Cache, target: &[u8], now: Instant) -> bool {
    matches!(cache.find(target, now), CacheLookup::Fresh(..))
}

/// Checks the cache's invariants.
fn check(cache: &Cache) {
    assert_eq!(cache.index.len(), cache.entries.len());
    assert_eq!(cache.bytes, cache.entries.iter().map(|entry| entry.bytes).sum::<usize>());
    assert!(cache.bytes <= cache.max_bytes && cache.entries.len() <= cache.max_entries);
    for (at, entry) in cache.entries.iter().enumerate() {
        assert_eq!(cache.index.get(&entry.target), Some(&at));
    }
}

#[test]
fn entry_becomes_stale_then_is_revalidated_or_removed() {
    let (mut cache, now) = (cache(8, 1 << 20), Instant::now());
    let later = now + Limits::default().cache_ttl;
    cache.insert(b"/a", prepared(b"a"), source(1), now);
    assert!(is_fresh(&mut cache, b"/a", now) && !is_fresh(&mut cache, b"/b", now));
    let CacheLookup::Stale(target, paths) = cache.find(b"/a", later) else { panic!("still fresh") };
    assert_eq!((&target[..], paths), (&b"/a"[..], Paths::new(Path::new("path"))));
    assert!(cache.revalidate(b"/a", |source| source.meta.len == 1, later));
    assert!(is_fresh(&mut cache, b"/a", later));
    assert!(!cache.revalidate(b"/a", |source| source.meta.len == 2, later));
    assert!(matches!(cache.find(b"/a", later), CacheLookup::Miss));
    assert!(!cache.revalidate(b"/a", |_| true, later));
    check(&cache);
}

#[test]
fn response_without_a_source_stays_fresh() {
    let (mut cache, now) = (cache(8, 1 << 20), Instant::now());
    cache.insert(b"/", prepared(b"page"), None, now);
    assert!(is_fresh(&mut cache, b"/", now + Duration::from_secs(1 << 20)));
}

#[test]
fn entries_are_bounded_and_used_ones_are_kept() {
    let (mut cache, now) = (cache(4, 1 << 20), Instant::now());
    for n in 0..100u8 {
        cache.insert(&[n], prepared(&[n]), source(1), now);
        if n > 0 {
            assert!(is_fresh(&mut cache, &[0], now), "after {n}");
        }
        check(&cache);
    }
    assert_eq!(cache.entries.len(), 4);
}

#[test]
fn bytes_are_bounded() {
    let (mut cache, now) = (cache(100, 50_000), Instant::now());
    for n in 0..100u8 {
        cache.insert(&[n % 30], prepared(&vec![n; usize::from(n) * 100]), source(1), now);
        assert!(is_fresh(&mut cache, &[n % 30], now));
        check(&cache);
    }
    let before = cache.entries.len();
    cache.insert(b"too large", prepared(&[0; 50_000]), source(1), now);
    assert_eq!(cache.entries.len(), before);
}

#[test]
fn cache_can_be_disabled() {
    for (files, bytes) in [(0, 1 << 20), (8, 0)] {
        let (mut cache, now) = (cache(files, bytes), Instant::now());
        cache.insert(b"/a", prepared(b"a"), source(1), now);
        assert!(!is_fresh(&mut cache, b"/a", now));
    }
}

#[test]
fn file_that_is_being_sent_was_opened_again_for_the_next_request() {
    let (mut cache, now) = (cache(8, 1 << 20), Instant::now());
    let file = File::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    let sent = file.clone();
    let representation = RepresentationHeaders::plain("text/plain");
    let response = PreparedResponse::from_file(representation, file, 1, &Clock::new());
    cache.insert(b"/large", response, source(1), now);
    let later = now + Limits::default().cache_ttl + Duration::from_secs(60);
    assert_eq!(cache.close_idle(later), Some(later + Cache::IDLE_TIMEOUT));
    assert!(matches!(cache.find(b"/large", later), CacheLookup::Stale(..)));
    drop(sent);
    // The request made the entry a recent one.
    let later = later + Duration::from_secs(60);
    assert_eq!(cache.close_idle(later), None);
    assert!(matches!(cache.find(b"/large", later), CacheLookup::Miss));
}
