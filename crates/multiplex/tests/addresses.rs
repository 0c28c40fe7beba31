//! How many connections an address may have, on every mechanism.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use multiplex::{
    Any, Application, BufferSizes, Chunk, Close, Commands, Config, Cx, Remote, Rx, Stats, Why,
    backends,
};
use shared_ring::{Fd, Host, Linux, System};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The share of an address.
const SHARE: usize = 3;

/// Answers each byte with itself, and closes in the way that it asks for. Tells how connections ended.
struct Echo(Sender<Why>);

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

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, why: Why) {
        self.0.send(why).unwrap();
    }
}

struct Server {
    address: SocketAddr,
    remote: Remote,
    thread: JoinHandle<Stats>,
    ended: Receiver<Why>,
}

impl Server {
    fn start(name: &'static str, config: Config) -> Server {
        let (ends, ended) = mpsc::channel();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let server = Any::new(name, &config).unwrap();
            sender.send((server.addresses()[0], server.remote())).unwrap();
            server.run(Echo(ends)).unwrap()
        });
        let (address, remote) = receiver.recv().unwrap();
        Server { address, remote, thread, ended }
    }

    /// Connects from 127.0.0.`last`.
    fn connect_from(&self, last: u8) -> TcpStream {
        let mut host = Linux::default();
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let socket = host.socket(self.address, Some(from), BufferSizes::default()).unwrap();
        // SAFETY: the socket's owner ends here.
        let client = unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) };
        // SAFETY: it is open until the call is over.
        let fd = unsafe { Fd::lent(client.as_fd()) };
        // It may still be under way; what comes first waits for that.
        let _ = host.connect(fd, self.address);
        let client = TcpStream::from(client);
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    fn stop(self) -> Stats {
        self.remote.stop();
        let until = Instant::now() + PATIENCE;
        while !self.thread.is_finished() {
            assert!(Instant::now() < until, "the server does not stop");
            thread::sleep(Duration::from_millis(1));
        }
        self.thread.join().expect("the server panicked")
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
    Config { listen, max_per_address, max_queued: 50_000, ..Config::default() }
}

/// Runs a test on every mechanism that can run here, at the same time.
fn on_every_mechanism(test: impl Fn(&'static str) + Sync) {
    let here = backends().into_iter().filter(|backend| backend.available.is_ok());
    let test = &test;
    thread::scope(|scope| {
        let all: Vec<_> =
            here.map(|backend| (backend.name, scope.spawn(move || test(backend.name)))).collect();
        for (name, thread) in all {
            assert!(thread.join().is_ok(), "failed on {name}");
        }
    });
}

#[test]
fn clients_of_one_address_cannot_take_more_than_their_share() {
    on_every_mechanism(|name| {
        let server = Server::start(name, config(Some(SHARE as u32)));
        let mut greedy: Vec<_> = (0..40).map(|_| server.connect_from(2)).collect();
        let served: Vec<bool> = greedy.iter_mut().map(is_served).collect();
        assert_eq!(served.iter().filter(|served| **served).count(), SHARE, "{name}");
        // As many of every other.
        let mut others: Vec<_> = (3..6)
            .flat_map(|last| (0..SHARE).map(move |_| last))
            .map(|last| server.connect_from(last))
            .collect();
        assert!(others.iter_mut().all(is_served), "{name}");
        drop((greedy, others));
        let stats = server.stop();
        assert_eq!(stats.refused_addresses, 40 - SHARE as u64, "{name}");
        assert_eq!((stats.accepted, stats.closed), (4 * SHARE as u64, 4 * SHARE as u64), "{name}");
    });
}

#[test]
fn an_address_has_its_place_back_however_a_connection_ends() {
    on_every_mechanism(|name| {
        let server = Server::start(name, config(Some(1)));
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
    on_every_mechanism(|name| {
        let server = Server::start(name, Config { max_connections: 2, ..config(Some(1)) });
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
    on_every_mechanism(|name| {
        let server = Server::start(name, config(None));
        let mut clients: Vec<_> = (0..40).map(|_| server.connect_from(2)).collect();
        assert!(clients.iter_mut().all(is_served), "{name}");
        drop(clients);
        assert_eq!(server.stop().refused_addresses, 0, "{name}");
    });
}
