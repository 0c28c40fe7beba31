//! Servers that retire: they close their listeners, and their connections go on.

use crate::server;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use evring::sockets::{ListenOptions, ListeningSocket};
use evring::{Application, Chunk, Close, Commands, Config, Cx, Rx};

use server::{Server, listening, side_by_side};

struct Echo;

impl Application for Echo {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        x.io.send(x.id, Chunk::Received(rx.take()));
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }
}

fn config() -> Config {
    // A retiring server has no such limit.
    listening(1).with(|c| c.drain_timeout = Duration::ZERO)
}

fn expect_echo(client: &mut TcpStream) {
    let mut byte = [0];
    client.write_all(b"x").unwrap();
    client.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"x");
}

/// Connects until connections are refused, as the listener is closed.
fn wait_until_closed(at: SocketAddr) {
    loop {
        match TcpStream::connect(at) {
            Ok(client) => drop(client),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
            // It was in the backlog when the listener closed.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn connections_go_on_and_the_last_one_ends_the_server() {
    side_by_side(|name| {
        let server = Server::start(name, config(), || Echo);
        let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
        clients.iter_mut().for_each(expect_echo);
        assert!(!server.remote.are_listeners_closed(), "{name}");
        server.remote.retire();
        wait_until_closed(server.address);
        while !server.remote.are_listeners_closed() {
            thread::yield_now();
        }
        clients.iter_mut().for_each(expect_echo);
        while let Some(mut client) = clients.pop() {
            assert!(!server.thread.is_finished(), "{name}");
            expect_echo(&mut client);
        }
        let stats = server.thread.join().unwrap();
        assert_eq!((stats.accepted, stats.reset_at_stop), (stats.closed, 0), "{name}");
    });
}

#[test]
fn stop_ends_a_retiring_server() {
    side_by_side(|name| {
        let server = Server::start(name, config(), || Echo);
        let mut client = server.connect();
        expect_echo(&mut client);
        server.remote.retire();
        wait_until_closed(server.address);
        let stats = server.stop();
        assert_eq!(stats.accepted, stats.closed, "{name}");
        assert!(!matches!(client.read(&mut [0]), Ok(1)), "{name}");
    });
}

#[test]
fn connections_for_which_there_is_no_room_stay_for_other_owners_of_the_socket() {
    side_by_side(|name| {
        let address = ([127, 0, 0, 1], 0).into();
        let socket = ListeningSocket::bind(address, &ListenOptions::new(16)).unwrap();
        let given = socket.clone();
        let config = config().with(|c| {
            c.listen = vec![given.address()];
            c.inherited = vec![given];
            c.max_connections = 1;
        });
        let server = Server::start(name, config, || Echo);
        let mut first = server.connect();
        expect_echo(&mut first);
        let mut second = server.connect();
        server.remote.retire();
        expect_echo(&mut first);
        drop(first);
        let config = Config::default().with(|c| {
            c.listen = vec![socket.address()];
            c.inherited = vec![socket];
        });
        let successor = Server::start(name, config, || Echo);
        expect_echo(&mut second);
        drop(second);
        assert_eq!(server.thread.join().unwrap().reset_at_stop, 0, "{name}");
        successor.stop();
    });
}
