//! The epoll set of the simulated machine.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;

use super::call_ring::is_readable;
use super::machine::{CLOSED, STANDSTILL, machine, step};
use crate::call::Direction;

pub(crate) struct EpollSet {
    /// The owner's bell and what its reports carry; the rings follow.
    watched: Vec<(RawFd, u64)>,
}

impl EpollSet {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(EpollSet { watched: Vec::new() })
    }

    pub(crate) fn watch(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<(), Errno> {
        self.watched.push((fd.as_raw_fd(), data));
        Ok(())
    }

    pub(crate) fn arm(
        &mut self,
        fd: RawFd,
        interest: [bool; 2],
        _added: bool,
    ) -> Result<(), Errno> {
        if fd == CLOSED {
            return Err(Errno::BADF);
        }
        machine(|machine| machine.armed.insert(fd, interest));
        Ok(())
    }

    pub(crate) fn disarm(&mut self, fd: RawFd) {
        machine(|machine| machine.armed.remove(&fd));
    }

    pub(crate) fn wait(
        &mut self,
        reports: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        let begin = machine(|machine| machine.now_ns);
        for _ in 0..STANDSTILL {
            self.report(reports);
            let is_late = |timeout: Duration| {
                machine(|machine| u128::from(machine.now_ns - begin) >= timeout.as_nanos())
            };
            if !reports.is_empty() || timeout.is_some_and(is_late) {
                return Ok(());
            }
            step();
        }
        panic!("standstill: nothing ends the wait");
    }

    fn report(&self, reports: &mut Vec<epoll::Event>) {
        let mut add = |flags, data| {
            reports.push(epoll::Event { flags, data: epoll::EventData::new_u64(data) });
        };
        for (n, (fd, data)) in self.watched.iter().enumerate() {
            let is_readable = if n == 0 {
                is_readable(*fd)
            } else {
                machine(|machine| machine.ring.has_completions())
            };
            if is_readable {
                add(epoll::EventFlags::IN, *data);
            }
        }
        machine(|machine| {
            for (fd, interest) in std::mem::take(&mut machine.armed) {
                let ready = [Direction::Read, Direction::Write].map(|direction| {
                    interest[direction as usize] && machine.is_ready(fd, direction)
                });
                let mut flags = epoll::EventFlags::empty();
                flags.set(epoll::EventFlags::IN, ready[0]);
                flags.set(epoll::EventFlags::OUT, ready[1]);
                if flags.is_empty() {
                    machine.armed.insert(fd, interest);
                } else {
                    add(flags, fd as u64);
                }
            }
        });
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the bell is open as long as the pages are.
        unsafe { BorrowedFd::borrow_raw(self.watched[0].0) }
    }
}
