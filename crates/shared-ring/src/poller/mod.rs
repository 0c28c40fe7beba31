//! Mechanisms that report which descriptors are readable or writable.

mod devpoll;
mod epoll;
mod interest;
mod interface;
mod poll;
mod rtsig;
mod select;
pub(crate) mod signals;

pub(crate) use interface::timeout_of;
pub use interface::{PollNow, Poller, Readiness};

use std::io;

macro_rules! pollers {
    ($($name:literal => $module:ident::$type:ident, $new:expr;)*) => {
        $(pub use $module::$type;)*

        /// Every poller, by the name of its mechanism, with what opens it.
        pub const POLLERS: &[(&str, fn() -> io::Result<Box<dyn Poller>>)] =
            &[$(($name, || Ok(Box::new($new?)))),*];
    };
}

// The tests of pollers and of kernels take their pollers from this table.
pollers! {
    "devpoll" => devpoll::DevPoll, DevPoll::new();
    "epoll" => epoll::Epoll, Epoll::new();
    "epoll-edge" => epoll::EpollEdge, EpollEdge::new();
    "interest" => interest::InterestPoller, InterestPoller::new();
    "poll" => poll::Poll, io::Result::Ok(Poll::default());
    "rtsig" => rtsig::RtSig, RtSig::new();
    "select" => select::Select, io::Result::Ok(Select::default());
}

#[cfg(test)]
#[path = "../../tests/descriptor_limit/mod.rs"]
mod descriptor_limit;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixStream;
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use rustix::io::{read, write};

    use crate::descriptor::borrow;
    use crate::linux::take;
    use crate::{Fd, Socket};

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

    /// One at a time, as each has many descriptors.
    static ONE: Mutex<()> = Mutex::new(());

    /// Checks what all pollers have in common, with descriptor numbers above 1,024.
    fn behaves<P: Poller>(mut poller: P) {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        descriptor_limit::raise();
        let mut pairs: Vec<_> = (0..650).map(|_| pair()).collect();
        let highest = pairs.iter().map(|(a, _)| borrow(a).as_raw_fd()).max();
        assert!(highest > Some(1_024), "{highest:?}");
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
    fn every_poller_behaves() {
        for (name, open) in POLLERS {
            println!("{name}");
            behaves(open().unwrap());
        }
    }

    /// Returns a poller's count after registering a descriptor, and after reporting it as ready.
    fn counts(poller: &mut dyn Poller) -> [u64; 2] {
        let (fd, other) = pair();
        write(borrow(&other), b"x").unwrap();
        poller.set(fd, Readiness::READ).unwrap();
        let registered = poller.system_calls();
        let mut ready = Vec::new();
        poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
        assert!(ready.iter().any(|(at, ready)| *at == fd && ready.contains(Readiness::READ)));
        assert_eq!(poller.overflows(), 0);
        let counts = [registered, poller.system_calls()];
        poller.forget(fd);
        close(fd);
        close(other);
        counts
    }

    #[test]
    fn rtsig_counted_two_of_the_three_calls_that_forget_a_descriptor() {
        let mut poller = RtSig::new().unwrap();
        for forget in [<RtSig as Poller>::forget, <RtSig as Poller>::forget_shared] {
            let (fd, other) = pair();
            poller.set(fd, Readiness::READ).unwrap();
            let before = poller.system_calls();
            forget(&mut poller, fd);
            // F_GETOWN_EX, FIOASYNC and F_GETOWN_EX.
            assert_eq!(poller.system_calls() - before, 3);
            close(fd);
            close(other);
        }
    }

    /// Returns the number of calls that a poller makes to reduce and to extend interest.
    fn calls_to_change(poller: &mut dyn Poller) -> [u64; 2] {
        let (fd, other) = pair();
        let mut calls = |want| {
            let before = poller.system_calls();
            poller.set(fd, want).unwrap();
            poller.system_calls() - before
        };
        calls(Readiness::READ | Readiness::WRITE);
        let counts = [calls(Readiness::READ), calls(Readiness::READ | Readiness::WRITE)];
        poller.forget(fd);
        close(fd);
        close(other);
        counts
    }

    #[test]
    fn every_poller_counts_its_system_calls() {
        for (name, open) in POLLERS {
            let (counts, change) = match *name {
                // epoll_ctl and epoll_wait.
                "epoll" | "epoll-edge" => ([1, 2], [1, 1]),
                "poll" | "select" => ([0, 1], [0, 0]),
                // epoll_ctl; then epoll_wait for hints and poll for their state.
                "devpoll" => ([1, 3], [0, 0]),
                "interest" => ([1, 3], [0, 1]),
                // F_SETOWN_EX, F_SETSIG, F_GETFL, FIOASYNC, and poll for the current state; then
                // sigtimedwait.
                "rtsig" => ([5, 6], [1, 1]),
                other => panic!("which calls does {other} make?"),
            };
            assert_eq!(self::counts(&mut *open().unwrap()), counts, "{name}");
            assert_eq!(calls_to_change(&mut *open().unwrap()), change, "{name}");
        }
    }
}
