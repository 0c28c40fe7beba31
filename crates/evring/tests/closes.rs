//! When a connection ends after the application has closed it, on every mechanism.

use crate::listener;
use crate::server;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use evring::{Application, Chunk, Close, CloseReason, Commands, Config, Cx, Listener, Rx};

use listener::full_listener;
use server::{Server, TIMEOUT, listening, side_by_side};

fn config() -> Config {
    let forever = Duration::from_secs(100_000);
    listening(1).with(|c| c.linger_timeout = forever)
}

/// Reports the end of a connection, and the bytes that it received.
type Ended = Sender<(Vec<u8>, bool)>;

fn next(ended: &Receiver<(Vec<u8>, bool)>) -> (Vec<u8>, bool) {
    ended.recv_timeout(TIMEOUT).expect("a connection ends in time")
}

/// Replies to the first bytes, or to the end of the stream, and closes.
struct Closes {
    at_eof: bool,
    how: Close,
    ended: Ended,
}

impl Application for Closes {
    type State = Vec<u8>;
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, Vec<u8>>, rx: &mut Rx<'_>) {
        let is_first = x.state.is_empty();
        x.state.extend_from_slice(&rx.take());
        if if self.at_eof { rx.eof() } else { is_first } {
            x.io.send(x.id, Chunk::Copy(b"reply"));
            x.io.close(x.id, self.how);
        }
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, Vec<u8>>, reason: CloseReason) {
        let bytes = std::mem::take(x.state);
        self.ended.send((bytes, matches!(reason, CloseReason::Closed))).unwrap();
    }
}

#[test]
fn lingering_connection_ends_at_once_if_the_peer_closed_before() {
    side_by_side(|name| {
        let (ended, receiver) = mpsc::channel();
        let app = move || Closes { at_eof: true, how: Close::Linger, ended };
        let server = Server::start(name, config(), app);
        let mut client = server.connect();
        client.write_all(b"a").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(next(&receiver), (b"a".to_vec(), true), "{name}");
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).unwrap();
        assert_eq!(reply, b"reply", "{name}");
        server.stop();
    });
}

/// Starts a server that has half-closed a connection after `a`. Returns its client, and what is reported of its end.
fn half_closed(name: &'static str) -> (Server, TcpStream, Receiver<(Vec<u8>, bool)>) {
    let (ended, receiver) = mpsc::channel();
    let app = move || Closes { at_eof: false, how: Close::Half, ended };
    let server = Server::start(name, config(), app);
    let mut client = server.connect();
    client.write_all(b"a").unwrap();
    let mut reply = Vec::new();
    client.read_to_end(&mut reply).unwrap();
    assert_eq!(reply, b"reply", "{name}");
    (server, client, receiver)
}

#[test]
fn half_closed_connection_receives_until_the_peer_closes() {
    side_by_side(|name| {
        let (server, mut client, receiver) = half_closed(name);
        client.write_all(b"b").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(next(&receiver), (b"ab".to_vec(), true), "{name}");
        server.stop();
    });
}

#[test]
fn half_closed_connection_was_not_asked_to_stop() {
    side_by_side(|name| {
        let (server, mut client, receiver) = half_closed(name);
        // The bytes that the client sent before come first.
        client.write_all(b"b").unwrap();
        server.stop();
        assert_eq!(next(&receiver), (b"ab".to_vec(), true), "{name}");
    });
}

/// Opens a connection to `to` for each client, and closes it before it is open.
struct GivesUp {
    to: SocketAddr,
    how: Close,
    ended: Ended,
}

impl Application for GivesUp {
    /// Whether the connection was accepted.
    type State = bool;
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, bool>, _at: Listener) {
        *x.state = true;
        let id = x.io.connect(self.to);
        x.io.close(id, self.how);
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, bool>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, bool>, reason: CloseReason) {
        if !*x.state {
            self.ended.send((Vec::new(), matches!(reason, CloseReason::Closed))).unwrap();
        }
    }
}

#[test]
fn connection_without_queued_bytes_ends_while_it_is_connecting() {
    for how in [Close::Flush, Close::Linger, Close::Reset] {
        side_by_side(|name| {
            let (_listener, to, _filler) = full_listener();
            let (ended, receiver) = mpsc::channel();
            let server = Server::start(name, config(), move || GivesUp { to, how, ended });
            let _client = server.connect();
            assert_eq!(next(&receiver), (Vec::new(), true), "{name}, {how:?}");
            server.stop();
        });
    }
}
