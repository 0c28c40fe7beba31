//! The timers of connections and of the application, on one wheel.

use std::time::Instant;

use crate::wheel::TimerWheel;

/// A wheel whose first ids are the application's own timers, followed by a timer for each slot.
pub(crate) struct Timers {
    wheel: TimerWheel,
    /// Number of the application's own timers.
    own: u32,
}

/// A timer that has expired.
pub(crate) enum Expired {
    /// The timer of the connection in this slot.
    Connection(u32),
    /// A timer of the application.
    Own(u32),
}

impl Timers {
    pub(crate) fn new(now: Instant, own: u32) -> Self {
        Timers { wheel: TimerWheel::new(now), own }
    }

    pub(crate) fn set(&mut self, slot: u32, at: Instant) {
        self.wheel.set(self.own + slot, at);
    }

    pub(crate) fn clear(&mut self, slot: u32) {
        self.wheel.clear(self.own + slot);
    }

    pub(crate) fn deadline(&self, slot: u32) -> Option<Instant> {
        self.wheel.deadline(self.own + slot)
    }

    /// Sets or clears a timer of the application. Returns false if there is no such timer.
    pub(crate) fn set_own(&mut self, timer: u32, at: Option<Instant>) -> bool {
        match at {
            _ if timer >= self.own => return false,
            Some(at) => self.wheel.set(timer, at),
            None => self.wheel.clear(timer),
        }
        true
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    /// Removes and returns one timer that has expired.
    pub(crate) fn expired(&mut self, now: Instant) -> Option<Expired> {
        let id = self.wheel.pop_expired(now)?;
        Some(id.checked_sub(self.own).map_or(Expired::Own(id), Expired::Connection))
    }
}
