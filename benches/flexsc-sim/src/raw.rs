//! System calls of the simulated machine, and its files.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, RawFd};

use evring_sim::Machine;
use shared_ring::author::{CallJob, System};
use shared_ring::{Host, Socket};

use crate::call::Direction;
use crate::host;

/// Result of an interrupted or cancelled call.
pub(crate) const INTERRUPTED: isize = -(libc::EINTR as isize);

/// Makes a call at once.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn system_call(number: u32, args: &[usize; 6]) -> isize {
    match host::machine().call(&CallJob { number, args: *args }) {
        Ok(result) => result as isize,
        Err(errno) => -(errno.raw_os_error() as isize),
    }
}

/// The machine fails the run if a call uses a number that is not open.
pub(crate) fn is_open(_fd: RawFd) -> bool {
    true
}

/// No call of a server waits for two descriptors.
pub(crate) fn is_ready(_fd: RawFd, _direction: Direction) -> bool {
    true
}

/// Returns a result as the standard library's.
pub(crate) fn decode(result: isize) -> io::Result<usize> {
    match usize::try_from(result) {
        Ok(result) => Ok(result),
        Err(_) => Err(io::Error::from_raw_os_error(-result as i32)),
    }
}

/// Owns a descriptor of the machine.
#[derive(Debug)]
pub(crate) struct OwnedFile(RawFd, Owner);

struct Owner(Machine);

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a machine")
    }
}

impl FromRawFd for OwnedFile {
    unsafe fn from_raw_fd(fd: RawFd) -> Self {
        OwnedFile(fd, Owner(host::machine()))
    }
}

impl AsRawFd for OwnedFile {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl AsFd for OwnedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as this exists.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl IntoRawFd for OwnedFile {
    fn into_raw_fd(mut self) -> RawFd {
        std::mem::replace(&mut self.0, -1)
    }
}

impl Drop for OwnedFile {
    fn drop(&mut self) {
        if self.0 >= 0 {
            // SAFETY: this owns the descriptor.
            self.1.0.close_unused(unsafe { Socket::from_raw_fd(self.0) });
        }
    }
}
