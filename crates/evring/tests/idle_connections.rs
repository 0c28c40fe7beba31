//! Idle connections that make room for new ones, on every mechanism.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use evring::sockets::BufferSizes;
use evring::{AcceptPolicy, Application, Chunk, Close, Commands, ConnId, Cx, Listener, Rx};

use crate::last_replies::connect_narrow;
use crate::replies_ok::{LARGE, answers, expect_ok};
use crate::server::{Server, ask, in_time, listening, one_by_one, side_by_side};

#[test]
fn idle_connections_blocked_new_ones() {
    side_by_side(|name| {
        let (server, ..) = answers(name, listening(1).with(|c| c.max_connections = 3));
        let mut idle: Vec<_> = (0..3).map(|_| server.connect()).collect();
        for client in &mut idle {
            client.write_all(b"x").unwrap();
            expect_ok(name, client);
        }
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        let ended = idle.iter_mut().map(|client| {
            client.set_nonblocking(true).unwrap();
            client.read(&mut [0])
        });
        assert_eq!(ended.filter(Result::is_ok).count(), 1, "{name}");
        drop(new);
        drop(idle);
        assert_eq!(server.stop().idle_closed, 1, "{name}");
    });
}

/// The bound is far above the time of a round.
#[test]
fn new_client_is_served_within_100_ms_while_idle_ones_fill_the_server() {
    const ROUNDS: usize = 11;
    let serves = |name| {
        let (server, ..) = answers(name, listening(1).with(|c| c.max_connections = 20));
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        let mut times: Vec<_> = (0..20 + ROUNDS)
            .map(|n| {
                let start = Instant::now();
                if n >= 20 {
                    clients.push(server.connect());
                }
                clients[n].write_all(b"x").unwrap();
                expect_ok(name, &mut clients[n]);
                start.elapsed()
            })
            .skip(20)
            .collect();
        times.sort_unstable();
        assert_eq!(server.stop().idle_closed, ROUNDS as u64, "{name}");
        times[ROUNDS / 2] < Duration::from_millis(100)
    };
    one_by_one(|name| in_time(name, || serves(name)));
}

/// The bound is as above.
#[test]
fn clients_that_came_together_waited_for_a_search_each() {
    const CLIENTS: usize = 50;
    const ROUNDS: usize = 5;
    let serves = |name| {
        let config = listening(1).with(|c| c.max_connections = CLIENTS as u32);
        let (server, ..) = answers(name, config);
        let mut times = Vec::new();
        let mut idle: Vec<TcpStream> = Vec::new();
        for round in 0..=ROUNDS {
            let start = Instant::now();
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
            for client in &mut clients {
                client.write_all(b"x").unwrap();
            }
            for client in &mut clients {
                expect_ok(name, client);
            }
            times.extend((round > 0).then(|| start.elapsed()));
            idle.extend(clients);
        }
        times.sort_unstable();
        assert_eq!(server.stop().idle_closed, (CLIENTS * ROUNDS) as u64, "{name}");
        times[ROUNDS / 2] < Duration::from_millis(100)
    };
    one_by_one(|name| in_time(name, || serves(name)));
}

#[test]
fn idle_connection_with_unacknowledged_bytes_was_closed_for_room() {
    side_by_side(|name| {
        // The socket takes the whole reply, so only the peer is behind.
        let sockets = BufferSizes { send: Some(1 << 20), receive: None };
        let (server, ..) = answers(
            name,
            listening(1).with(|c| {
                c.max_connections = 2;
                c.socket_buffers = sockets;
            }),
        );
        let mut slow = connect_narrow(&server);
        slow.write_all(b"large").unwrap();
        slow.read_exact(&mut [0; 2]).unwrap();
        let mut idle = server.connect();
        idle.write_all(b"x").unwrap();
        expect_ok(name, &mut idle);
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        assert_eq!(
            idle.read(&mut [0]).unwrap(),
            0,
            "{name}: the connection with the shorter idle time"
        );
        slow.read_exact(&mut vec![0; LARGE.len() - 2]).unwrap();
        slow.write_all(b"x").unwrap();
        expect_ok(name, &mut slow);
        drop((slow, new));
        assert_eq!(server.stop().idle_closed, 1, "{name}");
    });
}

#[test]
fn connection_without_a_request_was_closed_before_idle_ones() {
    side_by_side(|name| {
        let (server, ..) = answers(name, listening(1).with(|c| c.max_connections = 2));
        let mut unserved = server.connect();
        let mut idle = server.connect();
        idle.write_all(b"x").unwrap();
        expect_ok(name, &mut idle);
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "{name}: the served connection");
        unserved.write_all(b"x").unwrap();
        expect_ok(name, &mut unserved);
        drop((unserved, new));
        assert_eq!(server.stop().idle_closed, 1, "{name}");
    });
}

/// Replies to each message; `hello` is the handshake before a request. Says goodbye to a connection that makes room for
/// another one, and leaves the close to the driver.
struct SaysGoodbye;

impl Application for SaysGoodbye {
    /// Whether a request has arrived.
    type State = bool;
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, bool>, rx: &mut Rx<'_>) {
        *x.state |= rx.take().as_ref() != b"hello";
        x.io.send(x.id, Chunk::Static(b"ok"));
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn is_idle(&self, _id: ConnId, _state: &bool) -> bool {
        true
    }

    fn is_unserved(&self, _id: ConnId, state: &bool) -> bool {
        !state
    }

    fn evicting(&mut self, x: Cx<'_, impl Commands, bool>) {
        x.io.send(x.id, Chunk::Static(b"bye"));
    }
}

#[test]
fn idle_connection_was_closed_for_room_without_a_word() {
    side_by_side(|name| {
        let server =
            Server::start(name, listening(1).with(|c| c.max_connections = 2), || SaysGoodbye);
        let mut shaken = server.connect();
        shaken.write_all(b"hello").unwrap();
        expect_ok(name, &mut shaken);
        let mut idle = server.connect();
        idle.write_all(b"x").unwrap();
        expect_ok(name, &mut idle);
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        let mut last = String::new();
        idle.read_to_string(&mut last).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(last, "bye", "{name}: the served connection");
        shaken.write_all(b"x").unwrap();
        expect_ok(name, &mut shaken);
        // Without a served one, the connection after its handshake makes room.
        drop((shaken, new));
        let mut shaken: Vec<_> = (0..2).map(|_| server.connect()).collect();
        for client in &mut shaken {
            client.write_all(b"hello").unwrap();
            expect_ok(name, client);
        }
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        drop((shaken, new));
        assert_eq!(server.stop().idle_closed, 2, "{name}");
    });
}

/// Echoes, and is idle in between. On `!`, it stops accepting at the second listener.
struct Echoes {
    /// The time that a search takes for each connection.
    search_time: Duration,
    /// How it closes a connection to make room.
    evicts_by: Close,
}

impl Default for Echoes {
    fn default() -> Self {
        Echoes { search_time: Duration::ZERO, evicts_by: Close::Flush }
    }
}

impl Application for Echoes {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes() == b"!" {
            x.io.set_accept_policy(Listener(1), AcceptPolicy::Off);
        }
        x.io.send(x.id, Chunk::Received(rx.take()));
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn is_idle(&self, _id: ConnId, _state: &()) -> bool {
        thread::sleep(self.search_time);
        true
    }

    fn evicting(&mut self, x: Cx<'_, impl Commands, ()>) {
        x.io.close(x.id, self.evicts_by);
    }
}

#[test]
fn clients_of_a_listener_that_is_off_closed_idle_connections() {
    const IDLE: usize = 20;
    side_by_side(|name| {
        let config = listening(2).with(|c| c.max_connections = IDLE as u32);
        let server = Server::start(name, config, Echoes::default);
        let mut idle: Vec<_> = (0..IDLE).map(|_| server.connect()).collect();
        for client in &mut idle {
            ask(client, "x", "x");
        }
        // The accept has been cancelled with the second answer.
        ask(&mut idle[0], "!", "!");
        ask(&mut idle[0], "x", "x");
        let waiting: Vec<_> = (0..IDLE).map(|_| server.connect_to(1)).collect();
        let mut new = server.connect();
        ask(&mut new, "x", "x");
        drop((idle, new));
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.idle_closed), (IDLE as u64 + 1, 1), "{name}");
        drop(waiting);
    });
}

/// Serves one client beside as many idle ones as there are places. Returns how many of these are closed.
fn closed_for_one(name: &'static str, application: impl Fn() -> Echoes + Send + 'static) -> u64 {
    const IDLE: usize = 20;
    let config = listening(1).with(|c| c.max_connections = IDLE as u32);
    let server = Server::start(name, config, application);
    let mut idle: Vec<_> = (0..IDLE).map(|_| server.connect()).collect();
    for client in &mut idle {
        ask(client, "x", "x");
    }
    ask(&mut server.connect(), "x", "x");
    drop(idle);
    server.stop().idle_closed
}

/// The search takes longer than the interval of searches, and by the next one a kernel whose closes are in flight has not
/// closed the connection.
#[test]
fn place_of_a_connection_that_was_being_closed_was_searched_again() {
    side_by_side(|name| {
        let slow = || Echoes { search_time: Duration::from_millis(1), ..Echoes::default() };
        assert_eq!(closed_for_one(name, slow), 1, "{name}");
    });
}

#[test]
fn connections_that_lingered_kept_the_places_for_which_they_were_closed() {
    side_by_side(|name| {
        let lingering = || Echoes { evicts_by: Close::Linger, ..Echoes::default() };
        assert_eq!(closed_for_one(name, lingering), 1, "{name}");
    });
}
