//! Request deadlines. All requests have the same timeout, so a queue replaces a timer wheel.

use std::collections::VecDeque;
use std::time::Instant;

/// The deadline of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    /// Index of the request on its connection, from 0.
    pub(crate) index: u64,
}

/// Deadlines in the order in which they expire.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(VecDeque<Deadline>);

impl Deadlines {
    /// Appends a deadline. One that is slightly out of order expires after those before it.
    pub(crate) fn push(&mut self, deadline: Deadline) {
        self.0.push_back(deadline);
    }

    /// Returns the earliest deadline. Removes obsolete deadlines before it.
    pub(crate) fn next(&mut self, is_obsolete: impl Fn(&Deadline) -> bool) -> Option<Instant> {
        while let Some(first) = self.0.front() {
            if !is_obsolete(first) {
                return Some(first.at);
            }
            self.0.pop_front();
        }
        None
    }

    /// Removes and returns the first deadline if it has expired.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Deadline> {
        if self.0.front()?.at > now {
            return None;
        }
        self.0.pop_front()
    }
}
