//! Where hints come from: what happens to a descriptor, told once.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::Timespec;
use rustix::io::Errno;

use super::Mask;
use crate::Fd;
use crate::linux::borrow;

/// Tells what happens to descriptors: the far end of the reverse-mapping lists.
pub trait HintSource {
    /// Has what happens to a descriptor told until it is closed, beginning with what it is ready for
    /// now. What is wanted has the format of poll(2); more may be told. With `one` only the first
    /// that waits is told. Whether the descriptor is new here.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    fn watch(&mut self, fd: Fd, wanted: i16, one: bool) -> io::Result<bool>;

    /// Whether the file that a number stands for is the one that is watched.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    fn is_watched(&mut self, fd: Fd) -> io::Result<bool>;

    /// Drops a descriptor that is about to be closed.
    fn forget(&mut self, fd: Fd);

    /// Appends descriptors to which something has happened, oldest first, about as many as there is
    /// room for; waits for the first, for ever with `None`. Ends early, with nothing, when a signal
    /// was handled.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    fn wait(&mut self, timeout: Option<Duration>, room: usize, out: &mut Vec<Fd>)
    -> io::Result<()>;

    /// System calls made so far.
    fn system_calls(&self) -> u64;
}

/// epoll's edges. Its list of what is ready is first in, first out, has each descriptor once, and
/// lets go of those that are closed.
pub struct EpollEdges {
    epoll: Arc<OwnedFd>,
    /// Room for the kernel to write into; never filled.
    events: Vec<Event>,
    system_calls: u64,
}

impl EpollEdges {
    /// Most taken by one wait.
    const EVENTS: usize = 512;

    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(EpollEdges { epoll, events: Vec::with_capacity(Self::EVENTS), system_calls: 0 })
    }

    /// The kernel's part, to which other threads may add.
    pub(crate) fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }
}

/// What the kernel is told. It takes few flags together with `EPOLLEXCLUSIVE` (epoll_ctl(2)).
fn flags(wanted: i16, one: bool) -> EventFlags {
    let wanted = EventFlags::from_bits_truncate(wanted as u32) | EventFlags::ET;
    let refused = EventFlags::RDHUP | EventFlags::PRI;
    if one { (wanted - refused) | EventFlags::EXCLUSIVE } else { wanted }
}

/// Adds a descriptor to an epoll, or has what it is ready for told again. Whether it is new there.
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
    // With `one` the thread may want something else for itself, which goes on.
    let told = if one { Mask::all_states().to_poll() } else { wanted };
    match epoll::modify(epoll, fd, data, flags(told, false)) {
        // What only one is told of can't be changed.
        Err(Errno::INVAL) => {
            epoll::delete(epoll, fd)?;
            epoll::add(epoll, fd, data, flags(told, one))?;
        }
        other => other?,
    }
    Ok(false)
}

/// Takes a descriptor out of an epoll, if it is there.
pub(crate) fn forget(epoll: &OwnedFd, fd: BorrowedFd<'_>) {
    // What was closed has gone by itself.
    let _ = epoll::delete(epoll, fd);
}

/// Whether the file that a number stands for has been added to an epoll.
pub(crate) fn is_watched(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<bool> {
    // There is no way to ask but to try.
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

    /// Closing takes a descriptor out of the kernel's set by itself.
    fn forget(&mut self, _fd: Fd) {}

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        room: usize,
        out: &mut Vec<Fd>,
    ) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        self.system_calls += 1;
        let events = self.events.spare_capacity_mut();
        let room = room.min(events.len());
        let told = match epoll::wait(&self.epoll, &mut events[..room], timeout.as_ref()) {
            Ok((told, _)) => told,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        out.extend(told.iter().map(|event| Fd::from_raw(event.data.u64() as i32)));
        Ok(())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}
