//! The epoll set of the simulated machine.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;

use crate::bell::{self, BELL};
use crate::machine::{self, World};

/// Reports of one wait.
const REPORTS: usize = 16;

pub(crate) struct EpollSet {
    /// What reports of the bell carry, and of the ring.
    watched: Vec<u64>,
    armed: BTreeMap<RawFd, [bool; 2]>,
}

impl EpollSet {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(EpollSet { watched: Vec::new(), armed: BTreeMap::new() })
    }

    /// Watches the bell first.
    pub(crate) fn watch(&mut self, _fd: BorrowedFd<'_>, data: u64) -> Result<(), Errno> {
        self.watched.push(data);
        Ok(())
    }

    pub(crate) fn arm(
        &mut self,
        fd: RawFd,
        interest: [bool; 2],
        _added: bool,
    ) -> Result<(), Errno> {
        self.armed.insert(fd, interest);
        Ok(())
    }

    pub(crate) fn disarm(&mut self, fd: RawFd) {
        self.armed.remove(&fd);
    }

    pub(crate) fn wait(
        &mut self,
        reports: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        machine::with(|world| {
            world.wait_until(timeout, |world| {
                self.report(world, reports);
                !reports.is_empty()
            })
        })?;
        Ok(())
    }

    fn report(&mut self, world: &World, reports: &mut Vec<epoll::Event>) {
        let mut add = |flags, data| {
            reports.push(epoll::Event { flags, data: epoll::EventData::new_u64(data) });
        };
        let ring_has_results = !world.deferred.is_empty() || !world.landed.is_empty();
        for (data, is_readable) in self.watched.iter().zip([bell::has_rung(), ring_has_results]) {
            if is_readable {
                add(epoll::EventFlags::IN, *data);
            }
        }
        let mut reported = Vec::new();
        for (fd, interest) in &self.armed {
            let ready = world.ready(*fd);
            let mut flags = epoll::EventFlags::empty();
            flags.set(epoll::EventFlags::IN, interest[0] && ready[0]);
            flags.set(epoll::EventFlags::OUT, interest[1] && ready[1]);
            if !flags.is_empty() && reported.len() < REPORTS {
                add(flags, *fd as u64);
                reported.push(*fd);
            }
        }
        // A report disarms.
        for fd in reported {
            self.armed.remove(&fd);
        }
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: a number for waits, which no system call gets.
        unsafe { BorrowedFd::borrow_raw(BELL) }
    }
}
