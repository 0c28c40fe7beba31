//! The cache on every mechanism.

mod support;

use std::collections::HashMap;
use std::time::Instant;

use examples::Kv;
use multiplex::Config;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use support::client::{Client, End};
use support::{PATIENCE, Server, config, on_each, on_each_at_once, pattern, tiny};

const MEMORY: usize = 16 << 20;
const VERSION: &str = concat!("VERSION ", env!("CARGO_PKG_VERSION"), "\r\n");

fn kv(backend: &'static str, config: Config) -> Server {
    Server::start(backend, config, || Kv::new(MEMORY))
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

/// Requests and their answers, as memcached 1.6 gives them.
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
    ("set a 0 -1 1\r\nx\r\nget a\r\n", "STORED\r\nEND\r\n"),
    ("set a 0 2592001 1\r\nx\r\nget a\r\n", "STORED\r\nEND\r\n"),
    ("set a 0 99999999999 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"),
    ("delete a\r\ndelete a\r\n", "DELETED\r\nNOT_FOUND\r\n"),
    ("set a 0 0 1\r\nx\r\ndelete a noreply\r\nget a\r\n", "STORED\r\nEND\r\n"),
    ("set a x 0 1\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ("get\r\nget \r\ngets\r\n\r\nbogus\r\n", "ERROR\r\nERROR\r\nERROR\r\nERROR\r\nERROR\r\n"),
    ("version x\r\n", VERSION),
];

/// Everything in [`TALK`] at once.
fn whole_talk() -> (Vec<u8>, Vec<u8>) {
    let (requests, replies): (Vec<_>, Vec<_>) = TALK.iter().copied().unzip();
    (requests.concat().into_bytes(), replies.concat().into_bytes())
}

#[test]
fn the_answers_are_those_of_memcached() {
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
fn a_pipeline_may_be_split_at_every_byte() {
    on_each(|backend| {
        let (requests, replies) = whole_talk();
        for at in 0..requests.len() {
            // The cache counts stores, so each split begins with an empty one.
            let server = kv(backend, config());
            let mut client = Client::connect(server.address);
            // The head comes together with a question whose answer shows that it was taken.
            client.ask([b"version\r\n", &requests[..at]].concat(), VERSION);
            client.ask(&requests[at..], &replies);
            drop(client);
            server.stop();
        }
    });
}

#[test]
fn buffers_of_one_byte_give_the_same_answers() {
    on_each(|backend| {
        for buffer_size in [1, 2, 3, 5, 8, 13] {
            let server = kv(backend, Config { buffer_size, buffers: 2, ..config() });
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
fn a_value_may_span_many_buffers() {
    on_each(|backend| {
        let server = kv(backend, config());
        let mut client = Client::connect(server.address);
        let large = pattern(Kv::MAX_VALUE);
        client.ask(set("large", &large), b"STORED\r\n");
        client.ask(b"get large\r\n", value("large", &large));

        let mut slow = Client::narrow(server.address);
        slow.ask(b"get large\r\n", value("large", &large));
        drop((client, slow));
        server.stop();
    });
}

#[test]
fn too_large_a_value_is_swallowed_and_the_old_one_goes() {
    on_each(|backend| {
        let server = kv(backend, config());
        let mut client = Client::connect(server.address);
        client.ask(set("k", b"old"), b"STORED\r\n");
        let large = pattern(Kv::MAX_VALUE + 1);
        let reply = b"SERVER_ERROR object too large for cache\r\n";
        client.sending(&set("k", &large), |client| client.expect(reply));
        client.ask(b"get k\r\n", b"END\r\n");
        drop(client);
        server.stop();
    });
}

#[test]
fn a_get_of_many_large_values_waits_for_its_reader() {
    on_each(|backend| {
        // Far more than may be queued for one connection.
        let server = kv(backend, Config { max_queued: 3 << 20, ..config() });
        let mut client = Client::connect(server.address);
        let large = pattern(Kv::MAX_VALUE);
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
fn memory_is_bounded_and_what_is_evicted_is_counted() {
    on_each(|backend| {
        let server = Server::start(backend, config(), || Kv::new(1 << 20));
        let mut client = Client::connect(server.address);
        let large = pattern(300_000);
        for i in 0..10 {
            client.ask(set(&format!("k{i}"), &large), b"STORED\r\n");
        }
        client.ask(b"get k6\r\n", b"END\r\n");
        client.ask(b"get k9\r\n", value("k9", &large));
        let cost = 3 * (large.len() + 2 + 2 + 200);
        client.ask(
            b"stats\r\n",
            format!(
                "STAT curr_items 3\r\nSTAT bytes {cost}\r\nSTAT limit_maxbytes 1048576\r\n\
                 STAT evictions 7\r\nEND\r\n"
            ),
        );
        drop(client);
        server.stop();
    });
}

#[test]
fn values_on_their_way_count_and_are_given_back() {
    on_each(|backend| {
        let server = Server::start(backend, config(), || Kv::new(1 << 20));
        let begun = b"version\r\nset half 0 0 600000\r\nthe first bytes";
        let mut first = Client::connect(server.address);
        first.ask(begun, VERSION);
        let mut second = Client::connect(server.address);
        let reply = b"SERVER_ERROR out of memory storing object\r\n";
        let value = pattern(600_000);
        second.sending(&set("k", &value), |client| client.expect(reply));
        first.reset();
        // The reset and the next set race; as soon as the reset was seen, there is room.
        let begin = Instant::now();
        loop {
            second.send(&set("k", &value));
            let mut word = [0; 6];
            std::io::Read::read_exact(&mut second.0, &mut word).unwrap();
            if &word == b"STORED" {
                break;
            }
            assert_eq!(&word, b"SERVER");
            second.expect(&reply[6..]);
            assert!(begin.elapsed() < PATIENCE, "the memory never comes back");
        }
        drop(second);
        server.stop();
    });
}

#[test]
fn a_value_expires_when_its_time_has_come() {
    on_each_at_once(|backend| {
        let server = kv(backend, config());
        let mut client = Client::connect(server.address);
        client.ask(b"set a 7 1 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 7 1\r\nx\r\nEND\r\n");
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
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
        panic!("it did not expire");
    });
}

#[test]
fn garbage_gets_an_error_or_the_end() {
    on_each(|backend| {
        let server = kv(backend, config());
        let mut client = Client::connect(server.address);
        client.send(&pattern(100_000).iter().map(|b| b | 0x80).collect::<Vec<_>>());
        client.expect_last(b"", End::Eof);

        let mut client = Client::connect(server.address);
        let key = "k".repeat(Kv::MAX_KEY + 1);
        let reply = "CLIENT_ERROR bad command line format\r\n";
        client.ask(format!("get {key}{key} and more\r\n"), reply);
        client.ask(b"get \r\nVERSION\r\n", b"ERROR\r\nERROR\r\n");
        drop(client);
        server.stop();
    });
}

/// A step of the model.
#[derive(Clone, Debug)]
enum Step {
    Set { key: u8, flags: u32, len: usize, fill: u8, exptime: i64, quiet: bool },
    Get { keys: Vec<u8> },
    Delete { key: u8, quiet: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![40 => 0..40usize, 8 => 1000..1100usize, 2 => 0..70_000usize];
    let exptime = prop_oneof![8 => Just(0), 1 => Just(-1), 1 => Just(2_592_001), 2 => Just(1000)];
    prop_oneof![
        4 => (0..12u8, any::<u32>(), len, any::<u8>(), exptime, any::<bool>()).prop_map(
            |(key, flags, len, fill, exptime, quiet)| Step::Set {
                key, flags, len, fill, exptime, quiet
            }
        ),
        5 => vec(0..12u8, 1..5).prop_map(|keys| Step::Get { keys }),
        2 => (0..12u8, any::<bool>()).prop_map(|(key, quiet)| Step::Delete { key, quiet }),
    ]
}

/// What the cache should hold.
#[derive(Default)]
struct Model {
    values: HashMap<u8, (u32, Vec<u8>)>,
    requests: Vec<u8>,
    replies: Vec<u8>,
}

impl Model {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Set { key, flags, len, fill, exptime, quiet } => {
                let value = vec![*fill; *len];
                let word = if *quiet { " noreply" } else { "" };
                let line = format!("set key{key} {flags} {exptime} {len}{word}\r\n");
                self.requests.extend_from_slice(line.as_bytes());
                self.requests.extend_from_slice(&value);
                self.requests.extend_from_slice(b"\r\n");
                match exptime {
                    0 | 1000 => self.values.insert(*key, (*flags, value)),
                    _ => self.values.remove(key),
                };
                self.reply(*quiet, "STORED\r\n");
            }
            Step::Get { keys } => {
                let words: String = keys.iter().map(|key| format!(" key{key}")).collect();
                self.requests.extend_from_slice(format!("get{words}\r\n").as_bytes());
                for key in keys {
                    if let Some((flags, value)) = self.values.get(key) {
                        let line = format!("VALUE key{key} {flags} {}\r\n", value.len());
                        self.replies.extend_from_slice(line.as_bytes());
                        self.replies.extend_from_slice(value);
                        self.replies.extend_from_slice(b"\r\n");
                    }
                }
                self.reply(false, "END\r\n");
            }
            Step::Delete { key, quiet } => {
                let word = if *quiet { " noreply" } else { "" };
                self.requests.extend_from_slice(format!("delete key{key}{word}\r\n").as_bytes());
                let found = self.values.remove(key).is_some();
                self.reply(*quiet, if found { "DELETED\r\n" } else { "NOT_FOUND\r\n" });
            }
        }
    }

    fn reply(&mut self, quiet: bool, line: &str) {
        if !quiet {
            self.replies.extend_from_slice(line.as_bytes());
        }
    }
}

#[test]
fn ten_thousand_pipelined_steps_match_a_model() {
    on_each(|backend| {
        // No shrinking by replay: a failure prints the backend and the first bytes that differ.
        let cases = Cases { cases: 10, failure_persistence: None, ..Cases::default() };
        let strategy = (vec(step(), 1000), proptest::bool::weighted(0.3), 1..4000u32);
        let result = TestRunner::new(cases).run(&strategy, |(steps, narrow, buffer_size)| {
            let mut model = Model::default();
            steps.iter().for_each(|step| model.step(step));
            let base = if narrow { Config { buffer_size, ..tiny() } } else { config() };
            let server = kv(backend, base);
            let mut client = Client::connect(server.address);
            client.sending(&model.requests, |client| client.expect(&model.replies));
            client.end();
            client.expect_last(b"", End::Eof);
            server.stop();
            Ok(())
        });
        result.unwrap();
    });
}
