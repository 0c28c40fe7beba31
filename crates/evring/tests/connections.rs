//! Connections that a program opens or accepts, on every mechanism.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use evring::{Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, Listener, Rx};
use rustix::net::SendFlags;

use crate::listener::full_listener;
use crate::server::{Server, TIMEOUT, ask, listening, next, one_by_one, side_by_side};

/// On each accepted connection, opens another one, pauses and resumes it at once.
struct Upstream {
    to: SocketAddr,
    sender: Sender<Notification>,
}

#[derive(Debug, PartialEq)]
enum Notification {
    Connected(Result<(), ErrorKind>),
    Received(Vec<u8>),
}

impl Application for Upstream {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        let upstream = x.io.connect(self.to);
        x.io.set_receiving(upstream, false);
        x.io.set_receiving(upstream, true);
    }

    fn connected(&mut self, _x: Cx<'_, impl Commands, ()>, result: std::io::Result<()>) {
        let _ = self.sender.send(Notification::Connected(result.map_err(|error| error.kind())));
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let _ = self.sender.send(Notification::Received(rx.take().to_vec()));
    }
}

#[test]
fn resume_while_connecting_was_reported_as_connected() {
    side_by_side(|name| {
        let (listener, to, _filler) = full_listener();
        let (sender, receiver) = mpsc::channel();
        let server = Server::start(name, listening(1), move || Upstream { to, sender });
        let _client = server.connect();
        let early = receiver.recv_timeout(Duration::from_millis(200));
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "{name}: notified while connecting");
        // The kernel retries the connect after one second and finds room.
        listener.accept().unwrap();
        assert_eq!(next(&receiver), Notification::Connected(Ok(())), "{name}");
        assert_eq!(
            next(&receiver),
            Notification::Received(Vec::new()),
            "{name}: the callback after a resume"
        );
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"ping").unwrap();
        assert_eq!(next(&receiver), Notification::Received(b"ping".to_vec()), "{name}");
        server.stop();
    });
}

/// Echoes, and closes as the first byte requests.
struct ClosesAsRequested;

impl Application for ClosesAsRequested {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let how = match rx.bytes().first() {
            Some(b'f') => Some(Close::Flush),
            Some(b'l') => Some(Close::Linger),
            Some(b'h') => Some(Close::Half),
            Some(_) => None,
            None => Some(Close::Flush),
        };
        x.io.send(x.id, Chunk::Received(rx.take()));
        if let Some(how) = how {
            x.io.close(x.id, how);
        }
    }
}

#[test]
fn infinite_timeouts_caused_a_panic() {
    one_by_one(|name| {
        let forever = Duration::MAX;
        let config = listening(1).with(|c| {
            c.drain_timeout = forever;
            c.progress_interval = forever;
            c.linger_timeout = forever;
        });
        let server = Server::start(name, config, || ClosesAsRequested);
        for how in [b"f", b"l", b"h"] {
            let mut client = server.connect();
            client.write_all(how).unwrap();
            let mut back = Vec::new();
            client.read_to_end(&mut back).unwrap();
            assert_eq!(back, how, "{name}");
        }
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
        let stats = server.stop();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "{name}");
        assert_eq!((stats.accepted, stats.closed), (4, 4), "{name}");
    });
}

/// Reports the identifiers of connections when they open and close.
struct ReportsIds(Sender<ConnId>);

impl Application for ReportsIds {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        let _ = self.0.send(x.id);
    }

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, ()>, _reason: CloseReason) {
        let _ = self.0.send(x.id);
    }
}

#[test]
fn connection_identifier_was_reused() {
    one_by_one(|name| {
        let (sender, receiver) = mpsc::channel();
        let server = Server::start(name, listening(1), || ReportsIds(sender));
        for generation in 0..300 {
            let client = server.connect();
            // The previous connection has closed, so the slot is reused with a new generation.
            let id = next(&receiver);
            assert_eq!(id, ConnId::new(0, generation), "{name}");
            drop(client);
            assert_eq!(next(&receiver), id, "{name}");
        }
        server.stop();
    });
}

/// Returns each line. On `wait`, blocks until the test continues it.
struct ReturnsLines {
    waiting: Sender<()>,
    resumed: Receiver<()>,
}

impl Application for ReturnsLines {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes() == b"wait\n" {
            self.waiting.send(()).unwrap();
            self.resumed.recv_timeout(TIMEOUT).expect("the test continues the application");
        }
        if rx.bytes().ends_with(b"\n") {
            x.io.send(x.id, Chunk::Copy(rx.take().as_ref()));
        }
    }
}

#[test]
fn client_that_sent_an_urgent_byte_got_no_reply() {
    side_by_side(|name| {
        if name == "send" {
            // While a signal is pending, a receive at an urgent byte ends with EAGAIN, although more follows. The ring of
            // `send` receives while SIGIO is pending, and receives again when the next bytes arrive.
            return println!("{name}: does not apply: it receives while a signal is pending");
        }
        let (waiting, is_waiting) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        let server = Server::start(name, listening(1), move || ReturnsLines { waiting, resumed });
        let mut blocked = server.connect();
        let mut open = server.connect();
        ask(&mut open, "first\n", "first\n");
        blocked.write_all(b"wait\n").unwrap();
        next(&is_waiting);
        // All of a request has arrived before the server receives.
        let mut new = server.connect();
        for client in [&mut open, &mut new] {
            client.write_all(b"before ").unwrap();
            rustix::net::send(&*client, b"!", SendFlags::OOB).unwrap();
            client.write_all(b"after\n").unwrap();
        }
        resume.send(()).unwrap();
        for client in [&mut blocked, &mut open, &mut new] {
            let mut line = String::new();
            let read = BufReader::new(&*client).read_line(&mut line);
            assert!(read.is_ok(), "{name}: {read:?}");
            assert!(["wait\n", "before after\n"].contains(&&*line), "{name}: {line}");
            // The connection stays usable.
            ask(client, "last\n", "last\n");
        }
        server.stop();
    });
}
