//! Metrics, and whether the server is alive and ready, on a listener of their own.
#![cfg(feature = "metrics")]

use crate::serving;

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evring_httpd::{AccessLog, Body, Request, Responder, Response, Server};
use serving::{Client, connect, on_every_backend};

/// Returns the samples of a scrape, by their names with labels.
fn scrape(server: &Server) -> HashMap<String, f64> {
    let response = monitor(server).get("/metrics");
    let kind = response.field("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    let text = String::from_utf8(response.body).unwrap();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

fn monitor(server: &Server) -> Client {
    Client::new(TcpStream::connect(server.metrics_addresses()[0]).unwrap())
}

#[test]
fn metrics_count_responses_bytes_and_times() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), [7; 1000]).unwrap();
    on_every_backend(|backend| {
        let server = Server::builder()
            .listen("127.0.0.1:0")
            .backend(backend)
            .files(dir.path())
            .route("/later", |_: Request, responder: Responder| {
                std::thread::spawn(move || responder.respond("later"));
            })
            .metrics_listen(([127, 0, 0, 1], 0).into())
            .start()
            .unwrap();
        let mut client = connect(&server);
        for _ in 0..5 {
            assert_eq!(client.get("/a").status, 200);
        }
        assert_eq!(client.get("/later").status, 200);
        assert_eq!(client.get("/missing").status, 404);
        assert_eq!(client.get("/metrics").status, 404, "only on their own listener");
        let samples = scrape(&server);
        assert_eq!(samples["evring_responses_total{class=\"2xx\"}"], 6.0);
        assert_eq!(samples["evring_responses_total{class=\"4xx\"}"], 2.0);
        assert_eq!(samples["evring_response_time_seconds_count"], 8.0);
        assert_eq!(samples["evring_response_time_seconds_bucket{le=\"+Inf\"}"], 8.0);
        assert!(samples["evring_response_time_seconds_sum"] > 0.0);
        assert!(samples["evring_body_bytes_total"] >= 5005.0);
        assert!(samples.contains_key("evring_system_calls_total"));
        assert!(samples.contains_key("evring_interruptions_total"));
        assert!(samples.contains_key("evring_operations_rearmed_total"));
        // They are copied once a second, when something happens.
        let until = Instant::now() + Duration::from_secs(20);
        while scrape(&server)["evring_completions_total"] == 0.0 {
            assert!(Instant::now() < until, "{backend}: no completion was counted");
            assert_eq!(client.get("/a").status, 200);
        }
        assert!(samples.contains_key("evring_connections_open"));
    });
}

#[test]
fn server_is_not_ready_while_it_drains_but_serves() {
    let server = Server::builder()
        .listen("127.0.0.1:0")
        .route("/", |_: Request| "served")
        .metrics_listen(([127, 0, 0, 1], 0).into())
        .start()
        .unwrap();
    assert_eq!(monitor(&server).get("/healthz").status, 200);
    assert_eq!(monitor(&server).get("/readyz").status, 200);
    server.handle().drain();
    assert_eq!(monitor(&server).get("/readyz").status, 503);
    assert_eq!(monitor(&server).get("/healthz").status, 200);
    assert_eq!(connect(&server).get("/").body, b"served");
}

#[test]
fn monitor_serves_nothing_else() {
    let server = Server::builder()
        .listen("127.0.0.1:0")
        .route("/", |_: Request| "served")
        .metrics_listen(([127, 0, 0, 1], 0).into())
        .start()
        .unwrap();
    for target in ["/", "/.httpd/status.json", "/metrics/x"] {
        assert_eq!(monitor(&server).get(target).status, 404, "{target}");
    }
}

#[test]
fn bytes_of_a_body_of_unknown_length_were_not_counted() {
    const PIECES: u64 = 64;
    const PIECE: usize = 16 * 1024;
    let dir = tempfile::tempdir().unwrap();
    on_every_backend(|backend| {
        let path = dir.path().join(backend);
        let server = Server::builder()
            .listen("127.0.0.1:0")
            .backend(backend)
            .route("/", |_: Request| {
                let piece = |_| Ok(Bytes::from_static(&[7; PIECE]));
                let pieces = (0..PIECES).map(piece);
                Response::new(Body::pieces(pieces))
            })
            .access_log(AccessLog::from(path.clone()))
            .metrics_listen(([127, 0, 0, 1], 0).into())
            .start()
            .unwrap();
        let bytes = PIECES * PIECE as u64;
        let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
        client.write_all(b"GET / HTTP/1.0\r\nHost: h\r\n\r\n").unwrap();
        assert!(client.read_to_end(&mut Vec::new()).unwrap() as u64 > bytes);
        // One that goes before the end.
        let mut client = connect(&server);
        client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        drop(client);
        let logged = || fs::read_to_string(&path).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while logged().lines().count() < 2 {
            assert!(Instant::now() < until, "{backend}: {}", logged());
            std::thread::sleep(Duration::from_millis(5));
        }
        let sizes: Vec<u64> =
            logged().lines().map(|line| line.split(' ').nth(9).unwrap().parse().unwrap()).collect();
        assert_eq!(sizes[0], bytes, "{backend}");
        assert!(sizes[1] <= bytes, "{backend}");
        let samples = scrape(&server);
        assert_eq!(samples["evring_body_bytes_total"], (sizes[0] + sizes[1]) as f64, "{backend}");
    });
}
