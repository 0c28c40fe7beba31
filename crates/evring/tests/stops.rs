//! What arrives before and during a stop, on every mechanism.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use evring::sockets::{ListenOptions, ListeningSocket};
use evring::{Application, Chunk, Close, Commands, ConnId, Cx, Listener, Others, Rx};

use crate::replies_ok::{RepliesOk, answers, expect_ok};
use crate::server::{Server, TIMEOUT, is_reset, listening, next, side_by_side};

/// Reports received bytes and ignores stops.
struct IgnoresStops(Sender<()>);

impl Application for IgnoresStops {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        let _ = self.0.send(());
    }

    fn stopping(&mut self, _x: Cx<'_, impl Commands, ()>) {}
}

#[test]
fn stop_took_twice_the_drain_timeout() {
    const DRAIN: Duration = Duration::from_secs(8);
    side_by_side(|name| {
        let (sender, receiver) = mpsc::channel();
        let server = Server::start(name, listening(1).with(|c| c.drain_timeout = DRAIN), || {
            IgnoresStops(sender)
        });
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        next(&receiver);
        let begin = Instant::now();
        let stats = server.stop();
        let elapsed = begin.elapsed();
        assert!(elapsed >= DRAIN * 9 / 10 && elapsed < DRAIN * 19 / 10, "{name}: {elapsed:?}");
        assert_eq!((stats.accepted, stats.closed), (1, 1), "{name}");
    });
}

#[test]
fn requests_sent_before_a_stop_were_reset() {
    side_by_side(|name| {
        let (server, is_waiting, resume) = answers(name, listening(1));
        let mut blocked = server.connect();
        let mut open: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in &mut open {
            client.write_all(b"x").unwrap();
            expect_ok(name, client);
        }
        blocked.write_all(b"wait").unwrap();
        next(&is_waiting);
        // While the loop is blocked: requests on open connections and on new ones.
        let mut new: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in open.iter_mut().chain(&mut new) {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        resume.send(()).unwrap();
        for client in [&mut blocked].into_iter().chain(&mut open).chain(&mut new) {
            expect_ok(name, client);
            assert_eq!(client.read(&mut [0]).unwrap_or_else(|e| panic!("{name}: {e}")), 0);
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (41, 41), "{name}");
    });
}

/// Connects a client when it is stopped while its accept is in flight.
struct ConnectsAtStop {
    address: SocketAddr,
    client: Sender<TcpStream>,
}

impl Application for ConnectsAtStop {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        x.io.send(x.id, Chunk::Static(b"ok"));
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, ()>) {
        if self.address.port() != 0 {
            self.client.send(TcpStream::connect(self.address).unwrap()).unwrap();
            self.address.set_port(0);
        }
        x.io.close(x.id, Close::Flush);
    }
}

#[test]
fn connection_that_came_while_an_accept_was_cancelled_was_reset() {
    side_by_side(|name| {
        let (sender, connected) = mpsc::channel();
        let address = ([127, 0, 0, 1], 0).into();
        let socket = ListeningSocket::bind(address, &ListenOptions::new(16)).unwrap();
        let address = socket.address();
        let config = listening(1).with(|c| {
            c.listen = vec![address];
            c.inherited = vec![socket];
        });
        let server =
            Server::start(name, config, move || ConnectsAtStop { address, client: sender });
        let mut first = server.connect();
        expect_ok(name, &mut first);
        server.remote.stop();
        let mut client = next(&connected);
        expect_ok(name, &mut client);
        assert_eq!(first.read(&mut [0]).unwrap_or_else(|e| panic!("{name}: {e}")), 0);
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (2, 2), "{name}");
    });
}

/// Connects a client when it is stopped, and another one for each that is accepted from then on.
struct ConnectsAgain {
    address: SocketAddr,
    clients: Vec<TcpStream>,
}

impl Application for ConnectsAgain {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        if x.io.is_stopping() {
            self.clients.push(TcpStream::connect(self.address).unwrap());
            x.io.close(x.id, Close::Reset);
        } else {
            x.io.send(x.id, Chunk::Static(b"ok"));
        }
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, ()>) {
        self.clients.push(TcpStream::connect(self.address).unwrap());
        x.io.close(x.id, Close::Flush);
    }
}

#[test]
fn clients_that_kept_coming_kept_a_listener_open_at_a_stop() {
    const BACKLOG: u32 = 4;
    side_by_side(|name| {
        let address = ([127, 0, 0, 1], 0).into();
        let socket = ListeningSocket::bind(address, &ListenOptions::new(BACKLOG)).unwrap();
        let address = socket.address();
        let config = listening(1).with(|c| {
            c.listen = vec![address];
            c.inherited = vec![socket];
            c.backlog = BACKLOG;
            c.max_connections = 100;
        });
        let server =
            Server::start(name, config, move || ConnectsAgain { address, clients: Vec::new() });
        let mut first = server.connect();
        expect_ok(name, &mut first);
        let stats = server.stop();
        // Those of the backlog, and those that the last accept has taken.
        assert!(stats.accepted < 20 && stats.reset_at_stop < 20, "{name}: {stats:?}");
    });
}

#[test]
fn connections_reset_at_a_stop_were_not_counted() {
    const CLIENTS: usize = 10;
    side_by_side(|name| {
        let (server, is_waiting, resume) =
            answers(name, listening(1).with(|c| c.max_connections = 1));
        let mut blocked = server.connect();
        blocked.write_all(b"wait").unwrap();
        next(&is_waiting);
        let mut new: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        for client in &mut new {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        resume.send(()).unwrap();
        expect_ok(name, &mut blocked);
        // Connections accepted before the stop are served; a ring may have accepted more.
        let served = |client: &mut TcpStream| match client.read_exact(&mut [0; 2]) {
            Ok(()) => true,
            Err(error) => {
                assert!(is_reset(error), "{name}");
                false
            }
        };
        let served = new.iter_mut().map(served).filter(|served| *served).count();
        let stats = server.stop();
        assert_eq!(stats.accepted, 1 + served as u64, "{name}");
        assert_eq!(stats.reset_at_stop, (CLIENTS - served) as u64, "{name}");
    });
}

#[test]
fn stop_reset_clients_though_idle_connections_gave_up_their_places() {
    const IDLE: usize = 7;
    side_by_side(|name| {
        let (server, is_waiting, resume) =
            answers(name, listening(1).with(|c| c.max_connections = 1 + IDLE as u32));
        let mut idle: Vec<_> = (0..IDLE).map(|_| server.connect()).collect();
        for client in &mut idle {
            client.write_all(b"x").unwrap();
            expect_ok(name, client);
        }
        let mut blocked = server.connect();
        blocked.write_all(b"wait").unwrap();
        next(&is_waiting);
        let mut new: Vec<_> = (0..IDLE).map(|_| server.connect()).collect();
        for client in &mut new {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        resume.send(()).unwrap();
        for client in &mut new {
            expect_ok(name, client);
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.reset_at_stop), (1 + 2 * IDLE as u64, 0), "{name}");
    });
}

#[test]
fn stop_reset_connections_that_other_owners_of_the_socket_could_accept() {
    const CLIENTS: usize = 10;
    side_by_side(|name| {
        let address = ([127, 0, 0, 1], 0).into();
        let socket = ListeningSocket::bind(address, &ListenOptions::new(16)).unwrap();
        let config = listening(1).with(|c| {
            c.listen = vec![socket.address()];
            c.inherited = vec![socket.clone().shared()];
            c.max_connections = 1;
            c.drain_timeout = Duration::from_millis(50);
        });
        let (sender, receiver) = mpsc::channel();
        let server = Server::start(name, config, || IgnoresStops(sender));
        let mut first = server.connect();
        first.write_all(b"x").unwrap();
        next(&receiver);
        let new: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        let stats = server.stop();
        let other_owner = TcpListener::from(socket.as_fd().try_clone_to_owned().unwrap());
        other_owner.set_nonblocking(true).unwrap();
        let left = other_owner.incoming().map_while(Result::ok).count();
        drop(new);
        // A ring may have accepted some before the stop.
        assert_eq!((stats.accepted, stats.reset_at_stop as usize + left), (1, CLIENTS), "{name}");
        assert!(left > 0, "{name}");
    });
}

/// Panics when it receives bytes.
struct PanicsAtBytes;

impl Application for PanicsAtBytes {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        assert!(rx.take().is_empty(), "on purpose");
    }
}

/// With a signal of its own, the next connection would end the process.
#[test]
fn listener_with_another_owner_signalled_after_the_end_of_the_server() {
    side_by_side(|name| {
        for panics in [false, true] {
            let address = ([127, 0, 0, 1], 0).into();
            let socket = ListeningSocket::bind(address, &ListenOptions::new(16)).unwrap();
            let config = listening(1).with(|c| {
                c.listen = vec![socket.address()];
                c.inherited = vec![socket.clone()];
            });
            let server = Server::start(name, config, || PanicsAtBytes);
            let mut client = server.connect();
            if panics {
                client.write_all(b"x").unwrap();
                server.thread.join().expect_err("the application panics");
            } else {
                server.stop();
            }
            let flags = rustix::fs::fcntl_getfl(&socket).unwrap().bits();
            assert_eq!(flags & libc::O_ASYNC as u32, 0, "{name}, panics: {panics}");
        }
    });
}

/// Leaves the first bytes and pauses until it is woken; on `wait`, blocks like `RepliesOk`. Reports its
/// callbacks.
struct LeavesBytes {
    paused: Option<ConnId>,
    woken: bool,
    replies: RepliesOk,
    calls: Sender<&'static str>,
}

/// More than an application may leave while it is not paused.
static LEFT: [u8; 100] = [7; 100];

impl Application for LeavesBytes {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes() == b"wait" {
            return self.replies.received(x, rx);
        }
        if self.paused.is_none() {
            self.paused = Some(x.id);
            x.io.set_receiving(x.id, false);
            x.io.send(x.id, Chunk::Static(b"ok"));
        } else if self.paused == Some(x.id) && rx.take().as_ref() == LEFT {
            self.calls.send("received").unwrap();
        }
    }

    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, Self::State>, _tag: u64) {
        self.woken = true;
        io.set_receiving(self.paused.unwrap(), true);
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, ()>) {
        let is_paused = self.paused == Some(x.id);
        if is_paused {
            self.calls.send("stopping").unwrap();
        }
        if !is_paused || self.woken {
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[test]
fn bytes_left_by_a_pause_arrived_after_the_stop() {
    side_by_side(|name| {
        for is_woken_first in [true, false] {
            let (waiting, is_waiting) = mpsc::channel();
            let (resume, resumed) = mpsc::channel();
            let (sender, calls) = mpsc::channel();
            let replies = RepliesOk { waiting, resumed };
            let app = move || LeavesBytes { paused: None, woken: false, replies, calls: sender };
            let server = Server::start(name, listening(1), app);
            let (mut client, mut blocked) = (server.connect(), server.connect());
            client.write_all(&LEFT).unwrap();
            expect_ok(name, &mut client);
            if is_woken_first {
                // The server handles both in one turn.
                blocked.write_all(b"wait").unwrap();
                next(&is_waiting);
                assert!(server.remote.wake(0));
                server.remote.stop();
                resume.send(()).unwrap();
            } else {
                server.remote.stop();
                assert_eq!(next(&calls), "stopping", "{name}");
                assert!(server.remote.wake(0));
            }
            assert_eq!((next(&calls), next(&calls)), ("received", "stopping"), "{name}");
            server.stop();
        }
    });
}

#[test]
fn connection_that_received_without_replying_missed_the_stop() {
    /// Consumes bytes without replying.
    struct OnlyConsumes(RepliesOk);

    impl Application for OnlyConsumes {
        type State = ();
        const MAX_UNCONSUMED: usize = 64;

        fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
            if rx.bytes() == b"wait" {
                self.0.received(x, rx);
            } else {
                rx.take();
            }
        }
    }

    side_by_side(|name| {
        let (waiting, is_waiting) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        // Longer than the test waits for a stop.
        let config = listening(1).with(|c| c.drain_timeout = 3 * TIMEOUT);
        let server =
            Server::start(name, config, move || OnlyConsumes(RepliesOk { waiting, resumed }));
        let mut blocked = server.connect();
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        blocked.write_all(b"wait").unwrap();
        next(&is_waiting);
        // The bytes are in the sockets when the server handles the stop.
        for client in &mut clients {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        resume.send(()).unwrap();
        for client in &mut clients {
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "{name}");
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (21, 21), "{name}");
    });
}
