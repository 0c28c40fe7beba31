//! Cancels calls (section 4.2), and ends all of them.

use std::time::Duration;
use std::{io, mem, ptr};

use super::super::clock::Instant;
use super::super::raw::INTERRUPTED;
use super::{Completion, EntryId, Pages, Place, Scratch};
use crate::entry::Status;
use crate::error::Error;
use crate::operation::NOT_POSTED;
use crate::page::ENTRIES;
use crate::sync::pause;

/// Time that calls in flight have to end when the pages are dropped.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

impl Pages {
    /// Requests cancellation of a call (section 4.2). Its completion follows in any case: with
    /// `EINTR` if the cancellation came in time, else with the call's result. Without effect on a
    /// call that has completed. An id of other pages names a call of these, or none.
    pub fn cancel(&mut self, id: EntryId) {
        let Some(slot) = self.slots.get(id.index()) else { return };
        if slot.generation != id.generation || slot.uncancellable || !self.process.is_current() {
            return;
        }
        // The time until it is cancelled is not its cost.
        self.abandon_measurement(id.index);
        let slot = &mut self.slots[id.index()];
        match slot.place {
            Place::Free
            | Place::Done
            | Place::CancelledBatch
            | Place::CancelledThread
            | Place::CancelledRing
            | Place::CancelledPolled
            | Place::EndingWatch => {}
            Place::Batch => {
                slot.place = Place::CancelledBatch;
                self.counters.withdrawn += 1;
            }
            Place::Waiting => {
                if let Some((fd, direction)) = slot.waits.descriptor() {
                    self.readiness.remove(id.index, fd, direction);
                }
                self.counters.withdrawn += 1;
                self.finish(id.index, INTERRUPTED);
            }
            Place::Ready => {
                self.withdraw_ready(id.index);
                self.counters.withdrawn += 1;
                self.finish(id.index, INTERRUPTED);
            }
            Place::Thread => self.cancel_on_thread(id.index),
            Place::Ring => {
                slot.place = Place::CancelledRing;
                self.counters.interrupted += 1;
                let name = self.ring_name(id.index);
                self.ring.cancel(name);
            }
            Place::EndingPoll => {
                slot.place = Place::CancelledPolled;
                self.counters.withdrawn += 1;
            }
            Place::Polled | Place::Watched => {
                slot.place = Place::CancelledPolled;
                self.counters.withdrawn += 1;
                let name = self.ring_name(id.index);
                self.ring.cancel(name);
            }
        }
    }

    fn cancel_on_thread(&mut self, index: u32) {
        let (page, place) = (index as usize / ENTRIES, index as usize % ENTRIES);
        if self.shared.submitted[page].withdraw(place) {
            self.counters.withdrawn += 1;
            self.finish(index, INTERRUPTED);
            return;
        }
        self.slots[index as usize].place = Place::CancelledThread;
        let entry = self.shared.entry(index);
        // A thread that has claimed the entry marks it as busy next.
        let mut spins = 0;
        while entry.status() == Status::Submitted {
            pause(&mut spins);
        }
        if entry.cancel() {
            self.counters.interrupted += 1;
            if let Some(threads) = &self.threads {
                threads.interrupt(index);
            }
        }
    }

    /// Cancels all calls, and waits two seconds at most until they have ended. Returns whether they
    /// have. If not, the kernel may still use their memory.
    pub fn shut_down(&mut self) -> bool {
        self.shut_down_with(|_, _| {})
    }

    /// As `shut_down`. If an earlier shutdown timed out and nothing was posted since, this does not wait. `ended` gets each
    /// completion with its scratch memory.
    pub(crate) fn shut_down_once(&mut self, ended: impl FnMut(Completion, &Scratch)) -> bool {
        let again = self.gave_up == Some(self.counters.posted);
        if again && self.process.is_current() {
            // Takes what has ended since. After an error, the ring's calls count as outstanding.
            let _ = self.enter_ring();
        }
        self.shut_down_within(if again { Duration::ZERO } else { STOP_TIMEOUT }, ended)
    }

    /// Shuts down; `ended` gets each completion with its scratch memory.
    pub(crate) fn shut_down_with(&mut self, ended: impl FnMut(Completion, &Scratch)) -> bool {
        self.shut_down_within(STOP_TIMEOUT, ended)
    }

    fn shut_down_within(
        &mut self,
        timeout: Duration,
        mut ended: impl FnMut(Completion, &Scratch),
    ) -> bool {
        if !self.process.is_current() {
            self.end_in_child(ended);
            return true;
        }
        let deadline = Instant::now() + timeout;
        for index in 0..self.slots.len() as u32 {
            let generation = self.slots[index as usize].generation;
            self.cancel(EntryId { index, generation });
        }
        while self.outstanding() > 0 {
            while let Some(completion) = self.next() {
                // SAFETY: the call has ended, and nothing is posted meanwhile.
                let scratch = unsafe { &*self.scratch(completion.id.index()) };
                ended(completion, scratch);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if self.outstanding() == 0 {
                break;
            }
            if remaining.is_zero() || self.wait(Some(remaining)).is_err() {
                self.gave_up = Some(self.counters.posted);
                return false;
            }
        }
        true
    }

    /// Ends the calls of the parent in a child of fork(2), in which nothing makes them. What had ended before has its
    /// result.
    fn end_in_child(&mut self, mut ended: impl FnMut(Completion, &Scratch)) {
        while let Some(completion) = self.next() {
            // SAFETY: the call has ended, and nothing is posted meanwhile.
            let scratch = unsafe { &*self.scratch(completion.id.index()) };
            ended(completion, scratch);
        }
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.place != Place::Free {
                let id = EntryId { index: index as u32, generation: slot.generation };
                let result = Err(io::Error::other(Error::InChild));
                // SAFETY: no executor has the entry in this process.
                ended(Completion { id, result }, unsafe { &*self.scratch_in_child(index) });
            }
        }
    }

    /// Returns the scratch memory of a call in a child of fork(2). A call that was not submitted is as one that was not
    /// posted: nothing has made it.
    pub(crate) fn scratch_in_child(&self, index: usize) -> *const Scratch {
        match self.slots[index].place {
            Place::Batch | Place::CancelledBatch => ptr::from_ref(&NOT_POSTED),
            _ => self.scratch(index),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let ended = self.shut_down_once(|_, _| {});
        if !ended {
            mem::forget(self.scratch.take());
        }
        if let Some(threads) = &self.threads
            && self.process.is_current()
        {
            let timeout = if ended { STOP_TIMEOUT } else { Duration::ZERO };
            threads.stop(Instant::now() + timeout);
        }
    }
}
