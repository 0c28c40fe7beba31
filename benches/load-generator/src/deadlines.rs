//! When requests are given up: all after the same time, so that a queue does for a timer wheel.

use std::collections::VecDeque;
use std::time::Instant;

/// A request that is under way, and when it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) at: Instant,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    /// Which request of its connection, from 0 on.
    pub(crate) place: u64,
}

/// Requests in the order in which they are given up.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(VecDeque<Watched>);

impl Deadlines {
    /// Adds one. What is a little out of order is seen when what stands before it is.
    pub(crate) fn watch(&mut self, watched: Watched) {
        self.0.push_back(watched);
    }

    /// When the first is given up; forgets those before it that are over.
    pub(crate) fn next(&mut self, is_over: impl Fn(&Watched) -> bool) -> Option<Instant> {
        while let Some(first) = self.0.front() {
            if !is_over(first) {
                return Some(first.at);
            }
            self.0.pop_front();
        }
        None
    }

    /// Takes the first if its time has come.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Watched> {
        if self.0.front()?.at > now {
            return None;
        }
        self.0.pop_front()
    }
}
