//! Calls that may block although their descriptor is ready ([`Waits::ReadyThenBlocks`]).
//!
//! A descriptor that is ready may be ready for one call only, so one call for it at a time is on a thread, in each
//! direction; the others wait until that has ended. In the ring, where each call waits by itself, it is the wait that
//! one call has at a time. Such calls and those that wait indefinitely leave one thread for others.

use std::mem;
use std::os::fd::RawFd;

use super::{POLL, Pages, Place};
use crate::call::{Direction, Waits};

impl Pages {
    /// Gives a call that may block to a thread, once one is left for others.
    pub(super) fn assign_blocking(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if self.indefinite < self.max_indefinite {
            self.indefinite += 1;
            slot.is_indefinite = true;
            self.assign_thread(index);
        } else {
            slot.place = Place::Ready;
            self.ready_links.push_back(&mut self.ready, index);
        }
    }

    /// Withdraws a call that waits for a thread.
    pub(super) fn withdraw_ready(&mut self, index: u32) {
        self.ready_links.remove(&mut self.ready, index);
    }

    /// Lets the ring wait for the descriptor of a call that may block, unless it does for another one.
    pub(super) fn poll_one(&mut self, index: u32, fd: RawFd, direction: Direction) {
        let slot = &mut self.slots[index as usize];
        if self.readiness.hold(index, fd, direction) {
            slot.place = Place::Batch;
            self.ring.queue.push_back(index | POLL);
        } else {
            slot.place = Place::Waiting;
            self.readiness.push(index, fd, direction);
        }
    }

    /// Lets those go on that have waited for the end of a call.
    #[inline]
    pub(super) fn ended(&mut self, index: u32) {
        if let Waits::ReadyThenBlocks(..) = self.slots[index as usize].waits {
            self.blocking_ended(index);
        }
    }

    #[inline(never)]
    fn blocking_ended(&mut self, index: u32) {
        if !self.process.is_current() {
            return;
        }
        let slot = &mut self.slots[index as usize];
        let (waits, other_end) = (slot.waits.descriptor(), slot.other_end);
        if mem::take(&mut slot.is_indefinite) {
            self.indefinite_ended();
        }
        let Some((fd, direction)) = waits else { return };
        self.release(index, fd, direction);
        self.release(index, other_end, direction.opposite());
    }

    /// Gives the thread of a call that may have waited indefinitely to another one.
    pub(super) fn indefinite_ended(&mut self) {
        self.indefinite -= 1;
        if !self.process.is_current() {
            return;
        }
        if let Some(next) = self.ready_links.pop_front(&mut self.ready) {
            self.assign_blocking(next);
        }
    }

    /// Lets the others wait for a descriptor, if the call has kept them from it.
    fn release(&mut self, index: u32, fd: RawFd, direction: Direction) {
        if fd < 0 || !self.readiness.release(index, fd, direction) {
            return;
        }
        if !self.sleeps_in_ring {
            self.arm_again(fd, false);
        } else if let Some(next) = self.readiness.pop(fd, direction) {
            self.poll_one(next, fd, direction);
        }
    }
}
