//! The interface of a poller, and the readiness that it reports.

use std::io;
use std::time::Duration;

use bitflags::bitflags;
use rustix::fs::Timespec;

use crate::{Fd, Linux};

bitflags! {
    /// Readiness of a descriptor, or interest in it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Readiness: u8 {
        /// Reading, or accepting, does not block.
        const READ = 1;
        /// Writing does not block, or a connect has completed.
        const WRITE = 2;
        /// A read that fills less than its buffer may leave more: the peer has, or may have, shut down its sending side
        /// or sent an urgent byte (tcp(7)), or the connection is broken. It is reported without a request.
        const HANGUP = 4;
    }
}

impl Readiness {
    /// Converts interest to events of poll(2).
    pub(super) fn to_poll(self) -> i16 {
        let mut events = 0;
        if self.contains(Readiness::READ) {
            events |= libc::POLLIN;
        }
        if self.contains(Readiness::WRITE) {
            events |= libc::POLLOUT;
        }
        events
    }

    /// Converts returned events of poll(2).
    pub(super) fn from_poll(revents: i16) -> Self {
        let has = |flags| revents & flags != 0;
        let broken = has(libc::POLLHUP | libc::POLLERR | libc::POLLNVAL);
        let mut ready = Readiness::empty();
        ready.set(Readiness::READ, broken || has(libc::POLLIN));
        ready.set(Readiness::WRITE, broken || has(libc::POLLOUT));
        ready.set(Readiness::HANGUP, broken || has(libc::POLLRDHUP | libc::POLLPRI));
        ready
    }
}

/// An interest set and a wait for readiness.
///
/// # Safety
/// After [`forget`](Poller::forget), the poller does not use the descriptor's number until it is
/// set again. It reports only numbers that were set.
pub unsafe trait Poller {
    /// Returns whether readiness is reported once, when it begins (edge-triggered), rather than as
    /// long as it lasts.
    fn is_edge_triggered(&self) -> bool;

    /// Returns whether each wait scans all descriptors.
    fn scans_all_fds(&self) -> bool {
        false
    }

    /// Returns whether descriptors must be able to signal, which those of eventfd(2) can't.
    fn needs_signals(&self) -> bool {
        false
    }

    /// Replaces the interest in a descriptor. Empty interest removes it from the set.
    ///
    /// # Errors
    /// If the descriptor cannot be registered.
    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()>;

    /// Removes a descriptor that is about to be closed.
    fn forget(&mut self, fd: Fd);

    /// Removes a descriptor that is about to be closed while other descriptors of its open file may remain, as those
    /// of a listening socket in another process, or of any socket in a child of fork(2). Closing it does not remove it from
    /// an epoll set (epoll(7)).
    fn forget_shared(&mut self, fd: Fd) {
        // A descriptor of the set can be removed.
        let _ = self.set(fd, Readiness::empty());
        self.forget(fd);
    }

    /// Appends the descriptors that are ready. Waits for the first, without limit with `None`.
    /// Returns early, with none, if a signal was handled, or after some weeks.
    ///
    /// # Errors
    /// Only if the set is unusable from now on.
    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<(Fd, Readiness)>)
    -> io::Result<()>;

    /// Returns the number of system calls made so far.
    fn system_calls(&self) -> u64;

    /// Returns the number of overflows of a bounded event queue.
    fn overflows(&self) -> u64 {
        0
    }
}

// SAFETY: all calls are passed on.
unsafe impl<P: Poller + ?Sized> Poller for Box<P> {
    fn is_edge_triggered(&self) -> bool {
        (**self).is_edge_triggered()
    }

    fn scans_all_fds(&self) -> bool {
        (**self).scans_all_fds()
    }

    fn needs_signals(&self) -> bool {
        (**self).needs_signals()
    }

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        (**self).set(fd, want)
    }

    fn forget(&mut self, fd: Fd) {
        (**self).forget(fd);
    }

    fn forget_shared(&mut self, fd: Fd) {
        (**self).forget_shared(fd);
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<(Fd, Readiness)>,
    ) -> io::Result<()> {
        (**self).wait(timeout, out)
    }

    fn system_calls(&self) -> u64 {
        (**self).system_calls()
    }

    fn overflows(&self) -> u64 {
        (**self).overflows()
    }
}

/// Reports the current state of descriptors.
pub trait PollNow {
    /// Fills in the readiness of each entry, as poll(2) without waiting.
    ///
    /// # Errors
    /// Those of poll(2).
    fn poll_now(&mut self, array: &mut [libc::pollfd]) -> io::Result<()>;
}

impl PollNow for Linux {
    fn poll_now(&mut self, array: &mut [libc::pollfd]) -> io::Result<()> {
        // SAFETY: the array has the given length.
        let n = unsafe { libc::poll(array.as_mut_ptr(), array.len() as _, 0) };
        ready(n.into()).map(drop)
    }
}

/// Maximum timeout of epoll_wait(2), 24.8 days. For a longer one, rustix calls epoll_pwait2(2), which is newer than the
/// oldest kernel on which this crate works, and which some sandboxes lack.
const MAX_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// Converts the timeout of a wait, for the calls of rustix. Cuts it to the maximum.
pub(crate) fn timeout_of(timeout: Duration) -> Timespec {
    let timeout = timeout.min(MAX_TIMEOUT);
    Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() }
}

/// Converts a timeout, for those of libc.
pub(super) fn timespec(timeout: Duration) -> libc::timespec {
    let tv_sec = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
    libc::timespec { tv_sec, tv_nsec: timeout.subsec_nanos().into() }
}

/// Converts the result of a wait to the number of ready descriptors, 0 if a signal was handled.
pub(super) fn ready(returned: i64) -> io::Result<usize> {
    if let Ok(n) = usize::try_from(returned) {
        return Ok(n);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_timeout_needed_epoll_pwait2() {
        let millis = |timeout| {
            let Timespec { tv_sec, tv_nsec } = timeout_of(timeout);
            // epoll_wait(2) waits for whole milliseconds.
            (tv_sec * 1_000) as u128 + (tv_nsec as u128).div_ceil(1_000_000)
        };
        let max = i32::MAX as u128;
        for long in [Duration::MAX, MAX_TIMEOUT + Duration::from_nanos(1), MAX_TIMEOUT] {
            assert_eq!(millis(long), max);
        }
        assert_eq!(millis(MAX_TIMEOUT - Duration::from_millis(1)), max - 1);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::ZERO), 0);
    }
}
