//! Masks of events.

use std::os::fd::{AsRawFd, BorrowedFd};

use bitflags::bitflags;

use super::error::Error;
use crate::Linux;
use crate::poller::PollNow;

bitflags! {
    /// Events of interest, or current state.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Mask: u32 {
        /// Reading, or accepting, does not block.
        const READ = 0x1;
        /// Writing does not block, or a connect has completed.
        const WRITE = 0x2;
        /// Urgent data has arrived.
        const EXCEPT = 0x4;
        /// Only the first waiting thread is woken. Not reported.
        const WAKE_ONE = 0x8;
    }
}

impl Mask {
    pub(super) const fn all_states() -> Self {
        Mask::READ.union(Mask::WRITE).union(Mask::EXCEPT)
    }

    const FLAGS: [(Mask, i16); 3] = [
        (Mask::READ, libc::POLLIN | libc::POLLRDHUP),
        (Mask::WRITE, libc::POLLOUT),
        (Mask::EXCEPT, libc::POLLPRI),
    ];

    /// Converts to the format of poll(2).
    pub(super) fn to_poll(self) -> i16 {
        let wanted = Self::FLAGS.iter().filter(|(mask, _)| self.contains(*mask));
        wanted.fold(0, |all, (_, flags)| all | flags)
    }

    /// Converts a result of poll(2). On a broken connection, all requested states are true.
    pub(super) fn from_poll(entry: &libc::pollfd) -> Self {
        let broken = entry.revents & (libc::POLLHUP | libc::POLLERR) != 0;
        let state = if broken { entry.events } else { entry.revents };
        let masks = Self::FLAGS.iter().filter(|(_, flags)| state & flags != 0);
        masks.fold(Mask::empty(), |all, (mask, _)| all | *mask)
    }
}

/// Returns the current state of a descriptor, limited to `mask` unless that is empty.
pub(super) fn state_of(fd: BorrowedFd<'_>, mask: Mask) -> Result<Mask, Error> {
    let requested = if mask.to_poll() == 0 { Mask::all_states() } else { mask };
    let mut array = [libc::pollfd { fd: fd.as_raw_fd(), events: requested.to_poll(), revents: 0 }];
    Linux::default().poll_now(&mut array).map_err(Error::in_call("poll"))?;
    Ok(Mask::from_poll(&array[0]))
}
