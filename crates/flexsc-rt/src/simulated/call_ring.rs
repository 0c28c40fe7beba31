//! The program's side of the ring of a simulated machine. The machine decides what is taken, and when a call ends.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
pub(crate) use shared_ring::author::CallJob;
pub(crate) use shared_ring::uring::Pushed;
use shared_ring::uring::{Mode, SetupError};

use super::machine::{self, machine};
use crate::call::Direction;

/// Submissions that the queue holds.
const SUBMISSIONS: usize = 4;

/// The work of the ring for a submission.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingWork {
    Call(CallJob),
    Poll(RawFd, Direction),
    /// A wait that reports changes.
    Watch(RawFd, Direction),
    /// Of the bell, a descriptor of the real machine.
    Bell(RawFd),
    Cancel,
}

/// The queues that the program shares with the kernel.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Names, and what the ring does.
    pub(crate) submitted: VecDeque<(u64, RingWork)>,
    /// Completions that an entry into the kernel makes visible, and those that are visible. With `true`, more follow.
    pub(crate) deferred: VecDeque<(u64, i32, bool)>,
    pub(crate) landed: VecDeque<(u64, i32, bool)>,
    /// The table of registered files.
    pub(crate) files: Vec<Option<RawFd>>,
}

impl Queues {
    pub(crate) fn has_completions(&self) -> bool {
        !self.deferred.is_empty() || !self.landed.is_empty()
    }

    /// Makes completions visible. Returns how many are.
    pub(crate) fn land(&mut self) -> usize {
        self.landed.append(&mut self.deferred);
        self.landed.len()
    }
}

/// Returns whether a bell has rung.
pub(crate) fn is_readable(bell: RawFd) -> bool {
    // SAFETY: the bell is open.
    let bell = unsafe { BorrowedFd::borrow_raw(bell) };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&now)) == Ok(1)
}

/// As `shared_ring::uring::CallRing`.
#[derive(Debug)]
pub(crate) struct CallRing;

impl CallRing {
    /// The name of the wait for the bell.
    pub(crate) const MAX_NAME: u64 = u64::MAX / 2;

    pub(crate) fn new(_calls: u32, _mode: Mode) -> Result<Self, SetupError> {
        match machine(|machine| machine.has_ring()) {
            true => Ok(CallRing),
            false => Err(SetupError::Other(libc::ENOSYS)),
        }
    }

    pub(crate) fn is_known(call: &CallJob) -> bool {
        machine::has_operation(call.number)
    }

    pub(crate) fn has_operation(&mut self, call: &CallJob) -> bool {
        CallRing::is_known(call)
    }

    /// # Safety
    /// The memory of the call is valid until it has ended.
    pub(crate) unsafe fn push(&mut self, name: u64, call: &CallJob) -> Pushed {
        match CallRing::is_known(call) {
            true if self.queue(name, RingWork::Call(*call)) => Pushed::Queued,
            true => Pushed::Full,
            false => Pushed::NoOperation,
        }
    }

    pub(crate) fn create_file_table(&mut self, places: u32) -> bool {
        machine(|machine| machine.ring.files = vec![None; places as usize]);
        true
    }

    pub(crate) fn set_file(&mut self, place: u32, file: Option<BorrowedFd<'_>>) -> bool {
        let file = file.map(|file| file.as_raw_fd());
        machine(|machine| {
            let former = std::mem::replace(&mut machine.ring.files[place as usize], file);
            let is_about_it = |work| matches!(work, RingWork::Call(call) if Some(call.args[5] as RawFd) == former);
            let is_used = machine.ring.submitted.iter().any(|(_, work)| is_about_it(*work));
            assert!(!is_used, "the file of a call leaves its place");
        });
        true
    }

    /// The last argument of the call is the file.
    ///
    /// # Safety
    /// As for [`CallRing::push`].
    pub(crate) unsafe fn push_registered(
        &mut self,
        name: u64,
        call: &CallJob,
        place: u32,
    ) -> Pushed {
        let file = machine(|machine| machine.ring.files[place as usize]);
        assert_eq!(file, Some(call.args[5] as RawFd), "the place has another file");
        // SAFETY: the caller promises it.
        unsafe { self.push(name, call) }
    }

    pub(crate) fn push_poll(&mut self, name: u64, fd: RawFd, events: PollFlags) -> bool {
        let work = match name {
            CallRing::MAX_NAME => RingWork::Bell(fd),
            _ => RingWork::Poll(fd, direction(events)),
        };
        self.queue(name, work)
    }

    pub(crate) fn has_room(events: u32) -> bool {
        shared_ring::uring::CallRing::has_room(events)
    }

    pub(crate) fn push_watch(&mut self, name: u64, fd: RawFd, events: PollFlags) -> bool {
        self.queue(name, RingWork::Watch(fd, direction(events)))
    }

    pub(crate) fn cancel(&mut self, name: u64) -> bool {
        self.queue(name, RingWork::Cancel)
    }

    fn queue(&mut self, name: u64, work: RingWork) -> bool {
        machine(|machine| {
            let has_room = machine.ring.submitted.len() < SUBMISSIONS;
            if has_room {
                machine.ring.submitted.push_back((name, work));
            }
            has_room
        })
    }

    pub(crate) fn needs_entry(&mut self) -> bool {
        machine(|machine| !machine.ring.submitted.is_empty() || !machine.ring.deferred.is_empty())
    }

    pub(crate) fn queued(&mut self) -> u32 {
        machine(|machine| machine.ring.submitted.len() as u32)
    }

    pub(crate) fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, Errno> {
        machine::enter(wanted as usize, timeout)
    }

    pub(crate) fn next_result(&mut self) -> Option<(u64, i32, bool)> {
        machine(|machine| machine.ring.landed.pop_front())
    }
}

fn direction(events: PollFlags) -> Direction {
    if events.contains(PollFlags::OUT) { Direction::Write } else { Direction::Read }
}

impl AsFd for CallRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: standard input; the simulated epoll set does not use it.
        unsafe { BorrowedFd::borrow_raw(0) }
    }
}
