//! The epoll(7) set in which entries wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// How a descriptor is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// Once, when it is ready (`EPOLLONESHOT`).
    Once,
    /// If it is ready now, and then at each change (`EPOLLET`).
    Changes,
}

/// A set.
#[derive(Debug)]
pub(crate) struct EpollSet(OwnedFd);

impl EpollSet {
    pub(crate) fn new() -> Result<Self, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(EpollSet)
    }

    /// Reports a descriptor as long as it is readable.
    pub(crate) fn watch(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<(), Errno> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
    }

    /// Reports a descriptor when it is ready for one of the directions: reading, writing. `added` says whether it is in
    /// the set, as far as is known.
    ///
    /// # Errors
    /// `EPERM` if the descriptor is always ready, as files are; `EBADF` if it is closed.
    pub(crate) fn arm(
        &mut self,
        fd: RawFd,
        [reads, writes]: [bool; 2],
        added: bool,
        arm: Arm,
    ) -> Result<(), Errno> {
        // SAFETY: the owner of the call vouches for the number until the entry is done. Another
        // descriptor of this number is reported as ready, and its call is repeated.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut flags = match arm {
            Arm::Once => epoll::EventFlags::ONESHOT,
            Arm::Changes => epoll::EventFlags::ET,
        };
        flags.set(epoll::EventFlags::IN | epoll::EventFlags::RDHUP, reads);
        flags.set(epoll::EventFlags::OUT, writes);
        let data = epoll::EventData::new_u64(fd as u64);
        if added {
            match epoll::modify(&self.0, borrowed, data, flags) {
                // It was closed, and another one has its number.
                Err(Errno::NOENT) => {}
                result => return result,
            }
        }
        match epoll::add(&self.0, borrowed, data, flags) {
            Err(Errno::EXIST) => epoll::modify(&self.0, borrowed, data, flags),
            result => result,
        }
    }

    /// Takes a descriptor out of the set.
    pub(crate) fn disarm(&mut self, fd: RawFd) {
        // SAFETY: as in `arm`. It fails only if the descriptor was closed.
        let _ = epoll::delete(&self.0, unsafe { BorrowedFd::borrow_raw(fd) });
    }

    /// Waits for reports, without a limit if there is no timeout.
    pub(crate) fn wait(
        &mut self,
        reports: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        // A timeout beyond what the kernel can count is none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        epoll::wait(&self.0, rustix::buffer::spare_capacity(reports), timeout.as_ref())?;
        Ok(())
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
