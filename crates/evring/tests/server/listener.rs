//! A listener that answers no connection request.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use shared_ring::sockets::ListenOptions;
use shared_ring::{Host, Linux, Socket};

/// Takes a socket from its wrapper.
pub(crate) fn into_owned_fd(socket: Socket) -> OwnedFd {
    // SAFETY: the descriptor is forgotten by its former owner.
    unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) }
}

/// Returns a listener whose accept queue is full, and the connection that fills it.
pub(crate) fn full_listener() -> (TcpListener, SocketAddr, TcpStream) {
    let options = ListenOptions::new(0);
    let (listener, address) =
        Linux::default().listen(([127, 0, 0, 1], 0).into(), &options).unwrap();
    let listener = TcpListener::from(into_owned_fd(listener));
    listener.set_nonblocking(false).unwrap();
    let filler = TcpStream::connect(address).unwrap();
    let more = TcpStream::connect_timeout(&address, Duration::from_millis(50));
    assert_eq!(more.map_err(|error| error.kind()).err(), Some(ErrorKind::TimedOut));
    (listener, address, filler)
}
