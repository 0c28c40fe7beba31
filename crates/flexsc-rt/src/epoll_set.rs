//! The epoll(7) set in which entries wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// Maximum timeout of epoll_wait(2), 24.8 days. For a longer one, rustix calls epoll_pwait2(2), which older kernels and some
/// sandboxes lack.
const MAX_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

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
pub(crate) struct EpollSet {
    set: OwnedFd,
    calls: u64,
}

impl EpollSet {
    pub(crate) fn new() -> Result<Self, Errno> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(EpollSet { set, calls: 0 })
    }

    /// Returns the number of system calls made, without those of [`EpollSet::new`] and [`EpollSet::watch`].
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Reports a descriptor as long as it is readable.
    pub(crate) fn watch(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<(), Errno> {
        epoll::add(&self.set, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
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
        self.calls += 1;
        if added {
            match epoll::modify(&self.set, borrowed, data, flags) {
                // It was closed, and another one has its number.
                Err(Errno::NOENT) => self.calls += 1,
                result => return result,
            }
        }
        match epoll::add(&self.set, borrowed, data, flags) {
            Err(Errno::EXIST) => {
                self.calls += 1;
                epoll::modify(&self.set, borrowed, data, flags)
            }
            result => result,
        }
    }

    /// Takes a descriptor out of the set.
    pub(crate) fn disarm(&mut self, fd: RawFd) {
        self.calls += 1;
        // SAFETY: as in `arm`. It fails only if the descriptor was closed.
        let _ = epoll::delete(&self.set, unsafe { BorrowedFd::borrow_raw(fd) });
    }

    /// Waits for reports, without a limit if there is no timeout. Returns early after some weeks.
    pub(crate) fn wait(
        &mut self,
        reports: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        self.calls += 1;
        let timeout = timeout.map(timeout_of);
        epoll::wait(&self.set, rustix::buffer::spare_capacity(reports), timeout.as_ref())?;
        Ok(())
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// Converts the timeout of a wait. Cuts it to the maximum.
fn timeout_of(timeout: Duration) -> Timespec {
    let timeout = timeout.min(MAX_TIMEOUT);
    Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn long_timeout_needed_epoll_pwait2() {
        let max = Timespec { tv_sec: 2_147_483, tv_nsec: 647_000_000 };
        for long in [Duration::MAX, MAX_TIMEOUT + Duration::from_nanos(1), MAX_TIMEOUT] {
            assert_eq!(timeout_of(long), max);
        }
        assert_eq!(timeout_of(Duration::from_nanos(1)), Timespec { tv_sec: 0, tv_nsec: 1 });
    }
}
