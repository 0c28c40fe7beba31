//! Lists of listening sockets.

use std::os::fd::{AsFd, AsRawFd};

use evring::sockets::ListeningSocket;

/// Adds a socket to a list, unless a clone is in it.
pub(super) fn add(to: &mut Vec<ListeningSocket>, socket: ListeningSocket) {
    let number = socket.as_fd().as_raw_fd();
    if !to.iter().any(|same| same.as_fd().as_raw_fd() == number) {
        to.push(socket);
    }
}
