//! The numbers by which tests name sockets in operations.

use shared_ring::{Fd, Socket};

/// The number of a socket.
pub(crate) fn number(socket: &Socket) -> Fd {
    // SAFETY: these tests close a socket when its operations have ended or their kernel is dropped, and do
    // not name it after that.
    unsafe { socket.fd() }
}
