//! /dev/poll as Provos and Lever made it for Linux (2000): the interest set stays where it is, what
//! happens to a descriptor leaves a hint, and only descriptors with hints are asked for their state.
//!
//! Their hints were set by the network code. Here epoll's edges set them, and a wait then does what
//! theirs did: it goes through the whole set for hints, and asks those that have one.

use std::io;
use std::time::Duration;

use super::{EpollEdge, PollNow, Poller, Readiness};
use crate::{Fd, Linux, Table};

/// An interest set with hints.
pub struct DevPoll<H = EpollEdge, A = Linux> {
    /// What happens to descriptors: a poller with edges.
    edges: H,
    /// Knows what state they are in.
    state: A,
    pending_edges: Vec<(Fd, Readiness)>,
    set: Vec<WatchedFd>,
    /// For each descriptor, its place in the set plus one.
    places: Table<usize>,
    /// How many have hints.
    hints: usize,
    /// Those of one wait, to be asked.
    asked: Vec<libc::pollfd>,
    system_calls: u64,
}

/// One descriptor of the set.
struct WatchedFd {
    fd: Fd,
    events: i16,
    hint: bool,
}

impl DevPoll {
    /// Makes an empty set.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> io::Result<Self> {
        Ok(DevPoll::over(EpollEdge::new()?, Linux::default()))
    }
}

impl<H: Poller, A: PollNow> DevPoll<H, A> {
    /// Makes an empty set over what tells of happenings, and what knows of states.
    pub(crate) fn over(edges: H, state: A) -> Self {
        DevPoll {
            edges,
            state,
            pending_edges: Vec::new(),
            set: Vec::new(),
            places: Table::default(),
            hints: 0,
            asked: Vec::new(),
            system_calls: 0,
        }
    }

    fn interest(&mut self, fd: Fd) -> Option<&mut WatchedFd> {
        let at = self.places.get(fd.index())?.checked_sub(1)?;
        Some(&mut self.set[at])
    }

    fn hint(&mut self, fd: Fd) {
        if let Some(interest) = self.interest(fd)
            && !std::mem::replace(&mut interest.hint, true)
        {
            self.hints += 1;
        }
    }

    /// Notes what has happened; waits for it only while there is no hint.
    fn take_hints(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.hints > 0 { Some(Duration::ZERO) } else { timeout };
        self.edges.wait(timeout, &mut self.pending_edges)?;
        while let Some((fd, _)) = self.pending_edges.pop() {
            self.hint(fd);
        }
        Ok(())
    }

    /// Asks those that have hints. What is ready keeps its hint.
    fn poll_hinted(&mut self, out: &mut Vec<(Fd, Readiness)>) -> io::Result<()> {
        let hinted = self.set.iter().filter(|interest| interest.hint);
        let entry = |i: &WatchedFd| libc::pollfd { fd: i.fd.raw(), events: i.events, revents: 0 };
        self.asked.clear();
        self.asked.extend(hinted.map(entry));
        if self.asked.is_empty() {
            return Ok(());
        }
        self.system_calls += 1;
        self.state.poll_now(&mut self.asked)?;
        for i in 0..self.asked.len() {
            let entry = self.asked[i];
            let fd = Fd::from_raw(entry.fd);
            if entry.revents != 0 {
                out.push((fd, Readiness::from_poll(entry.revents)));
            } else if let Some(interest) = self.interest(fd) {
                interest.hint = false;
                self.hints -= 1;
            }
        }
        Ok(())
    }
}

// SAFETY: `forget` takes the number out of the set, of which alone states are asked for and reported, and has
// the poller beneath forget it.
unsafe impl<H: Poller, A: PollNow> Poller for DevPoll<H, A> {
    const EDGE: bool = false;

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        if want.is_empty() {
            // What happens to it still leaves no hint, as it is not in the set.
            self.leave(fd);
            return Ok(());
        }
        let events = want.to_poll();
        if let Some(interest) = self.interest(fd) {
            interest.events = events;
        } else {
            self.edges.set(fd, Readiness::READ | Readiness::WRITE)?;
            self.set.push(WatchedFd { fd, events, hint: false });
            *self.places.at(fd.index()) = self.set.len();
        }
        // Nobody knows its state yet.
        self.hint(fd);
        Ok(())
    }

    fn forget(&mut self, fd: Fd) {
        self.leave(fd);
        self.edges.forget(fd);
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<(Fd, Readiness)>,
    ) -> io::Result<()> {
        let (before, hinted) = (out.len(), self.hints > 0);
        self.take_hints(timeout)?;
        self.poll_hinted(out)?;
        if hinted && out.len() == before {
            // What was hinted at was no news; now it may be waited.
            self.take_hints(timeout)?;
            self.poll_hinted(out)?;
        }
        Ok(())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls + self.edges.system_calls()
    }
}

impl<H: Poller, A: PollNow> DevPoll<H, A> {
    fn leave(&mut self, fd: Fd) {
        let Some(at) = std::mem::take(self.places.at(fd.index())).checked_sub(1) else { return };
        let left = self.set.swap_remove(at);
        self.hints -= usize::from(left.hint);
        if let Some(moved) = self.set.get(at) {
            *self.places.at(moved.fd.index()) = at + 1;
        }
    }
}
