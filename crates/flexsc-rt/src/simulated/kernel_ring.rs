//! The kernel's side of the ring. It may take only part of what is submitted, completes in any order, and may take a
//! cancellation too late.

use std::time::Duration;

use rustix::io::Errno;

use super::call_ring::{RingWork, is_readable};
use super::machine::{CLOSED, Machine, NOT_OPEN, wait_until};
use crate::call::Direction;

/// The result of a wait whose descriptor is ready.
const READY: isize = (libc::POLLIN | libc::POLLOUT) as isize;

/// The result of a wait for room without room: the peer has shut down its sending side.
const NO_ROOM: isize = libc::POLLRDHUP as isize;

/// The result of a wait for a descriptor that has an error queue.
const ERROR: isize = libc::POLLERR as isize;

#[derive(Clone, Copy, Debug)]
struct Submission {
    name: u64,
    work: RingWork,
    cancelled: bool,
    /// The changes that a wait for changes has reported.
    seen: Option<u64>,
}

/// The kernel's state of the ring.
#[derive(Debug, Default)]
pub(super) struct KernelRing {
    in_flight: Vec<Submission>,
    /// Until then the kernel is short of memory and takes nothing.
    short_until_ns: u64,
    /// Sleeps since it last took something.
    declined: u32,
}

/// Returns whether the ring has an operation for calls of a number; for some it has none.
pub(super) fn has_operation(number: u32) -> bool {
    number < 1_000 || number % 10 != 2
}

/// Enters the kernel, and waits there for so many completions, at most for a timeout. Returns how many submissions the
/// kernel has taken.
pub(super) fn enter(wanted: usize, timeout: Option<Duration>) -> Result<u32, Errno> {
    let mut taken = 0;
    wait_until(timeout, |machine| {
        taken += machine.take_submissions();
        let kernel = &mut machine.kernel_ring;
        if wanted > 0 && taken == 0 && !machine.ring.submitted.is_empty() {
            // Like the kernel, it does not sleep then.
            kernel.short_until_ns = machine.now_ns + 300;
            kernel.declined += 1;
            assert!(kernel.declined < 1_000, "the owner spins");
            return true;
        }
        kernel.declined = 0;
        if machine.random(2) == 0 {
            machine.step_ring();
        }
        machine.ring.land() >= wanted
    })?;
    Ok(taken)
}

impl KernelRing {
    /// Is short of memory until then.
    pub(super) fn be_short_until(&mut self, time_ns: u64) {
        self.short_until_ns = time_ns;
    }
}

impl Machine {
    /// Returns the names of calls and waits that the ring has.
    pub(super) fn in_ring(&self) -> impl Iterator<Item = u64> {
        let in_flight = self.kernel_ring.in_flight.iter().map(|one| (one.name, one.work));
        let all = self.ring.submitted.iter().copied().chain(in_flight);
        all.filter(|(_, work)| !matches!(work, RingWork::Bell(_) | RingWork::Cancel))
            .map(|(name, _)| name)
    }

    /// Lets the ring go on with a submission that it has taken.
    pub(super) fn step_ring(&mut self) {
        if self.kernel_ring.in_flight.is_empty() {
            return;
        }
        let at = self.random(self.kernel_ring.in_flight.len() as u64) as usize;
        let Submission { name, work, cancelled, seen } = self.kernel_ring.in_flight[at];
        let done = match work {
            RingWork::Call(call) if self.waits_no_longer(call.number) => {
                // Some calls on sockets do not wait.
                let not_ready = call.args[3] == 1;
                self.call(call.number, &call.args).or(not_ready.then_some(-(libc::EAGAIN as isize)))
            }
            RingWork::Poll(CLOSED, _) | RingWork::Watch(CLOSED, _) => Some(NOT_OPEN),
            RingWork::Poll(fd, direction) if self.ready(fd)[direction as usize] => Some(READY),
            RingWork::Poll(fd, _) if self.has_error(fd) => Some(ERROR),
            // The peer has shut down its sending side.
            RingWork::Poll(_, Direction::Write) if self.random(4) == 0 => Some(NO_ROOM),
            RingWork::Watch(fd, direction) => {
                let (ready, changes) = (self.ready(fd), self.changes(fd));
                let (is_ready, now) = (ready[direction as usize], changes[direction as usize]);
                let state = match is_ready {
                    true => Some(READY),
                    false => self.has_error(fd).then_some(ERROR),
                };
                let report = match state {
                    Some(state) if seen != Some(now) => Some(state),
                    None if direction == Direction::Write && self.random(8) == 0 => Some(NO_ROOM),
                    _ => None,
                };
                self.kernel_ring.in_flight[at].seen = Some(now);
                // It may end early, with a report or after one.
                let ends = report.is_some_and(|report| report != NO_ROOM) && self.random(3) == 0;
                if let Some(report) = report.filter(|_| !ends || self.random(2) == 0) {
                    self.ring.deferred.push_back((name, report as i32, true));
                }
                let end = [state.unwrap_or(READY), -(libc::ECANCELED as isize)];
                let end = end[self.random(2) as usize];
                ends.then_some(end)
            }
            RingWork::Bell(fd) if is_readable(fd) => Some(1),
            _ => None,
        };
        let result = match done {
            Some(result) => result as i32,
            None if cancelled => -libc::ECANCELED,
            None => return,
        };
        self.kernel_ring.in_flight.swap_remove(at);
        self.ring.deferred.push_back((name, result, false));
    }

    fn take_submissions(&mut self) -> u32 {
        let max = match self.random(8) {
            _ if self.now_ns < self.kernel_ring.short_until_ns => 0,
            0..=1 => 0,
            2 => 1 + self.random(4) as usize,
            _ => usize::MAX,
        };
        let takes = max.min(self.ring.submitted.len());
        let in_flight = &mut self.kernel_ring.in_flight;
        for (name, work) in self.ring.submitted.drain(..takes) {
            match work {
                RingWork::Cancel => {
                    for other in in_flight.iter_mut().filter(|other| other.name == name) {
                        other.cancelled = true;
                    }
                }
                _ => {
                    let is_used = in_flight.iter().any(|other| other.name == name);
                    assert!(!is_used, "the ring has a call of this name");
                    in_flight.push(Submission { name, work, cancelled: false, seen: None });
                }
            }
        }
        takes as u32
    }
}
