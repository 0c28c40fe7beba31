//! Socket pairs for tests of signals.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use shared_ring::poller::{Poller, RtSig};
use shared_ring::{Fd, Socket};

/// Creates a non-blocking socket and its peer.
pub(crate) fn pair() -> (Fd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let ours = Socket::from(OwnedFd::from(ours));
    // SAFETY: it is open until `owned` takes its number, which is not used after that.
    (unsafe { ours.fd() }, theirs)
}

/// Takes ownership of a socket.
pub(crate) fn owned(fd: Fd) -> UnixStream {
    // SAFETY: `pair` has released the number, and each test takes it once.
    unsafe { UnixStream::from_raw_fd(fd.raw()) }
}

/// Closes a socket. The next descriptor of this process may have its number.
pub(crate) fn close(poller: &mut RtSig, fd: Fd) {
    poller.forget(fd);
    drop(owned(fd));
}

/// Returns all reported descriptors, until no signal is queued.
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
