//! Sessions without a network: bytes in, bytes out.

use std::time::Duration;

use kv::model::Model;
use kv::{Clock, Database, Limits, Next, Session};
use proptest::prelude::*;

struct Still;

impl Clock for Still {
    fn elapsed(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn unix(&self) -> Duration {
        Duration::from_secs(1_700_000_000)
    }
}

fn database() -> Database {
    Database::new(Limits { memory: 8 << 20, ..Limits::default() }, 7).unwrap()
}

/// One connection.
struct Client<'a> {
    database: &'a mut Database,
    session: Session,
    unused: Vec<u8>,
    out: Vec<u8>,
    closed: bool,
}

impl<'a> Client<'a> {
    fn new(database: &'a mut Database) -> Self {
        let (session, unused, out) = Default::default();
        Client { database, session, unused, out, closed: false }
    }

    /// Passes received bytes; appends the replies to `replies`.
    fn receive(&mut self, bytes: &[u8], replies: &mut Vec<u8>) {
        self.unused.extend_from_slice(bytes);
        while !self.closed {
            let (used, next) =
                self.session.serve(self.database, &Still, &self.unused, &mut self.out);
            self.unused.drain(..used);
            assert!(self.out.len() <= Session::OUTPUT + 8 * 1024, "{} bytes", self.out.len());
            replies.append(&mut self.out);
            self.closed = next == Next::Close;
            if next == Next::Input {
                assert!(self.unused.len() <= Session::MAX_UNUSED);
                return;
            }
        }
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        self.session.end(self.database);
    }
}

fn talk_to(database: &mut Database, bytes: &[u8]) -> (Vec<u8>, bool) {
    let (mut talk, mut replies) = (Client::new(database), Vec::new());
    talk.receive(bytes, &mut replies);
    (replies, talk.closed)
}

#[track_caller]
fn compare(round: usize, got: &[u8], expected: &[u8]) {
    let differs = got.iter().zip(expected).position(|(a, b)| a != b);
    if let Some(at) =
        differs.or((got.len() != expected.len()).then(|| got.len().min(expected.len())))
    {
        let part = |bytes: &[u8]| {
            bytes[at.saturating_sub(200)..bytes.len().min(at + 80)].escape_ascii().to_string()
        };
        panic!(
            "round {round} differs at {at}:\n     got {}\nexpected {}",
            part(got),
            part(expected)
        );
    }
}

/// 200,000 operations, or `KV_OPERATIONS`. They are the same in each run; a failure names the round.
#[test]
fn random_operations_agree_with_a_model() {
    let operations: usize =
        std::env::var("KV_OPERATIONS").map_or(200_000, |n| n.parse().expect("a number"));
    let rounds = operations.div_ceil(10_000);
    for round in 0..rounds {
        let mut random = fastrand::Rng::with_seed(round as u64);
        let mut database = match round % 4 {
            0 => Database::shared(Limits::default(), round as u64, 2).unwrap(),
            _ => Database::new(Limits::default(), round as u64).unwrap(),
        };
        // `cas` numbers are predictable only with a single store.
        let alone = round % 4 != 0;
        let max_value = if round % 8 == 1 { 1 << 20 } else { 1_000 };
        let mut model = Model::new("key".to_owned(), max_value, alone);
        let mut talk = Client::new(&mut database);
        for _ in 0..20 {
            let (mut requests, mut expected, mut replies) = Default::default();
            for _ in 0..500 {
                model.step(&mut |n| random.usize(..n), &mut requests, &mut expected);
            }
            let mut bytes = &requests[..];
            while !bytes.is_empty() {
                let max = [1, 10, 100, 4096, 1 << 20][random.usize(..5)];
                let (piece, remaining) = bytes.split_at(random.usize(1..=max).min(bytes.len()));
                talk.receive(piece, &mut replies);
                bytes = remaining;
            }
            compare(round, &replies, &expected);
        }
    }
}

/// Invalid lines, their replies, and whether the connection closes.
const BAD: &[(&str, &str, bool)] = &[
    ("\r\n\n \r\na\r\n", "ERROR\r\nERROR\r\nERROR\r\nERROR\r\n", false),
    ("mn\r\nmg a\r\nms a 2\r\nxx\r\n", "ERROR\r\nERROR\r\nERROR\r\nERROR\r\n", false),
    ("\u{80}\u{1}bin\r\n", "ERROR\r\n", false),
    ("version\r\nGET / HTTP/1.1\r\nversion\r\n", "VERSION 1.6.18-kv\r\n", true),
    ("get / HTTP/1.1\r\nsx HTTP/1.1\r\n", "END\r\nERROR\r\n", false),
    ("quit\r\nversion\r\n", "", true),
    (
        "set a 0 0 1\0 zero\r\nx\r\nget a\0b\r\nget a b\0 a\r\n",
        "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
        false,
    ),
    (
        "set b -1 0 1\r\nset b 0 0 2147483646\r\n",
        "CLIENT_ERROR bad command line format\r\nCLIENT_ERROR bad command line format\r\n",
        false,
    ),
    (
        "set b 4294967297 0 4294967297\r\nx\r\nget b\r\n",
        "STORED\r\nVALUE b 1 1\r\nx\r\nEND\r\n",
        false,
    ),
    ("set b 0 0 3\r\nabcdefgh\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n", false),
    ("set b 0 0 3\r\nabc\n\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n", false),
    ("set b 0 0 3 noreply\r\nabcd\r\n", "ERROR\r\n", false),
    (
        "delete b 1\r\ndelete b 1 noreply\r\ndelete b c d e\r\n",
        "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\nERROR\r\n",
        false,
    ),
    (
        "flush_all 1 2 3\r\nflush_all -1\r\nverbosity x\r\nverbosity noreply\r\n",
        "ERROR\r\nOK\r\nCLIENT_ERROR bad command line format\r\n",
        false,
    ),
    (
        "incr a -1\r\nincr a 0x10\r\nincr a x noreply\r\n",
        "CLIENT_ERROR invalid numeric delta argument\r\nCLIENT_ERROR invalid numeric delta argument\r\n",
        false,
    ),
    (
        "stats cachedump\r\nstats cachedump 1\r\n",
        "CLIENT_ERROR bad command line\r\nCLIENT_ERROR bad command line\r\n",
        false,
    ),
    ("stats cachedump 63 1\r\nstats cachedump 4294967296 0 x\r\n", "END\r\nEND\r\n", false),
    ("stats cachedump 64 1\r\n", "CLIENT_ERROR Illegal slab id\r\n", false),
    ("stats cachedump x 1\r\n", "CLIENT_ERROR bad command line format\r\n", false),
    ("stats cachedump 1 -1\r\n", "CLIENT_ERROR bad command line format\r\n", false),
    ("stats detail\r\n", "CLIENT_ERROR usage: stats detail on|off|dump\r\n", false),
    (
        "stats detail on\r\nstats detail off x\r\nstats detail dump\r\n",
        "OK\r\nOK\r\nEND\r\n",
        false,
    ),
    ("stats detail bogus\r\n", "CLIENT_ERROR usage: stats detail on|off|dump\r\n", false),
    ("shutdown\r\nstats bogus\r\n", "ERROR: shutdown not enabled\r\nERROR\r\n", false),
    (
        "shutdown a b\r\nshutdown a b c d e f g h HTTP/1.1\r\n",
        "ERROR: shutdown not enabled\r\nERROR: shutdown not enabled\r\n",
        false,
    ),
];

#[test]
fn invalid_lines_get_the_errors_of_memcached() {
    for (bytes, replies, closes) in BAD {
        let (got, closed) = talk_to(&mut database(), bytes.as_bytes());
        assert_eq!(
            (got.escape_ascii().to_string(), closed),
            (replies.as_bytes().escape_ascii().to_string(), *closes),
            "{bytes:?}"
        );
    }
}

/// What `doc/protocol.txt` of memcached says of numbers, times and flushes, and what memcached does beside it.
const PROTOCOL: &[(&str, &[(&str, &str)])] = &[
    (
        "numbers have 64 bits: incr wraps around, decr stops at 0 and keeps the length",
        &[
            (
                "set n 0 0 20\r\n18446744073709551615\r\nincr n 1\r\nget n\r\n",
                "STORED\r\n0\r\nVALUE n 0 20\r\n0                   \r\nEND\r\n",
            ),
            ("decr n 1\r\n", "0\r\n"),
            (
                "set n 7 0 2\r\n10\r\ndecr n 1\r\nget n\r\n",
                "STORED\r\n9\r\nVALUE n 7 2\r\n9 \r\nEND\r\n",
            ),
            ("set n 0 0 1\r\n9\r\nincr n 18446744073709551615\r\n", "STORED\r\n8\r\n"),
            ("incr n 91\r\nget n\r\n", "99\r\nVALUE n 0 2\r\n99\r\nEND\r\n"),
            (
                "set n 0 0 21\r\n184467440737095516150\r\nincr n 1\r\n",
                "STORED\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
            ),
            ("incr n 18446744073709551616\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
            ("incr none 1\r\ndecr none 1\r\nincr none\r\n", "NOT_FOUND\r\nNOT_FOUND\r\nERROR\r\n"),
        ],
    ),
    (
        "each change has another unique number, also that of a number, but not a touch",
        &[
            ("set a 0 0 1\r\n1\r\ngets a\r\n", "STORED\r\nVALUE a 0 1 1\r\n1\r\nEND\r\n"),
            ("touch a 0\r\ngats 0 a\r\n", "TOUCHED\r\nVALUE a 0 1 1\r\n1\r\nEND\r\n"),
            ("incr a 1\r\ngets a\r\n", "2\r\nVALUE a 0 1 2\r\n2\r\nEND\r\n"),
            ("cas a 0 0 1 1\r\nx\r\ncas a 0 0 1 2\r\ny\r\n", "EXISTS\r\nSTORED\r\n"),
            ("cas none 0 0 1 1\r\nx\r\ncas a 0 0 1\r\n", "NOT_FOUND\r\nERROR\r\n"),
            (
                "cas a 0 0 1 18446744073709551615 noreply\r\nz\r\nget a\r\n",
                "VALUE a 0 1\r\ny\r\nEND\r\n",
            ),
        ],
    ),
    (
        "a negative time is the past, and one beyond 30 days is a Unix time",
        &[
            ("set a 0 0 1\r\nx\r\ntouch a -1\r\nget a\r\n", "STORED\r\nTOUCHED\r\nEND\r\n"),
            (
                "set a 0 0 1\r\nx\r\ngat -1 a\r\nget a\r\n",
                "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nEND\r\n",
            ),
            (
                "set a 0 0 1\r\nx\r\ngat 2592000 a\r\nget a\r\n",
                "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
            ),
            ("touch a 2592001\r\nget a\r\n", "TOUCHED\r\nEND\r\n"),
            (
                "touch a\r\ntouch a x\r\ntouch a 1 noreply\r\ngat 5\r\n",
                "ERROR\r\nCLIENT_ERROR invalid exptime argument\r\nEND\r\n",
            ),
        ],
    ),
    (
        "a flush with a delay is not one now, and one without a reply has none",
        &[
            (
                "set a 0 0 1\r\nx\r\nflush_all 10\r\nget a\r\n",
                "STORED\r\nOK\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
            ),
            ("flush_all 10 noreply\r\nget a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"),
            ("flush_all noreply\r\nget a\r\n", "END\r\n"),
            ("set a 0 0 1\r\nx\r\nflush_all 0\r\nget a\r\n", "STORED\r\nOK\r\nEND\r\n"),
            (
                "flush_all x\r\nverbosity\r\nverbosity 1 noreply\r\nverbosity 9\r\n",
                "CLIENT_ERROR invalid exptime argument\r\nERROR\r\nOK\r\n",
            ),
        ],
    ),
];

#[test]
fn protocol_is_that_of_memcached() {
    for (rule, talk) in PROTOCOL {
        let mut database = database();
        for (requests, replies) in *talk {
            let (got, closed) = talk_to(&mut database, requests.as_bytes());
            let got = got.escape_ascii().to_string();
            assert_eq!(
                (got, closed),
                (replies.as_bytes().escape_ascii().to_string(), false),
                "{rule}: {requests:?}"
            );
        }
    }
}

/// Returns the statistics after some requests.
fn stats_after<const N: usize>(
    database: &mut Database,
    requests: &str,
    names: [&str; N],
) -> [u64; N] {
    talk_to(database, requests.as_bytes());
    let stats = String::from_utf8(talk_to(database, b"stats\r\n").0).unwrap();
    names.map(|name| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    })
}

#[test]
fn flush_of_several_stores_was_counted_for_each() {
    let mut shared = Database::shared(Limits::default(), 7, 2).unwrap();
    for mut database in [database(), shared.share().unwrap()] {
        let flushes = "flush_all\r\nflush_all 100\r\nflush_all noreply\r\n";
        assert_eq!(stats_after(&mut database, flushes, ["cmd_flush"]), [3]);
    }
    assert_eq!(stats_after(&mut shared, "stats reset\r\n", ["cmd_flush"]), [0]);
}

#[test]
fn gat_was_counted_as_a_get() {
    let requests = "set a 0 0 1\r\nx\r\ngat 0 a none\r\ngats 0 a\r\nget none a none\r\n";
    let gets = ["cmd_get", "get_hits", "get_misses"];
    assert_eq!(stats_after(&mut database(), requests, gets), [3, 1, 2]);
    let touches = ["cmd_touch", "touch_hits", "touch_misses"];
    assert_eq!(stats_after(&mut database(), requests, touches), [3, 2, 1]);
}

/// In memcached the commands that store a value do not count it.
#[test]
fn expired_and_flushed_values_were_counted_by_get_only() {
    for (set, flush, counts) in [
        ("-1", "", [1, 0]),
        ("0", "flush_all\r\n", [0, 1]),
        // memcached looks at the flush first.
        ("-1", "flush_all\r\n", [0, 1]),
    ] {
        for (request, is_counted) in [
            ("get a", true),
            ("gat 0 a", true),
            ("touch a 0", true),
            ("incr a 1", true),
            ("decr a 1", true),
            ("delete a", true),
            ("set a 0 0 1\r\nx", false),
            ("add a 0 0 1\r\nx", false),
            ("replace a 0 0 1\r\nx", false),
            ("append a 0 0 1\r\nx", false),
            ("cas a 0 0 1 1\r\nx", false),
        ] {
            let requests = format!("set a 0 {set} 1\r\n1\r\n{flush}{request}\r\n");
            let got = stats_after(&mut database(), &requests, ["get_expired", "get_flushed"]);
            assert_eq!(got, if is_counted { counts } else { [0, 0] }, "{requests:?}");
        }
    }
}

#[test]
fn value_with_a_wrong_end_was_not_counted() {
    let requests = "set a 0 0 1\r\nxyz\r\nadd a 0 0 1\r\nx\r\nadd a 0 0 1\r\nx\r\n";
    let names = ["cmd_set", "total_items"];
    assert_eq!(stats_after(&mut database(), requests, names), [3, 1]);
    let large = format!("set a 0 0 2000000\r\n{}\r\n", "x".repeat(2_000_000));
    assert_eq!(stats_after(&mut database(), &large, names), [0, 0]);
    // The end has not come.
    assert_eq!(stats_after(&mut database(), "set a 0 0 1\r\nx\r", names), [0, 0]);
}

#[test]
fn number_without_memory_had_another_error() {
    // 60 blocks of 128 bytes, with their part of the table: 41 for the number, the others for a value.
    let limits = Limits { memory: 60 * 132, ..Limits::default() };
    let mut database = Database::new(limits, 7).unwrap();
    let number = format!("set n 0 0 5000\r\n1{}\r\n", " ".repeat(4_999));
    assert_eq!(talk_to(&mut database, number.as_bytes()).0, b"STORED\r\n");
    // A connection whose replies wait to be sent holds the number.
    let (mut reads, mut out) = (Session::default(), Vec::new());
    let gets = format!("get{}\r\n", " n".repeat(100));
    let (_, next) = reads.serve(&mut database, &Still, gets.as_bytes(), &mut out);
    assert_eq!(next, Next::Output);
    let mut receives = Session::default();
    receives.serve(&mut database, &Still, b"set b 0 0 2311\r\n", &mut Vec::new());
    let (reply, _) = talk_to(&mut database, b"incr n 9\r\n");
    assert_eq!(reply.escape_ascii().to_string(), r"SERVER_ERROR out of memory\r\n");
    // The number is still there.
    let (reply, _) = talk_to(&mut database, b"get n\r\n");
    assert!(reply.starts_with(b"VALUE n 0 5000\r\n1 "), "{}", reply.escape_ascii());
    reads.end(&mut database);
    receives.end(&mut database);
}

#[test]
fn three_values_that_were_not_received_whole_took_all_memory_of_a_key() {
    let mut database = Database::shared(Limits::default(), 7, 4).unwrap();
    let value = "v".repeat(1_000_000);
    let set = |database: &mut Database| {
        let request = format!("set a 0 0 1000000\r\n{value}\r\n");
        talk_to(database, request.as_bytes()).0.escape_ascii().to_string()
    };
    assert_eq!(set(&mut database), r"STORED\r\n");
    let mut stalled: [Session; 14] = Default::default();
    for session in &mut stalled {
        let line = b"set a 0 0 1000000\r\n";
        let (_, next) = session.serve(&mut database, &Still, line, &mut Vec::new());
        assert_eq!(next, Next::Input);
    }
    assert_eq!(set(&mut database), r"STORED\r\n");
    stalled.iter_mut().for_each(|session| session.end(&mut database));
}

#[test]
fn overlong_key_gets_one_error_after_earlier_keys_are_touched() {
    let long = "k".repeat(251);
    let error = "CLIENT_ERROR bad command line format\r\n";
    let mut database = database();
    let mut ask =
        |request: String| String::from_utf8(talk_to(&mut database, request.as_bytes()).0).unwrap();
    for line in
        ["get #", "get a # a", "gat 0 #", "delete #", "incr # 1", "touch # 0", "set # 0 0 1"]
    {
        assert_eq!(ask(line.replace('#', &long) + "\r\n"), error, "{line}");
    }
    assert_eq!(ask(format!("set {long} 0 0 1 noreply\r\nx\r\n")), "ERROR\r\n");
    let longest = "k".repeat(250);
    assert_eq!(
        ask(format!("set {longest} 0 0 1\r\nx\r\nget {longest}\r\n")),
        format!("STORED\r\nVALUE {longest} 0 1\r\nx\r\nEND\r\n")
    );
    assert_eq!(
        ask(format!("set a 0 0 1\r\nx\r\ngat -1 a {long}\r\nget a\r\n")),
        format!("STORED\r\n{error}END\r\n")
    );
    let requests = format!("set a 0 0 1\r\nx\r\nget a b {long}\r\n");
    let names = ["cmd_get", "get_hits", "get_misses"];
    assert_eq!(stats_after(&mut self::database(), &requests, names), [2, 1, 1]);
}

#[test]
fn overlong_line_closes_unless_it_is_a_get() {
    let closes = |line: &[u8]| talk_to(&mut database(), line).1;
    assert!(!closes(&[b'x'; 2048]));
    assert!(closes(&[b'x'; 2049]));
    assert!(closes(&[b' '; 2049]));
    let spaces = " ".repeat(101);
    let keys = " b".repeat(2_000);
    assert!(closes(format!("{spaces}get{keys}").as_bytes()));
    for name in ["get", "gets", "gat 5", "gats 5", "  get"] {
        let (replies, closed) = talk_to(&mut database(), format!("{name}{keys}\r\n").as_bytes());
        assert_eq!((&replies[..], closed), (&b"END\r\n"[..], false), "{name}");
    }
    let (replies, closed) =
        talk_to(&mut database(), format!("gat x{keys}\r\nversion\r\n").as_bytes());
    assert!(replies.starts_with(b"CLIENT_ERROR invalid exptime argument\r\nVERSION") && !closed);
    let long = "k".repeat(251);
    let (replies, _) =
        talk_to(&mut database(), format!("get{keys} {long}{keys}\r\nmg\r\n").as_bytes());
    assert_eq!(replies, b"CLIENT_ERROR bad command line format\r\nERROR\r\n");
}

/// The replies are those of memcached 1.6.18, which closes the connection for each `gat`.
#[test]
fn overlong_get_was_parsed_from_its_beginning() {
    let in_pieces = |line: &str| {
        let mut database = database();
        let values = b"set a 0 0 1\r\nx\r\nset 00 0 0 1\r\ny\r\n";
        assert_eq!(talk_to(&mut database, values).0, b"STORED\r\nSTORED\r\n");
        let (whole, _) = talk_to(&mut database, line.as_bytes());
        let (mut client, mut replies) = (Client::new(&mut database), Vec::new());
        let (beginning, end) = line.as_bytes().split_at(2_049);
        client.receive(beginning, &mut replies);
        end.iter().for_each(|byte| client.receive(&[*byte], &mut replies));
        if !client.closed {
            assert_eq!(replies, whole, "{line:?}");
        }
        (String::from_utf8(replies).unwrap(), client.closed)
    };
    let spaces = |n: usize| " ".repeat(n);
    let value = "VALUE a 0 1\r\nx\r\nEND\r\n".to_owned();
    for (line, reply) in [
        (format!("get{}a\r\n", spaces(2_046)), value.clone()),
        (format!("get{} a\n", spaces(2_046)), value.clone()),
        (format!("get{}\ra\r\n", spaces(2_046)), "END\r\n".to_owned()),
        (format!("get{}\r\n", spaces(2_046)), "ERROR\r\n".to_owned()),
        (format!("gets{}\n", spaces(2_050)), "ERROR\r\n".to_owned()),
        (format!("get{}\0a\r\n", spaces(2_046)), "ERROR\r\n".to_owned()),
        (format!("gat{}0 a\r\n", spaces(2_044)), value),
        (format!("gat{}0 \r\n", spaces(2_044)), "END\r\n".to_owned()),
    ] {
        assert_eq!(in_pieces(&line), (reply, false), "{line:?}");
    }
    // The time is not known, or perhaps only its beginning.
    for line in [
        format!("gat{}0 a\r\n", spaces(2_046)),
        format!("gat {}100 00 a\r\n", spaces(2_044)),
        format!("gats {}0 a\r\n", spaces(2_043)),
    ] {
        assert_eq!(in_pieces(&line), (String::new(), true), "{line:?}");
    }
}

/// The replies are those of memcached 1.6.18.
#[test]
fn overlong_line_that_arrived_whole_closed_the_connection() {
    let (key, spaces, words) = ("k".repeat(3_000), " ".repeat(3_000), " b".repeat(2_000));
    let (error, bad) = ("ERROR\r\n", "CLIENT_ERROR bad command line format\r\n");
    for (line, reply) in [
        (key.clone(), error),
        (spaces.clone(), error),
        (format!("{spaces}verbosity 1"), "OK\r\n"),
        (format!("set {key} 0 0 5"), bad),
        (format!("set {key} 0 0 5 noreply"), ""),
        (format!("set{words}"), error),
        (format!("delete {key}"), bad),
        (format!("delete{words}"), error),
        (format!("incr {key} 1"), bad),
        (format!("incr a {}1", "0".repeat(3_000)), "NOT_FOUND\r\n"),
        (format!("touch {key} 0"), bad),
        (format!("get {key}"), bad),
        (format!("gat 0{words}"), "END\r\n"),
        (format!("{}get{words}", " ".repeat(101)), "END\r\n"),
        (format!("flush_all {key}"), "CLIENT_ERROR invalid exptime argument\r\n"),
        (format!("verbosity {key}"), bad),
        (format!("verbosity 1\0{key}"), "OK\r\n"),
    ] {
        let request = format!("{line}\r\nverbosity 1\r\n");
        let (replies, closed) = talk_to(&mut database(), request.as_bytes());
        let replies = String::from_utf8(replies).unwrap();
        assert_eq!((replies, closed), (format!("{reply}OK\r\n"), false), "{}", &line[..20]);
    }
    // The end comes after the first 2,049 bytes.
    let mut database = database();
    let (mut client, mut replies) = (Client::new(&mut database), Vec::new());
    client.receive(&[b'x'; 2_048], &mut replies);
    client.receive(b"x\r\n", &mut replies);
    client.receive(&[b'x'; 2_049], &mut replies);
    assert_eq!((&replies[..], client.closed), (&b"ERROR\r\n"[..], true));
}

#[test]
fn too_large_value_is_discarded_and_a_set_removes_the_old_one() {
    let large = "v".repeat(1 << 20);
    let mut database = database();
    let mut ask =
        |request: String| String::from_utf8(talk_to(&mut database, request.as_bytes()).0).unwrap();
    let error = "SERVER_ERROR object too large for cache\r\n";
    let line = |name: &str, word: &str| {
        format!("{name} a 0 0 {}{word}\r\n{large}\r\nget a\r\n", large.len())
    };
    assert_eq!(ask("set a 0 0 1\r\nx\r\n".to_owned()), "STORED\r\n");
    assert_eq!(ask(line("add", "")), format!("{error}VALUE a 0 1\r\nx\r\nEND\r\n"));
    assert_eq!(ask(line("set", " noreply")), "END\r\n");
}

#[test]
fn memcached_tool_finds_the_statistics_that_it_shows() {
    let mut database = database();
    let requests = b"set a 0 0 1\r\nx\r\nstats items\r\nstats slabs\r\n";
    let text = String::from_utf8(talk_to(&mut database, requests).0).unwrap();
    let stat = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<usize>().unwrap()
    };
    let shown = ["items:1:number", "items:1:evicted", "items:1:outofmemory", "1:used_chunks"];
    assert_eq!(shown.map(stat), [1, 0, 0, 1]);
    assert_eq!((stat("1:chunk_size"), stat("1:total_pages")), (128, 1));
    assert_eq!(stat("1:total_chunks"), stat("1:chunks_per_page"));
}

#[test]
fn memory_is_freed_when_connections_close_midway() {
    let mut database = database();
    let used = |database: &mut Database| {
        let stats = String::from_utf8(talk_to(database, b"stats slabs\r\n").0).unwrap();
        let used = stats.lines().find_map(|line| line.strip_prefix("STAT 1:used_chunks "));
        used.unwrap().parse::<usize>().unwrap()
    };
    let value = "v".repeat(500_000);
    talk_to(&mut database, format!("set a 0 0 500000\r\n{value}\r\n").as_bytes());
    let before = used(&mut database);
    assert!(before > 500_000 / 128);
    {
        // One connection sends a value, two are reading.
        let mut sends = Client::new(&mut database);
        sends.receive(b"set b 0 0 500000\r\nthe first bytes", &mut Vec::new());
    }
    assert_eq!(used(&mut database), before);
    let mut reads = Session::default();
    let (used_bytes, next) = reads.serve(&mut database, &Still, b"get a a\r\n", &mut Vec::new());
    assert_eq!((used_bytes, next), (5, Next::Output));
    talk_to(&mut database, b"delete a\r\n");
    assert_eq!(used(&mut database), before, "it is still being read");
    reads.end(&mut database);
    assert_eq!(used(&mut database), 0);
}

proptest! {
    /// Random input causes no panic, stays within the limits, and gives the same replies however its lines are
    /// split.
    #[test]
    fn splits_do_not_matter(
        words in prop::collection::vec(prop_oneof![
            Just("get"), Just("gats"), Just("set"), Just("cas"), Just("incr"), Just("delete"), Just("a"),
            Just("b"), Just("0"), Just("5"), Just("-1"), Just(" "), Just(" "), Just("\r\n"), Just("\r\n"),
            Just("noreply"), Just("\0"), Just("\n"), Just("flush_all"), Just("touch"), Just("append"),
            Just("\r"), Just("gat"), Just("zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"),
        ], 0..200),
        step in 1..50usize,
    ) {
        let bytes = words.concat().into_bytes();
        // A longer one closes the connection, unless it arrives whole.
        prop_assume!(bytes.split(|byte| *byte == b'\n').all(|line| line.len() <= Session::MAX_LINE));
        let (mut first, mut second) = (database(), database());
        let (whole, closed) = talk_to(&mut first, &bytes);
        let (mut talk, mut replies) = (Client::new(&mut second), Vec::new());
        bytes.chunks(step).for_each(|piece| talk.receive(piece, &mut replies));
        prop_assert_eq!((replies, talk.closed), (whole, closed));
    }
}
