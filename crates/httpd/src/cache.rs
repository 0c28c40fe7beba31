//! Small files in memory, as replies that are ready to be sent.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evring::{FilePath, Metadata};
use foldhash::fast::FixedState;

use crate::Limits;
use crate::coding::{Coding, Codings};
use crate::reply::PreparedResponse;

/// Replies by the target that asked for them, as it arrived: nothing needs to be decoded to find
/// one. Bounded in bytes and number; the clock algorithm chooses what has to go.
#[derive(Debug)]
pub(crate) struct Cache {
    index: HashMap<Arc<[u8]>, usize, FixedState>,
    entries: Vec<Entry>,
    /// Where the search for the next to go begins.
    hand: usize,
    bytes: usize,
    max_bytes: usize,
    max_entries: usize,
    time: Duration,
}

/// What a coded file's name ends with; no target has a NUL.
pub(crate) const VARIANT: [&[u8]; 3] = [b"\0br", b"\0zst", b"\0gz"];

/// Writes what the cache knows a coded file by.
pub(crate) fn variant(out: &mut Vec<u8>, name: &[u8], coding: Coding) {
    out.clear();
    out.extend_from_slice(name);
    out.extend_from_slice(VARIANT[coding as usize]);
}

/// A reply and where it came from.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) prepared: PreparedResponse,
    target: Arc<[u8]>,
    source: Option<Source>,
    weight: usize,
    fresh_until: Instant,
    used: bool,
}

/// Where a file lies, as it is and in every coding. Made once, so that it can be asked about again
/// without memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    pub(crate) plain: FilePath,
    coded: [FilePath; 3],
}

impl Paths {
    pub(crate) fn new(path: &Path) -> Arc<Self> {
        let beside = |coding: Coding| {
            let mut name = path.as_os_str().to_owned();
            name.push(coding.extension());
            FilePath::new(&name)
        };
        Arc::new(Paths { plain: FilePath::new(path), coded: Coding::ALL.map(beside) })
    }

    /// Where the file lies in a coding, or as it is.
    pub(crate) fn of(&self, coding: Option<Coding>) -> FilePath {
        coding.map_or(&self.plain, |coding| &self.coded[coding as usize]).clone()
    }
}

/// The file that a reply was made from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) paths: Arc<Paths>,
    pub(crate) meta: Metadata,
    /// The codings that lie beside it.
    pub(crate) codings: Codings,
    /// Whether the reply has a Last-Modified; else it is made anew when that is due.
    pub(crate) is_dated: bool,
}

/// What the cache has for a target.
#[derive(Debug)]
pub(crate) enum CacheLookup<'a> {
    /// A reply that was good a moment ago, and the codings that lie beside its file.
    Fresh(&'a mut PreparedResponse, Codings),
    /// A reply to be confirmed: what does the path lead to now? While the first who is told asks,
    /// the others are given the reply for a little longer.
    Stale(Arc<[u8]>, Arc<Paths>),
    /// Nothing.
    Nothing,
}

impl Cache {
    /// What an entry needs beside its reply, roughly.
    const OVERHEAD: usize = 256;

    /// How long a file stays open without being asked for.
    const IDLE: Duration = Duration::from_secs(10);

    /// What part of its time a reply is given out beyond it, while it is being confirmed.
    const GRACE: u32 = 8;

    pub(crate) fn new(limits: &Limits) -> Self {
        Cache {
            index: HashMap::with_hasher(FixedState::with_seed(0)),
            entries: Vec::new(),
            hand: 0,
            bytes: 0,
            max_bytes: limits.cache_bytes,
            max_entries: limits.cache_files,
            time: limits.cache_ttl,
        }
    }

    /// Has targets hashed in a way that no client can foresee.
    pub(crate) fn seed(&mut self, seed: u64) {
        let hasher = FixedState::with_seed(seed);
        self.index = HashMap::with_hasher(hasher);
        self.entries.clear();
    }

    /// Looks a target up.
    #[inline]
    pub(crate) fn find(&mut self, target: &[u8], now: Instant) -> CacheLookup<'_> {
        let Some(&at) = self.index.get(target) else { return CacheLookup::Nothing };
        let entry = &mut self.entries[at];
        match &entry.source {
            Some(source) if now >= entry.fresh_until => {
                entry.fresh_until = now + self.time / Self::GRACE;
                CacheLookup::Stale(Arc::clone(&entry.target), Arc::clone(&source.paths))
            }
            _ => {
                entry.used = true;
                let (prepared, codings) = entry.give();
                CacheLookup::Fresh(prepared, codings)
            }
        }
    }

    /// Where the file lies of which a reply was kept.
    pub(crate) fn paths(&self, target: &[u8]) -> Option<(Arc<[u8]>, Arc<Paths>)> {
        let entry = &self.entries[*self.index.get(target)?];
        let source = entry.source.as_ref()?;
        Some((Arc::clone(&entry.target), Arc::clone(&source.paths)))
    }

    /// What was kept for a target, fresh or not.
    pub(crate) fn kept(&mut self, target: &[u8]) -> Option<(&mut PreparedResponse, Codings)> {
        let at = *self.index.get(target)?;
        Some(self.entries[at].give())
    }

    /// Compares what was kept for a target with what is there now. Believes it for some more time
    /// if that is the same, and forgets it if not.
    pub(crate) fn confirm(
        &mut self,
        target: &[u8],
        same: impl FnOnce(&Source) -> bool,
        now: Instant,
    ) -> bool {
        let Some(&at) = self.index.get(target) else { return false };
        let is_same = self.entries[at].source.as_ref().is_some_and(same);
        if is_same {
            self.entries[at].fresh_until = now + self.time;
        } else {
            self.remove(at);
        }
        is_same
    }

    /// Keeps a reply; one without a source is believed for ever.
    pub(crate) fn keep(
        &mut self,
        target: &[u8],
        prepared: PreparedResponse,
        source: Option<Source>,
        now: Instant,
    ) {
        if let Some(&at) = self.index.get(target) {
            self.remove(at);
        }
        let target: Arc<[u8]> = target.into();
        let fresh_until = now + self.time;
        let weight = prepared.weight() + target.len() + Self::OVERHEAD;
        if weight > self.max_bytes || self.max_entries == 0 {
            return;
        }
        while self.bytes + weight > self.max_bytes || self.entries.len() == self.max_entries {
            self.evict();
        }
        self.bytes += weight;
        let entry = Entry { prepared, target, source, weight, fresh_until, used: false };
        self.index.insert(Arc::clone(&entry.target), self.entries.len());
        self.entries.push(entry);
    }

    /// Closes files that nobody asked for of late, so that what was deleted or replaced gives its
    /// place on the disk back.
    pub(crate) fn close_idle(&mut self, now: Instant) {
        for at in (0..self.entries.len()).rev() {
            let entry = &self.entries[at];
            if entry.prepared.is_open() && now > entry.fresh_until + Self::IDLE {
                self.remove(at);
            }
        }
    }

    /// Closes a file that no client takes, rather one that was not asked for of late; false if there
    /// is none.
    pub(crate) fn close_one(&mut self) -> bool {
        let is_idle = |entry: &Entry| entry.prepared.is_open_and_idle();
        let unused = self.entries.iter().position(|entry| is_idle(entry) && !entry.used);
        let Some(at) = unused.or_else(|| self.entries.iter().position(is_idle)) else {
            return false;
        };
        self.remove(at);
        true
    }

    /// Makes room: what was used since the hand last passed gets another round.
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
        self.bytes -= entry.weight;
        self.index.remove(&entry.target);
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(Arc::clone(&moved.target), at);
        }
    }
}

impl Entry {
    fn give(&mut self) -> (&mut PreparedResponse, Codings) {
        let codings = self.source.as_ref().map_or(Codings::default(), |source| source.codings);
        (&mut self.prepared, codings)
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
