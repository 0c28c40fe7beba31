//! Mechanisms that report which descriptors are readable or writable.

mod devpoll;
mod epoll;
mod interest;
mod poll;
mod rtsig;
mod select;
pub(crate) mod signals;

pub use devpoll::DevPoll;
pub use epoll::{Epoll, EpollEdge};
pub use interest::InterestPoller;
pub use poll::Poll;
pub use rtsig::RtSig;
pub use select::Select;

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
    fn to_poll(self) -> i16 {
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
    fn from_poll(revents: i16) -> Self {
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
    /// of a listening socket in another process. Closing it does not remove it from an epoll set (epoll(7)).
    fn forget_shared(&mut self, fd: Fd) {
        // A descriptor of the set can be removed.
        let _ = self.set(fd, Readiness::empty());
        self.forget(fd);
    }

    /// Appends the descriptors that are ready. Waits for the first, without limit with `None`.
    /// Returns early, with none, if a signal was handled.
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

/// Converts a timeout, for the calls of rustix.
pub(crate) fn timeout_of(timeout: Duration) -> Timespec {
    let tv_sec = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: timeout.subsec_nanos().into() }
}

/// Converts a timeout, for those of libc.
fn timespec(timeout: Duration) -> libc::timespec {
    let tv_sec = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
    libc::timespec { tv_sec, tv_nsec: timeout.subsec_nanos().into() }
}

/// Converts the result of a wait to the number of ready descriptors, 0 if a signal was handled.
fn ready(returned: i64) -> io::Result<usize> {
    if let Ok(n) = usize::try_from(returned) {
        return Ok(n);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::{Mutex, PoisonError};

    use rustix::io::{read, write};

    use crate::Socket;
    use crate::descriptor::borrow;
    use crate::linux::take;

    fn pair() -> (Fd, Fd) {
        let (a, b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        (Fd::from_raw(a.into_raw_fd()), Fd::from_raw(b.into_raw_fd()))
    }

    fn close(fd: Fd) {
        drop(take(Socket::of(fd)));
    }

    fn poll_now(poller: &mut impl Poller) -> Vec<(Fd, Readiness)> {
        let mut out = Vec::new();
        poller.wait(Some(Duration::ZERO), &mut out).unwrap();
        // Some pollers report HANGUP with all data.
        out.into_iter().map(|(fd, ready)| (fd, ready - Readiness::HANGUP)).collect()
    }

    /// One at a time, as each uses most of the descriptors that a process may have.
    static ONE: Mutex<()> = Mutex::new(());

    /// Checks what all pollers have in common, with descriptor numbers above 1,024.
    fn behaves<P: Poller>(mut poller: P) {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let count = limit.unwrap_or(4096).min(1400) / 2 - 50;
        let mut pairs: Vec<_> = (0..count).map(|_| pair()).collect();
        for (a, _) in &pairs {
            poller.set(*a, Readiness::READ).unwrap();
        }
        assert_eq!(poll_now(&mut poller), []);

        let (a, b) = pairs.pop().unwrap();
        write(borrow(&b), b"x").unwrap();
        assert_eq!(poll_now(&mut poller), [(a, Readiness::READ)]);
        let again = poll_now(&mut poller);
        assert_eq!(
            again.is_empty(),
            poller.is_edge_triggered(),
            "reported while it lasts, or once"
        );
        read(borrow(&a), &mut [0; 8]).unwrap();
        assert_eq!(poll_now(&mut poller), []);

        poller.set(a, Readiness::READ | Readiness::WRITE).unwrap();
        assert_eq!(poll_now(&mut poller), [(a, Readiness::WRITE)]);
        poller.set(a, Readiness::empty()).unwrap();
        write(borrow(&b), b"x").unwrap();
        assert_eq!(poll_now(&mut poller), []);

        poller.set(a, Readiness::READ).unwrap();
        assert_eq!(poll_now(&mut poller).len(), 1);
        poller.forget(a);
        close(a);
        assert_eq!(poll_now(&mut poller), []);
        close(b);
        for (a, b) in pairs {
            poller.forget(a);
            close(a);
            close(b);
        }
    }

    #[test]
    fn epoll_behaves() {
        behaves(Epoll::new().unwrap());
    }

    #[test]
    fn epoll_edge_behaves() {
        behaves(EpollEdge::new().unwrap());
    }

    #[test]
    fn poll_behaves() {
        behaves(Poll::default());
    }

    #[test]
    fn devpoll_behaves() {
        behaves(DevPoll::new().unwrap());
    }

    #[test]
    fn interest_behaves() {
        behaves(InterestPoller::new().unwrap());
    }

    #[test]
    fn rtsig_behaves() {
        behaves(RtSig::new().unwrap());
    }

    #[test]
    fn select_behaves() {
        behaves(Select::default());
    }
}
