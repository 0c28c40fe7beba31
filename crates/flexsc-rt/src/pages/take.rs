//! Takes completions, each at the same cost whatever is outstanding (section 7).

use std::io;

use super::super::raw::{self, INTERRUPTED};
use super::{EntryId, Pages, Place, Room, is_not_ready};

/// A call that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The call.
    pub id: EntryId,
    /// Its result. A cancelled call has `EINTR`, if the cancellation came in time.
    pub result: io::Result<usize>,
}

impl Pages {
    /// Returns whether [`Pages::next`] would return a completion.
    #[inline]
    pub fn has_completion(&self) -> bool {
        !self.done.is_empty() || !self.shared.completions.is_empty(self.head)
    }

    /// Takes a completion, and frees its entry.
    #[allow(clippy::should_implement_trait, reason = "completions come after it has returned none")]
    #[inline]
    pub fn next(&mut self) -> Option<Completion> {
        let index = self.next_done()?;
        Some(self.take(index))
    }

    /// Returns the next entry that is done. [`Pages::take`] has to follow, at any time.
    #[inline]
    pub(crate) fn next_done(&mut self) -> Option<u32> {
        let next = self.find_done();
        if let Some(index) = next {
            self.ended(index);
        }
        // Another call may be a thread's now.
        self.publish();
        next
    }

    #[inline]
    fn find_done(&mut self) -> Option<u32> {
        if self.done.is_empty() && self.process.is_current() {
            self.take_from_threads();
        }
        self.done.pop_front()
    }

    /// Takes over the calls that have ended on threads: before callbacks, whose time is not that of the calls. Returns
    /// whether there is a completion, or a call has left its thread to wait again.
    #[inline]
    pub(super) fn take_from_threads(&mut self) -> bool {
        if self.shared.completions.is_empty(self.head) {
            return !self.done.is_empty();
        }
        self.take_all_from_threads();
        true
    }

    #[inline(never)]
    fn take_all_from_threads(&mut self) {
        while let Some(index) = self.shared.completions.pop(&mut self.head) {
            self.count_out(index);
            // SAFETY: the completion says that the entry is done.
            let result = unsafe { self.shared.entry(index).peek() };
            if is_not_ready(result) {
                if self.slots[index as usize].place == Place::CancelledThread {
                    // It must not wait again.
                    self.finish(index, INTERRUPTED);
                    continue;
                }
                // Another call may be the next one of the descriptor.
                self.ended(index);
                if self.waits_again(index) {
                    continue;
                }
            }
            self.slots[index as usize].place = Place::Done;
            self.done.push_back(index);
        }
        // A call that was not ready is a thread's again.
        self.publish();
    }

    /// Returns the result of an entry that [`Pages::next_done`] has returned.
    #[inline]
    pub(crate) fn result(&self, index: u32) -> io::Result<usize> {
        // SAFETY: the entry is done, and this is its owner.
        raw::decode(unsafe { self.shared.entry(index).peek() })
    }

    /// Frees an entry that [`Pages::next_done`] has returned.
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Completion {
        let (id, result) = self.take_raw(index);
        Completion { id, result: raw::decode(result) }
    }

    /// The same, with the result as the kernel returns it: an error is negative.
    #[inline]
    pub(crate) fn take_raw(&mut self, index: u32) -> (EntryId, isize) {
        // SAFETY: the entry is done, and this is its owner.
        let result = unsafe { self.shared.entry(index).take() };
        let slot = &mut self.slots[index as usize];
        let id = EntryId { index, generation: slot.generation };
        slot.generation = slot.generation.wrapping_add(1);
        slot.place = Place::Free;
        if slot.room != Room::Entry {
            self.unreserved -= 1;
            if slot.room == Room::Thread {
                self.indefinite_ended();
                self.publish();
            }
        }
        self.free.push(index);
        (id, result)
    }
}
