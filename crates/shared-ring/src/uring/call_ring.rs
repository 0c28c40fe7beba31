//! A ring that makes system calls, and nothing else.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::squeue::{Entry as Sqe, Flags};
use io_uring::types::Fd as Raw;
use io_uring::{cqueue, opcode};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::calls::{RingCalls, sqe as sqe_of, takes_registered_file};
use super::{Entries, LinuxRing, Mode, Ring, SetupError, WORKERS, probe, sqe};
use crate::{CallJob, Linux};

/// The user data of cancellations, which no call has.
const CANCEL: u64 = u64::MAX;

/// A ring for system calls whose memory the caller keeps. The caller names each by a number of 64 bits.
///
/// It belongs to the thread that created it. Its descriptor is readable while [`CallRing::enter`] would find a
/// completion. In a child of fork(2) it must not be entered.
pub struct CallRing {
    ring: LinuxRing,
    operations: RingCalls,
    /// The number of places of the table of files.
    places: u32,
}

/// No file in a place of the table.
const EMPTY: RawFd = -1;

/// The result of pushing a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is queued.
    Queued,
    /// The queue is full.
    Full,
    /// The ring, or this kernel, has no operation for the call.
    NoOperation,
}

impl CallRing {
    /// The largest name of a call.
    pub const MAX_NAME: u64 = CANCEL - 1;

    /// Sets up a ring for about `calls` in flight. With more it costs memory of the kernel.
    ///
    /// With [`Mode::Deferred`], work of the kernel's workers does not make the descriptor readable: that mode is for
    /// an author that waits in [`CallRing::enter`].
    ///
    /// # Errors
    /// The missing feature.
    pub fn new(calls: u32, mode: Mode) -> Result<Self, SetupError> {
        let calls = calls.max(1);
        let entries = Entries { submissions: calls.min(512), completions: calls.max(512) };
        let mut ring: LinuxRing = probe::setup(&Linux::default(), mode, entries)?;
        ring.limit_workers(WORKERS)
            .map_err(|error| probe::registration_error(&error, "a bound on its worker threads"))?;
        Ok(CallRing { ring, operations: RingCalls::default(), places: 0 })
    }

    /// Returns whether io_uring has an operation for a call, on some kernel.
    pub fn is_known(call: &CallJob) -> bool {
        sqe_of(call).is_some()
    }

    /// Returns whether the ring, and this kernel, have an operation for a call.
    pub fn has_operation(&mut self, call: &CallJob) -> bool {
        self.operations.sqe(&self.ring, call).is_some()
    }

    /// Queues a call.
    ///
    /// # Safety
    /// The caller vouches for the meaning of number and arguments. Memory that they refer to stays valid until
    /// the completion of the call was taken. The name is at most [`CallRing::MAX_NAME`], and no other call in
    /// flight has it.
    #[inline]
    pub unsafe fn push(&mut self, name: u64, call: &CallJob) -> Pushed {
        let Some(sqe) = self.operations.sqe(&self.ring, call) else { return Pushed::NoOperation };
        // SAFETY: the caller keeps the memory.
        unsafe { self.push_sqe(name, sqe) }
    }

    /// Creates the table of registered files, once, with so many free places. The kernel takes no reference to a file of the
    /// table for each call. Returns false if it refuses: it is older than Linux 5.19, or the limit on descriptors is lower.
    pub fn create_file_table(&mut self, places: u32) -> bool {
        let created = self.places == 0 && self.ring.create_file_table(places).is_ok();
        if created {
            self.places = places;
        }
        created
    }

    /// Puts a file into a place of the table, or empties the place. Calls that the kernel has taken keep their file. Returns
    /// false if the kernel refuses.
    pub fn set_file(&mut self, place: u32, file: Option<BorrowedFd<'_>>) -> bool {
        let file = file.map_or(EMPTY, |file| file.as_raw_fd());
        place < self.places && self.ring.set_files(place, &[file]).is_ok()
    }

    /// Queues a call on the file that is in a place of the table. If the call has no operation for such a file, its
    /// arguments name the descriptor.
    ///
    /// # Safety
    /// As for [`CallRing::push`]. The first argument is a descriptor of the file that is in the place until the kernel has
    /// taken the call.
    #[inline]
    pub unsafe fn push_registered(&mut self, name: u64, call: &CallJob, place: u32) -> Pushed {
        if !takes_registered_file(call.number) {
            // SAFETY: the caller promises it.
            return unsafe { self.push(name, call) };
        }
        let [_, b, c, d, e, f] = call.args;
        let call = CallJob { number: call.number, args: [place as usize, b, c, d, e, f] };
        let Some(sqe) = self.operations.sqe(&self.ring, &call) else { return Pushed::NoOperation };
        // SAFETY: the caller keeps the memory.
        unsafe { self.push_sqe(name, sqe.flags(Flags::FIXED_FILE)) }
    }

    /// # Safety
    /// As for [`Ring::push`].
    #[inline]
    unsafe fn push_sqe(&mut self, name: u64, sqe: Sqe) -> Pushed {
        // SAFETY: the caller promises it.
        match unsafe { self.ring.push(&sqe.user_data(name)) } {
            true => Pushed::Queued,
            false => Pushed::Full,
        }
    }

    /// Queues a wait until a descriptor is ready, once. Its result is the state of the descriptor, as that of
    /// poll(2). Returns false if the queue is full.
    pub fn push_poll(&mut self, name: u64, fd: RawFd, events: PollFlags) -> bool {
        let poll = opcode::PollAdd::new(Raw(fd), events.bits().into()).build();
        // SAFETY: a poll points to no memory.
        unsafe { self.ring.push(&poll.user_data(name)) }
    }

    /// Returns whether the events that a wait for room has reported are room, or an error that a send returns. The ring
    /// reports to a single wait at once that the peer has shut down its sending side (POLLRDHUP), with or without room.
    pub fn has_room(events: u32) -> bool {
        sqe::has_room(events)
    }

    /// Queues a multishot wait, to follow a single one whose report was of no use: a peer that has shut down its sending
    /// side is no room. It reports the present state and then each change, until it is
    /// [cancelled](CallRing::cancel). Returns false if the queue is full.
    pub fn push_watch(&mut self, name: u64, fd: RawFd, events: PollFlags) -> bool {
        let poll = opcode::PollAdd::new(Raw(fd), events.bits().into()).multi(true).build();
        // SAFETY: a poll points to no memory.
        unsafe { self.ring.push(&poll.user_data(name)) }
    }

    /// Queues the cancellation of a call, which completes in any case: with `ECANCELED` or `EINTR` if the
    /// cancellation came in time. Returns false if the queue is full.
    pub fn cancel(&mut self, name: u64) -> bool {
        // SAFETY: a cancellation points to no memory.
        unsafe { self.ring.push(&sqe::cancel_named(name, CANCEL)) }
    }

    /// Returns whether the kernel has something to do: it has not taken all submissions, or it has deferred
    /// work.
    pub fn needs_entry(&mut self) -> bool {
        self.queued() > 0 || self.ring.has_taskrun() || self.ring.has_overflowed()
    }

    /// Returns the number of submissions that the kernel has not taken.
    pub fn queued(&mut self) -> u32 {
        self.ring.queued()
    }

    /// Enters the kernel: submits, runs deferred work, and waits for so many completions, at most for a timeout.
    /// Returns the number of submissions taken: 0 if the kernel takes none before completions are taken, or is short
    /// of memory.
    ///
    /// # Errors
    /// Those of io_uring_enter(2) that do not pass.
    pub fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, Errno> {
        match self.ring.enter(wanted, timeout) {
            Err(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(0),
            result => result,
        }
    }

    /// Takes the name and a result of a call or wait, and whether more results follow, without a system call. An error is
    /// negative.
    #[inline]
    pub fn next_result(&mut self) -> Option<(u64, i32, bool)> {
        loop {
            let cqe = self.ring.pop()?;
            if cqe.user_data != CANCEL {
                return Some((cqe.user_data, cqe.result, cqueue::more(cqe.flags)));
            }
        }
    }
}

impl Drop for CallRing {
    /// Empties the table: the kernel ends a ring some time after it was closed, and would keep the files open meanwhile.
    fn drop(&mut self) {
        if self.places > 0 {
            // Errors are harmless, as the end of the ring empties the table, too.
            let _ = self.ring.set_files(0, &vec![EMPTY; self.places as usize]);
        }
    }
}

impl AsFd for CallRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl fmt::Debug for CallRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallRing").field("landed", &self.ring.landed()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_returns_how_many_calls_the_kernel_has_taken() {
        let mut ring = match CallRing::new(8, Mode::Cooperative) {
            Ok(ring) => ring,
            Err(missing) => return println!("not tested: {missing}"),
        };
        let close = CallJob { number: libc::SYS_close as u32, args: [usize::MAX; 6] };
        for name in 0..2 {
            // SAFETY: no descriptor has the number.
            assert_eq!(unsafe { ring.push(name, &close) }, Pushed::Queued);
        }
        assert_eq!(ring.enter(2, None), Ok(2));
        let names = [(); 2].map(|()| ring.next_result().map(|(name, ..)| name));
        assert_eq!(names, [Some(0), Some(1)]);
        // The wait for another one ends without one.
        assert_eq!(ring.enter(1, Some(Duration::from_millis(1))), Ok(0));
        assert_eq!(ring.next_result(), None);
    }
}
