//! How many connections an address may have, on every mechanism.

mod server;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};

use evring::{
    Application, BufferSizes, Chunk, Close, CloseReason, Commands, Config, Cx, Rx, Stats,
};
use shared_ring::{Fd, Host, Linux, System};

use server::{PATIENCE, Server, side_by_side};

/// The share of an address.
const SHARE: usize = 3;

/// Answers each byte with itself, and closes in the way that it asks for. Tells how connections ended.
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
                // More than may be queued.
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

    fn is_idle(&self, _state: &()) -> bool {
        true
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.0.send(reason).unwrap();
    }
}

/// A server that reports how connections ended.
struct Reporting {
    server: Server,
    ended: Receiver<CloseReason>,
}

impl Reporting {
    fn start(name: &'static str, config: Config) -> Reporting {
        let (ends, ended) = mpsc::channel();
        Reporting { server: Server::start(name, config, || Echo(ends)), ended }
    }

    /// Connects from 127.0.0.`last`.
    fn connect_from(&self, last: u8) -> TcpStream {
        let mut host = Linux::default();
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let socket = host.socket(self.server.address, Some(from), BufferSizes::default()).unwrap();
        // SAFETY: the socket's owner ends here.
        let client = unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) };
        // SAFETY: it is open until the call is over.
        let fd = unsafe { Fd::lent(client.as_fd()) };
        // It may still be under way; what comes first waits for that.
        let _ = host.connect(fd, self.server.address);
        let client = TcpStream::from(client);
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    fn stop(self) -> Stats {
        self.server.stop()
    }
}

/// Whether a new client is served; otherwise it was reset.
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
    let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    // What an overrun queues is too much.
    Config { listen, max_per_address, max_queued_bytes: 50_000, ..Config::default() }
}

#[test]
fn clients_of_one_address_cannot_take_more_than_their_share() {
    side_by_side(|name| {
        let server = Reporting::start(name, config(Some(SHARE as u32)));
        let mut greedy: Vec<_> = (0..40).map(|_| server.connect_from(2)).collect();
        let served: Vec<bool> = greedy.iter_mut().map(is_served).collect();
        assert_eq!(served.iter().filter(|served| **served).count(), SHARE, "{name}");
        // As many of every other.
        let mut others: Vec<_> = (3..6)
            .flat_map(|last| (0..SHARE).map(move |_| last))
            .map(|last| server.connect_from(last))
            .collect();
        others.push(server.server.connect());
        assert!(others.iter_mut().all(is_served), "{name}");
        let served = (SHARE + others.len()) as u64;
        drop((greedy, others));
        let stats = server.stop();
        assert_eq!(stats.refused_addresses, 40 - SHARE as u64, "{name}");
        assert_eq!((stats.accepted, stats.closed), (served, served), "{name}");
    });
}

#[test]
fn an_address_has_its_place_back_however_a_connection_ends() {
    side_by_side(|name| {
        let server = Reporting::start(name, config(Some(1)));
        // Ended by the server, in each way; by an overrun; by its client, in order and with a reset.
        for how in *b"flroxu" {
            let mut client = server.connect_from(2);
            assert!(is_served(&mut client), "{name}: before {}", char::from(how));
            assert!(!is_served(&mut server.connect_from(2)), "{name}");
            if how != b'x' {
                client.write_all(&[how]).unwrap();
            }
            if how == b'u' {
                // With a byte unread, its end is a reset.
                client.peek(&mut [0]).unwrap();
            }
            drop(client);
            server.ended.recv_timeout(PATIENCE).expect("the connection ends");
        }
        assert!(is_served(&mut server.connect_from(2)), "{name}");
        server.stop();
    });
}

#[test]
fn an_address_has_its_place_back_when_an_idle_connection_makes_room() {
    side_by_side(|name| {
        let server = Reporting::start(name, Config { max_connections: 2, ..config(Some(1)) });
        let mut clients = Vec::new();
        for last in 2..9 {
            // Each but the first two has an idle one ended.
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
        // Nobody has to go for a connection that its address has no place for.
        assert!(!is_served(&mut server.connect_from(last)), "{name}");
        assert!(is_served(&mut again), "{name}");
        drop((clients, again));
        let stats = server.stop();
        assert_eq!((stats.idle_closed, stats.refused_addresses), (6, 1), "{name}");
    });
}

#[test]
fn without_a_bound_an_address_has_all_it_wants() {
    side_by_side(|name| {
        let server = Reporting::start(name, config(None));
        let mut clients: Vec<_> = (0..40).map(|_| server.connect_from(2)).collect();
        assert!(clients.iter_mut().all(is_served), "{name}");
        drop(clients);
        assert_eq!(server.stop().refused_addresses, 0, "{name}");
    });
}
