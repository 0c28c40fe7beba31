//! Limits on the connections of one address, on every mechanism.

use crate::server;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};

use evring::sockets::BufferSizes;
use evring::{Application, Chunk, Close, CloseReason, Commands, Config, ConnId, Cx, Rx, Stats};
use shared_ring::author::System;
use shared_ring::{Fd, Host, Linux};

use crate::replies_ok::{answers, expect_ok};
use server::{Server, TIMEOUT, listening, next, side_by_side};

/// Maximum number of connections per address.
const SHARE: usize = 3;

/// Echoes, closes as the first byte requests, and reports the close reasons.
struct Echo(Sender<CloseReason>);

impl Application for Echo {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let how = match rx.bytes().first() {
            Some(b'f') | None => Some(Close::Flush),
            Some(b'l') => Some(Close::Linger),
            Some(b'r') => Some(Close::Reset),
            Some(b'o') => {
                // More than the maximum of queued bytes.
                x.io.send(x.id, Chunk::Copy(&[7; 100_000]));
                None
            }
            Some(_) => None,
        };
        x.io.send(x.id, Chunk::Received(rx.take()));
        if let Some(how) = how {
            x.io.close(x.id, how);
        }
    }

    fn is_idle(&self, _id: ConnId, _state: &()) -> bool {
        true
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.0.send(reason).unwrap();
    }
}

/// A server that reports the close reasons of its connections.
struct Reporting {
    server: Server,
    ended: Receiver<CloseReason>,
}

impl Reporting {
    fn start(name: &'static str, config: Config) -> Reporting {
        let (sender, ended) = mpsc::channel();
        Reporting { server: Server::start(name, config, || Echo(sender)), ended }
    }

    /// Connects from 127.0.0.`last`.
    fn connect_from(&self, last: u8) -> TcpStream {
        connect_from(Ipv4Addr::new(127, 0, 0, last), self.server.address)
    }

    fn connect_from_address(&self, from: Ipv4Addr) -> TcpStream {
        connect_from(from, self.server.address)
    }

    fn stop(self) -> Stats {
        self.server.stop()
    }
}

/// Connects from an address.
fn connect_from(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let mut host = Linux::default();
    let socket = host.socket(to, Some(IpAddr::V4(from)), BufferSizes::default()).unwrap();
    // SAFETY: the descriptor is forgotten by its former owner.
    let client = unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) };
    // SAFETY: the descriptor stays open during the call.
    let fd = unsafe { Fd::lent(client.as_fd()) };
    // The connect may still be in flight; the first operation waits for it.
    let _ = host.connect(fd, to);
    let client = TcpStream::from(client);
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client
}

/// Returns whether a new client is served; otherwise it was reset.
fn is_served(client: &mut TcpStream) -> bool {
    let served = client.write_all(b"x").and_then(|()| client.read_exact(&mut [0]));
    match served {
        Ok(()) => true,
        Err(error) => {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
            false
        }
    }
}

fn config(max_per_address: Option<u32>) -> Config {
    // The overrun below exceeds `max_queued_bytes`.
    listening(1).with(|c| {
        c.max_per_address = max_per_address;
        c.max_queued_bytes = 50_000;
    })
}

#[test]
fn connections_of_one_address_are_limited() {
    side_by_side(|name| {
        let server = Reporting::start(name, config(Some(SHARE as u32)));
        let mut clients: Vec<_> = (0..40).map(|_| server.connect_from(2)).collect();
        let served: Vec<bool> = clients.iter_mut().map(is_served).collect();
        assert_eq!(served.iter().filter(|served| **served).count(), SHARE, "{name}");
        // The maximum for each other address.
        let mut others: Vec<_> = (3..6)
            .flat_map(|last| (0..SHARE).map(move |_| last))
            .map(|last| server.connect_from(last))
            .collect();
        others.push(server.server.connect());
        assert!(others.iter_mut().all(is_served), "{name}");
        let served = (SHARE + others.len()) as u64;
        drop((clients, others));
        let stats = server.stop();
        assert_eq!(stats.rejected_addresses, 40 - SHARE as u64, "{name}");
        assert_eq!((stats.accepted, stats.closed), (served, served), "{name}");
    });
}

#[test]
fn closed_connection_no_longer_counts_for_its_address() {
    side_by_side(|name| {
        let server = Reporting::start(name, config(Some(1)));
        // Closed by the server in each way, by an overrun, and by the client with FIN and with RST.
        for how in *b"flroxu" {
            let mut client = server.connect_from(2);
            assert!(is_served(&mut client), "{name}: before {}", char::from(how));
            assert!(!is_served(&mut server.connect_from(2)), "{name}");
            if how != b'x' {
                client.write_all(&[how]).unwrap();
            }
            if how == b'u' {
                // Closing a socket with an unread byte sends a reset.
                client.peek(&mut [0]).unwrap();
            }
            drop(client);
            server.ended.recv_timeout(TIMEOUT).expect("the connection ends");
        }
        assert!(is_served(&mut server.connect_from(2)), "{name}");
        server.stop();
    });
}

#[test]
fn closed_idle_connection_no_longer_counts_for_its_address() {
    side_by_side(|name| {
        let server = Reporting::start(name, config(Some(1)).with(|c| c.max_connections = 2));
        let mut clients = Vec::new();
        for last in 2..9 {
            // From the third one on, an idle connection is closed.
            let mut client = server.connect_from(last);
            assert!(is_served(&mut client), "{name}");
            clients.push((last, client));
        }
        let ended = clients.iter_mut().find_map(|(last, client)| {
            client.set_nonblocking(true).unwrap();
            client.read(&mut [0]).is_ok_and(|n| n == 0).then_some(*last)
        });
        let last = ended.expect("five have ended");
        let mut again = server.connect_from(last);
        assert!(is_served(&mut again), "{name}");
        // A connection that exceeds the limit of its address closes no idle one.
        assert!(!is_served(&mut server.connect_from(last)), "{name}");
        assert!(is_served(&mut again), "{name}");
        drop((clients, again));
        let stats = server.stop();
        assert_eq!((stats.idle_closed, stats.rejected_addresses), (6, 1), "{name}");
    });
}

#[test]
fn connections_of_one_network_are_limited() {
    side_by_side(|name| {
        let both = config(Some(2)).with(|c| c.max_per_network = Some(SHARE as u32));
        for (config, of_address) in
            [(config(None).with(|c| c.max_per_network = Some(SHARE as u32)), 0), (both, 1)]
        {
            let server = Reporting::start(name, config);
            // Two of one address, which has its maximum then if there is one, and of 19 others.
            let hosts = [2, 2].into_iter().chain(2..21);
            let mut clients: Vec<_> = hosts.map(|last| server.connect_from(last)).collect();
            let served: Vec<bool> = clients.iter_mut().map(is_served).collect();
            assert_eq!(served.iter().filter(|served| **served).count(), SHARE, "{name}");
            // The maximum for each other network.
            let mut others: Vec<_> = (1..4)
                .flat_map(|network| (1..=SHARE as u8).map(move |last| (network, last)))
                .map(|(network, last)| Ipv4Addr::new(127, 0, network, last))
                .map(|from| server.connect_from_address(from))
                .collect();
            assert!(others.iter_mut().all(is_served), "{name}");
            // A closed connection no longer counts.
            drop(clients.remove(0));
            server.ended.recv_timeout(TIMEOUT).expect("the connection ends");
            assert!(is_served(&mut server.connect_from(200)), "{name}");
            server.ended.recv_timeout(TIMEOUT).expect("the connection ends");
            drop((clients, others));
            let stats = server.stop();
            assert_eq!(stats.rejected_networks, 18 - of_address, "{name}");
            assert_eq!(stats.rejected_addresses, of_address, "{name}");
        }
    });
}

#[test]
fn connections_of_one_address_are_unlimited_by_default() {
    side_by_side(|name| {
        let server = Reporting::start(name, config(None));
        let mut clients: Vec<_> = (0..40).map(|_| server.connect_from(2)).collect();
        assert!(clients.iter_mut().all(is_served), "{name}");
        drop(clients);
        assert_eq!(server.stop().rejected_addresses, 0, "{name}");
    });
}

#[test]
fn clients_beyond_the_limit_of_their_address_closed_idle_connections() {
    const IDLE: u8 = 20;
    const BEYOND: usize = 20;
    side_by_side(|name| {
        let config = listening(1).with(|c| {
            c.max_connections = u32::from(IDLE) + 1;
            c.max_per_address = Some(1);
        });
        let (server, is_waiting, resume) = answers(name, config);
        let connect = |last| connect_from(Ipv4Addr::new(127, 0, 0, last), server.address);
        let mut idle: Vec<_> = (0..IDLE).map(|n| connect(10 + n)).collect();
        for client in &mut idle {
            client.write_all(b"x").unwrap();
            expect_ok(name, client);
        }
        let mut blocked = connect(2);
        blocked.write_all(b"wait").unwrap();
        next(&is_waiting);
        // The server finds them together.
        let mut new = connect(3);
        new.write_all(b"x").unwrap();
        let beyond: Vec<_> = (0..BEYOND).map(|_| connect(2)).collect();
        resume.send(()).unwrap();
        expect_ok(name, &mut new);
        for mut client in beyond {
            assert!(!is_served(&mut client), "{name}");
        }
        drop((idle, blocked, new));
        let stats = server.stop();
        assert_eq!((stats.rejected_addresses, stats.idle_closed), (BEYOND as u64, 1), "{name}");
    });
}
