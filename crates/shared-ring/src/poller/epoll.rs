//! epoll(7), level-triggered and edge-triggered.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::interface::{Poller, Readiness, timeout_of};
use crate::Fd;
use crate::descriptor::borrow;
use crate::table::Table;

/// epoll, level-triggered: reports readiness as long as it lasts.
pub type Epoll = EpollSet<false>;

/// epoll, edge-triggered (`EPOLLET`): reports readiness when it begins.
pub type EpollEdge = EpollSet<true>;

/// An epoll interest set.
pub struct EpollSet<const EDGE: bool> {
    epoll: OwnedFd,
    wanted: Table<Readiness>,
    events: Vec<Event>,
    system_calls: u64,
}

impl<const EDGE: bool> std::fmt::Debug for EpollSet<EDGE> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpollSet").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl<const EDGE: bool> EpollSet<EDGE> {
    /// Maximum number of events per wait.
    const EVENTS: usize = 512;

    /// Creates an empty set.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let events = Vec::with_capacity(Self::EVENTS);
        Ok(EpollSet { epoll, wanted: Table::default(), events, system_calls: 0 })
    }

    fn flags(want: Readiness) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, want.contains(Readiness::READ));
        flags.set(EventFlags::OUT, want.contains(Readiness::WRITE));
        // Without RDHUP, a stream's end that arrives with its last bytes would be missed, and without PRI what follows an
        // urgent byte.
        flags.set(EventFlags::ET | EventFlags::RDHUP | EventFlags::PRI, EDGE);
        flags
    }
}

// SAFETY: only `set` makes calls with a number; the kernel reports only numbers that were added.
unsafe impl<const EDGE: bool> Poller for EpollSet<EDGE> {
    fn is_edge_triggered(&self) -> bool {
        EDGE
    }

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        let had = *self.wanted.at(fd.index());
        if had == want {
            return Ok(());
        }
        self.system_calls += 1;
        let (source, data) = (borrow(&fd), EventData::new_u64(fd.index() as u64));
        if had.is_empty() {
            epoll::add(&self.epoll, source, data, Self::flags(want))?;
        } else if want.is_empty() {
            epoll::delete(&self.epoll, source)?;
        } else {
            epoll::modify(&self.epoll, source, data, Self::flags(want))?;
        }
        *self.wanted.at(fd.index()) = want;
        Ok(())
    }

    /// Closing removes the descriptor from the kernel's set, unless another descriptor of its file remains: see
    /// [`Poller::forget_shared`].
    fn forget(&mut self, fd: Fd) {
        *self.wanted.at(fd.index()) = Readiness::empty();
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<(Fd, Readiness)>,
    ) -> io::Result<()> {
        let timeout = timeout.map(timeout_of);
        self.system_calls += 1;
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let flags = event.flags;
            let broken = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            let mut ready = Readiness::empty();
            ready.set(Readiness::READ, broken || flags.contains(EventFlags::IN));
            ready.set(Readiness::WRITE, broken || flags.contains(EventFlags::OUT));
            ready.set(
                Readiness::HANGUP,
                broken || flags.intersects(EventFlags::RDHUP | EventFlags::PRI),
            );
            out.push((Fd::from_raw(event.data.u64() as i32), ready));
        }
        Ok(())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}
