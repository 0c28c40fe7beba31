//! The limit of unsent bytes that a connection's socket has, and their number.

use crate::disk_file::contents;
use crate::sends_file::SendsFile;
use crate::server;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::mpsc;

use evring::sockets::{BufferSizes, ListenOptions, ListeningSocket};
use evring::{Application, Chunk, Close, CloseReason, Commands, Cx, Rx};
use rustix::net::getpeername;

use server::{Server, ask, listening, next, one_by_one, side_by_side};

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

const FILE_BYTES: u64 = 3_000_000;

/// Starts a server that sends a head and then two files, each to its end, and closes with `close`. Returns what receives
/// the reasons for which its connections ended.
fn sends_two_files(
    name: &'static str,
    close: Close,
) -> (Server, mpsc::Receiver<CloseReason>, tempfile::TempDir) {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), contents(FILE_BYTES)).unwrap();
    let config = listening(1).with(|c| {
        c.roots = vec![root.path().to_owned()];
        c.socket_buffers = BufferSizes { send: Some(8192), receive: None };
    });
    let (sender, closed) = mpsc::channel();
    let server = Server::start(name, config, move || SendsFile {
        send: move |io: &mut dyn Commands, id, file: evring::files::File| {
            io.send(id, Chunk::Static(b"head"));
            for _ in 0..2 {
                io.send(id, Chunk::File(file.clone(), 0..u64::MAX));
                assert_eq!((io.unsent_bytes(id), io.queued_bytes(id)), (u64::MAX, u64::MAX));
            }
            io.close(id, close);
        },
        closed: move |reason| sender.send(reason).unwrap(),
    });
    (server, closed, root)
}

#[test]
fn number_of_unsent_bytes_overflowed_with_files_that_are_sent_to_their_end() {
    side_by_side(|name| {
        let (server, closed, _root) = sends_two_files(name, Close::Flush);
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got.starts_with(b"head") && got[4..] == contents(FILE_BYTES), "{name}");
        let reason = next(&closed);
        assert!(matches!(reason, CloseReason::Truncated), "{name}: {reason:?}");
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        // Unread bytes make this close a reset.
        drop(client);
        let reason = next(&closed);
        assert!(matches!(reason, CloseReason::Failed(_)), "{name}: {reason:?}");
        server.stop();
    });
}

#[test]
fn reset_before_files_that_are_sent_to_their_end_overflowed_the_unsent_bytes() {
    side_by_side(|name| {
        let (server, closed, _root) = sends_two_files(name, Close::Reset);
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        let reason = next(&closed);
        assert!(matches!(reason, CloseReason::Closed), "{name}: {reason:?}");
        server.stop();
    });
}
