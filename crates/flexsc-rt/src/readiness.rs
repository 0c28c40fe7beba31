//! Entries that wait until a descriptor is ready, in one epoll(7) set.
//!
//! So 10,000 reads of idle sockets need no thread (section 7: "applications may still utilize the
//! epoll facility, but through the exception-less interface"). A descriptor is armed once at a time
//! (`EPOLLONESHOT`); entries that wait for the same one are served in order.
//!
//! A report can be fruitless: the kernel reports an error queue that is not empty (`IP_RECVERR` of ip(7)), or room that
//! is too little, and the call still returns `EAGAIN`. From then on changes are reported (`EPOLLET`).

use std::fmt;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use shared_ring::__private::Table;

use super::epoll_set::{Arm, EpollSet};
use crate::call::Direction;
use crate::entry_queue::{EntryQueue, Links};

/// The data of the events of the bell and of the ring. No descriptor has these numbers.
const BELL: u64 = u64::MAX;
const RING: u64 = u64::MAX - 1;

/// Reports taken at a time.
const REPORTS: usize = 256;

/// Returns the number of an entry plus one, so that an `Option` of it takes no more memory.
fn name_of(entry: u32) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(entry)
}

/// The entries that wait for a descriptor.
#[derive(Debug, Default)]
struct Waiters {
    queues: [EntryQueue; 2],
    /// Entries until whose end the others are not to be reported.
    holders: [Option<NonZeroU32>; 2],
    /// How it is in the set, as far as is known: closing a descriptor removes it.
    armed: Armed,
}

/// How a descriptor is in the set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    #[default]
    Out,
    /// It is reported once, or was.
    Once,
    /// Its changes are reported, in these directions.
    Changes([bool; 2]),
}

impl Waiters {
    /// Returns for which directions the descriptor is to be reported.
    fn interest(&self) -> [bool; 2] {
        [0, 1].map(|n| !self.queues[n].is_empty() && self.holders[n].is_none())
    }
}

/// A descriptor that became ready, for reading and for writing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) fd: RawFd,
    pub(crate) ready: [bool; 2],
}

/// The set.
pub(crate) struct Readiness {
    epoll: EpollSet,
    waiters: Table<Waiters>,
    links: Links,
    reports: Vec<epoll::Event>,
    waiting: usize,
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Readiness {
    pub(crate) fn new(entries: usize, bell: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut readiness = Readiness {
            epoll: EpollSet::new()?,
            waiters: Table::default(),
            links: Links::new(entries),
            reports: Vec::with_capacity(REPORTS),
            waiting: 0,
        };
        readiness.epoll.watch(bell, BELL)?;
        Ok(readiness)
    }

    /// Ends waits also while the ring is readable.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn watch_ring(&mut self, ring: BorrowedFd<'_>) -> Result<(), Errno> {
        self.epoll.watch(ring, RING)
    }

    /// Returns the number of entries that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the number of system calls made.
    pub(crate) fn calls(&self) -> u64 {
        self.epoll.calls()
    }

    /// Returns whether an entry that waits for a descriptor needs no further memory.
    #[inline]
    pub(crate) fn has_place(&self, fd: RawFd) -> bool {
        (fd as usize) < self.waiters.len()
    }

    /// Lets an entry wait. [`Readiness::arm`] has to follow.
    pub(crate) fn push(&mut self, entry: u32, fd: RawFd, direction: Direction) {
        let queue = &mut self.waiters.at(fd as usize).queues[direction as usize];
        self.links.push_back(queue, entry);
        self.waiting += 1;
    }

    /// Lets an entry wait before all others. [`Readiness::arm`] has to follow.
    pub(crate) fn push_front(&mut self, entry: u32, fd: RawFd, direction: Direction) {
        let queue = &mut self.waiters.at(fd as usize).queues[direction as usize];
        self.links.push_front(queue, entry);
        self.waiting += 1;
    }

    /// Takes the first entry that waits.
    pub(crate) fn pop(&mut self, fd: RawFd, direction: Direction) -> Option<u32> {
        let queue = &mut self.waiters.at(fd as usize).queues[direction as usize];
        let entry = self.links.pop_front(queue)?;
        self.waiting -= 1;
        Some(entry)
    }

    /// Takes an entry from anywhere among those that wait.
    pub(crate) fn remove(&mut self, entry: u32, fd: RawFd, direction: Direction) {
        let queue = &mut self.waiters.at(fd as usize).queues[direction as usize];
        self.links.remove(queue, entry);
        self.waiting -= 1;
        if queue.is_empty() {
            let _ = self.arm(fd);
        }
    }

    /// Waits for what the entries of a descriptor need.
    ///
    /// # Errors
    /// `EPERM` if the descriptor is always ready, as files are; `EBADF` if it is closed.
    pub(crate) fn arm(&mut self, fd: RawFd) -> Result<(), Errno> {
        self.arm_as(fd, Arm::Once)
    }

    fn arm_as(&mut self, fd: RawFd, arm: Arm) -> Result<(), Errno> {
        let waiters = self.waiters.at(fd as usize);
        let interest = waiters.interest();
        let is_in = waiters.armed != Armed::Out;
        if interest == [false; 2] {
            waiters.armed = Armed::Out;
            if is_in {
                self.epoll.disarm(fd);
            }
            return Ok(());
        }
        self.epoll.arm(fd, interest, is_in, arm)?;
        waiters.armed = match arm {
            Arm::Once => Armed::Once,
            Arm::Changes => Armed::Changes(interest),
        };
        Ok(())
    }

    /// Waits for what the remaining entries of a reported descriptor need; for changes, if the report was `fruitless`:
    /// the last call for which it could have been ready returned `EAGAIN`. Without any, the descriptor stays in the set
    /// if it is disarmed.
    ///
    /// # Errors
    /// As [`Readiness::arm`].
    pub(crate) fn arm_again(&mut self, fd: RawFd, fruitless: bool) -> Result<(), Errno> {
        let waiters = self.waiters.at(fd as usize);
        match (waiters.interest(), waiters.armed) {
            ([false, false], Armed::Out | Armed::Once) => Ok(()),
            // The set has what was reported since.
            (interest, Armed::Changes(armed)) if fruitless && interest == armed => Ok(()),
            _ => self.arm_as(fd, if fruitless { Arm::Changes } else { Arm::Once }),
        }
    }

    /// Keeps a descriptor from being reported until the end of an entry. Returns false if another entry does.
    pub(crate) fn hold(&mut self, entry: u32, fd: RawFd, direction: Direction) -> bool {
        let holder = &mut self.waiters.at(fd as usize).holders[direction as usize];
        *holder.get_or_insert(name_of(entry)) == name_of(entry)
    }

    /// Returns whether an entry keeps a descriptor from being reported.
    pub(crate) fn is_held(&mut self, fd: RawFd, direction: Direction) -> bool {
        self.waiters.at(fd as usize).holders[direction as usize].is_some()
    }

    /// Ends what [`Readiness::hold`] has begun, if it was for this entry. Returns whether it was.
    pub(crate) fn release(&mut self, entry: u32, fd: RawFd, direction: Direction) -> bool {
        let Some(waiters) = self.waiters.get_mut(fd as usize) else { return false };
        let holder = &mut waiters.holders[direction as usize];
        holder.take_if(|holder| *holder == name_of(entry)).is_some()
    }

    /// Returns whether the bell is among the reports.
    pub(crate) fn bell_has_rung(&self) -> bool {
        self.reports.iter().any(|event| event.data.u64() == BELL)
    }

    /// Waits for reports, without limit if there is no timeout.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Errno> {
        self.reports.clear();
        self.epoll.wait(&mut self.reports, timeout)
    }

    /// Takes a report.
    pub(crate) fn report(&mut self) -> Option<Report> {
        loop {
            let event = self.reports.pop()?;
            if event.data.u64() >= RING {
                continue;
            }
            let flags = event.flags;
            let both = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            let reads = flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP);
            let ready = [reads || both, flags.contains(epoll::EventFlags::OUT) || both];
            return Some(Report { fd: event.data.u64() as RawFd, ready });
        }
    }
}

impl AsFd for Readiness {
    /// Returns the set, which is readable while there are reports.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bell::Bell;

    const NOT_OPEN: RawFd = 100_000;

    #[test]
    fn waiters_are_kept_in_order() {
        let mut readiness = Readiness::new(8, Bell::new().unwrap().as_fd()).unwrap();
        let (fd, read) = (NOT_OPEN, Direction::Read);
        for entry in 0..5 {
            readiness.push(entry, fd, read);
        }
        readiness.push(5, fd, Direction::Write);
        for entry in [2, 4, 0] {
            readiness.remove(entry, fd, read);
        }
        readiness.push_front(7, fd, read);
        readiness.push(6, fd, read);
        assert_eq!(readiness.waiting(), 5);
        for entry in [7, 1, 3, 6] {
            assert_eq!(readiness.pop(fd, read), Some(entry));
        }
        assert_eq!(readiness.pop(fd, read), None);
        assert_eq!(readiness.pop(fd, Direction::Write), Some(5));
        assert_eq!(readiness.waiting(), 0);
    }

    #[test]
    fn descriptor_has_a_place_once_an_entry_has_waited_for_it() {
        let mut readiness = Readiness::new(8, Bell::new().unwrap().as_fd()).unwrap();
        assert!(!readiness.has_place(NOT_OPEN) && !readiness.has_place(0));
        readiness.push(0, NOT_OPEN, Direction::Read);
        readiness.pop(NOT_OPEN, Direction::Read);
        assert!(readiness.has_place(NOT_OPEN) && readiness.has_place(0));
    }

    #[test]
    fn only_the_bell_is_reported_as_the_bell() {
        let mut readiness = Readiness::new(8, Bell::new().unwrap().as_fd()).unwrap();
        for (data, is_bell) in [(0, false), (RING, false), (BELL, true)] {
            let data = epoll::EventData::new_u64(data);
            readiness.reports.push(epoll::Event { flags: epoll::EventFlags::IN, data });
            assert_eq!(readiness.bell_has_rung(), is_bell);
        }
        // Neither is a descriptor that an entry waits for.
        assert_eq!(readiness.report().map(|report| report.fd), Some(0));
        assert!(readiness.report().is_none());
    }
}
