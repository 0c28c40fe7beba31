//! Many connections at once, more than a map of 1,024 descriptors holds. A single test in a process
//! of its own, for it raises the process' limit.

mod support;

use evring::Config;
use examples::Echo;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::client::{Client, End};
use support::{Server, config, on_each, pattern};

const CONNECTIONS: usize = 1_500;

/// Both ends of every connection, and some.
const DESCRIPTORS: u64 = 2 * CONNECTIONS as u64 + 100;

/// Every index once, in an order that no other `round` has.
fn order(round: usize) -> impl Iterator<Item = usize> {
    // Primes that don't divide the number of connections.
    let step = [1, 7, 601, 1_499][round % 4];
    (0..CONNECTIONS).map(move |i| (i * step + 31 * round) % CONNECTIONS)
}

/// What a connection says in a round; neither its bytes nor its length are those of its neighbours.
fn message(connection: usize, round: usize) -> Vec<u8> {
    let mut bytes = format!("{connection} in round {round}: ").into_bytes();
    bytes.extend_from_slice(&pattern((connection + 13 * round) % 200));
    bytes
}

#[test]
fn many_connections_are_served_at_once() {
    let old = getrlimit(Resource::Nofile);
    assert!(old.maximum.is_none_or(|most| most >= DESCRIPTORS), "too few descriptors: {old:?}");
    if old.current.is_some_and(|now| now < DESCRIPTORS) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), ..old }).unwrap();
    }
    on_each(|backend| {
        let config = Config { max_connections: CONNECTIONS as u32, ..config() };
        let server = Server::start(backend, config, || Echo);
        let mut clients: Vec<_> =
            (0..CONNECTIONS).map(|_| Client::connect(server.address)).collect();
        for round in 0..4 {
            order(round).for_each(|i| clients[i].send(&message(i, round)));
            order(round + 1).for_each(|i| clients[i].expect(&message(i, round)));
        }
        // Half of them end, the others notice nothing, and end too.
        let (gone, left): (Vec<_>, Vec<_>) = order(2).partition(|i| i % 2 == 0);
        gone.iter().for_each(|i| clients[*i].end());
        gone.iter().for_each(|i| assert_eq!(clients[*i].rest(), (Vec::new(), End::Eof)));
        left.iter().for_each(|i| clients[*i].ask(message(*i, 4), message(*i, 4)));
        left.iter().for_each(|i| clients[*i].end());
        left.iter().for_each(|i| assert_eq!(clients[*i].rest(), (Vec::new(), End::Eof)));
        drop(clients);
        let stats = server.stop();
        let all = CONNECTIONS as u64;
        assert_eq!((stats.accepted, stats.closed, stats.overruns), (all, all, 0), "{stats:?}");
        assert!(stats.received >= 4 * all, "{stats:?}");
    });
    setrlimit(Resource::Nofile, old).unwrap();
}
