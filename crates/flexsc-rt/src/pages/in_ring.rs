//! The calls and waits that the ring makes.

use std::time::Duration;

use rustix::io::Errno;

use super::super::call_ring::{CallRing, Pushed};
use super::super::raw::{self, INTERRUPTED};
use super::super::ring::CANCELLED;
use super::wait::Refused;
use super::{POLL, Pages, Place, is_not_ready};
use crate::call::{Direction, Executor, Waits};
use crate::error::Error;

impl Pages {
    /// Submits entries and cancellations to the ring, and takes its completions.
    #[inline]
    pub(super) fn enter_ring(&mut self) -> Result<(), Error> {
        if self.ring.is_idle() {
            return Ok(());
        }
        let pushed = self.push_to_ring().and_then(|()| self.ring.enter());
        self.take_from_ring();
        pushed.map_err(|errno| Error::System("enter io_uring", errno.into()))
    }

    /// Sleeps in the ring until there is a completion or the bell rings, and takes completions. Returns false if the
    /// kernel did not sleep, as it took nothing, and there is nothing to do.
    pub(super) fn sleep_in_ring(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        let pushed = self.push_to_ring();
        // Calls that were cancelled before the ring took them have ended.
        let timeout = if self.has_completion() { Some(Duration::ZERO) } else { timeout };
        let slept = pushed.and_then(|()| self.ring.sleep(timeout));
        let mut has_news = self.take_from_ring();
        if self.ring.take_ringing() {
            self.shared.bell.reset();
            has_news = true;
        }
        let slept = slept.map_err(|errno| Error::System("enter io_uring", errno.into()))?;
        Ok(slept || has_news || self.has_completion())
    }

    /// Takes the completions of the ring. Returns whether there were any.
    pub(super) fn take_from_ring(&mut self) -> bool {
        let (first, mut has_any) = (self.done.len(), false);
        while let Some((name, result, more)) = self.ring.next() {
            has_any = true;
            let index = name as u32;
            let place = self.slots[index as usize].place;
            match place {
                Place::Polled if self.has_no_room(index, result) => {
                    if !more {
                        self.wait_for_room(index, name);
                    }
                }
                Place::Polled if more => self.end_poll(index, name),
                Place::Polled => self.polled(index, result),
                Place::Watched => self.changed(index, name, result, more),
                // The last result follows.
                Place::EndingPoll | Place::EndingWatch | Place::CancelledPolled if more => {}
                Place::EndingWatch => {
                    self.slots[index as usize].place = Place::Done;
                    self.done.push_back(index);
                }
                Place::EndingPoll => self.polled(index, result.max(0)),
                Place::CancelledPolled => self.finish(index, INTERRUPTED),
                // It must not wait again.
                Place::CancelledRing
                    if is_not_ready(result) || result == CANCELLED || is_restart(result) =>
                {
                    self.finish(index, INTERRUPTED);
                }
                _ if is_not_ready(result) && self.waits_again(index) => {}
                _ => self.finish(index, result),
            }
        }
        // Those that are measured are bounded, and wait for nothing else.
        for place in first..self.done.len() {
            self.count_out(self.done[place]);
        }
        self.publish();
        has_any
    }

    /// Returns whether a wait for room has ended or reported without room. Some kernels end a multishot poll with
    /// ECANCELED when the completion queue is full.
    fn has_no_room(&self, index: u32, result: isize) -> bool {
        let waits = self.slots[index as usize].waits.descriptor();
        let for_room = matches!(waits, Some((_, Direction::Write)));
        for_room && (result == CANCELLED || result >= 0 && !CallRing::has_room(result as u32))
    }

    /// Waits for room again, by a poll that reports changes.
    #[cold]
    fn wait_for_room(&mut self, index: u32, name: u64) {
        let waits = self.slots[index as usize].waits.descriptor();
        let pushed = waits.map(|(fd, direction)| self.ring.push_watch(name, fd, direction));
        if pushed != Some(Ok(Pushed::Queued)) {
            self.poll_again(index);
        }
    }

    /// Waits for a descriptor by another poll.
    fn poll_again(&mut self, index: u32) {
        self.slots[index as usize].place = Place::Batch;
        self.ring.queue.push_back(index | POLL);
    }

    /// Makes the call of a descriptor that has changed. Once it is not refused, its result waits for the end of the
    /// reports.
    #[cold]
    fn changed(&mut self, index: u32, name: u64, result: isize, more: bool) {
        if result < 0 {
            return match result {
                CANCELLED => self.poll_again(index),
                _ => self.finish(index, result),
            };
        }
        self.counters.in_place += 1;
        // SAFETY: the ring only waits for the descriptor; the caller of `Pages::post` vouches for the call.
        let result = unsafe {
            let (number, args) = self.shared.entry(index).call();
            raw::system_call(number, &args)
        };
        let refused = if is_not_ready(result) { self.refused(index) } else { Refused::Ends };
        match (refused, more) {
            (Refused::Turned, true) => self.end_poll(index, name),
            (Refused::Waits, true) => {}
            (Refused::Turned | Refused::Waits, false) => self.poll_again(index),
            (Refused::Ends, false) => self.finish(index, result),
            (Refused::Ends, true) => {
                // SAFETY: no other executor has the entry.
                unsafe { self.shared.entry(index).finish(result) };
                self.slots[index as usize].place = Place::EndingWatch;
                self.ring.cancel(name);
            }
        }
    }

    /// Ends the poll that reports changes: it has reported room.
    #[cold]
    fn end_poll(&mut self, index: u32, name: u64) {
        self.slots[index as usize].place = Place::EndingPoll;
        self.ring.cancel(name);
    }

    /// Goes on with a call whose descriptor the ring has waited for.
    pub(super) fn polled(&mut self, index: u32, result: isize) {
        let slot = &mut self.slots[index as usize];
        slot.place = Place::Batch;
        match slot.waits {
            _ if result < 0 => self.finish(index, result),
            Waits::UntilReady(..) => self.finish(index, 0),
            Waits::ReadyThenBlocks(..) if self.threads.is_some() => self.assign_blocking(index),
            _ => {
                slot.by_changes = true;
                self.execute_in_place(index);
            }
        }
    }

    /// Gives the ring what it is to make. Calls that it refuses go to threads together.
    pub(super) fn push_to_ring(&mut self) -> Result<(), Errno> {
        let pushed = self.push_queued();
        self.publish();
        pushed
    }

    #[inline]
    fn push_queued(&mut self) -> Result<(), Errno> {
        // The next wait of a call has the name of the one before, which may be cancelled.
        if !self.ring.push_cancels()? {
            return Ok(());
        }
        let calls = self.ring.queue.len() as u32;
        while let Some(queued) = self.ring.queue.pop_front() {
            let index = queued & !POLL;
            let slot = &mut self.slots[index as usize];
            if slot.place == Place::CancelledBatch {
                self.finish(index, INTERRUPTED);
                continue;
            }
            let (waits, by_changes, file) = (slot.waits, slot.by_changes, slot.file);
            let name = self.ring_name(index);
            if queued != index
                && let Some((fd, direction)) = waits.descriptor()
            {
                let (pushed, place) = match by_changes {
                    true => (self.ring.push_watch(name, fd, direction), Place::Watched),
                    false => (self.ring.push_poll(name, fd, direction), Place::Polled),
                };
                if pushed != Ok(Pushed::Queued) {
                    self.ring.queue.push_front(queued);
                    return pushed.map(drop);
                }
                self.slots[index as usize].place = place;
                continue;
            }
            // SAFETY: no executor has the entry. The caller of `Pages::post` vouches for it and its memory, and keeps a
            // clone of the descriptor that has the place until the call has ended.
            let pushed = unsafe {
                let (number, args) = self.shared.entry(index).call();
                self.ring.push(name, number, &args, file)
            };
            match pushed {
                Ok(Pushed::Queued) => {}
                Ok(Pushed::NoOperation) => {
                    self.make_without_ring(index);
                    continue;
                }
                refused => {
                    self.ring.queue.push_front(index);
                    return refused.map(drop);
                }
            }
            self.slots[index as usize].place = Place::Ring;
            // The owner makes those in place later.
            self.note_ring_batch(index, calls);
            self.counters.on_ring += 1;
        }
        Ok(())
    }

    /// Has a call made for which the ring has no operation: by a thread if it is pinned, else by the owner.
    #[cold]
    fn make_without_ring(&mut self, index: u32) {
        self.counters.ring_refused += 1;
        let slot = &self.slots[index as usize];
        let is_pinned = slot.pinned == Some(Executor::Ring) && slot.waits == Waits::Bounded;
        if !is_pinned {
            self.ring_refuses(index);
        }
        if is_pinned && self.threads.is_some() {
            return self.assign_thread(index);
        }
        self.execute_in_place(index);
    }

    /// Returns the name of a call in the ring: generation and number of its entry.
    pub(super) fn ring_name(&self, index: u32) -> u64 {
        u64::from(self.slots[index as usize].generation) << 32 | u64::from(index)
    }
}

/// Returns whether a result in the ring is one that Linux never returns from a system call, which it makes again or
/// ends with EINTR: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
fn is_restart(result: isize) -> bool {
    matches!(-result, 512..=514 | 516)
}
