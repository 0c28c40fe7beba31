//! Small files in memory, as replies that are ready to be sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use multiplex::{FilePath, Meta};

use crate::Limits;
use crate::reply::Ready;

/// Replies by the target that asked for them, as it arrived: nothing needs to be decoded to find
/// one. Bounded in bytes and number; the clock algorithm chooses what has to go.
#[derive(Debug)]
pub(crate) struct Cache {
    index: HashMap<Arc<[u8]>, usize, FixedState>,
    entries: Vec<Entry>,
    /// Where the search for the next to go begins.
    hand: usize,
    bytes: usize,
    most_bytes: usize,
    most_entries: usize,
    time: Duration,
}

/// A reply and where it came from.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) ready: Ready,
    target: Arc<[u8]>,
    source: Option<Source>,
    fresh_until: Instant,
    used: bool,
}

/// The file that a reply was made from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) path: FilePath,
    pub(crate) meta: Meta,
}

/// What the cache has for a target.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// A reply that was good a moment ago.
    Fresh(&'a mut Ready),
    /// A reply to be confirmed: what does the path lead to now? While the first who is told asks,
    /// the others are given the reply for a little longer.
    Stale(Arc<[u8]>, FilePath),
    /// Nothing.
    Nothing,
}

impl Cache {
    /// What an entry needs beside its reply, roughly.
    const OVERHEAD: usize = 256;

    /// What part of its time a reply is given out beyond it, while it is being confirmed.
    const GRACE: u32 = 8;

    pub(crate) fn new(limits: &Limits) -> Self {
        Cache {
            index: HashMap::with_hasher(FixedState::with_seed(0)),
            entries: Vec::new(),
            hand: 0,
            bytes: 0,
            most_bytes: limits.cached_bytes,
            most_entries: limits.cached_files,
            time: limits.cached_time,
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
    pub(crate) fn find(&mut self, target: &[u8], now: Instant) -> Found<'_> {
        let Some(&at) = self.index.get(target) else { return Found::Nothing };
        let entry = &mut self.entries[at];
        match &entry.source {
            Some(source) if now >= entry.fresh_until => {
                entry.fresh_until = now + self.time / Self::GRACE;
                Found::Stale(Arc::clone(&entry.target), source.path.clone())
            }
            _ => {
                entry.used = true;
                Found::Fresh(&mut entry.ready)
            }
        }
    }

    /// Compares what was kept for a target with what its path leads to now. Returns the reply if
    /// that is the same, and forgets it if not.
    pub(crate) fn confirm(
        &mut self,
        target: &[u8],
        meta: Option<Meta>,
        now: Instant,
    ) -> Option<&mut Ready> {
        let at = *self.index.get(target)?;
        if self.entries[at].source.as_ref().map(|source| source.meta) != meta {
            self.remove(at);
            return None;
        }
        let entry = &mut self.entries[at];
        entry.fresh_until = now + self.time;
        Some(&mut entry.ready)
    }

    /// Keeps a reply; one without a source is believed for ever.
    pub(crate) fn keep(
        &mut self,
        target: &[u8],
        ready: Ready,
        source: Option<Source>,
        now: Instant,
    ) {
        if let Some(&at) = self.index.get(target) {
            self.remove(at);
        }
        let target: Arc<[u8]> = target.into();
        let fresh_until = now + self.time;
        let entry = Entry { ready, target, source, fresh_until, used: false };
        if entry.weight() > self.most_bytes || self.most_entries == 0 {
            return;
        }
        while self.bytes + entry.weight() > self.most_bytes
            || self.entries.len() == self.most_entries
        {
            self.evict();
        }
        self.bytes += entry.weight();
        self.index.insert(Arc::clone(&entry.target), self.entries.len());
        self.entries.push(entry);
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
        self.bytes -= entry.weight();
        self.index.remove(&entry.target);
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(Arc::clone(&moved.target), at);
        }
    }
}

impl Entry {
    fn weight(&self) -> usize {
        self.ready.weight() + self.target.len() + Cache::OVERHEAD
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
