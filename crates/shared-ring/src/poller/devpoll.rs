//! /dev/poll as Provos and Lever implemented it for Linux (2000). The interest set is kept between
//! calls, events set hints on descriptors, and only descriptors with hints are polled.
//!
//! In their version the network code set the hints; in this one epoll's edges do. As in theirs, a
//! wait scans the whole set for hints and polls the descriptors that have one.

use std::io;
use std::time::Duration;

use super::epoll::EpollEdge;
use super::interface::{PollNow, Poller, Readiness};
use crate::table::Table;
use crate::{Fd, Linux};

/// An interest set with hints.
pub struct DevPoll<H = EpollEdge, A = Linux> {
    /// An edge-triggered poller, which reports events of descriptors.
    edges: H,
    /// Reports their current state.
    state: A,
    pending_edges: Vec<(Fd, Readiness)>,
    set: Vec<WatchedFd>,
    /// For each descriptor, its index in the set plus one.
    places: Table<usize>,
    /// Number of descriptors with hints.
    hints: usize,
    /// The descriptors polled in one wait.
    polled: Vec<libc::pollfd>,
    system_calls: u64,
}

impl<H, A> std::fmt::Debug for DevPoll<H, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevPoll")
            .field("watched", &self.set.len())
            .field("hints", &self.hints)
            .finish_non_exhaustive()
    }
}

/// A descriptor of the set.
struct WatchedFd {
    fd: Fd,
    events: i16,
    hint: bool,
}

impl DevPoll {
    /// Creates an empty set.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> io::Result<Self> {
        Ok(DevPoll::over(EpollEdge::new()?, Linux::default()))
    }
}

impl<H: Poller, A: PollNow> DevPoll<H, A> {
    /// Creates an empty set over an edge-triggered poller and a source of current states.
    pub fn over(edges: H, state: A) -> Self {
        DevPoll {
            edges,
            state,
            pending_edges: Vec::new(),
            set: Vec::new(),
            places: Table::default(),
            hints: 0,
            polled: Vec::new(),
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

    /// Sets hints for new edges. Waits for edges only while no descriptor has a hint.
    fn take_hints(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.hints > 0 { Some(Duration::ZERO) } else { timeout };
        self.edges.wait(timeout, &mut self.pending_edges)?;
        while let Some((fd, _)) = self.pending_edges.pop() {
            self.hint(fd);
        }
        Ok(())
    }

    /// Polls the descriptors with hints. Those that are ready keep their hint.
    fn poll_hinted(&mut self, out: &mut Vec<(Fd, Readiness)>) -> io::Result<()> {
        let hinted = self.set.iter().filter(|interest| interest.hint);
        let entry = |i: &WatchedFd| libc::pollfd { fd: i.fd.raw(), events: i.events, revents: 0 };
        self.polled.clear();
        self.polled.extend(hinted.map(entry));
        if self.polled.is_empty() {
            return Ok(());
        }
        self.system_calls += 1;
        self.state.poll_now(&mut self.polled)?;
        for i in 0..self.polled.len() {
            let entry = self.polled[i];
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

// SAFETY: `forget` removes the number from the set and from the edge-triggered poller; only numbers in the
// set are polled and reported.
unsafe impl<H: Poller, A: PollNow> Poller for DevPoll<H, A> {
    fn is_edge_triggered(&self) -> bool {
        false
    }

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        if want.is_empty() {
            // Later edges set no hint, as it is not in the set.
            self.remove(fd);
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
        // Its state is not known yet.
        self.hint(fd);
        Ok(())
    }

    fn forget(&mut self, fd: Fd) {
        self.remove(fd);
        self.edges.forget(fd);
    }

    fn forget_shared(&mut self, fd: Fd) {
        self.remove(fd);
        self.edges.forget_shared(fd);
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
            // No descriptor with a hint was ready, so waiting is allowed now.
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
    fn remove(&mut self, fd: Fd) {
        let Some(at) = std::mem::take(self.places.at(fd.index())).checked_sub(1) else { return };
        let removed = self.set.swap_remove(at);
        self.hints -= usize::from(removed.hint);
        if let Some(moved) = self.set.get(at) {
            *self.places.at(moved.fd.index()) = at + 1;
        }
    }
}
