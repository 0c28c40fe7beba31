//! Numbers of descriptors of simulated machines.

use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use shared_ring::{Fd, Socket};

/// Returns the name of a descriptor in operations.
pub(crate) fn fd(number: RawFd) -> Fd {
    // SAFETY: the number names a descriptor of a simulated machine only. The machine checks each use of a
    // number, and fails the run if the descriptor is not open.
    unsafe { Socket::from_raw_fd(number).fd() }
}

/// Returns the owner of a descriptor that a machine has just opened, or an alias of it.
pub(crate) fn socket(fd: Fd) -> Socket {
    // SAFETY: as above. A machine fails the run if a descriptor is closed twice.
    unsafe { Socket::from_raw_fd(fd.raw()) }
}

/// Returns the number of a socket or file.
pub(crate) fn of(owner: &impl AsRawFd) -> Fd {
    fd(owner.as_raw_fd())
}
