//! The server on every mechanism.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use evring::Config;
use kv::model::Model;
use kv::{Database, Kv, Limits};
use support::client::{Client, End};
use support::{Server, TIMEOUT, config, on_each, on_each_at_once, pattern, tiny};

const MEMORY: usize = 16 << 20;
/// Maximum size of a value whose key has at most five bytes.
const MAX_VALUE: usize = (1 << 20) - 64 - 5;
const VERSION: &str = "VERSION 1.6.18-kv\r\n";

fn kv(backend: &'static str, config: Config) -> Server {
    Server::start(backend, config, || Kv::with_memory(MEMORY, 0).unwrap())
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = format!("set {key} 7 0 {}\r\n", value.len()).into_bytes();
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

fn value(key: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = format!("VALUE {key} 7 {}\r\n", value.len()).into_bytes();
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\nEND\r\n");
    bytes
}

/// Requests and the replies of memcached 1.6.
const TALK: &[(&str, &str)] = &[
    ("get a\r\n", "END\r\n"),
    ("set a 5 0 3\r\nabc\r\n", "STORED\r\n"),
    ("get a\r\n", "VALUE a 5 3\r\nabc\r\nEND\r\n"),
    ("get x a y a\r\n", "VALUE a 5 3\r\nabc\r\nVALUE a 5 3\r\nabc\r\nEND\r\n"),
    ("gets a\r\n", "VALUE a 5 3 1\r\nabc\r\nEND\r\n"),
    ("set a 0 0 0 noreply\r\n\r\nget a\r\n", "VALUE a 0 0\r\n\r\nEND\r\n"),
    ("set b 1 0 4\r\n\r\n\r\n\r\n", "STORED\r\n"),
    ("get b\n", "VALUE b 1 4\r\n\r\n\r\n\r\nEND\r\n"),
    ("  get  b  \r\n", "VALUE b 1 4\r\n\r\n\r\n\r\nEND\r\n"),
    ("set a 0 0 3\r\nabcdefgh\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
    ("set a 0 0 3 noreply\r\nabcd\r\n", "ERROR\r\n"),
    ("get a\r\n", "VALUE a 0 0\r\n\r\nEND\r\n"),
    ("append a 9 0 2 noreply\r\n99\r\nincr a 1\r\ndecr a 1\r\n", "100\r\n99\r\n"),
    ("gats 100 a x\r\n", "VALUE a 0 3 6\r\n99 \r\nEND\r\n"),
    ("cas a 0 0 1 5\r\nx\r\ncas a 0 0 1 6\r\ny\r\n", "EXISTS\r\nSTORED\r\n"),
    ("add a 0 0 1\r\nz\r\nreplace a 0 0 1\r\nz\r\n", "NOT_STORED\r\nSTORED\r\n"),
    ("prepend a 0 0 2\r\nxy\r\nget a\r\n", "STORED\r\nVALUE a 0 3\r\nxyz\r\nEND\r\n"),
    ("touch a 0\r\ntouch none 0\r\nverbosity 1\r\n", "TOUCHED\r\nNOT_FOUND\r\nOK\r\n"),
    ("flush_all\r\nget a b\r\n", "OK\r\nEND\r\n"),
    ("set a 0 -1 1\r\nx\r\nget a\r\n", "STORED\r\nEND\r\n"),
    ("set a 0 2592001 1\r\nx\r\nget a\r\n", "STORED\r\nEND\r\n"),
    ("set a 0 99999999999 1\r\nx\r\nget a\r\n", "STORED\r\nEND\r\n"),
    ("set a 0 100 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"),
    ("delete a\r\ndelete a\r\n", "DELETED\r\nNOT_FOUND\r\n"),
    ("set a 0 0 1\r\nx\r\ndelete a noreply\r\nget a\r\n", "STORED\r\nEND\r\n"),
    ("set a x 0 1\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ("get\r\nget \r\ngets\r\n\r\nbogus\r\n", "ERROR\r\nERROR\r\nERROR\r\nERROR\r\nERROR\r\n"),
    ("version x\r\n", VERSION),
];

/// Returns all of [`TALK`] as one request and one reply.
fn whole_talk() -> (Vec<u8>, Vec<u8>) {
    let (requests, replies): (Vec<_>, Vec<_>) = TALK.iter().copied().unzip();
    (requests.concat().into_bytes(), replies.concat().into_bytes())
}

#[test]
fn replies_match_memcached() {
    on_each(|backend| {
        let server = kv(backend, config());
        let mut client = Client::connect(server.address);
        for (request, reply) in TALK {
            client.ask(request, reply);
        }
        client.send(b"quit\r\nversion\r\n");
        client.expect_last(b"", End::Eof);
        server.stop();
    });
}

#[test]
fn pipeline_split_at_any_byte_gives_the_same_replies() {
    on_each(|backend| {
        let (requests, replies) = whole_talk();
        // Every fourth byte, without the variable `EXHAUSTIVE`.
        let stride = if std::env::var_os("EXHAUSTIVE").is_some() { 1 } else { 4 };
        for at in (0..requests.len()).step_by(stride) {
            // Replies contain `cas` numbers, so each split needs an empty cache.
            let server = kv(backend, config());
            let mut client = Client::connect(server.address);
            // The first part ends after a `version`, whose reply shows that the server has received it.
            client.ask([b"version\r\n", &requests[..at]].concat(), VERSION);
            client.ask(&requests[at..], &replies);
            drop(client);
            server.stop();
        }
    });
}

#[test]
fn one_byte_buffers_give_the_same_replies() {
    on_each(|backend| {
        for buffer_size in [1, 2, 3, 5, 8, 13] {
            let server = kv(
                backend,
                config().with(|c| {
                    c.buffer_size = buffer_size;
                    c.buffers = 2;
                }),
            );
            let (requests, replies) = whole_talk();
            let mut client = Client::connect(server.address);
            client.ask(requests, replies);
            client.end();
            client.expect_last(b"", End::Eof);
            server.stop();
        }
    });
}

#[test]
fn value_spans_many_buffers() {
    on_each(|backend| {
        let server = kv(backend, config());
        let mut client = Client::connect(server.address);
        let large = pattern(MAX_VALUE);
        client.ask(set("large", &large), b"STORED\r\n");
        client.ask(b"get large\r\n", value("large", &large));

        let mut slow = Client::narrow(server.address);
        slow.ask(b"get large\r\n", value("large", &large));
        drop((client, slow));
        server.stop();
    });
}

#[test]
fn too_large_value_is_discarded_with_the_old_one() {
    on_each(|backend| {
        let server = kv(backend, config());
        let mut client = Client::connect(server.address);
        client.ask(set("k", b"old"), b"STORED\r\n");
        let large = pattern(1 << 20);
        let reply = b"SERVER_ERROR object too large for cache\r\n";
        client.sending(&set("k", &large), |client| client.expect(reply));
        client.ask(b"get k\r\n", b"END\r\n");
        drop(client);
        server.stop();
    });
}

#[test]
fn get_of_many_large_values_waits_for_its_reader() {
    on_each(|backend| {
        // Far more than may be queued for one connection.
        let server = kv(backend, config().with(|c| c.max_queued_bytes = 3 << 20));
        let mut client = Client::connect(server.address);
        let large = pattern(MAX_VALUE);
        client.ask(set("large", &large), b"STORED\r\n");
        client.send(format!("get{}\r\nversion\r\n", " large".repeat(12)).as_bytes());
        let one = value("large", &large);
        let one = one.strip_suffix(b"END\r\n").unwrap();
        for _ in 0..12 {
            client.expect(one);
        }
        client.expect(format!("END\r\n{VERSION}").as_bytes());
        drop(client);
        assert_eq!(server.stop().overruns, 0);
    });
}

#[test]
fn client_that_requests_much_and_reads_later_was_reset() {
    const REQUESTS: u64 = 30;
    on_each(|backend| {
        let server = kv(backend, config().with(|c| c.max_queued_bytes = 1 << 20));
        let mut client = Client::narrow(server.address);
        let mut other = Client::connect(server.address);
        let bytes = pattern(60_000);
        client.ask(set("k", &bytes), b"STORED\r\n");
        for requests in 1..=REQUESTS {
            client.send(b"get k\r\n");
            // The next one comes in a receive of its own, unless the server waits for the client by now.
            let mut tries = 0..10;
            while stat(&mut other, "cmd_get") < requests && tries.next().is_some() {}
        }
        for _ in 0..REQUESTS {
            client.expect(&value("k", &bytes));
        }
        drop((client, other));
        assert_eq!(server.stop().overruns, 0);
    });
}

/// Returns the value of a statistic.
fn stat(client: &mut Client, name: &str) -> u64 {
    client.send(b"stats\r\n");
    let mut text = String::new();
    while !text.ends_with("END\r\n") {
        let mut byte = [0];
        std::io::Read::read_exact(&mut client.0, &mut byte).unwrap();
        text.push(byte[0].into());
    }
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn memory_is_bounded_and_evictions_are_counted() {
    on_each(|backend| {
        let server = Server::start(backend, config(), || Kv::with_memory(1 << 20, 0).unwrap());
        let mut client = Client::connect(server.address);
        let large = pattern(300_000);
        for i in 0..10 {
            client.ask(set(&format!("k{i}"), &large), b"STORED\r\n");
        }
        client.ask(b"get k6\r\n", b"END\r\n");
        client.ask(b"get k9\r\n", value("k9", &large));
        let counts = ["curr_items", "evictions", "get_hits", "get_misses", "limit_maxbytes"];
        let counts = counts.map(|name| stat(&mut client, name));
        assert_eq!(counts, [3, 7, 1, 1, 1 << 20]);
        let bytes = stat(&mut client, "bytes");
        assert!((900_000..1 << 20).contains(&bytes), "{bytes}");
        assert_eq!(stat(&mut client, "curr_connections"), 1);
        drop(client);
        server.stop();
    });
}

#[test]
fn values_being_received_count_and_are_freed() {
    on_each(|backend| {
        let server = Server::start(backend, config(), || Kv::with_memory(1 << 20, 0).unwrap());
        let begun = b"version\r\nset half 0 0 600000\r\nthe first bytes";
        let mut first = Client::connect(server.address);
        first.ask(begun, VERSION);
        let mut second = Client::connect(server.address);
        let reply = b"SERVER_ERROR out of memory storing object\r\n";
        let value = pattern(600_000);
        second.sending(&set("k", &value), |client| client.expect(reply));
        first.reset();
        // The reset and the next set race; once the reset is handled, there is room.
        let begin = Instant::now();
        while stat(&mut second, "bytes") > 0 {
            assert!(begin.elapsed() < TIMEOUT, "the memory is not freed");
        }
        second.ask(set("k", &value), b"STORED\r\n");
        drop(second);
        server.stop();
    });
}

#[test]
fn value_replaced_while_being_sent_arrives_unchanged() {
    on_each(|backend| {
        let server = kv(backend, config());
        let mut other = Client::connect(server.address);
        let large = pattern(MAX_VALUE);
        other.ask(set("large", &large), b"STORED\r\n");
        let mut slow = Client::narrow(server.address);
        slow.send(b"get large large\r\n");
        // Received bytes show that the reply has begun.
        let reply = value("large", &large);
        slow.expect(&reply[..10]);
        other.ask(set("large", b"new"), b"STORED\r\n");
        let (first, end) = reply[10..].split_at(reply.len() - 10 - 5);
        slow.expect(first);
        assert_eq!(end, b"END\r\n");
        slow.expect(&value("large", b"new"));
        drop((slow, other));
        server.stop();
    });
}

#[test]
fn value_expires_on_time() {
    on_each_at_once(|backend| {
        let server = kv(backend, config());
        let mut client = Client::connect(server.address);
        client.ask(b"set a 7 1 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 7 1\r\nx\r\nEND\r\n");
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            client.send(b"get a\r\n");
            let mut line = [0; 5];
            std::io::Read::read_exact(&mut client.0, &mut line).unwrap();
            if &line == b"END\r\n" {
                drop(client);
                server.stop();
                return;
            }
            client.expect(b" a 7 1\r\nx\r\nEND\r\n");
        }
        panic!("the value did not expire");
    });
}

#[test]
fn invalid_input_gets_an_error_or_closes() {
    on_each(|backend| {
        let server = kv(backend, config());
        let mut client = Client::connect(server.address);
        client.send(&pattern(100_000).iter().map(|b| b | 0x80).collect::<Vec<_>>());
        client.expect_last(b"", End::Eof);

        let mut client = Client::connect(server.address);
        let key = "k".repeat(251);
        let reply = "CLIENT_ERROR bad command line format\r\n";
        client.ask(format!("get {key}{key} and more\r\n"), reply);
        client.ask(b"get \r\nVERSION\r\n", b"ERROR\r\nERROR\r\n");
        drop(client);
        server.stop();
    });
}

/// Returns steps of a model as requests, and their replies.
fn steps(model: &mut Model, random: &mut fastrand::Rng, n: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for _ in 0..n {
        model.step(&mut |n| random.usize(..n), &mut requests, &mut replies);
    }
    (requests, replies)
}

/// 2,000 operations per mechanism, or `KV_OPERATIONS`.
#[test]
fn pipelined_operations_agree_with_a_model() {
    let operations: usize =
        std::env::var("KV_OPERATIONS").map_or(2_000, |n| n.parse().expect("a number"));
    on_each(|backend| {
        for round in 0..operations.div_ceil(1_000) {
            let mut random = fastrand::Rng::with_seed(round as u64);
            let buffer_size = random.u32(1..4_000);
            let base = match random.u32(..3) {
                0 => tiny().with(|c| c.buffer_size = buffer_size),
                _ => config(),
            };
            let server = kv(backend, base);
            let mut client = Client::connect(server.address);
            let mut model = Model::new("key".to_owned(), 70_000, true);
            for _ in 0..5 {
                let (requests, replies) = steps(&mut model, &mut random, 200);
                client.sending(&requests, |client| client.expect(&replies));
            }
            client.end();
            client.expect_last(b"", End::Eof);
            server.stop();
        }
    });
}

#[test]
fn workers_share_stored_values() {
    on_each(|backend| {
        let database = Database::shared(Limits::default(), 7, 2).unwrap();
        let start = || {
            let database = database.share().unwrap();
            Server::start(backend, config(), || Kv::new(database))
        };
        let servers = [start(), start()];
        let mut clients = servers.each_ref().map(|server| Client::connect(server.address));
        for n in 0..20 {
            clients[n % 2].ask(set(&format!("k{n}"), b"x"), b"STORED\r\n");
        }
        for n in 0..20 {
            clients[1 - n % 2].ask(format!("get k{n}\r\n"), value(&format!("k{n}"), b"x"));
        }
        clients[0].ask(b"set n 0 0 1\r\n0\r\n", b"STORED\r\n");
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(move || {
                    for _ in 0..20 {
                        client.send("incr n 1 noreply\r\n".repeat(50).as_bytes());
                    }
                    client.ask(b"version\r\n", VERSION);
                });
            }
        });
        clients[1].ask(b"incr n 0\r\n", b"2000\r\n");
        assert_eq!(stat(&mut clients[0], "threads"), 2);
        assert_eq!(stat(&mut clients[0], "curr_connections"), 2);
        clients[0].ask(b"flush_all\r\n", b"OK\r\n");
        clients[1].ask(b"get n k1 k2 k3 k4\r\n", b"END\r\n");
        drop(clients);
        for server in servers {
            server.stop();
        }
    });
}

/// The kernel divides connections among workers as it likes.
#[test]
fn workers_together_exceeded_the_maximum_or_one_left_connections_waiting() {
    on_each(|backend| {
        let limits = Limits { connections: 2, ..Limits::default() };
        let database = Database::shared(limits, 7, 2).unwrap();
        let start = || {
            let database = database.share().unwrap();
            Server::start(backend, config(), || Kv::new(database))
        };
        let servers = [start(), start()];
        let connect = |worker: usize| Client::connect(servers[worker].address);
        // Both of one worker.
        let mut clients = [connect(0), connect(0)];
        for client in &mut clients {
            client.ask(b"version\r\n", VERSION);
        }
        for worker in [0, 1, 1] {
            connect(worker).expect_last(b"ERROR Too many open connections\r\n", End::Eof);
        }
        let [mut first, mut second] = clients;
        assert_eq!(stat(&mut first, "curr_connections"), 2);
        assert_eq!(stat(&mut first, "total_connections"), 2);
        second.end();
        second.expect_last(b"", End::Eof);
        let begin = Instant::now();
        while stat(&mut first, "curr_connections") > 1 {
            assert!(begin.elapsed() < TIMEOUT, "the closed connection counts");
        }
        first.ask(b"stats reset\r\n", b"RESET\r\n");
        let mut third = connect(1);
        third.ask(b"version\r\n", VERSION);
        assert_eq!(stat(&mut third, "curr_connections"), 2);
        assert_eq!(stat(&mut third, "total_connections"), 1);
        drop((first, third));
        for server in servers {
            server.stop();
        }
    });
}
