//! Sockets that signal.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use shared_ring::poller::{Poller, RtSig};
use shared_ring::{Fd, Socket};

/// A socket of ours, and the other end.
pub(crate) fn pair() -> (Fd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let ours = Socket::from(OwnedFd::from(ours));
    // SAFETY: it is open until `owned` has its number, which is not used after that.
    (unsafe { ours.fd() }, theirs)
}

/// Takes a socket back.
pub(crate) fn owned(fd: Fd) -> UnixStream {
    // SAFETY: the number was given up by a pair of these tests, and is given up once.
    unsafe { UnixStream::from_raw_fd(fd.raw()) }
}

/// Closes a socket. The next descriptor that is made by this process may have its number.
pub(crate) fn close(poller: &mut RtSig, fd: Fd) {
    poller.forget(fd);
    drop(owned(fd));
}

/// All that the poller says, until no signal is left.
pub(crate) fn all(poller: &mut RtSig) -> Vec<Fd> {
    let mut all = Vec::new();
    loop {
        let (mut out, stale) = (Vec::new(), poller.stale());
        poller.wait(Some(Duration::ZERO), &mut out).unwrap();
        if out.is_empty() && poller.stale() == stale {
            return all;
        }
        all.extend(out.iter().map(|(fd, _)| *fd));
    }
}
