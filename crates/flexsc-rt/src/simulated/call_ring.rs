//! The ring of the simulated machine. It takes a part of what is submitted, completes in any order, and a
//! cancellation may come too late.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
pub(crate) use shared_ring::author::CallJob;
pub(crate) use shared_ring::uring::Pushed;
use shared_ring::uring::{Mode, SetupError};

use super::machine::{CLOSED, Machine, NOT_OPEN, STANDSTILL, machine, step};
use crate::call::Direction;

/// Submissions that the queue holds.
const SUBMISSIONS: usize = 24;

/// Results of waits for room.
const ROOM: isize = 1;
const NO_ROOM: isize = 2;

/// What the ring does for a submission.
#[derive(Clone, Copy, Debug)]
enum Work {
    Call(u32, [usize; 6]),
    Poll(RawFd, Direction),
    /// A wait for room that reports changes, and whether it has reported the present room.
    PollForRoom(RawFd, bool),
    /// Of the bell, a descriptor of the real machine.
    Bell(RawFd),
    Cancel,
}

#[derive(Clone, Copy, Debug)]
struct Submission {
    name: u64,
    work: Work,
    cancelled: bool,
}

/// What the ring has.
#[derive(Debug, Default)]
pub(super) struct Queues {
    submitted: VecDeque<Submission>,
    in_flight: Vec<Submission>,
    /// Completions that an entry into the kernel makes visible, and those that are visible.
    deferred: VecDeque<(u64, i32, bool)>,
    landed: VecDeque<(u64, i32, bool)>,
    /// Until then the kernel is short of memory and takes nothing.
    short_until_ns: u64,
    /// Sleeps since it last took something.
    declined: u32,
}

impl Queues {
    pub(super) fn has_completions(&self) -> bool {
        !self.deferred.is_empty() || !self.landed.is_empty()
    }

    /// Returns the names of calls and waits that the ring has.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = u64> {
        let of_calls =
            |submission: &&Submission| !matches!(submission.work, Work::Bell(_) | Work::Cancel);
        self.submitted.iter().chain(&self.in_flight).filter(of_calls).map(|one| one.name)
    }

    fn push(&mut self, name: u64, work: Work) -> bool {
        let has_room = self.submitted.len() < SUBMISSIONS;
        if has_room {
            self.submitted.push_back(Submission { name, work, cancelled: false });
        }
        has_room
    }
}

impl Machine {
    /// Lets the ring go on with a submission that it has taken.
    pub(super) fn step_ring(&mut self) {
        if self.ring.in_flight.is_empty() {
            return;
        }
        let at = self.random(self.ring.in_flight.len() as u64) as usize;
        let Submission { name, work, cancelled } = self.ring.in_flight[at];
        let done = match work {
            Work::Call(number, args) if self.waits_no_longer(number) => {
                // Some calls on sockets do not wait.
                let not_ready = args[3] == 1;
                self.call(number, &args).or(not_ready.then_some(-(libc::EAGAIN as isize)))
            }
            Work::Poll(CLOSED, _) | Work::PollForRoom(CLOSED, _) => Some(NOT_OPEN),
            Work::Poll(fd, direction) if self.is_ready(fd, direction) => Some(ROOM),
            // The peer has shut down its sending side.
            Work::Poll(_, Direction::Write) if self.random(4) == 0 => Some(NO_ROOM),
            Work::PollForRoom(fd, was_reported) => {
                let is_ready = self.is_ready(fd, Direction::Write);
                self.ring.in_flight[at].work = Work::PollForRoom(fd, is_ready);
                let report = match (is_ready, was_reported) {
                    (true, false) => Some(ROOM),
                    (false, _) if self.random(8) == 0 => Some(NO_ROOM),
                    _ => None,
                };
                // It may end early.
                let ends = report == Some(ROOM) && self.random(8) == 0;
                if let Some(report) = report.filter(|_| !ends) {
                    self.ring.deferred.push_back((name, report as i32, true));
                }
                let end = [ROOM, -(libc::ECANCELED as isize)][self.random(2) as usize];
                ends.then_some(end)
            }
            Work::Bell(fd) if is_readable(fd) => Some(1),
            _ => None,
        };
        let result = match done {
            Some(result) => result as i32,
            None if cancelled => -libc::ECANCELED,
            None => return,
        };
        self.ring.in_flight.swap_remove(at);
        self.ring.deferred.push_back((name, result, false));
    }

    fn take_submissions(&mut self) -> u32 {
        let most = match self.random(8) {
            _ if self.now_ns < self.ring.short_until_ns => 0,
            0 => 0,
            1 => 1 + self.random(4) as usize,
            _ => usize::MAX,
        };
        let mut taken = 0;
        while taken < most {
            let Some(submission) = self.ring.submitted.pop_front() else { break };
            taken += 1;
            let Submission { name, work, .. } = submission;
            match work {
                Work::Cancel => {
                    for other in self.ring.in_flight.iter_mut().filter(|other| other.name == name) {
                        other.cancelled = true;
                    }
                }
                _ => {
                    let is_used = self.ring.in_flight.iter().any(|other| other.name == name);
                    assert!(!is_used, "the ring has a call of this name");
                    self.ring.in_flight.push(submission);
                }
            }
        }
        taken as u32
    }
}

pub(super) fn is_readable(fd: RawFd) -> bool {
    // SAFETY: the bell is open.
    let bell = unsafe { BorrowedFd::borrow_raw(fd) };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&now)) == Ok(1)
}

/// As `shared_ring::uring::CallRing`.
#[derive(Debug)]
pub(crate) struct CallRing;

impl CallRing {
    pub(crate) const MAX_NAME: u64 = u64::MAX - 1;

    pub(crate) fn new(_calls: u32, _mode: Mode) -> Result<Self, SetupError> {
        Ok(CallRing)
    }

    /// Some numbers have no operation.
    pub(crate) fn is_known(call: &CallJob) -> bool {
        call.number < 1_000 || call.number % 10 != 2
    }

    pub(crate) fn has_operation(&mut self, call: &CallJob) -> bool {
        CallRing::is_known(call)
    }

    /// # Safety
    /// None is required: the machine has no memory.
    pub(crate) unsafe fn push(&mut self, name: u64, call: &CallJob) -> Pushed {
        if !self.has_operation(call) {
            return Pushed::NoOperation;
        }
        match machine(|machine| machine.ring.push(name, Work::Call(call.number, call.args))) {
            true => Pushed::Queued,
            false => Pushed::Full,
        }
    }

    pub(crate) fn push_poll(&mut self, name: u64, fd: RawFd, events: PollFlags) -> bool {
        let direction =
            if events.contains(PollFlags::OUT) { Direction::Write } else { Direction::Read };
        let work = match name {
            CallRing::MAX_NAME => Work::Bell(fd),
            _ => {
                assert!((0..=CLOSED).contains(&fd));
                Work::Poll(fd, direction)
            }
        };
        machine(|machine| machine.ring.push(name, work))
    }

    pub(crate) fn has_room(events: u32) -> bool {
        events as isize == ROOM
    }

    pub(crate) fn push_poll_for_room(&mut self, name: u64, fd: RawFd) -> bool {
        assert!((0..=CLOSED).contains(&fd));
        machine(|machine| machine.ring.push(name, Work::PollForRoom(fd, false)))
    }

    pub(crate) fn cancel(&mut self, name: u64) -> bool {
        machine(|machine| machine.ring.push(name, Work::Cancel))
    }

    pub(crate) fn needs_entry(&mut self) -> bool {
        machine(|machine| !machine.ring.submitted.is_empty() || !machine.ring.deferred.is_empty())
    }

    pub(crate) fn queued(&mut self) -> u32 {
        machine(|machine| machine.ring.submitted.len() as u32)
    }

    pub(crate) fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, Errno> {
        let begin = machine(|machine| machine.now_ns);
        let mut taken = 0;
        for _ in 0..STANDSTILL {
            let is_over = machine(|machine| {
                taken += machine.take_submissions();
                if wanted > 0 && taken == 0 && !machine.ring.submitted.is_empty() {
                    // As the kernel, it does not sleep then.
                    machine.ring.short_until_ns = machine.now_ns + 300;
                    machine.ring.declined += 1;
                    assert!(machine.ring.declined < 1_000, "the owner spins");
                    return true;
                }
                machine.ring.declined = 0;
                if machine.random(2) == 0 {
                    machine.step_ring();
                }
                let mut deferred = std::mem::take(&mut machine.ring.deferred);
                machine.ring.landed.append(&mut deferred);
                let late = timeout.is_some_and(|timeout| {
                    u128::from(machine.now_ns - begin) >= timeout.as_nanos()
                });
                late || machine.ring.landed.len() >= wanted as usize
            });
            if is_over {
                return Ok(taken);
            }
            step();
        }
        panic!("standstill: nothing ends the wait in the ring");
    }

    pub(crate) fn next_result(&mut self) -> Option<(u64, i32, bool)> {
        machine(|machine| machine.ring.landed.pop_front())
    }
}

impl AsFd for CallRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: standard input; the simulated epoll set does not use it.
        unsafe { BorrowedFd::borrow_raw(0) }
    }
}
