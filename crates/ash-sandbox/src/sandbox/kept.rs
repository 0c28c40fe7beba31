//! The messages whose receive buffers a handler keeps beyond its return, until it gives them back (table 5-1).

use std::mem;
use std::ops::Range;

use super::result::{EXHAUSTED, FAULT, OK};

/// Messages that a handler keeps at most, as each call looks for its slot.
pub const MAX_KEPT: usize = 64;

/// The slots of the receive ring that a handler keeps.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    max: usize,
    slots: Vec<(u32, Range<usize>)>,
    /// The slot of the message in hand, unless it was copied.
    current: Option<(u32, Range<usize>)>,
    /// The invocation keeps it. It becomes one of `slots` when the next one begins.
    keeps_current: bool,
    /// Those of `slots` that the invocation gives back. They are removed when the next one begins.
    given_back: Vec<u32>,
    /// The invocation has ended, and has handled its message.
    is_handled: bool,
}

impl Kept {
    /// Sets how many slots may be kept. Does not change which are.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max.min(MAX_KEPT);
        self.slots.reserve(self.max.saturating_sub(self.slots.len()));
        self.given_back.reserve(self.max.saturating_sub(self.given_back.len()));
    }

    /// Starts an invocation, for a message that has landed in a slot or was copied. What the last one has kept and given back
    /// can't be undone any more.
    #[inline]
    pub(crate) fn begin(&mut self, message: Option<(u32, Range<usize>)>) {
        // Else it has ended with a panic.
        if !self.is_handled {
            self.undo();
        }
        for slot in self.given_back.drain(..) {
            self.slots.retain(|(kept, _)| *kept != slot);
        }
        let last = mem::replace(&mut self.current, message);
        if mem::take(&mut self.keeps_current) {
            self.slots.extend(last);
        }
        self.is_handled = false;
    }

    /// Ends an invocation. If the message is not handled, nothing is kept or given back.
    #[inline]
    pub(crate) fn end(&mut self, is_handled: bool) {
        self.is_handled = is_handled;
        if !is_handled {
            self.undo();
        }
    }

    fn undo(&mut self) {
        self.keeps_current = false;
        self.given_back.clear();
    }

    /// Returns whether a range lies in one of the messages.
    pub(crate) fn covers(&self, range: &Range<usize>) -> bool {
        let is_in = |kept: &Range<usize>| range.start >= kept.start && range.end <= kept.end;
        self.slots.iter().any(|(_, kept)| is_in(kept))
    }

    pub(crate) fn keep(&mut self) -> i32 {
        if self.current.is_none() {
            return FAULT;
        }
        if self.slots.len() - self.given_back.len() >= self.max {
            return EXHAUSTED;
        }
        self.keeps_current = true;
        OK
    }

    pub(crate) fn give_back(&mut self, slot: u32) -> i32 {
        let is_kept = self.slots.iter().any(|(kept, _)| *kept == slot);
        if !is_kept || self.given_back.contains(&slot) {
            return FAULT;
        }
        self.given_back.push(slot);
        OK
    }

    /// Returns the slot of the last message, if it is kept.
    pub(crate) fn kept_now(&self) -> Option<u32> {
        self.current.as_ref().filter(|_| self.keeps_current).map(|(slot, _)| *slot)
    }

    /// Returns the slots that the last invocation has given back.
    pub(crate) fn given_back(&self) -> &[u32] {
        &self.given_back
    }

    /// Takes all slots from the handler.
    pub(crate) fn clear(&mut self) {
        self.undo();
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invocation_that_ended_with_a_panic_keeps_and_gives_back_nothing() {
        let mut kept = Kept::default();
        kept.set_max(2);
        kept.begin(Some((1, 0..64)));
        assert_eq!(kept.keep(), OK);
        kept.end(true);
        // A panic skips the end.
        kept.begin(Some((2, 64..128)));
        assert_eq!((kept.keep(), kept.give_back(1)), (OK, OK));
        kept.begin(Some((3, 128..192)));
        assert!(kept.covers(&(0..64)) && !kept.covers(&(64..128)));
        assert_eq!((kept.give_back(1), kept.give_back(2)), (OK, FAULT));
    }
}
