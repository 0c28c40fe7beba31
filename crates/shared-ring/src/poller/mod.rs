//! Mechanisms that say which descriptors can be read or written.

mod devpoll;
mod epoll;
mod interest;
mod poll;
mod rtsig;
mod select;
mod signals;

pub use devpoll::DevPoll;
pub use epoll::{Epoll, EpollEdge};
pub use interest::InterestPoller;
pub use poll::Poll;
pub use rtsig::RtSig;
pub use select::Select;
pub use signals::{Signal, SignalQueue, SignalSource};

use std::io;
use std::time::Duration;

use bitflags::bitflags;

use crate::{Fd, Linux};

bitflags! {
    /// What is wanted of a descriptor, and what it is ready for.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Readiness: u8 {
        /// Reading, or accepting, will not wait.
        const READ = 1;
        /// Writing will not wait, or a connect has ended.
        const WRITE = 2;
        /// The other end has closed its side, or may have, or the connection is broken. Reported, not
        /// asked for.
        const HANGUP = 4;
    }
}

impl Readiness {
    /// What is wanted, in the format of poll(2).
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

    /// What poll(2) says.
    fn from_poll(revents: i16) -> Self {
        let has = |flags| revents & flags != 0;
        let broken = has(libc::POLLHUP | libc::POLLERR | libc::POLLNVAL);
        let mut ready = Readiness::empty();
        ready.set(Readiness::READ, broken || has(libc::POLLIN));
        ready.set(Readiness::WRITE, broken || has(libc::POLLOUT));
        ready.set(Readiness::HANGUP, broken || has(libc::POLLRDHUP));
        ready
    }
}

/// An interest set and a wait.
///
/// # Safety
/// It does nothing with the number of a descriptor once [`forget`](Poller::forget) was given it, until it is
/// set again, and reports no numbers but those that were set.
pub unsafe trait Poller {
    /// Whether readiness is reported once, when it begins, rather than as long as it lasts.
    const EDGE: bool;

    /// Whether the kernel looks at every descriptor in each wait.
    const SCANS_ALL_FDS: bool = false;

    /// Whether descriptors have to be able to signal, which those of eventfd(2) can't.
    const BY_SIGNALS: bool = false;

    /// Replaces what is wanted of a descriptor; with nothing, it leaves the set.
    ///
    /// # Errors
    /// When the set is full.
    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()>;

    /// Drops a descriptor that is about to be closed.
    fn forget(&mut self, fd: Fd);

    /// Appends the descriptors that are ready; waits for the first, for ever with `None`. Ends
    /// early, with nothing, when a signal was handled.
    ///
    /// # Errors
    /// Only when the set can't be used any more.
    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<(Fd, Readiness)>)
    -> io::Result<()>;

    /// System calls made so far.
    fn system_calls(&self) -> u64;

    /// How often a bounded queue of what has happened had no room.
    fn overflows(&self) -> u64 {
        0
    }
}

/// Knows what state descriptors are in.
pub trait PollNow {
    /// Fills in what each is ready for, in the format of poll(2), without waiting.
    ///
    /// # Errors
    /// Only when it can't be asked any more.
    fn poll_now(&mut self, array: &mut [libc::pollfd]) -> io::Result<()>;
}

impl PollNow for Linux {
    fn poll_now(&mut self, array: &mut [libc::pollfd]) -> io::Result<()> {
        // SAFETY: the array is as long as said.
        let n = unsafe { libc::poll(array.as_mut_ptr(), array.len() as _, 0) };
        ready(n.into()).map(drop)
    }
}

/// A time to wait, as the kernel wants it.
fn timespec(timeout: Duration) -> libc::timespec {
    let tv_sec = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
    libc::timespec { tv_sec, tv_nsec: timeout.subsec_nanos().into() }
}

/// The result of a wait: how many are ready; none when a signal was handled.
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

    use rustix::io::{read, write};

    use crate::Socket;
    use crate::linux::{borrow, take};

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
        // Some can't tell the end of a stream from more of it.
        out.into_iter().map(|(fd, ready)| (fd, ready - Readiness::HANGUP)).collect()
    }

    /// What every poller does; `fd` numbers go past 1,024.
    fn behaves<P: Poller>(mut poller: P) {
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
        assert_eq!(again.is_empty(), P::EDGE, "reported while it lasts, or once");
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
