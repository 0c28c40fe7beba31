//! Hostile clients at each limit, on every mechanism: the program's memory stays bounded.

use crate::serving;

use std::env;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::options::Limits;
use rustix::net::{self, AddressFamily, SocketType};
use serde_json::Value;
use serving::program::Serving;
use serving::{Client, available, connect_with_small_buffer};

/// Maximum growth of a server's memory with a hostile client, in KiB.
const MAX_GROWTH_KB: u64 = 2 * 1024;

/// Longer than any wait in these tests on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts the program on each mechanism, with one worker and an empty root.
pub(crate) fn on_every_backend(arguments: &[&str], test: impl Fn(&'static str, &Serving)) {
    let root = tempfile::tempdir().unwrap();
    on_every_backend_with(root.path(), arguments, test);
}

/// Starts the program on each mechanism, with one worker and this root.
fn on_every_backend_with(root: &Path, arguments: &[&str], test: impl Fn(&'static str, &Serving)) {
    let path = root.to_str().unwrap();
    for name in available() {
        println!("on {name}");
        test(name, &start(name, path, arguments));
    }
}

fn start(backend: &'static str, root: &str, arguments: &[&str]) -> Serving {
    let mut all = vec!["--listen", "127.0.0.1:0", "--workers", "1", "--root", root];
    all.extend(["--log-level", "info", "--backend", backend]);
    all.extend(arguments);
    Serving::start(&all)
}

/// Returns the number of open connections, including the one that asked for this status.
fn open_connections(status: &Value) -> u64 {
    let count = |name: &str| status[name].as_u64().unwrap();
    count("connections_accepted") - count("connections_closed")
}

/// A client that sends as much as possible and does not read.
pub(crate) struct Sender {
    stream: TcpStream,
    bytes: Vec<u8>,
    sent: usize,
}

impl Sender {
    fn connect(serving: &Serving, bytes: Vec<u8>) -> Self {
        Sender::new(TcpStream::connect(serving.address).unwrap(), bytes)
    }

    pub(crate) fn new(stream: TcpStream, bytes: Vec<u8>) -> Self {
        stream.set_nonblocking(true).unwrap();
        Sender { stream, bytes, sent: 0 }
    }

    /// Sends until it would block. Returns whether any bytes were sent.
    fn send(&mut self) -> bool {
        let before = self.sent;
        while self.sent < self.bytes.len() {
            match self.stream.write(&self.bytes[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The server has closed the connection.
                Err(_) => self.sent = self.bytes.len(),
            }
        }
        self.sent > before
    }
}

/// Returns a client that asks for a missing file at each call, and has its answer.
fn asks(serving: &Serving) -> impl FnMut() + use<> {
    let mut client = serving.connect();
    move || drop(client.get("/none"))
}

/// Makes all clients send until none can send more. Meanwhile the server answers enough requests
/// of another client, which `ask` makes, that it has processed everything sent before.
fn send_all(mut ask: impl FnMut(), senders: &mut [Sender]) {
    const ROUNDS: u32 = 200;
    let mut idle_rounds = 0;
    while idle_rounds < ROUNDS {
        idle_rounds += 1;
        for sender in &mut *senders {
            if sender.send() {
                idle_rounds = 0;
            }
        }
        ask();
    }
}

/// Counts responses by their first lines.
struct ResponseCounter<R> {
    responses: R,
    buffer: Vec<u8>,
    matched: usize,
}

impl<R: Read> ResponseCounter<R> {
    const LINE: &[u8] = b"HTTP/1.1 404";

    fn new(responses: R) -> Self {
        ResponseCounter { responses, buffer: vec![0; 64 * 1024], matched: 0 }
    }

    /// Reads until `count` more responses have begun.
    fn read(&mut self, mut count: u64) {
        while count > 0 {
            let n = match self.responses.read(&mut self.buffer) {
                // The kernel does not restart reads with a timeout.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result.unwrap(),
            };
            assert!(n > 0, "the server has closed the connection");
            for byte in &self.buffer[..n] {
                // The first byte of the line occurs only once in it.
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

/// As many requests per connection as possible.
pub(crate) const UNLIMITED: [&str; 2] = ["--keep-alive-requests", "4294967295"];

/// Requests a missing file again and again by `requests`, without waiting for the responses, of which it reads `count`
/// from `responses`. Checks that the memory of the program stays, and shuts `stream` down.
///
/// EVRING_BOUNDS_SECONDS sets how long it keeps sending at least, in seconds.
pub(crate) fn check_pipelining(
    name: &str,
    serving: &Serving,
    stream: &TcpStream,
    (mut requests, responses): (impl Write + Send + 'static, impl Read),
    count: u64,
) {
    const WARM_UP: u64 = 2_000;
    let seconds = env::var("EVRING_BOUNDS_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
    let writer = thread::spawn(move || {
        let block = b"GET /missing HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
        // Until the reader has shut down the connection.
        while requests.write_all(&block).is_ok() {}
    });
    let mut responses = ResponseCounter::new(responses);
    responses.read(WARM_UP);
    let (before, start) = (serving.resident_kb(), Instant::now());
    let mut received = 0;
    while received < count || start.elapsed() < Duration::from_secs(seconds) {
        responses.read(WARM_UP);
        received += WARM_UP;
    }
    let after = serving.resident_kb();
    println!("{name} grew from {before} to {after} KB in {received} responses");
    stream.shutdown(Shutdown::Both).unwrap();
    writer.join().unwrap();
    assert!(after <= before + MAX_GROWTH_KB, "{name} grew from {before} to {after} KB");
}

#[test]
fn pipelined_requests_for_missing_files_made_memory_grow() {
    on_every_backend(&UNLIMITED, |name, serving| {
        let stream = TcpStream::connect(serving.address).unwrap();
        let halves = (stream.try_clone().unwrap(), stream.try_clone().unwrap());
        check_pipelining(name, serving, &stream, halves, 5_000);
    });
}

#[test]
fn memory_of_all_clients_stays_within_the_logged_maximum() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let more = ["--access-log", log.to_str().unwrap(), "--compress"];
    for arguments in [&[][..], if cfg!(feature = "compression") { &more } else { &more[..2] }] {
        check_memory_of_all_clients(arguments, Sender::connect, asks);
    }
}

/// Starts the program with each mechanism. Checks that its memory stays within the maximum that it logs while clients
/// use it: `connect` connects one that sends these bytes, `other` one that asks for `/none` and has its answer at each
/// call.
pub(crate) fn check_memory_of_all_clients<F: FnMut()>(
    more: &[&str],
    connect: impl Fn(&Serving, Vec<u8>) -> Sender,
    other: impl Fn(&Serving) -> F,
) {
    const CONNECTIONS: usize = 120;
    const FILES: usize = 50;
    let root = tempfile::tempdir().unwrap();
    for n in 0..FILES {
        fs::write(root.path().join(format!("{n}.txt")), vec![b'x'; 60_000]).unwrap();
    }
    fs::write(root.path().join("large.txt"), vec![b'x'; 8 << 20]).unwrap();
    let max = (CONNECTIONS + 1).to_string();
    let arguments = [
        &["--max-connections", &max, "--max-buffered", "4000000", "--cache-size", "1000000"][..],
        &["--max-body-memory", "1000000", "--max-body-size", "4000000", "--lab"],
        more,
    ]
    .concat();
    on_every_backend_with(root.path(), &arguments, |name, serving| {
        let line = serving.before.lines().find(|line| line.contains(" at most ")).unwrap();
        let max = line.split_once(" at most ").unwrap().1.split_once(" MiB").unwrap().0;
        let max = max.parse::<u64>().unwrap() * 1024;
        let mut ask = other(serving);
        ask();
        let idle = serving.resident_kb();
        let get = |target: &str| {
            format!("GET {target} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
        };
        let client = |n: usize| match n % 4 {
            // A head without its last byte.
            0 => [b"GET / HTTP/1.1\r\nHost: a\r\nA: ", &[b'a'; 16_000][..]].concat(),
            // A body without its last byte.
            1 => {
                let head = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n";
                [&head[..], &vec![b'b'; 2_999_999]].concat()
            }
            // Small files that evict each other from the cache.
            2 => {
                let get = |at: usize| get(&format!("/{}.txt", (n + at) % FILES));
                (0..4 * FILES).map(get).collect::<String>().into_bytes()
            }
            // Long responses, and many short ones.
            _ => {
                let missing = get("/missing").repeat(1_000);
                let files = get("/large.txt").repeat(10);
                let made = get("/bytes?n=9000000").repeat(10);
                [missing, files, made].concat().into_bytes()
            }
        };
        let mut clients: Vec<_> = (0..CONNECTIONS).map(|n| connect(serving, client(n))).collect();
        send_all(ask, &mut clients);
        let grown = serving.peak_kb() - idle;
        println!("{name} {more:?}: {grown} KB of {max}");
        assert!(grown <= max, "{name} has grown by {grown} KB, more than {max}");
    });
}

#[test]
fn memory_at_full_load_scales_with_workers_and_saturates() {
    let of = |workers, limits| {
        let server = evring_httpd::Server::builder().workers(workers).limits(limits);
        server.memory_at_full_load()
    };
    let default = of(1, Limits::default());
    assert_eq!(of(3, Limits::default()), 3 * default);
    let mut more = Limits::default();
    more.cache_bytes = (32 << 20) + 1000;
    assert_eq!(of(1, more), default + 1000);
    let mut unlimited = Limits::default();
    unlimited.max_body_memory = usize::MAX;
    assert_eq!(of(2, unlimited), usize::MAX);
    #[cfg(feature = "basic-auth")]
    {
        let server = evring_httpd::Server::builder().basic_auth("users".parse().unwrap());
        assert!(
            server.memory_at_full_load()
                > default + evring_httpd::options::BasicAuth::MAX_FILE_BYTES
        );
    }
}

#[test]
fn requests_beyond_a_limit_are_rejected_and_closed() {
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
            assert_eq!(client.response(true).status, *status, "{name}: {bytes:?}");
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
fn connections_beyond_the_total_buffer_limit_are_closed() {
    let arguments = ["--max-buffered", "100000", "--status"];
    on_every_backend(&arguments, |name, serving| {
        let mut head = b"GET / HTTP/1.1\r\nHost: a\r\nA: ".to_vec();
        head.resize(8_000, b'a');
        // Each needs at least 8 KB, so a dozen fit.
        let mut clients: Vec<_> = (0..40).map(|_| Sender::connect(serving, head.clone())).collect();
        send_all(asks(serving), &mut clients);
        // A reset, or a close with unread bytes, which the client sees as a reset.
        let is_open = |client: &&Sender| {
            let peeked = client.stream.peek(&mut [0]);
            peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        let open = clients.iter().filter(is_open).count();
        assert!((1..=12).contains(&open), "{name}: {open} are open");
        serving.connect().status_when(|status| status["overruns"] == 40 - open);
        // Once they are closed, others are served again.
        drop(clients);
        assert_eq!(serving.connect().get("/none").status, 404, "{name}");
    });
}

#[test]
fn unread_handler_response_is_produced_in_parts() {
    on_every_backend(&["--lab", "--status"], |name, serving| {
        serving.connect().get("/bytes?n=1000000");
        let before = serving.resident_kb();
        let request = b"GET /bytes?n=1000000000 HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut clients = vec![Sender::connect(serving, request.to_vec())];
        send_all(asks(serving), &mut clients);
        let after = serving.resident_kb();
        assert!(after <= before + MAX_GROWTH_KB, "{name} grew from {before} to {after} KB");
        // The whole response would exceed the maximum queue. Of the connections, two have asked for others.
        let is_new = |status: &Value| status["connections_accepted"] == 4;
        assert_eq!(serving.connect().status_when(is_new)["overruns"], 0, "{name}");
        let begun = clients[0].stream.peek(&mut [0]);
        assert!(begun.is_ok_and(|n| n > 0), "{name}");
    });
}

#[test]
fn files_beyond_the_cache_size_do_not_grow_memory() {
    const FILES: usize = 200;
    let root = tempfile::tempdir().unwrap();
    for n in 0..FILES {
        fs::write(root.path().join(n.to_string()), vec![b'x'; 60_000]).unwrap();
    }
    let arguments = ["--cache-size", "1000000"];
    on_every_backend_with(root.path(), &arguments, |name, serving| {
        let mut client = serving.connect();
        let mut fetch = |range: std::ops::Range<usize>| {
            for n in range {
                let response = client.get(&format!("/{n}"));
                assert_eq!((response.status, response.body.len()), (200, 60_000), "{name}");
            }
        };
        fetch(0..50);
        let before = serving.resident_kb();
        fetch(50..FILES);
        let after = serving.resident_kb();
        assert!(after <= before + MAX_GROWTH_KB, "{name} grew from {before} to {after} KB");
    });
}

#[test]
fn listing_beyond_the_maximum_is_marked_incomplete() {
    const MAX_ENTRIES: usize = 4096;
    let root = tempfile::tempdir().unwrap();
    for n in 0..=MAX_ENTRIES {
        fs::write(root.path().join(n.to_string()), "").unwrap();
    }
    on_every_backend_with(root.path(), &["--listing"], |name, serving| {
        let page = String::from_utf8(serving.connect().get("/").body).unwrap();
        assert_eq!(page.matches("<tr>").count(), MAX_ENTRIES, "{name}");
        assert!(page.contains("more than 4096 entries"), "{name}");
    });
}

#[test]
fn unread_listings_count_as_buffered_bytes() {
    const CLIENTS: usize = 5;
    const MAX_HELD: &str = "1000000";
    let root = tempfile::tempdir().unwrap();
    let long = "a".repeat(100);
    for n in 0..1_000 {
        fs::write(root.path().join(format!("{long}{n}")), "").unwrap();
    }
    let arguments = ["--listing", "--max-buffered", MAX_HELD, "--status"];
    on_every_backend_with(root.path(), &arguments, |name, serving| {
        let page = serving.connect().get("/").body.len();
        let before = serving.resident_kb();
        let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(24).into_bytes();
        let mut clients: Vec<_> =
            (0..CLIENTS).map(|_| Sender::connect(serving, requests.clone())).collect();
        send_all(asks(serving), &mut clients);
        // The socket buffers take some pages. The server queues the others, until there are too many.
        let until = Instant::now() + TIMEOUT;
        // The connection that exceeds the maximum may be that of this request.
        while serving.connect().status_or_end().is_some_and(|status| status["overruns"] == 0) {
            assert!(Instant::now() < until, "{name}: {CLIENTS} clients with {page} bytes each");
        }
        let grown = serving.peak_kb().saturating_sub(before);
        println!("{name}: {grown} KB by {CLIENTS} clients, for pages of {page} bytes");
        // The maximum held, the page that exceeds it, pages and listings in preparation, and what the
        // allocator loses.
        let max = 1_000 + 4 * 300 + 4 * 500 + 4_000;
        assert!(grown <= max, "{name} has grown by {grown} KB, more than {max}");
        drop(clients);
        // Their pages are held until the server has noticed the closed connections.
        while serving.connect().status_or_end().is_none_or(|status| open_connections(&status) > 1) {
            assert!(Instant::now() < until, "{name} has not closed its connections");
        }
        assert_eq!(serving.connect().get("/").body.len(), page, "{name}");
        serving.connect().status_when(|status| status["overruns"] != 0);
    });
}

#[test]
fn idle_connections_at_the_maximum_kept_a_new_client_waiting() {
    const MAX: usize = 20;
    const NEW: usize = 7;
    // The time between searches for idle connections, each of which closes one for a client that waits.
    const INTERVAL: Duration = Duration::from_millis(10);
    on_every_backend(&["--max-connections", &MAX.to_string(), "--status"], |name, serving| {
        let served = || {
            let mut client = serving.connect();
            assert_eq!(client.get("/none").status, 404, "{name}");
            client
        };
        let mut idle: Vec<_> = (1..MAX).map(|_| served()).collect();
        let start = Instant::now();
        idle.push(served());
        let mut new: Vec<_> = (0..NEW).map(|_| served()).collect();
        // If a close takes longer than the interval, another one is closed.
        let max_closed = 1 + (start.elapsed().as_millis() / INTERVAL.as_millis()) as usize;
        let is_complete = |status: &Value| status["idle_closed"].as_u64() >= Some(NEW as u64);
        let status = new[NEW - 1].status_when(is_complete);
        assert_eq!(status["connections_accepted"], MAX + NEW, "{name}");
        let closed = status["idle_closed"].as_u64().unwrap() as usize;
        assert!(closed <= max_closed, "{name}: {closed} were closed, more than {max_closed}");
        // The others are served, and the new ones go on.
        idle.retain(|client| !client.has_more());
        assert_eq!(idle.len(), MAX - closed, "{name}");
        for client in idle.iter_mut().chain(&mut new) {
            assert_eq!(client.get("/none").status, 404, "{name}");
        }
    });
}

#[test]
fn empty_line_kept_an_idle_connection_from_making_room() {
    const MAX: usize = 4;
    on_every_backend(&["--max-connections", &MAX.to_string(), "--status"], |name, serving| {
        let served = || {
            let mut client = serving.connect();
            assert_eq!(client.get("/none").status, 404, "{name}");
            client
        };
        let mut idle: Vec<_> = (0..MAX).map(|_| served()).collect();
        for client in &mut idle {
            client.send(b"\r\n");
        }
        // It would wait for the keep-alive timeout, which is longer than a client waits here.
        let new: Vec<_> = (0..MAX).map(|_| served()).collect();
        drop((idle, new));
    });
}

/// A client at another loopback address.
fn connect_from(last: u8, serving: &Serving) -> Client {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    net::connect(&socket, &serving.address).unwrap();
    Client::new(TcpStream::from(socket))
}

#[test]
fn connections_beyond_the_limit_per_address_are_reset() {
    let arguments = ["--max-connections-per-address", "3", "--status"];
    on_every_backend(&arguments, |name, serving| {
        let mut clients: Vec<_> = (0..20).map(|_| connect_from(2, serving)).collect();
        for (at, client) in clients.iter_mut().enumerate() {
            if at < 3 {
                assert_eq!(client.get("/none").status, 404, "{name}");
            } else {
                client.expect_reset();
            }
        }
        assert_eq!(connect_from(3, serving).get("/none").status, 404, "{name}");
        serving.connect().status_when(|status| status["rejected_addresses"] == 17);
    });
}

#[test]
fn connections_beyond_the_limit_per_network_are_reset() {
    let arguments = ["--max-connections-per-network", "3", "--status"];
    on_every_backend(&arguments, |name, serving| {
        // Of as many addresses.
        let mut clients: Vec<_> = (2..22).map(|last| connect_from(last, serving)).collect();
        for (at, client) in clients.iter_mut().enumerate() {
            if at < 3 {
                assert_eq!(client.get("/none").status, 404, "{name}");
            } else {
                client.expect_reset();
            }
        }
        drop(clients.split_off(3));
        clients[0].status_when(|status| status["rejected_networks"] == 17);
    });
}

#[test]
fn incomplete_heads_and_bodies_time_out_with_408() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_str().unwrap();
    let arguments = ["--header-timeout", "2", "--progress-interval", "2", "--lab"];
    // All mechanisms at once, as each test waits.
    let serving: Vec<_> = available().map(|name| (name, start(name, path, &arguments))).collect();
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
        assert_eq!(client.response(true).status, 408, "{name}");
        client.expect_end();
    }
}

#[test]
fn clients_that_do_not_read_their_responses_are_reset() {
    let root = tempfile::tempdir().unwrap();
    // More than the buffers of two sockets hold.
    fs::File::create(root.path().join("large")).unwrap().set_len(64 << 20).unwrap();
    // Files that the cache has, and that it reads.
    fs::write(root.path().join("small"), [b'x'; 50_000]).unwrap();
    let path = root.path().to_str().unwrap();
    let arguments = ["--progress-interval", "1", "--keep-alive-timeout", "3600", "--lab"];
    // All mechanisms at once, as each test waits.
    let serving: Vec<_> = available().map(|name| (name, start(name, path, &arguments))).collect();
    let mut clients = Vec::new();
    for (name, serving) in &serving {
        // The last two are below 64 KiB: such clients were kept until the keep-alive timeout.
        for target in ["/large", "/bytes?n=64000000", "/small", "/bytes?n=50000"] {
            let mut client = connect_with_small_buffer(serving.address);
            client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            clients.push((*name, target, client));
        }
    }
    for (name, target, client) in &clients {
        assert!(client.is_reset_within(TIMEOUT), "{name} {target}");
    }
}

/// Appends the text of all sources below a directory.
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
fn tables_name_existing_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = String::new();
    for directory in ["crates", "benches", "examples"] {
        add_sources(&root.join(directory), &mut sources);
    }
    let tables = [
        ("ARCHITECTURE.md", "| what | bound | at the bound | test |\n|---|---|---|---|\n"),
        ("docs/features.md", "| feature | how | test |\n|---|---|---|\n"),
    ];
    for (page, head) in tables {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let table = text.split_once(head).unwrap().1;
        let table = table.split_once("\n\n").map_or(table, |(table, _)| table);
        for row in table.lines() {
            let tests = row.trim_end_matches(" |").rsplit_once(" | ").unwrap().1;
            for test in tests.split(", ").filter(|test| *test != "not yet") {
                let name = test.trim_matches('`');
                let is_test = [format!("fn {name}()"), format!("on_every_kernel!({name}")];
                let exists = is_test.iter().any(|text| sources.contains(text));
                assert!(exists, "no such test: {name} in {row}");
            }
        }
    }
}
