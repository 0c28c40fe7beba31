//! Metrics, and whether the server is alive and ready, on a listener of their own.
#![cfg(feature = "metrics")]

use crate::serving;

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evring_httpd::body::Body;
use evring_httpd::handlers::Responder;
use evring_httpd::options::{AccessLog, Limits};
use evring_httpd::{Config, Error, Request, Response, Server};
use serving::{Client, connect, on_every_backend, on_every_backend_at_once};

/// Returns the samples of a scrape as OpenMetrics, by their names with labels.
fn scrape(server: &Server) -> HashMap<String, f64> {
    let mut client = monitor(server);
    client.send(
        b"GET /metrics HTTP/1.1\r\nHost: h\r\nAccept: application/openmetrics-text;version=1.0.0,\
          text/plain;version=0.0.4;q=0.5\r\n\r\n",
    );
    let response = client.response(true);
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

/// Returns the samples once they are as expected: what a worker has counted may come late, if it is busy.
fn scrape_when(
    server: &Server,
    is_expected: impl Fn(&HashMap<String, f64>) -> bool,
) -> HashMap<String, f64> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let samples = scrape(server);
        if is_expected(&samples) {
            return samples;
        }
        assert!(Instant::now() < until, "{samples:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns samples that the worker has copied since the call, which takes CPU time.
fn fresh_scrape(server: &Server) -> HashMap<String, f64> {
    let time = "evring_cpu_seconds_total";
    let before = scrape(server)[time];
    scrape_when(server, |samples| samples[time] > before)
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
            .metrics_listen("127.0.0.1:0")
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
        assert!(samples.contains_key("evring_connections_open"));
        scrape_when(&server, |samples| samples["evring_completions_total"] > 0.0);
    });
}

#[test]
fn clients_that_send_no_request_in_time_were_not_counted() {
    on_every_backend_at_once(|backend| {
        let mut limits = Limits::default();
        limits.header_timeout = Duration::from_secs(4);
        limits.keep_alive_timeout = Duration::from_secs(4);
        let server = limited(limits, None).listen("127.0.0.1:0").backend(backend).start().unwrap();
        let idle = || {
            let mut client = connect(&server);
            assert_eq!(client.get("/").status, 200);
            client
        };
        [connect(&server), idle(), idle()].iter_mut().for_each(Client::expect_end);
        let samples = scrape(&server);
        for (name, expected) in [
            ("silent_timed_out", 1.0),
            ("idle_timed_out", 2.0),
            ("files_timed_out", 0.0),
            ("rejected_slow", 0.0),
        ] {
            assert_eq!(samples[&format!("evring_{name}_total")], expected, "{backend}: {name}");
        }
    });
}

#[test]
fn slow_client_of_a_last_response_was_not_counted() {
    on_every_backend_at_once(|backend| {
        let mut limits = Limits::default();
        limits.progress_interval = Duration::from_secs(1);
        let server = limited(limits, None).listen("127.0.0.1:0").backend(backend);
        let server = server.route("/large", |_: Request| vec![b'x'; 16 << 20]).start().unwrap();
        let mut slow = connect(&server);
        slow.send(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        scrape_when(&server, |samples| samples["evring_reset_slow_total"] == 1.0);
        drop(slow);
    });
}

#[test]
fn gauges_are_what_the_kernel_holds_at_the_scrape() {
    const CLIENTS: usize = 10;
    on_every_backend(|backend| {
        let server = Server::builder()
            .listen("127.0.0.1:0")
            .backend(backend)
            .route("/", |_: Request| "hello")
            .metrics_listen("127.0.0.1:0")
            .start()
            .unwrap();
        // The worker accepts.
        let mut first = connect(&server);
        assert_eq!(first.get("/").status, 200);
        let before = fresh_scrape(&server);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(&server)).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
        let samples = fresh_scrape(&server);
        // Each connection waits for its next request.
        let in_flight = "evring_operations_in_flight";
        assert_eq!(samples[in_flight], before[in_flight] + CLIENTS as f64, "{backend}");
        assert_eq!(samples["evring_operations_unsubmitted"], 0.0, "{backend}");
        let buffers = f64::from(Config::default().buffers);
        assert_eq!(samples["evring_receive_buffers_free"], buffers, "{backend}");
        // PS1 and PS2 never interrupt.
        let masked = f64::from(u8::from(backend.starts_with("send-ps")));
        for (name, expected) in
            [("events_pending", 0.0), ("events_queued", 0.0), ("workers_masked", masked)]
        {
            assert_eq!(samples[&format!("evring_{name}")], expected, "{backend}: {name}");
        }
        drop(clients);
        scrape_when(&server, |samples| samples[in_flight] == before[in_flight]);
    });
}

#[test]
fn server_was_not_ready_while_another_process_took_its_place() {
    let server = Server::builder()
        .listen("127.0.0.1:0")
        .route("/", |_: Request| "hello")
        .metrics_listen("127.0.0.1:0")
        .start()
        .unwrap();
    let mut monitor = monitor(&server);
    assert_eq!(monitor.get("/readyz").status, 200);
    server.handle().retire();
    // Its connections go on for a time. The first response after the monitor has retired, too, ends this one.
    loop {
        let response = monitor.get("/readyz");
        assert_eq!(response.status, 200);
        assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
        if response.field("Connection") == Some("close") {
            break;
        }
    }
    drop(monitor);
    server.wait().unwrap();
}

#[test]
fn server_is_not_ready_while_it_drains_but_serves() {
    let server = Server::builder()
        .listen("127.0.0.1:0")
        .route("/", |_: Request| "served")
        .metrics_listen("127.0.0.1:0")
        .start()
        .unwrap();
    assert_eq!(monitor(&server).get("/healthz").status, 200);
    assert_eq!(monitor(&server).get("/readyz").status, 200);
    server.handle().drain();
    assert_eq!(monitor(&server).get("/readyz").status, 503);
    assert_eq!(monitor(&server).get("/healthz").status, 200);
    assert_eq!(connect(&server).get("/").body, b"served");
}

/// Checks a text in the format 0.0.4 of Prometheus by the rules of its parser and of `promtool check metrics`.
fn check_prometheus(text: &str) {
    let mut described: HashMap<&str, &str> = HashMap::new();
    let mut helped: HashMap<&str, &str> = HashMap::new();
    let mut buckets: HashMap<&str, (f64, f64)> = HashMap::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert_eq!(helped.insert(name, help), None, "a second HELP of {name}");
            assert!(help.len() > 8 && help.ends_with('.'), "{line}");
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(described.insert(name, kind), None, "a second TYPE of {name}");
            assert!(helped.contains_key(name), "{name} has no HELP");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            assert!(name.bytes().all(is_name) && name.starts_with("evring_"), "{name}");
            for part in name.split('_') {
                assert!(!["us", "ms", "ns", "sec"].contains(&part), "{name} has no base unit");
            }
            continue;
        }
        assert!(!line.starts_with('#'), "only comments of Prometheus: {line}");
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let name = sample.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| {
                name.strip_suffix(suffix).filter(|base| described.contains_key(base))
            })
            .unwrap_or(name);
        assert!(described.contains_key(family), "{line} has no TYPE");
        if let Some((_, bound)) = sample.split_once("_bucket{le=\"") {
            let bound = bound.strip_suffix("\"}").unwrap();
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
            let before = buckets.insert(family, (bound, value)).unwrap_or((0.0, 0.0));
            assert!(bound > before.0 && value >= before.1, "{line} is not cumulative");
        }
    }
    assert!(buckets.values().all(|(bound, _)| bound.is_infinite()) && !buckets.is_empty());
}

#[test]
fn tools_that_read_no_openmetrics_got_it() {
    let server = Server::builder()
        .listen("127.0.0.1:0")
        .route("/", |_: Request| "served")
        .metrics_listen("127.0.0.1:0")
        .start()
        .unwrap();
    assert_eq!(connect(&server).get("/").status, 200);
    let response = monitor(&server).get("/metrics");
    assert_eq!(response.field("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = String::from_utf8(response.body).unwrap();
    check_prometheus(&text);
    for sample in [
        "evring_responses_total{class=\"2xx\"} 1\n",
        "evring_cpu_seconds_total ",
        "evring_backlog ",
    ] {
        assert!(text.contains(sample), "no {sample:?} in {text}");
    }
}

#[test]
fn monitor_serves_nothing_else() {
    let server = Server::builder()
        .listen("127.0.0.1:0")
        .route("/", |_: Request| "served")
        .metrics_listen("127.0.0.1:0")
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
            .metrics_listen("127.0.0.1:0")
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

#[test]
fn scrape_of_an_idle_server_showed_what_its_workers_had_counted_before() {
    on_every_backend(|backend| {
        let server = Server::builder()
            .listen("127.0.0.1:0")
            .backend(backend)
            .workers(2)
            .route("/", |_: Request| "served")
            .metrics_listen("127.0.0.1:0")
            .start()
            .unwrap();
        for _ in 0..5 {
            let mut client = connect(&server);
            client.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
            assert_eq!(client.response(true).status, 200);
            client.expect_end();
        }
        // The last connection may be closing.
        let names = ["accepted_total", "closed_total", "open"];
        scrape_when(&server, |samples| {
            names.map(|name| samples[&format!("evring_connections_{name}")]) == [5.0, 5.0, 0.0]
        });
    });
}

#[test]
fn scrape_does_not_wait_for_a_worker_that_is_busy() {
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (end, may_end) = std::sync::mpsc::channel::<()>();
    let may_end = std::sync::Mutex::new(may_end);
    let server = Server::builder()
        .listen("127.0.0.1:0")
        .route("/", move |_: Request| {
            begun.send(()).unwrap();
            let _ = may_end.lock().unwrap().recv();
            "served"
        })
        .metrics_listen("127.0.0.1:0")
        .start()
        .unwrap();
    let mut client = connect(&server);
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    has_begun.recv().unwrap();
    assert_eq!(scrape(&server)["evring_responses_total{class=\"2xx\"}"], 0.0);
    drop(end);
    assert_eq!(client.response(true).status, 200);
}

#[test]
fn connections_of_workers_that_had_ended_were_counted_as_open() {
    let builder = || {
        let builder = Server::builder().route("/", |_: Request| "served");
        builder.metrics_listen("127.0.0.1:0")
    };
    let server = builder().listen("127.0.0.1:0").start().unwrap();
    let mut clients: Vec<_> = (0..5).map(|_| connect(&server)).collect();
    for client in &mut clients {
        assert_eq!(client.get("/").status, 200);
    }
    server.handle().reload(builder()).unwrap();
    drop(clients);
    let names = ["evring_connections_open", "evring_connections_accepted_total"];
    scrape_when(&server, |samples| names.map(|name| samples[name]) == [0.0, 5.0]);
}

/// Returns a server whose metrics have these limits, and a cap of connections per address.
fn limited(limits: Limits, max_per_address: Option<u32>) -> evring_httpd::Builder {
    Server::builder()
        .config(Config::default().with(|c| c.max_per_address = max_per_address))
        .limits(limits)
        .route("/", |_: Request| "served")
        .metrics_listen("127.0.0.1:0")
}

#[test]
fn slow_clients_of_the_metrics_kept_readyz_from_answering() {
    let mut limits = Limits::default();
    limits.header_timeout = Duration::from_secs(3600);
    let server = limited(limits, None).listen("127.0.0.1:0").start().unwrap();
    let mut slow: Vec<_> = (0..100).map(|_| monitor(&server)).collect();
    slow.iter_mut().for_each(|client| client.send(b"GET /metrics HTTP/1.1\r\n"));
    assert_eq!(monitor(&server).get("/readyz").status, 200);
    // None had to go before.
    assert!(!slow.iter().any(Client::has_more));
}

#[test]
fn listener_of_the_metrics_has_256_places() {
    const PLACES: usize = 256;
    on_every_backend(|backend| {
        let mut limits = Limits::default();
        limits.keep_alive_timeout = Duration::from_secs(3600);
        let server = limited(limits, None).listen("127.0.0.1:0").backend(backend).start().unwrap();
        let mut clients: Vec<_> = (0..PLACES).map(|_| monitor(&server)).collect();
        for client in &mut clients {
            assert_eq!(client.get("/healthz").status, 200, "{backend}");
        }
        assert!(!clients.iter().any(Client::has_more), "{backend}: none had to go");
        let mut another = monitor(&server);
        assert_eq!(another.get("/healthz").status, 200, "{backend}");
        clients[0].expect_end();
        for client in [&mut clients[PLACES - 1], &mut another] {
            assert_eq!(client.get("/healthz").status, 200, "{backend}");
        }
    });
}

#[test]
fn metrics_had_other_limits_than_the_server() {
    let mut limits = Limits::default();
    limits.max_request_line_bytes = 100;
    limits.keep_alive_timeout = Duration::from_millis(100);
    limits.progress_interval = Duration::from_millis(100);
    let server = limited(limits, None).listen("127.0.0.1:0").start().unwrap();
    assert_eq!(monitor(&server).get(&format!("/{}", "a".repeat(100))).status, 414);
    let mut idle = monitor(&server);
    assert_eq!(idle.get("/readyz").status, 200);
    idle.expect_end();
    let mut reader = monitor(&server);
    reader.send_rejected(&b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n".repeat(2000));
    reader.expect_reset();
}

#[test]
fn metrics_had_no_cap_of_connections_per_address() {
    let server = limited(Limits::default(), Some(2)).listen("127.0.0.1:0").start().unwrap();
    let mut clients = [monitor(&server), monitor(&server)];
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/readyz").status, 200));
    monitor(&server).expect_reset();
}

#[test]
fn limits_of_the_metrics_stayed_at_a_reload() {
    let server = limited(Limits::default(), None).listen("127.0.0.1:0").start().unwrap();
    let at = server.metrics_addresses();
    let mut limits = Limits::default();
    limits.max_request_line_bytes = 100;
    server.handle().reload(limited(limits, None)).unwrap();
    assert_eq!(server.metrics_addresses(), at);
    assert_eq!(monitor(&server).get(&format!("/{}", "a".repeat(100))).status, 414);
}

#[test]
fn reload_that_failed_changed_the_limits_of_the_metrics() {
    let server = limited(Limits::default(), None).listen("127.0.0.1:0").start().unwrap();
    let mut limits = Limits::default();
    limits.max_request_line_bytes = 100;
    // The workers cannot start.
    let builder = limited(limits, None).config(Config::default().with(|c| c.buffers = 3));
    let outcome = server.handle().reload(builder);
    assert!(matches!(outcome, Err(Error::Start(_))), "{outcome:?}");
    assert_eq!(monitor(&server).get(&format!("/{}", "a".repeat(100))).status, 404);
}

#[test]
fn address_of_the_metrics_that_narrows_or_widens_was_said_to_be_of_another_program() {
    let builder = |ip: [u8; 4], port| {
        let server = Server::builder().route("/", |_: Request| "served");
        server.metrics_listen(SocketAddr::from((ip, port)))
    };
    for (from, to) in [([0; 4], [127, 0, 0, 1]), ([127, 0, 0, 1], [0; 4])] {
        let server = builder(from, 0).listen("127.0.0.1:0").start().unwrap();
        let at = server.metrics_addresses()[0];
        let outcome = server.handle().reload(builder(to, at.port()));
        assert!(matches!(outcome, Err(Error::Held(_, held)) if held == at), "{outcome:?}");
    }
}

#[test]
fn metrics_are_served_at_a_name_and_an_unknown_one_is_an_error() {
    let builder = || Server::builder().listen("127.0.0.1:0");
    let server = builder().metrics_listen("localhost:0").start().unwrap();
    assert!(server.metrics_addresses().iter().all(|at| at.ip().is_loopback() && at.port() > 0));
    let outcome = builder().metrics_listen("no port").start();
    assert!(matches!(outcome, Err(Error::Address(..))), "{outcome:?}");
}
