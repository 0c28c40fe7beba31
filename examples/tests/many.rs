//! More than 1,024 concurrent connections, the size of an `fd_set`. A single test in a separate process, as
//! it raises the process' limit.

mod support;

use examples::Echo;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::client::{Client, End};
use support::{Server, config, on_each, pattern};

const CONNECTIONS: usize = 1_500;

/// Both ends of every connection, and a few more.
const DESCRIPTORS: u64 = 2 * CONNECTIONS as u64 + 100;

/// Yields every index once, in a different order per `round`.
fn order(round: usize) -> impl Iterator<Item = usize> {
    // Primes that do not divide the number of connections.
    let step = [1, 7, 601, 1_499][round % 4];
    (0..CONNECTIONS).map(move |i| (i * step + 31 * round) % CONNECTIONS)
}

/// Message of a connection in a round; its bytes and length differ from those of its neighbors.
fn message(connection: usize, round: usize) -> Vec<u8> {
    let mut bytes = format!("{connection} in round {round}: ").into_bytes();
    bytes.extend_from_slice(&pattern((connection + 13 * round) % 200));
    bytes
}

#[test]
fn many_connections_are_served_at_once() {
    let old = getrlimit(Resource::Nofile);
    assert!(old.maximum.is_none_or(|max| max >= DESCRIPTORS), "too few descriptors: {old:?}");
    if old.current.is_some_and(|now| now < DESCRIPTORS) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), ..old }).unwrap();
    }
    on_each(|backend| {
        let config = config().with(|c| c.max_connections = CONNECTIONS as u32);
        let server = Server::start(backend, config, || Echo);
        let mut clients: Vec<_> =
            (0..CONNECTIONS).map(|_| Client::connect(server.address)).collect();
        for round in 0..4 {
            order(round).for_each(|i| clients[i].send(&message(i, round)));
            order(round + 1).for_each(|i| clients[i].expect(&message(i, round)));
        }
        // Half of them close; the others continue, then close too.
        let (closed, open): (Vec<_>, Vec<_>) = order(2).partition(|i| i % 2 == 0);
        closed.iter().for_each(|i| clients[*i].end());
        closed.iter().for_each(|i| assert_eq!(clients[*i].read_to_end(), (Vec::new(), End::Eof)));
        open.iter().for_each(|i| clients[*i].ask(message(*i, 4), message(*i, 4)));
        open.iter().for_each(|i| clients[*i].end());
        open.iter().for_each(|i| assert_eq!(clients[*i].read_to_end(), (Vec::new(), End::Eof)));
        drop(clients);
        let stats = server.stop();
        let all = CONNECTIONS as u64;
        assert_eq!((stats.accepted, stats.closed, stats.overruns), (all, all, 0), "{stats:?}");
        assert!(stats.received >= 4 * all, "{stats:?}");
    });
    setrlimit(Resource::Nofile, old).unwrap();
}
