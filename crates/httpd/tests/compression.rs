//! Compression of files on the fly, on every mechanism.
#![cfg(feature = "compression")]

use crate::serving;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::options::{Compression, Limits};
use evring_httpd::{Request, Server};
use serving::{Client, ParsedResponse, connect, on_every_backend};

const HTML_BYTES: usize = 20_000;

/// A text that compresses about as well as pages do.
fn text(len: usize) -> &'static [u8] {
    static ALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let line = |n: usize| format!("<li>{n} {:x}</li>\n", n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        (0..).flat_map(|n| line(n).into_bytes()).take(1_000_000).collect()
    });
    &ALL[..len]
}

fn start(backend: &str, root: &Path, compression: Compression) -> Server {
    let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(root);
    server.compression(compression).status(true).start().unwrap()
}

fn accepting(client: &mut Client, target: &str, coding: &str) -> ParsedResponse {
    client.request(&format!("GET {target}"), &format!("Accept-Encoding: {coding}\r\n"))
}

/// Decodes a body as its Content-Encoding says.
fn decoded(response: &ParsedResponse) -> Vec<u8> {
    let mut out = Vec::new();
    let body = &response.body[..];
    match response.field("Content-Encoding") {
        None => return body.to_vec(),
        Some("gzip") => flate2::read::GzDecoder::new(body).read_to_end(&mut out).unwrap(),
        Some("br") => brotli::Decompressor::new(body, 4096).read_to_end(&mut out).unwrap(),
        Some("zstd") => zstd::Decoder::new(body).unwrap().read_to_end(&mut out).unwrap(),
        Some(other) => panic!("{other}"),
    };
    out
}

#[test]
fn each_coding_decodes_to_the_file_and_is_cached() {
    let dir = tempfile::tempdir().unwrap();
    // In the cache of responses, in a memory file, and longer than one read.
    let sizes = [HTML_BYTES, 1_000_000, 70_000];
    for size in sizes {
        fs::write(dir.path().join(format!("{size}.html")), text(size)).unwrap();
    }
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), Compression::enabled());
        let mut client = connect(&server);
        for size in sizes {
            let target = format!("/{size}.html");
            client.stable_tag(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
            for coding in ["gzip", "br", "zstd"] {
                let first = accepting(&mut client, &target, coding);
                assert_eq!(first.field("Content-Encoding"), Some(coding), "{}", first.head);
                assert_eq!(first.field("Vary"), Some("Accept-Encoding"));
                assert_eq!(first.field("Content-Type"), Some("text/html; charset=utf-8"));
                assert!(first.body.len() < size / 2, "{} of {size}", first.body.len());
                assert_eq!(decoded(&first), text(size));
                let again = accepting(&mut client, &target, coding);
                assert_eq!(again.body, first.body);
                let tag = first.field("ETag").unwrap();
                assert!(tag.starts_with("W/\""), "{tag}");
                let fields = format!("Accept-Encoding: {coding}\r\nIf-None-Match: {tag}\r\n");
                assert_eq!(client.request(&format!("GET {target}"), &fields).status, 304);
            }
            let plain = client.get(&target);
            assert_eq!(plain.field("Content-Encoding"), None);
            assert_eq!(plain.field("Vary"), Some("Accept-Encoding"));
            assert_eq!(plain.body, text(size));
        }
        // One compression for each file and coding.
        let status = connect(&server).status();
        assert_eq!(status["compressed_files"], 9, "{status}");
        assert_eq!(status["uncompressed_files"], 0, "{status}");
    });
}

#[test]
fn what_does_not_get_smaller_is_sent_plain() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("small.html"), text(1023)).unwrap();
    fs::write(dir.path().join("least.html"), text(1024)).unwrap();
    fs::write(dir.path().join("photo.jpg"), text(HTML_BYTES)).unwrap();
    fs::write(dir.path().join("large.html"), text(300_001)).unwrap();
    fs::write(dir.path().join("limit.html"), text(300_000)).unwrap();
    fs::write(dir.path().join("coded.css"), text(HTML_BYTES)).unwrap();
    fs::write(dir.path().join("coded.css.gz"), b"precompressed").unwrap();
    let mut compression = Compression::enabled();
    compression.max_bytes = 300_000;
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), compression);
        let mut client = connect(&server);
        let cases = [
            ("/small.html", None),
            ("/least.html", Some("gzip")),
            ("/photo.jpg", None),
            ("/large.html", None),
            ("/limit.html", Some("gzip")),
        ];
        for (target, coding) in cases {
            let response = accepting(&mut client, target, "gzip");
            assert_eq!(response.field("Content-Encoding"), coding, "{target}: {}", response.head);
            assert_eq!(accepting(&mut client, target, "identity").field("Content-Encoding"), None);
        }
        assert_eq!(accepting(&mut client, "/coded.css", "gzip").body, b"precompressed");
        assert_eq!(decoded(&accepting(&mut client, "/coded.css", "br")), text(HTML_BYTES));
    });
}

#[test]
fn changed_file_is_compressed_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.html");
    on_every_backend(|backend| {
        fs::write(&path, text(HTML_BYTES)).unwrap();
        let mut limits = Limits::default();
        limits.cache_ttl = Duration::ZERO;
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server =
            server.limits(limits).compression(Compression::enabled()).status(true).start().unwrap();
        let mut client = connect(&server);
        client.stable_tag("GET /a.html HTTP/1.1\r\nHost: a\r\n\r\n");
        // Each request revalidates. Once the second of the change is over, the compressed file stays.
        let mut compress = || {
            assert_eq!(decoded(&accepting(&mut client, "/a.html", "zstd")), text(HTML_BYTES));
            connect(&server).status()["compressed_files"].as_u64().unwrap()
        };
        while compress() != compress() {}
        fs::write(&path, text(30_000)).unwrap();
        for _ in 0..3 {
            assert_eq!(decoded(&accepting(&mut client, "/a.html", "zstd")), text(30_000));
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(accepting(&mut client, "/a.html", "zstd").status, 404);
    });
}

#[test]
fn without_memory_for_compressed_files_they_are_sent_plain() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.html"), text(1_000_000)).unwrap();
    let mut limits = Limits::default();
    limits.max_compressed_memory = 50_000;
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server =
            server.limits(limits.clone()).compression(Compression::enabled()).start().unwrap();
        let response = accepting(&mut connect(&server), "/a.html", "gzip");
        assert_eq!(response.field("Content-Encoding"), None);
        assert_eq!(response.body, text(1_000_000));
    });
}

#[test]
fn crowd_that_requests_one_file_gets_it_complete() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..10 {
        fs::write(dir.path().join(format!("{n}.html")), text(100_000 + n)).unwrap();
    }
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), Compression::enabled());
        thread::scope(|scope| {
            for client in 0..20_usize {
                let server = &server;
                scope.spawn(move || {
                    let mut connection = connect(server);
                    for n in 0..10 {
                        let n = (n + client / 4) % 10;
                        let target = format!("/{n}.html");
                        let response = accepting(&mut connection, &target, "gzip, br");
                        assert_eq!(decoded(&response), text(100_000 + n));
                    }
                });
            }
        });
        let status = connect(&server).status();
        assert!(status["compressed_files"].as_u64() >= Some(10), "{status}");
    });
}

#[test]
fn more_files_than_are_compressed_at_a_time_are_sent_plain() {
    const FILES: usize = 32;
    const LEN: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    for n in 0..FILES {
        fs::write(dir.path().join(format!("{n}.html")), text(LEN + n)).unwrap();
    }
    on_every_backend(|backend| {
        let mut compression = Compression::enabled();
        compression.levels = "br:11".parse().unwrap();
        let (gates, gate) = channel::<Sender<()>>();
        let block = move |_: Request| {
            let (sender, receiver) = channel();
            gates.send(sender).unwrap();
            receiver.recv().unwrap();
            "unblocked"
        };
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server = server.compression(compression).status(true).workers(1);
        let server = server.route("/block", block).start().unwrap();
        let mut clients: Vec<_> = (0..FILES).map(|_| connect(&server)).collect();
        // The worker takes no request before the last one.
        let mut blocking = connect(&server);
        blocking.send(b"GET /block HTTP/1.1\r\nHost: a\r\n\r\n");
        let blocked = gate.recv_timeout(Duration::from_secs(20)).unwrap();
        for (n, client) in clients.iter_mut().enumerate() {
            let head = format!("GET /{n}.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n\r\n");
            client.send(head.as_bytes());
        }
        blocked.send(()).unwrap();
        assert_eq!(blocking.response(true).body, b"unblocked", "{backend}");
        let responses = clients.iter_mut().map(|client| client.response(true));
        let plain = responses.filter(|response| response.field("Content-Encoding").is_none());
        let plain = plain.map(|response| assert_eq!(response.status, 200)).count();
        assert!(plain > 0, "{backend}");
        assert_eq!(connect(&server).status()["uncompressed_files"], plain, "{backend}");
    });
}

#[test]
fn clients_that_leave_while_files_are_compressed_leave_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..40 {
        fs::write(dir.path().join(format!("{n}.html")), text(150_000 + n)).unwrap();
    }
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), Compression::enabled());
        for n in 0..40 {
            let request =
                format!("GET /{n}.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n\r\n");
            connect(&server).send(request.as_bytes());
        }
        // The places for files are free again, once the threads have finished.
        let mut client = connect(&server);
        while accepting(&mut client, "/0.html", "gzip").field("Content-Encoding").is_none() {}
    });
}

/// Brotli compresses so many bytes for about a second or more at level 11.
const SLOW_BYTES: usize = 400_000;

/// Starts a server whose cached files stay, with a page that takes long to compress, when the tag of the
/// page is stable.
fn start_slow(root: &Path, mut limits: Limits) -> (Server, Client) {
    fs::write(root.join("a.html"), text(SLOW_BYTES)).unwrap();
    fs::write(root.join("small.txt"), "small").unwrap();
    limits.cache_ttl = Duration::from_secs(3600);
    let mut compression = Compression::enabled();
    compression.levels = "br:11".parse().unwrap();
    let server = Server::builder().listen("127.0.0.1:0").files(root).limits(limits);
    let server = server.compression(compression).status(true).start().unwrap();
    let mut client = connect(&server);
    // That of a file that is newer, and so small that its client is never too slow.
    client.stable_tag("GET /small.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    (server, client)
}

#[test]
fn slow_compression_reset_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let mut limits = Limits::default();
    // Usually less than the compression takes, and enough for this client to take its response.
    let interval = Duration::from_secs(1);
    limits.progress_interval = interval;
    let (_server, mut client) = start_slow(dir.path(), limits);
    let start = Instant::now();
    let response = accepting(&mut client, "/a.html", "br");
    let time = start.elapsed();
    assert!(response.status == 200 && decoded(&response) == text(SLOW_BYTES));
    match response.field("Content-Encoding") {
        None => {}
        Some(_) if time < 2 * interval => println!("not tested: the compression took {time:?}"),
        Some(_) => panic!("the client waited for {time:?}"),
    }
    // The result is used by the next one.
    while accepting(&mut client, "/a.html", "br").field("Content-Encoding").is_none() {}
    assert_eq!(client.status()["compressed_files"], 1);
}

#[test]
fn compressed_file_of_a_client_that_had_left_was_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let is_plain = |client: &mut Client| {
        accepting(client, "/a.html", "br").field("Content-Encoding").is_none()
    };
    // Returns whether the client has left before its file was compressed.
    let test = || {
        let (server, mut client) = start_slow(dir.path(), Limits::default());
        let mut leaver = connect(&server);
        leaver.send(b"GET /a.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n\r\n");
        while client.status()["compressed_files"] != 1 {}
        drop(leaver);
        let is_in_time = is_plain(&mut client);
        while is_plain(&mut client) {}
        assert_eq!(client.status()["compressed_files"], 1);
        is_in_time
    };
    assert!((0..10).any(|_| test()), "the client was never in time");
}

#[test]
fn ranges_of_compressed_files_were_sent() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.html"), text(HTML_BYTES)).unwrap();
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), Compression::enabled());
        let mut client = connect(&server);
        for (coding, status, ranges) in [("gzip", 200, None), ("identity", 206, Some("bytes"))] {
            let fields = format!("Accept-Encoding: {coding}\r\nRange: bytes=0-9\r\n");
            for _ in 0..2 {
                let response = client.request("GET /a.html", &fields);
                assert_eq!((response.status, response.field("Accept-Ranges")), (status, ranges));
            }
        }
    });
}
