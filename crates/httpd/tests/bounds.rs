//! Hostile clients at each bound, on every mechanism: what the program holds stays what it was.

mod serving;

use std::env;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::Limits;
use evring_httpd::evring::backends;
use rustix::net::{self, AddressFamily, SocketType};
use serde_json::Value;
use serving::Client;
use serving::program::Serving;

/// The most kilobytes by which a server may grow beside a hostile client.
const GROWTH_KB: u64 = 2 * 1024;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts the program on each mechanism, with one worker and a directory of its own.
fn on_every_backend(arguments: &[&str], test: impl Fn(&'static str, &Serving)) {
    let root = tempfile::tempdir().unwrap();
    on_backends(|_| true, root.path(), arguments, test);
}

/// Starts the program on some mechanisms, with one worker and this directory.
fn on_backends(
    chosen: impl Fn(&str) -> bool,
    root: &Path,
    arguments: &[&str],
    test: impl Fn(&'static str, &Serving),
) {
    let path = root.to_str().unwrap();
    for name in here().filter(|name| chosen(name)) {
        println!("on {name}");
        test(name, &start(name, path, arguments));
    }
}

/// The mechanisms that can run here.
fn here() -> impl Iterator<Item = &'static str> {
    let all = backends().into_iter().filter(|backend| backend.available.is_ok());
    all.map(|backend| backend.name)
}

fn start(backend: &'static str, root: &str, arguments: &[&str]) -> Serving {
    let mut all = vec!["--listen", "127.0.0.1:0", "--workers", "1", "--root", root];
    all.extend(["--log-level", "info", "--backend", backend]);
    all.extend(arguments);
    Serving::start(&all)
}

/// What the program, which shows it, has counted.
fn count(serving: &Serving, name: &str) -> u64 {
    counts(serving, [name])[0]
}

fn counts<const N: usize>(serving: &Serving, names: [&str; N]) -> [u64; N] {
    let status: Value =
        serde_json::from_slice(&serving.connect().get("/.httpd/status.json").body).unwrap();
    names.map(|name| status[name].as_u64().unwrap())
}

/// Connections that are open, the one that asks among them.
fn open_connections(serving: &Serving) -> u64 {
    let [accepted, closed] = counts(serving, ["connections_accepted", "connections_closed"]);
    accepted - closed
}

/// A client that sends as much as it gets rid of, and reads nothing.
struct Sender {
    stream: TcpStream,
    bytes: Vec<u8>,
    sent: usize,
}

impl Sender {
    fn new(serving: &Serving, bytes: Vec<u8>) -> Self {
        let stream = TcpStream::connect(serving.address).unwrap();
        stream.set_nonblocking(true).unwrap();
        Sender { stream, bytes, sent: 0 }
    }

    /// Sends on; whether anything was taken.
    fn send(&mut self) -> bool {
        let before = self.sent;
        while self.sent < self.bytes.len() {
            match self.stream.write(&self.bytes[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The server has refused it.
                Err(_) => self.sent = self.bytes.len(),
            }
        }
        self.sent > before
    }
}

/// Has all of them send until none can send more, even after the server has answered others so many
/// times that it has come to all that was sent before.
fn send_all(serving: &Serving, senders: &mut [Sender]) {
    const TURNS: u32 = 200;
    let mut witness = serving.connect();
    let mut since = 0;
    while since < TURNS {
        since += 1;
        for sender in &mut *senders {
            if sender.send() {
                since = 0;
            }
        }
        witness.get("/none");
    }
}

/// Replies that are counted by the first line of each.
struct Replies {
    stream: TcpStream,
    buffer: Vec<u8>,
    matched: usize,
}

impl Replies {
    const LINE: &[u8] = b"HTTP/1.1 404";

    fn new(stream: TcpStream) -> Self {
        Replies { stream, buffer: vec![0; 64 * 1024], matched: 0 }
    }

    /// Reads until so many replies have begun.
    fn read(&mut self, mut count: u64) {
        while count > 0 {
            let n = self.stream.read(&mut self.buffer).unwrap();
            assert!(n > 0, "the server has closed the connection");
            for byte in &self.buffer[..n] {
                // The first byte of the line occurs nowhere else in it but behind a match.
                self.matched = match *byte == Self::LINE[self.matched] {
                    true => self.matched + 1,
                    false => usize::from(*byte == Self::LINE[0]),
                };
                if self.matched == Self::LINE.len() {
                    self.matched = 0;
                    count = count.saturating_sub(1);
                }
            }
        }
    }
}

/// EVRING_BOUNDS_SECONDS sets how long the client keeps sending, in seconds.
#[test]
fn a_client_that_pipelines_requests_for_missing_files_made_the_server_grow() {
    const WARM: u64 = 2_000;
    const MEASURED: u64 = 20_000;
    let seconds = env::var("EVRING_BOUNDS_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
    // As many requests as it likes.
    on_every_backend(&["--keep-alive-requests", "4294967295"], |name, serving| {
        let stream = TcpStream::connect(serving.address).unwrap();
        let mut requests = stream.try_clone().unwrap();
        let writer = thread::spawn(move || {
            let block = b"GET /missing HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
            // Until the reader has seen enough and shuts the connection down.
            while requests.write_all(&block).is_ok() {}
        });
        let mut replies = Replies::new(stream);
        replies.read(WARM);
        let (before, begun) = (serving.resident_kb(), Instant::now());
        let mut count = 0;
        while count < MEASURED || begun.elapsed() < Duration::from_secs(seconds) {
            replies.read(WARM);
            count += WARM;
        }
        let after = serving.resident_kb();
        println!("{name} grew from {before} to {after} KB in {count} replies");
        replies.stream.shutdown(Shutdown::Both).unwrap();
        writer.join().unwrap();
        assert!(after <= before + GROWTH_KB, "{name} grew from {before} to {after} KB");
    });
}

#[test]
fn all_clients_together_take_no_more_memory_than_was_said_at_the_start() {
    const CONNECTIONS: usize = 200;
    const FILES: usize = 100;
    let root = tempfile::tempdir().unwrap();
    for n in 0..FILES {
        fs::write(root.path().join(n.to_string()), vec![b'x'; 60_000]).unwrap();
    }
    fs::write(root.path().join("large"), vec![b'x'; 8 << 20]).unwrap();
    let most = (CONNECTIONS + 1).to_string();
    let arguments = [
        &["--max-connections", &most, "--max-buffered", "4000000", "--cache-size", "1000000"][..],
        &["--max-body-memory", "1000000", "--max-body-size", "4000000", "--lab"],
    ]
    .concat();
    let chosen = |name: &str| ["epoll", "uring", "send", "tokio"].contains(&name);
    on_backends(chosen, root.path(), &arguments, |name, serving| {
        let line = serving.before.lines().find(|line| line.contains(" at most ")).unwrap();
        let said = line.split_once(" at most ").unwrap().1.split_once(" MiB").unwrap().0;
        let said = said.parse::<u64>().unwrap() * 1024;
        serving.connect().get("/none");
        let idle = serving.resident_kb();
        let client = |n: usize| match n % 4 {
            // A head of which the last byte is missing.
            0 => [b"GET / HTTP/1.1\r\nHost: a\r\nA: ", &[b'a'; 16_000][..]].concat(),
            // A body of which the last byte is missing.
            1 => {
                let head = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n";
                [&head[..], &vec![b'b'; 2_999_999]].concat()
            }
            // Small files that push each other out of memory.
            2 => {
                let get =
                    |at: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", (n + at) % FILES);
                (0..10 * FILES).map(get).collect::<String>().into_bytes()
            }
            // Long replies, and many that are copied.
            _ => {
                let missing = "GET /missing HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
                let files = "GET /large HTTP/1.1\r\nHost: a\r\n\r\n".repeat(10);
                let made = "GET /bytes?n=9000000 HTTP/1.1\r\nHost: a\r\n\r\n".repeat(10);
                [missing, files, made].concat().into_bytes()
            }
        };
        let mut clients: Vec<_> =
            (0..CONNECTIONS).map(|n| Sender::new(serving, client(n))).collect();
        send_all(serving, &mut clients);
        let grown = serving.peak_kb() - idle;
        println!("{name}: {grown} KB of {said}");
        assert!(grown <= said, "{name} has taken {grown} KB, and said {said}");
    });
}

#[test]
fn the_memory_at_full_load_is_that_of_all_workers_and_has_no_end_where_a_bound_has_none() {
    let of = |workers, limits| {
        let server = evring_httpd::Server::builder().workers(workers).limits(limits);
        server.memory_at_full_load()
    };
    let usual = of(1, Limits::default());
    assert_eq!(of(3, Limits::default()), 3 * usual);
    let more = Limits { cache_bytes: (32 << 20) + 1000, ..Limits::default() };
    assert_eq!(of(1, more), usual + 1000);
    assert_eq!(of(2, Limits { max_body_memory: usize::MAX, ..Limits::default() }), usize::MAX);
}

#[test]
fn what_is_longer_than_its_limit_is_refused_and_ends_its_connection() {
    let arguments = [
        &[
            "--max-request-line",
            "100",
            "--max-header-size",
            "400",
            "--max-headers",
            "5",
            "--max-body-size",
            "1000",
        ][..],
        &["--keep-alive-requests", "3", "--lab"],
    ]
    .concat();
    on_every_backend(&arguments, |name, serving| {
        let long = "a".repeat(100);
        let field = format!("A: {long}\r\n");
        let body = |fields: &str| format!("POST /echo HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let cases = [
            (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
            (format!("{long}{long}"), 501),
            (format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", field.repeat(4)), 431),
            (format!("GET / HTTP/1.1\r\nHost: a\r\n{}", field.repeat(4)), 431),
            (format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(5)), 431),
            (body("Content-Length: 1001\r\n"), 413),
            (body("Transfer-Encoding: chunked\r\n") + "3E9\r\n", 413),
        ];
        let mut clients: Vec<Client> = cases.iter().map(|_| serving.connect()).collect();
        for (client, (bytes, _)) in clients.iter_mut().zip(&cases) {
            client.send(bytes.as_bytes());
        }
        for (client, (bytes, status)) in clients.iter_mut().zip(&cases) {
            assert_eq!(client.reply(true).status, *status, "{name}: {bytes:?}");
            client.expect_end();
        }
        let mut client = serving.connect();
        assert_eq!(client.get("/echo").field("Connection"), None, "{name}");
        assert_eq!(client.get("/echo").field("Connection"), None, "{name}");
        assert_eq!(client.get("/echo").field("Connection"), Some("close"), "{name}");
        client.expect_end();
    });
}

#[test]
fn clients_that_send_more_than_is_held_for_all_lose_their_connections() {
    let arguments = ["--max-buffered", "100000", "--status"];
    on_every_backend(&arguments, |name, serving| {
        let mut head = b"GET / HTTP/1.1\r\nHost: a\r\nA: ".to_vec();
        head.resize(8_000, b'a');
        // Each keeps 8 KB at least, so that a dozen find room.
        let mut clients: Vec<_> = (0..40).map(|_| Sender::new(serving, head.clone())).collect();
        send_all(serving, &mut clients);
        // Reset, or ended with what they had sent unread, which is the same for them.
        let is_open = |client: &&Sender| {
            let peeked = client.stream.peek(&mut [0]);
            peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        let open = clients.iter().filter(is_open).count();
        assert!((1..=12).contains(&open), "{name}: {open} are open");
        assert_eq!(count(serving, "overruns"), 40 - open as u64, "{name}");
        // The others are served again once these have gone.
        drop(clients);
        assert_eq!(serving.connect().get("/none").status, 404, "{name}");
    });
}

#[test]
fn a_reply_of_a_handler_that_nobody_takes_is_made_in_parts() {
    on_every_backend(&["--lab", "--status"], |name, serving| {
        serving.connect().get("/bytes?n=1000000");
        let before = serving.resident_kb();
        let request = b"GET /bytes?n=1000000000 HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut clients = vec![Sender::new(serving, request.to_vec())];
        send_all(serving, &mut clients);
        let after = serving.resident_kb();
        assert!(after <= before + GROWTH_KB, "{name} grew from {before} to {after} KB");
        // The whole of it would be more than may be queued.
        assert_eq!(count(serving, "overruns"), 0, "{name}");
        let begun = clients[0].stream.peek(&mut [0]);
        assert!(begun.is_ok_and(|n| n > 0), "{name}");
    });
}

#[test]
fn more_files_than_fit_in_memory_are_asked_for() {
    const FILES: usize = 200;
    let root = tempfile::tempdir().unwrap();
    for n in 0..FILES {
        fs::write(root.path().join(n.to_string()), vec![b'x'; 60_000]).unwrap();
    }
    let arguments = ["--cache-size", "1000000"];
    on_backends(
        |_| true,
        root.path(),
        &arguments,
        |name, serving| {
            let mut client = serving.connect();
            let mut ask = |range: std::ops::Range<usize>| {
                for n in range {
                    let reply = client.get(&format!("/{n}"));
                    assert_eq!((reply.status, reply.body.len()), (200, 60_000), "{name}");
                }
            };
            ask(0..50);
            let before = serving.resident_kb();
            ask(50..FILES);
            let after = serving.resident_kb();
            assert!(after <= before + GROWTH_KB, "{name} grew from {before} to {after} KB");
        },
    );
}

#[test]
fn a_directory_of_more_entries_than_are_listed_says_so() {
    const MOST: usize = 4096;
    let root = tempfile::tempdir().unwrap();
    for n in 0..=MOST {
        fs::write(root.path().join(n.to_string()), "").unwrap();
    }
    on_backends(
        |_| true,
        root.path(),
        &["--autoindex"],
        |name, serving| {
            let page = String::from_utf8(serving.connect().get("/").body).unwrap();
            assert_eq!(page.matches("<tr>").count(), MOST, "{name}");
            assert!(page.contains("more than 4096 entries"), "{name}");
        },
    );
}

#[test]
fn listings_that_nobody_takes_count_as_what_is_held() {
    const CLIENTS: usize = 20;
    const MAX_HELD: &str = "4000000";
    let root = tempfile::tempdir().unwrap();
    let long = "a".repeat(100);
    for n in 0..20_000 {
        fs::write(root.path().join(format!("{long}{n}")), "").unwrap();
    }
    let arguments = ["--autoindex", "--max-buffered", MAX_HELD, "--status"];
    on_backends(
        |_| true,
        root.path(),
        &arguments,
        |name, serving| {
            let page = serving.connect().get("/").body.len();
            let before = serving.resident_kb();
            let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(8).into_bytes();
            let mut clients: Vec<_> =
                (0..CLIENTS).map(|_| Sender::new(serving, requests.clone())).collect();
            send_all(serving, &mut clients);
            // The sockets take some pages; then some wait, until they are too many.
            let until = Instant::now() + PATIENCE;
            while count(serving, "overruns") == 0 {
                assert!(Instant::now() < until, "{name}: {CLIENTS} clients with {page} bytes each");
            }
            let grown = serving.peak_kb().saturating_sub(before);
            println!("{name}: {grown} KB by {CLIENTS} clients, for pages of {page} bytes");
            // As much as is held, the page that was too much, one that is made, the lists that there may be,
            // and what the allocator loses.
            let max = 4_000 + 4 * 1_100 + 4 * 1_800 + 4_000;
            assert!(grown <= max, "{name} has taken {grown} KB, and {max} are enough");
            drop(clients);
            // Their pages are held until the server has seen their ends.
            while open_connections(serving) > 1 {
                assert!(Instant::now() < until, "{name} has not seen its clients go");
            }
            assert_eq!(serving.connect().get("/").body.len(), page, "{name}");
        },
    );
}

/// A client at another of this machine's own addresses.
fn connect_from(last: u8, serving: &Serving) -> Client {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    net::connect(&socket, &serving.address).unwrap();
    Client::new(TcpStream::from(socket))
}

#[test]
fn an_address_that_has_its_share_of_connections_gets_no_more() {
    let arguments = ["--max-connections-per-address", "3", "--status"];
    on_every_backend(&arguments, |name, serving| {
        let mut greedy: Vec<_> = (0..20).map(|_| connect_from(2, serving)).collect();
        for (at, client) in greedy.iter_mut().enumerate() {
            if at < 3 {
                assert_eq!(client.get("/none").status, 404, "{name}");
            } else {
                client.expect_reset();
            }
        }
        assert_eq!(connect_from(3, serving).get("/none").status, 404, "{name}");
        assert_eq!(count(serving, "refused_addresses"), 17, "{name}");
    });
}

#[test]
fn heads_and_bodies_that_do_not_come_to_their_end_are_refused_and_end_their_connections() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_str().unwrap();
    let arguments = ["--header-timeout", "2", "--progress-interval", "2", "--lab"];
    // All of them at once, as all have to wait.
    let serving: Vec<_> = here().map(|name| (name, start(name, path, &arguments))).collect();
    let requests = [
        &b"GET / HTTP/1.1\r\nHost: "[..],
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\na",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
    ];
    let mut clients = Vec::new();
    for (name, serving) in &serving {
        for request in requests {
            let mut client = serving.connect();
            client.send(request);
            clients.push((*name, client));
        }
    }
    for (name, client) in &mut clients {
        assert_eq!(client.reply(true).status, 408, "{name}");
        client.expect_end();
    }
}

/// Adds the text of all sources below a directory.
fn add_sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            add_sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &fs::read_to_string(path).unwrap();
        }
    }
}

#[test]
fn each_row_of_the_table_of_bounds_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = String::new();
    for directory in ["crates", "benches", "examples"] {
        add_sources(&root.join(directory), &mut sources);
    }
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let table = text.split_once("| what | bound | at the bound | test |\n|---|---|---|---|\n");
    let table = table.unwrap().1.split_once("\n\n").unwrap().0;
    for row in table.lines() {
        let tests = row.trim_end_matches(" |").rsplit_once(" | ").unwrap().1;
        for test in tests.split(", ") {
            let name = test.trim_matches('`');
            assert!(sources.contains(&format!("fn {name}()")), "no such test: {name} in {row}");
        }
    }
}
