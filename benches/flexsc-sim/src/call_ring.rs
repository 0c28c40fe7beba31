//! The ring of the simulated machine, for calls: it takes a part of what is submitted, completes in any order, and a
//! cancellation may come too late.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use evring_sim::{CallBy, Fault};
use rustix::event::PollFlags;
use rustix::io::Errno;
pub(crate) use shared_ring::author::CallJob;
use shared_ring::poller::Readiness;
pub(crate) use shared_ring::uring::Pushed;
use shared_ring::uring::{Mode, SetupError};

use crate::bell::BELL;
use crate::machine;

/// Submissions that the queue holds.
const SUBMISSIONS: usize = 16;

/// Numbers for which the ring has an operation.
const OPERATIONS: [i64; 7] = [
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_openat2,
    libc::SYS_preadv2,
];

#[derive(Clone, Copy, Debug)]
enum Work {
    Call(CallJob),
    Poll(RawFd, Readiness),
    PollForRoom(RawFd),
    Cancel,
}

/// As `shared_ring::uring::CallRing`.
#[derive(Debug)]
pub(crate) struct CallRing {
    submitted: VecDeque<(u64, Work)>,
}

impl CallRing {
    pub(crate) const MAX_NAME: u64 = machine::BY_THREAD - 1;

    pub(crate) fn new(_calls: u32, _mode: Mode) -> Result<Self, SetupError> {
        match machine::with(|world| world.has_ring) {
            true => Ok(CallRing { submitted: VecDeque::new() }),
            false => Err(SetupError::Other(libc::ENOSYS)),
        }
    }

    pub(crate) fn is_known(call: &CallJob) -> bool {
        OPERATIONS.contains(&i64::from(call.number))
    }

    pub(crate) fn has_operation(&mut self, call: &CallJob) -> bool {
        CallRing::is_known(call)
    }

    /// # Safety
    /// The memory of the call is valid until it has ended.
    pub(crate) unsafe fn push(&mut self, name: u64, call: &CallJob) -> Pushed {
        match CallRing::is_known(call) {
            true if self.queue(name, Work::Call(*call)) => Pushed::Queued,
            true => Pushed::Full,
            false => Pushed::NoOperation,
        }
    }

    pub(crate) fn push_poll(&mut self, name: u64, fd: RawFd, events: PollFlags) -> bool {
        let ready = match events.contains(PollFlags::OUT) {
            true => Readiness::WRITE,
            false => Readiness::READ | Readiness::HANGUP,
        };
        self.queue(name, Work::Poll(fd, ready))
    }

    pub(crate) fn has_room(events: u32) -> bool {
        shared_ring::uring::CallRing::has_room(events)
    }

    pub(crate) fn push_poll_for_room(&mut self, name: u64, fd: RawFd) -> bool {
        self.queue(name, Work::PollForRoom(fd))
    }

    pub(crate) fn cancel(&mut self, name: u64) -> bool {
        self.queue(name, Work::Cancel)
    }

    fn queue(&mut self, name: u64, work: Work) -> bool {
        let has_room = self.submitted.len() < SUBMISSIONS;
        if has_room {
            self.submitted.push_back((name, work));
        }
        has_room
    }

    pub(crate) fn needs_entry(&mut self) -> bool {
        !self.submitted.is_empty() || machine::with(|world| !world.deferred.is_empty())
    }

    pub(crate) fn queued(&mut self) -> u32 {
        self.submitted.len() as u32
    }

    pub(crate) fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, Errno> {
        machine::with(|world| {
            if world.calls.happens(Fault::Busy) {
                world.calls.enter()?;
                return Ok(0);
            }
            let queued = self.submitted.len();
            let takes = match queued {
                1.. if world.calls.happens(Fault::TakesFew) => world.calls.below(queued),
                _ => queued,
            };
            for (name, work) in self.submitted.drain(..takes) {
                match work {
                    // SAFETY: the caller of `push` keeps the memory.
                    Work::Call(job) => unsafe { world.calls.begin(name, job, CallBy::Ring) },
                    Work::Poll(BELL, _) => world.bell_in_ring = Some(name),
                    Work::Poll(fd, ready) => world.calls.begin_poll(name, fd, ready),
                    Work::PollForRoom(fd) => world.calls.begin_poll_for_room(name, fd),
                    Work::Cancel => world.calls.cancel(name),
                }
            }
            // The kernel does not wait if it has not taken everything, or is interrupted.
            let is_short = takes < queued || world.calls.happens(Fault::Interrupted);
            let timeout = if wanted == 0 || is_short { Some(Duration::ZERO) } else { timeout };
            world.wait_until(timeout, |world| {
                world.landed.append(&mut world.deferred);
                world.landed.len() >= wanted as usize
            })?;
            Ok(takes as u32)
        })
    }

    pub(crate) fn next_result(&mut self) -> Option<(u64, i32, bool)> {
        machine::with(|world| world.landed.pop_front())
    }
}

impl AsFd for CallRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: a number for waits, which no system call gets.
        unsafe { BorrowedFd::borrow_raw(BELL) }
    }
}
