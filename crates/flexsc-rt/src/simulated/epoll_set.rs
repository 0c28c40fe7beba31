//! The epoll set of a simulated machine.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;

pub(crate) use super::armed::Arm;
use super::armed::Armed;
use super::call_ring::is_readable;
use super::machine::{Machine, machine, wait_until};

/// Reports of one wait.
const REPORTS: usize = 16;

pub(crate) struct EpollSet {
    /// The owner's bell and what its reports carry; the rings follow.
    watched: Vec<(RawFd, u64)>,
    calls: u64,
}

impl EpollSet {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(EpollSet { watched: Vec::new(), calls: 0 })
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls
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
        arm: Arm,
    ) -> Result<(), Errno> {
        self.calls += 1;
        machine(|machine| {
            if !machine.is_open(fd) {
                return Err(Errno::BADF);
            }
            machine.armed.insert(fd, Armed { interest, arm, seen: None });
            Ok(())
        })
    }

    pub(crate) fn disarm(&mut self, fd: RawFd) {
        self.calls += 1;
        machine(|machine| machine.armed.remove(&fd));
    }

    pub(crate) fn wait(
        &mut self,
        reports: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        self.calls += 1;
        wait_until(timeout, |machine| {
            self.report(machine, reports);
            !reports.is_empty()
        })?;
        Ok(())
    }

    fn report(&self, machine: &mut Machine, reports: &mut Vec<epoll::Event>) {
        let mut add = |flags, data| {
            let has_room = reports.len() < REPORTS;
            if has_room {
                reports.push(epoll::Event { flags, data: epoll::EventData::new_u64(data) });
            }
            has_room
        };
        for (n, (fd, data)) in self.watched.iter().enumerate() {
            let is_ready = if n == 0 { is_readable(*fd) } else { machine.ring.has_completions() };
            if is_ready {
                add(epoll::EventFlags::IN, *data);
            }
        }
        for (fd, mut armed) in std::mem::take(&mut machine.armed) {
            let flags = armed.report(machine.changes(fd), machine.ready(fd), machine.has_error(fd));
            let is_reported = !flags.is_empty() && add(flags, fd as u64);
            if is_reported {
                armed.seen = Some(machine.changes(fd));
            }
            // A report disarms what is armed once.
            if !is_reported || armed.arm == Arm::Changes {
                machine.armed.insert(fd, armed);
            }
        }
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the bell is open as long as the pages are.
        unsafe { BorrowedFd::borrow_raw(self.watched[0].0) }
    }
}
