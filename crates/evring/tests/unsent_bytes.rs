//! The limit of unsent bytes that a connection's socket has.

use crate::server;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use evring::sockets::{ListenOptions, ListeningSocket};
use evring::{Application, Chunk, Commands, Cx, Rx};
use rustix::net::getpeername;

use server::{Server, ask, listening, one_by_one};

/// Replies to each message.
struct Replies;

impl Application for Replies {
    type State = ();

    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        x.io.send(x.id, Chunk::Static(b"!"));
    }
}

/// Returns the descriptor, of this process, of a connection to a client.
fn connection_to(client: &TcpStream) -> RawFd {
    let address = client.local_addr().unwrap();
    let names = fs::read_dir("/proc/self/fd").unwrap();
    let mut numbers =
        names.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
    let is_peer = |fd: &RawFd| {
        // SAFETY: the call changes nothing, whatever the descriptor is.
        let peer = getpeername(unsafe { BorrowedFd::borrow_raw(*fd) });
        peer.ok().and_then(|peer| SocketAddr::try_from(peer?).ok()) == Some(address)
    };
    numbers.find(is_peer).expect("a connection to the client")
}

/// Returns `TCP_NOTSENT_LOWAT` of a connection.
fn unsent_limit(fd: RawFd) -> u32 {
    let (mut value, mut len) = (u32::MAX, size_of::<u32>() as libc::socklen_t);
    // SAFETY: the option is an integer, and the kernel writes one integer.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    assert_eq!(result, 0);
    value
}

#[test]
fn accepted_connections_have_the_limit_of_the_configuration() {
    one_by_one(|name| {
        for limit in [None, Some(12_345)] {
            let config = listening(1).with(|c| c.max_unsent_bytes = limit);
            let server = Server::start(name, config, || Replies);
            let mut client = server.connect();
            ask(&mut client, "?", "!");
            // 0 stands for none.
            assert_eq!(unsent_limit(connection_to(&client)), limit.unwrap_or(0), "{name}");
            assert_eq!(unsent_limit(client.as_raw_fd()), 0, "{name}");
            server.stop();
        }
    });
}

#[test]
fn adopted_listener_has_the_limit_of_the_configuration() {
    one_by_one(|name| {
        let address = ([127, 0, 0, 1], 0).into();
        let socket = ListeningSocket::bind(address, &ListenOptions::new(16)).unwrap();
        for limit in [Some(12_345), None] {
            let config = listening(1).with(|c| {
                c.listen = vec![socket.address()];
                c.inherited = vec![socket.clone()];
                c.max_unsent_bytes = limit;
            });
            let server = Server::start(name, config, || Replies);
            let mut client = server.connect();
            ask(&mut client, "?", "!");
            assert_eq!(unsent_limit(connection_to(&client)), limit.unwrap_or(0), "{name}");
            server.stop();
        }
    });
}
