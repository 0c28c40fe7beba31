//! The bytes that the access log and the metrics have, of clients that leave in the middle of a response.
#![cfg(all(feature = "metrics", feature = "tls"))]

use crate::authority::Authority;
use crate::{serving, tls};

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evring_httpd::body::Body;
use evring_httpd::options::{AccessLog, TlsOptions};
use evring_httpd::{Builder, Request, Response, Server};
use serving::{Client, connect, on_every_backend};
use tls::BOTH;

/// More than all buffers between server and client have.
const LEN: u64 = 256 << 20;

/// Bytes that a client reads before it leaves.
const READ: usize = 1 << 20;

fn builder(backend: &str, dir: &Path) -> Builder {
    File::create(dir.join("file")).unwrap().set_len(LEN).unwrap();
    fs::write(dir.join("small"), [7; 100]).unwrap();
    Server::builder()
        .listen("127.0.0.1:0")
        .backend(backend)
        .files(dir)
        .status(true)
        .route("/pieces", |_: Request| {
            const PIECE: usize = 16 * 1024;
            let piece = |_| Ok(Bytes::from_static(&[7; PIECE]));
            Response::new(Body::pieces((0..LEN / PIECE as u64).map(piece)))
        })
        .access_log(AccessLog::from(dir.join("log")))
}

/// Waits for this number of lines in the log, and returns the target and the bytes of each.
fn logged(dir: &Path, lines: usize) -> Vec<(String, u64)> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let text = fs::read_to_string(dir.join("log")).unwrap();
        if text.lines().count() >= lines {
            let part = |line: &str, at| line.split(' ').nth(at).unwrap().to_owned();
            return text.lines().map(|l| (part(l, 6), part(l, 9).parse().unwrap())).collect();
        }
        assert!(Instant::now() < until, "{lines} lines expected: {text}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Requests a target, reads the beginning of the response and leaves.
fn leave(mut stream: impl Read + Write, target: &str) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_exact(&mut vec![0; READ]).unwrap();
}

/// Asserts that about as much is logged as was sent to a client that left, and that the metrics count the same.
fn check(server: &Server, dir: &Path, lines: usize, status: serde_json::Value) {
    let mut logged = logged(dir, lines);
    // The request for the metrics may have its line already.
    logged.retain(|(target, _)| target != "/.httpd/status.json");
    assert!(server.addresses().len() == 1 && logged.len() == lines);
    for (target, bytes) in &logged {
        let range = READ as u64 - 1000..LEN / 4;
        assert!(range.contains(bytes), "{bytes} bytes of {target} are logged");
    }
    let sum: u64 = logged.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(status["body_bytes"].as_u64(), Some(sum));
}

#[test]
fn client_that_left_was_logged_with_the_whole_response() {
    on_every_backend(|backend| {
        let dir = tempfile::tempdir().unwrap();
        let server = builder(backend, dir.path()).start().unwrap();
        // The file is in the cache at the second time.
        let targets = ["/file", "/file", "/pieces"];
        for (n, target) in targets.into_iter().enumerate() {
            leave(connect(&server).stream, target);
            logged(dir.path(), n + 1);
        }
        let status = connect(&server).status();
        check(&server, dir.path(), targets.len(), status);
    });
}

#[test]
fn client_that_left_was_logged_with_the_whole_response_under_tls() {
    let authority = Authority::new();
    let (certificate, key) = authority.write("a", &["localhost"]);
    let trusting = Arc::new(authority.trusting(BOTH));
    on_every_backend(|backend| {
        let dir = tempfile::tempdir().unwrap();
        let server = builder(backend, dir.path());
        let server = server.tls(TlsOptions::files(&certificate, &key)).start().unwrap();
        for (n, target) in ["/file", "/pieces"].into_iter().enumerate() {
            leave(tls::connect(&server, &trusting, "localhost"), target);
            logged(dir.path(), n + 1);
        }
        let mut client = tls::connect(&server, &trusting, "localhost");
        let response = tls::get(&mut client, "/.httpd/status.json").unwrap();
        let status = serde_json::from_slice(tls::body(&response)).unwrap();
        check(&server, dir.path(), 2, status);
    });
}

#[test]
fn large_responses_are_logged_in_order_with_all_their_bytes() {
    const LEN: usize = 3_000_000;
    on_every_backend(|backend| {
        let dir = tempfile::tempdir().unwrap();
        let server = builder(backend, dir.path()).route("/body", |_: Request| vec![7_u8; LEN]);
        let server = server.start().unwrap();
        fs::write(dir.path().join("large"), vec![7; LEN]).unwrap();
        let mut client: Client = connect(&server);
        let targets = ["/small", "/large", "/small", "/large", "/body", "/small"];
        let request = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        client.send(targets.map(request).concat().as_bytes());
        for target in targets {
            assert_eq!(
                client.response(true).body.len(),
                if target == "/small" { 100 } else { LEN }
            );
        }
        client.send(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(client.response(true).body.len(), LEN);
        client.expect_end();
        let expected = targets.iter().chain(&["/large"]);
        let bytes = |target: &str| if target == "/small" { 100 } else { LEN as u64 };
        let expected: Vec<_> = expected.map(|t| ((*t).to_owned(), bytes(t))).collect();
        assert_eq!(logged(dir.path(), expected.len()), expected, "{backend}");
    });
}
