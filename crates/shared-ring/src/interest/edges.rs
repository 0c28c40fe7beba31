//! Sources of hints: edge-triggered events of descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::Mask;
use crate::Fd;
use crate::descriptor::borrow;
use crate::poller::timeout_of;

/// Reports events of descriptors: the kernel's end of the reverse-mapping lists.
pub trait HintSource {
    /// Reports events of a descriptor until it is closed, beginning with its current readiness.
    /// `wanted` has the format of poll(2); other events may be reported too. With `one`, only the
    /// first waiting thread is notified. Returns whether the descriptor was newly registered.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    fn watch(&mut self, fd: Fd, wanted: i16, one: bool) -> io::Result<bool>;

    /// Returns whether the number still belongs to the file that is watched.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    fn is_watched(&mut self, fd: Fd) -> io::Result<bool>;

    /// Removes a descriptor that is about to be closed.
    fn forget(&mut self, fd: Fd);

    /// Removes a descriptor that is about to be closed while other descriptors of its open file may remain.
    fn forget_shared(&mut self, fd: Fd) {
        self.forget(fd);
    }

    /// Appends descriptors with events, oldest first, about `room` of them. Waits for the first,
    /// without limit with `None`. Returns early, with none, if a signal was handled.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    fn wait(&mut self, timeout: Option<Duration>, room: usize, out: &mut Vec<Fd>)
    -> io::Result<()>;

    /// Returns the number of system calls made so far.
    fn system_calls(&self) -> u64;
}

/// Edge-triggered epoll. Its ready list is first in, first out, holds each descriptor once, and
/// drops closed ones.
pub struct EpollEdges {
    epoll: Arc<OwnedFd>,
    /// Spare capacity for the kernel to write to; its length stays 0.
    events: Vec<Event>,
    system_calls: u64,
}

impl std::fmt::Debug for EpollEdges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpollEdges").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl EpollEdges {
    /// Maximum number of events per wait.
    const EVENTS: usize = 512;

    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(EpollEdges { epoll, events: Vec::with_capacity(Self::EVENTS), system_calls: 0 })
    }

    /// Returns the epoll instance, to which other threads may add descriptors.
    pub(crate) fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }
}

/// Returns the flags of a registration. Few are allowed with `EPOLLEXCLUSIVE` (epoll_ctl(2)).
fn flags(wanted: i16, one: bool) -> EventFlags {
    let wanted = EventFlags::from_bits_truncate(wanted as u32) | EventFlags::ET;
    let unsupported = EventFlags::RDHUP | EventFlags::PRI;
    if one { (wanted - unsupported) | EventFlags::EXCLUSIVE } else { wanted }
}

/// Registers a descriptor with an epoll instance, or re-arms it. Returns whether it was newly
/// registered.
pub(crate) fn watch(
    epoll: &OwnedFd,
    fd: BorrowedFd<'_>,
    wanted: i16,
    one: bool,
) -> io::Result<bool> {
    let data = EventData::new_u64(fd.as_raw_fd() as u64);
    match epoll::add(epoll, fd, data, flags(wanted, one)) {
        Ok(()) => return Ok(true),
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // With `one`, the thread may have an interest of its own, which must stay.
    let events = if one { Mask::all_states().to_poll() } else { wanted };
    match epoll::modify(epoll, fd, data, flags(events, false)) {
        // An exclusive registration can't be modified.
        Err(Errno::INVAL) => {
            epoll::delete(epoll, fd)?;
            epoll::add(epoll, fd, data, flags(events, one))?;
        }
        other => other?,
    }
    Ok(false)
}

/// Removes a descriptor from an epoll instance, if registered.
pub(crate) fn forget(epoll: &OwnedFd, fd: BorrowedFd<'_>) {
    // Fails if the descriptor was closed, which has removed it.
    let _ = epoll::delete(epoll, fd);
}

/// Returns whether the file of a number is registered with an epoll instance.
pub(crate) fn is_watched(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<bool> {
    // epoll has no query, so try to add it.
    match epoll::add(epoll, fd, EventData::new_u64(0), EventFlags::ET) {
        Err(Errno::EXIST) => Ok(true),
        Err(Errno::BADF) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => {
            epoll::delete(epoll, fd)?;
            Ok(false)
        }
    }
}

impl HintSource for EpollEdges {
    fn watch(&mut self, fd: Fd, wanted: i16, one: bool) -> io::Result<bool> {
        self.system_calls += 1;
        watch(&self.epoll, borrow(&fd), wanted, one)
    }

    fn is_watched(&mut self, fd: Fd) -> io::Result<bool> {
        self.system_calls += 1;
        is_watched(&self.epoll, borrow(&fd))
    }

    /// Closing removes the descriptor from the kernel's set, unless another descriptor of its file remains.
    fn forget(&mut self, _fd: Fd) {}

    fn forget_shared(&mut self, fd: Fd) {
        self.system_calls += 1;
        forget(&self.epoll, borrow(&fd));
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        room: usize,
        out: &mut Vec<Fd>,
    ) -> io::Result<()> {
        let timeout = timeout.map(timeout_of);
        self.system_calls += 1;
        let events = self.events.spare_capacity_mut();
        let room = room.min(events.len());
        let ready = match epoll::wait(&self.epoll, &mut events[..room], timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        out.extend(ready.iter().map(|event| Fd::from_raw(event.data.u64() as i32)));
        Ok(())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}
