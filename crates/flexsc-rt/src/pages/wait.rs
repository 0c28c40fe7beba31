//! The waits: of calls for their descriptors, and of the owner for a completion.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;

use super::super::clock::Instant;
use super::super::raw;
use super::{NO_END, POLL, Pages, Place, RING_BATCH, is_not_ready};
use crate::call::{Direction, Executor, Waits};
use crate::error::Error;

/// Turns of a busy owner after which it looks for ready descriptors.
const READINESS_EVERY: u32 = 8;

/// Turns of a busy owner after which it enters the ring in which it sleeps, whatever waits there.
const ENTER_EVERY: u32 = 4;

/// Time after which the owner offers the ring again what the kernel did not take.
const RING_RETRY: Duration = Duration::from_millis(1);

/// Times in a row that both ends of a transfer are ready after a call that was not ready. Another process may change them
/// between the call and the look at them, but hardly so often.
const MAX_READY_TURNS: u8 = 16;

/// What happens to a call that returned `EAGAIN`.
pub(super) enum Refused {
    /// It waits for its descriptor.
    Waits,
    /// It waits for its other end now.
    Turned,
    /// It ends, as nothing tells when to make it again.
    Ends,
}

/// Why no further call is made for which a descriptor was reported.
enum Stop {
    /// No other call is to be made now.
    NoOther,
    /// The descriptor is not ready for the next one.
    NotReady,
    /// It may have been ready for one call only.
    OneServed,
}

impl Pages {
    /// Has all posted calls executed. Sleeps while no completion is there to take, and calls are
    /// outstanding (`flexsc_wait`); at most for a timeout. Returns whether there is a completion, or a syscall thread has
    /// become free, as its call waits for a descriptor again.
    ///
    /// # Errors
    /// In a child of fork(2), or if the kernel refuses to wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        self.wait_and_look(timeout, READINESS_EVERY)
    }

    /// The same. While a completion is there at once, it looks for ready descriptors every so many
    /// turns, a power of two.
    pub(crate) fn wait_and_look(
        &mut self,
        timeout: Option<Duration>,
        every: u32,
    ) -> Result<bool, Error> {
        // Before calls in place, whose time is not that of calls that have ended.
        let has_ended = !self.is_in_child() && self.take_from_threads();
        self.execute()?;
        if self.take_from_threads() || has_ended {
            self.busy_turns = self.busy_turns.wrapping_add(1);
            self.look_while_busy(every)?;
            return Ok(true);
        }
        // A timeout beyond what the clock can count is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while self.outstanding() > 0 {
            let remaining =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if self.prepare_to_sleep() {
                self.counters.sleeps += 1;
                let slept = self.sleep(remaining);
                self.end_of_sleep();
                slept?;
            }
            self.make_stranded_calls();
            if self.has_released_places() {
                self.empty_released_places();
            }
            if self.take_from_threads() {
                return Ok(true);
            }
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                break;
            }
        }
        Ok(false)
    }

    /// Looks for ready descriptors although there is a completion to take.
    pub(super) fn look_while_busy(&mut self, every: u32) -> Result<(), Error> {
        if self.busy_turns.is_multiple_of(READINESS_EVERY) {
            self.make_stranded_calls();
        }
        if self.sleeps_in_ring {
            // A few waits for descriptors can wait for the next entry.
            if self.ring.queued() >= RING_BATCH || self.busy_turns.is_multiple_of(ENTER_EVERY) {
                self.enter_ring()?;
            }
        } else if self.readiness.waiting() > 0 && self.busy_turns & (every - 1) == 0 {
            self.look_for_readiness(Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Sleeps until something happens, at most for a timeout.
    pub(super) fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        if self.sleeps_in_ring && self.sleep_in_ring(timeout)? {
            return Ok(());
        }
        let behind = self.ring.is_behind().then_some(RING_RETRY);
        self.look_for_readiness(timeout.into_iter().chain(behind).min())?;
        self.enter_ring()
    }

    /// Declares that the owner will sleep until [`Pages::sleep_fd`] is readable. Returns false if it has work.
    pub(crate) fn prepare_to_sleep(&mut self) -> bool {
        self.shared.bell.sleep.prepare();
        if self.has_work() {
            self.shared.bell.sleep.end();
            return false;
        }
        true
    }

    /// Returns whether there are completions to take, calls to make for which no thread comes, or registered files to
    /// close.
    pub(crate) fn has_work(&mut self) -> bool {
        self.has_completion() || self.has_stranded_calls() || self.has_released_places()
    }

    /// Ends the sleep.
    pub(crate) fn end_of_sleep(&self) {
        self.shared.bell.sleep.end();
    }

    /// Returns whether the ring has refused calls, which the owner offers it again.
    pub(crate) fn ring_is_behind(&mut self) -> bool {
        self.ring.is_behind()
    }

    /// Returns a descriptor that is readable when the owner should end its sleep.
    pub(crate) fn sleep_fd(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    /// Waits for ready descriptors, and makes the calls that wait for them.
    pub(super) fn look_for_readiness(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        match self.readiness.wait(timeout) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::System("wait for descriptors", errno.into())),
        }
        if self.readiness.bell_has_rung() {
            self.shared.bell.reset();
        }
        while let Some(report) = self.readiness.report() {
            let (mut any_not_ready, mut any_served) = (false, false);
            for direction in [Direction::Read, Direction::Write] {
                if report.ready[direction as usize] {
                    match self.make_waiting_calls(report.fd, direction) {
                        Stop::NotReady => any_not_ready = true,
                        Stop::OneServed => any_served = true,
                        Stop::NoOther => {}
                    }
                }
            }
            self.arm_again(report.fd, any_not_ready && !any_served);
        }
        self.publish();
        Ok(())
    }

    /// Waits for what the remaining calls of a descriptor need; for changes, if the last one for which it was reported as
    /// ready returned `EAGAIN`.
    pub(super) fn arm_again(&mut self, fd: RawFd, fruitless: bool) {
        if let Err(errno) = self.readiness.arm_again(fd, fruitless) {
            for direction in [Direction::Read, Direction::Write] {
                while let Some(index) = self.readiness.pop(fd, direction) {
                    self.not_armed(index, errno);
                }
            }
        }
    }

    /// Makes the calls that wait for a descriptor, as long as it is ready.
    fn make_waiting_calls(&mut self, fd: RawFd, direction: Direction) -> Stop {
        // A hangup or an error is reported for both directions. The call that holds this one arms it again at its end.
        if self.readiness.is_held(fd, direction) {
            return Stop::NoOther;
        }
        while let Some(index) = self.readiness.pop(fd, direction) {
            let blocks = matches!(self.slots[index as usize].waits, Waits::ReadyThenBlocks(..));
            if blocks && self.threads.is_some() {
                let is_held = self.readiness.hold(index, fd, direction);
                debug_assert!(is_held, "no other entry holds the direction");
                self.assign_blocking(index);
                return Stop::NoOther;
            }
            if self.is_only_readiness(index) {
                self.finish(index, 0);
                continue;
            }
            self.counters.in_place += 1;
            let entry = self.shared.entry(index);
            // SAFETY: no thread has the entry; the caller of `Pages::post` vouches for it.
            let result = unsafe {
                let (number, args) = entry.call();
                raw::system_call(number, &args)
            };
            if is_not_ready(result) {
                match self.refused(index) {
                    Refused::Waits => {
                        self.readiness.push_front(index, fd, direction);
                        return Stop::NotReady;
                    }
                    Refused::Turned => {
                        if let Some((fd, direction)) = self.slots[index as usize].waits.descriptor()
                        {
                            self.wait_for(index, fd, direction);
                        }
                        continue;
                    }
                    Refused::Ends => {}
                }
            }
            self.finish(index, result);
            if blocks {
                // It may have been ready for one call only.
                return Stop::OneServed;
            }
        }
        Stop::NoOther
    }

    /// Has a call that was not ready wait for its other end, if its descriptor is ready. It ends if both are ready again and
    /// again: at an urgent byte, splice(2) moves nothing until the application has received the byte, which no wait
    /// reports.
    pub(super) fn refused(&mut self, index: u32) -> Refused {
        let slot = &mut self.slots[index as usize];
        let other_end = slot.other_end;
        let Some((fd, direction)) = slot.waits.descriptor().filter(|_| other_end != NO_END) else {
            return Refused::Waits;
        };
        let is_ready = raw::is_ready(fd, direction);
        let both_are = is_ready && raw::is_ready(other_end, direction.opposite());
        slot.ready_turns = if both_are { slot.ready_turns + 1 } else { 0 };
        if slot.ready_turns == MAX_READY_TURNS {
            return Refused::Ends;
        }
        if !is_ready {
            return Refused::Waits;
        }
        self.swap_ends(index);
        Refused::Turned
    }

    /// Has a call wait for its other end, if it has one.
    fn swap_ends(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.other_end != NO_END {
            slot.waits.swap_end(&mut slot.other_end);
            slot.by_changes = false;
        }
    }

    /// Lets a call that was not ready wait, if it is of that sort. Otherwise its result is that.
    pub(super) fn waits_again(&mut self, index: u32) -> bool {
        if let Refused::Ends = self.refused(index) {
            return false;
        }
        let slot = &self.slots[index as usize];
        match slot.waits {
            Waits::Ready(fd, direction)
            | Waits::AfterReady(fd, direction)
            | Waits::ReadyThenBlocks(fd, direction)
                if slot.pinned.is_none() =>
            {
                self.shared.entry(index).repeat();
                self.wait_for(index, fd, direction);
                true
            }
            _ => false,
        }
    }

    /// Lets an entry wait for a descriptor.
    pub(super) fn wait_for(&mut self, index: u32, fd: RawFd, direction: Direction) {
        let blocks = matches!(self.slots[index as usize].waits, Waits::ReadyThenBlocks(..));
        let is_polled = self.sleeps_in_ring && !blocks;
        // The kernel checks the descriptor of a poll. The table of the others extends to the highest one.
        let may_be_open = is_polled || self.readiness.has_place(fd) || raw::is_open(fd);
        if fd < 0 || !may_be_open {
            return self.finish(index, -(libc::EBADF as isize));
        }
        self.counters.readiness_waits += 1;
        if is_polled {
            self.slots[index as usize].place = Place::Batch;
            return self.ring.queue.push_back(index | POLL);
        }
        if self.sleeps_in_ring {
            return self.poll_one(index, fd, direction);
        }
        self.slots[index as usize].place = Place::Waiting;
        self.readiness.push(index, fd, direction);
        if self.readiness.is_held(fd, direction) {
            return;
        }
        if let Err(errno) = self.readiness.arm(fd) {
            self.readiness.remove(index, fd, direction);
            self.not_armed(index, errno);
        }
    }

    /// Goes on with a call whose descriptor cannot be waited for.
    pub(super) fn not_armed(&mut self, index: u32, errno: Errno) {
        if errno == Errno::PERM && self.is_only_readiness(index) {
            return self.finish(index, 0);
        }
        // A file or device is always ready.
        self.swap_ends(index);
        if errno != Errno::PERM {
            self.finish(index, -(errno.raw_os_error() as isize));
        } else if self.threads.is_none() {
            // It cannot be waited for, so the owner waits where the call does. A transfer waits for its other end.
            match self.slots[index as usize].other_end {
                NO_END => self.execute_bounded(index),
                _ => self.execute_in_place(index),
            }
        } else if let Waits::ReadyThenBlocks(..) = self.slots[index as usize].waits {
            self.assign_blocking(index);
        } else {
            let slot = &mut self.slots[index as usize];
            if slot.other_end == NO_END {
                // If a thread gets EAGAIN, that is the result: nothing tells when to make the call again.
                slot.pinned = Some(Executor::Threads);
            }
            self.assign_thread(index);
        }
    }

    /// Returns whether an entry has no call to make.
    pub(super) fn is_only_readiness(&self, index: u32) -> bool {
        matches!(self.slots[index as usize].waits, Waits::UntilReady(..))
    }
}
