//! The response cache: small files as prepared responses.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use evring::files::{FilePath, Metadata};
use foldhash::fast::FixedState;

use crate::decision::coding::{Coding, Codings};
use crate::decision::options::HostIndex;
use crate::limits::Limits;
use crate::response::prepared::PreparedResponse;

/// Prepared responses by request target as received, so that a lookup decodes nothing.
/// Bounded in bytes and entries; the clock algorithm evicts.
#[derive(Debug)]
pub(crate) struct Cache {
    index: HashMap<Arc<[u8]>, usize, FixedState>,
    entries: Vec<CacheEntry>,
    /// Index where the next eviction scan begins.
    hand: usize,
    bytes: usize,
    max_bytes: usize,
    max_entries: usize,
    ttl: Duration,
}

/// Suffixes of the cache keys of coded files; no target contains a NUL.
const CODING_SUFFIXES: [&[u8]; 3] = [b"\0br", b"\0zst", b"\0gz"];

/// Length of the part of a key that names a virtual host other than the first.
const HOST_SUFFIX_BYTES: usize = 4;

/// Writes the cache key of a target: the target itself for a plain file of the first host.
pub(crate) fn put_key(out: &mut Vec<u8>, name: &[u8], host: HostIndex, coding: Option<Coding>) {
    out.clear();
    out.extend_from_slice(name);
    if host != HostIndex::default() {
        let [high, low] = host.0.to_be_bytes();
        out.extend_from_slice(&[0, b'h', high, low]);
    }
    if let Some(coding) = coding {
        out.extend_from_slice(CODING_SUFFIXES[coding as usize]);
    }
}

/// Returns the length of the target in a key.
pub(crate) fn target_len(key: &[u8], host: HostIndex, coding: Option<Coding>) -> usize {
    let coding = coding.map_or(0, |coding| CODING_SUFFIXES[coding as usize].len());
    let host = if host == HostIndex::default() { 0 } else { HOST_SUFFIX_BYTES };
    key.len() - host - coding
}

/// A response and the file it was made from.
#[derive(Debug)]
pub(crate) struct CacheEntry {
    pub(crate) prepared: PreparedResponse,
    target: Arc<[u8]>,
    source: Option<CachedFile>,
    bytes: usize,
    fresh_until: Instant,
    used: bool,
}

/// Paths of a file, plain and in every coding. Each is made once, so that later lookups do not allocate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    pub(crate) plain: FilePath,
    /// Made when they are first looked for: without precompressed files never.
    coded: [OnceLock<FilePath>; 3],
}

impl Paths {
    pub(crate) fn new(path: &Path) -> Arc<Self> {
        Arc::new(Paths { plain: FilePath::new(path), coded: Default::default() })
    }

    /// Returns the path of the file in a coding, or of the plain file.
    pub(crate) fn of(&self, coding: Option<Coding>) -> FilePath {
        let Some(coding) = coding else { return self.plain.clone() };
        let coded = self.coded[coding as usize].get_or_init(|| {
            let mut name = self.plain.as_path().as_os_str().to_owned();
            name.push(coding.extension());
            FilePath::new(&name)
        });
        coded.clone()
    }
}

/// The file that a response was made from.
#[derive(Clone, Debug)]
pub(crate) struct CachedFile {
    pub(crate) paths: Arc<Paths>,
    pub(crate) meta: Metadata,
    /// Codings in which the file can be sent.
    pub(crate) codings: Codings,
    /// Whether the second of the file's last change was over. If not, the next revalidation
    /// replaces the response.
    pub(crate) is_dated: bool,
}

#[derive(Debug)]
pub(crate) enum CacheLookup<'a> {
    /// A response that is still fresh, and the codings of its file.
    Fresh(&'a mut PreparedResponse, Codings),
    /// A response to revalidate with stat. The first request revalidates; for a short time,
    /// other requests still get the response.
    Stale(Arc<[u8]>, Arc<Paths>),
    Miss,
}

impl Cache {
    /// Approximate memory of an entry in addition to its response, in bytes.
    const OVERHEAD: usize = 256;

    /// Time that an unused file stays open.
    const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

    /// While a response is revalidated, other requests get it for this fraction of its TTL.
    const GRACE_DIVISOR: u32 = 8;

    pub(crate) fn new(limits: &Limits) -> Self {
        Cache {
            index: HashMap::with_hasher(FixedState::with_seed(0)),
            entries: Vec::new(),
            hand: 0,
            bytes: 0,
            max_bytes: limits.cache_bytes,
            max_entries: limits.cache_files,
            ttl: limits.cache_ttl,
        }
    }

    /// Seeds the hash function, so that clients cannot predict collisions. Clears the cache.
    pub(crate) fn seed(&mut self, seed: u64) {
        let hasher = FixedState::with_seed(seed);
        self.index = HashMap::with_hasher(hasher);
        self.entries.clear();
    }

    #[inline]
    pub(crate) fn find(&mut self, target: &[u8], now: Instant) -> CacheLookup<'_> {
        let Some(&at) = self.index.get(target) else { return CacheLookup::Miss };
        let entry = &mut self.entries[at];
        match &entry.source {
            Some(source) if now >= entry.fresh_until => {
                entry.fresh_until = now + self.ttl / Self::GRACE_DIVISOR;
                CacheLookup::Stale(Arc::clone(&entry.target), Arc::clone(&source.paths))
            }
            _ => {
                entry.used = true;
                let (prepared, codings) = entry.response();
                CacheLookup::Fresh(prepared, codings)
            }
        }
    }

    /// Returns the paths of the file of a cached response.
    pub(crate) fn paths(&self, target: &[u8]) -> Option<(Arc<[u8]>, Arc<Paths>)> {
        let entry = &self.entries[*self.index.get(target)?];
        let source = entry.source.as_ref()?;
        Some((Arc::clone(&entry.target), Arc::clone(&source.paths)))
    }

    /// Returns the response for a target, fresh or stale.
    pub(crate) fn get(&mut self, target: &[u8]) -> Option<(&mut PreparedResponse, Codings)> {
        let at = *self.index.get(target)?;
        Some(self.entries[at].response())
    }

    /// Revalidates an entry: extends its lifetime if `same` returns true, else removes it.
    /// Returns whether it was extended.
    pub(crate) fn revalidate(
        &mut self,
        target: &[u8],
        same: impl FnOnce(&CachedFile) -> bool,
        now: Instant,
    ) -> bool {
        let Some(&at) = self.index.get(target) else { return false };
        let is_same = self.entries[at].source.as_ref().is_some_and(same);
        if is_same {
            self.entries[at].fresh_until = now + self.ttl;
        } else {
            self.remove(at);
        }
        is_same
    }

    /// Inserts a response. Without a source it never becomes stale.
    pub(crate) fn insert(
        &mut self,
        target: &[u8],
        prepared: PreparedResponse,
        source: Option<CachedFile>,
        now: Instant,
    ) {
        if let Some(&at) = self.index.get(target) {
            self.remove(at);
        }
        let bytes = prepared.memory_bytes() + target.len() + Self::OVERHEAD;
        if bytes > self.max_bytes || self.max_entries == 0 {
            return;
        }
        let target: Arc<[u8]> = target.into();
        let fresh_until = now + self.ttl;
        while self.bytes + bytes > self.max_bytes || self.entries.len() == self.max_entries {
            self.evict();
        }
        self.bytes += bytes;
        let entry = CacheEntry { prepared, target, source, bytes, fresh_until, used: false };
        self.index.insert(Arc::clone(&entry.target), self.entries.len());
        self.entries.push(entry);
    }

    /// Closes files without recent requests that are not being sent, so that deleted or replaced ones free their disk space.
    /// Returns when to do so again, if a file is still open.
    pub(crate) fn close_idle(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        for at in (0..self.entries.len()).rev() {
            let entry = &self.entries[at];
            let closes_at = entry.fresh_until + Self::IDLE_TIMEOUT;
            if entry.prepared.is_open_and_idle() && now >= closes_at {
                self.remove(at);
            } else if entry.prepared.is_open() {
                // One that is being sent is looked at again.
                let at = if now < closes_at { closes_at } else { now + Self::IDLE_TIMEOUT };
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            }
        }
        next
    }

    /// Closes a file that is not being sent, preferably one without recent requests. Returns false
    /// if there is none.
    pub(crate) fn close_one(&mut self) -> bool {
        let is_idle = |entry: &CacheEntry| entry.prepared.is_open_and_idle();
        let unused = self.entries.iter().position(|entry| is_idle(entry) && !entry.used);
        let Some(at) = unused.or_else(|| self.entries.iter().position(is_idle)) else {
            return false;
        };
        self.remove(at);
        true
    }

    /// Evicts one entry. An entry used since the last pass of the hand gets another round.
    fn evict(&mut self) {
        loop {
            self.hand = if self.hand < self.entries.len() { self.hand } else { 0 };
            if !std::mem::take(&mut self.entries[self.hand].used) {
                return self.remove(self.hand);
            }
            self.hand += 1;
        }
    }

    fn remove(&mut self, at: usize) {
        let entry = self.entries.swap_remove(at);
        self.bytes -= entry.bytes;
        self.index.remove(&entry.target);
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(Arc::clone(&moved.target), at);
        }
    }
}

impl CacheEntry {
    fn response(&mut self) -> (&mut PreparedResponse, Codings) {
        let codings = self.source.as_ref().map_or(Codings::default(), |source| source.codings);
        (&mut self.prepared, codings)
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
