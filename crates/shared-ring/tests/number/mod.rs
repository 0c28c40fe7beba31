//! Numbers of sockets, for use in operations.

use shared_ring::{Fd, Socket};

/// Returns the number of a socket.
pub(crate) fn number(socket: &Socket) -> Fd {
    // SAFETY: the tests close a socket after its operations have ended or their kernel was dropped, and do
    // not use the number after that.
    unsafe { socket.fd() }
}
