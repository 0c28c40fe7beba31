//! The messages whose receive buffers a handler keeps beyond its return, until it gives them back (table 5-1).

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
    current: Option<u32>,
    keeps_current: bool,
    /// Those of `slots` that the invocation gives back.
    given_back: Vec<u32>,
}

impl Kept {
    /// Sets how many slots may be kept. Does not change which are.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max.min(MAX_KEPT);
        self.slots.reserve(self.max);
        self.given_back.reserve(self.max);
    }

    /// Starts an invocation, for a message that has landed in a slot or was copied.
    #[inline]
    pub(crate) fn begin(&mut self, slot: Option<u32>) {
        self.current = slot;
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

    /// Ends an invocation with this message. If it is not handled, nothing is kept or given back.
    #[inline]
    pub(crate) fn end(&mut self, message: &Range<usize>, is_handled: bool) {
        if !is_handled {
            self.begin(None);
        }
        for slot in &self.given_back {
            self.slots.retain(|(kept, _)| kept != slot);
        }
        if let Some(slot) = self.kept_now() {
            self.slots.push((slot, message.clone()));
        }
    }

    /// Returns the slot of the last message, if it is kept.
    pub(crate) fn kept_now(&self) -> Option<u32> {
        self.current.filter(|_| self.keeps_current)
    }

    /// Returns the slots that the last invocation has given back.
    pub(crate) fn given_back(&self) -> &[u32] {
        &self.given_back
    }

    /// Takes all slots from the handler.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.begin(None);
    }
}
