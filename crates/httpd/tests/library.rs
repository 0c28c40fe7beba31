//! The server as a library.

use crate::serving;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evring_httpd::body::Body;
use evring_httpd::options::Limits;
use evring_httpd::{Builder, Config, Request, Response, Server};
use serving::{connect, expect_refused, on_every_backend};

#[test]
fn server_serves_files_and_handlers() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "file").unwrap();
    on_every_backend(|backend| {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let server = Server::builder()
            .listen("127.0.0.1:0")
            .backend(backend)
            .workers(2)
            .files(root.path())
            .route("/hello", |_: Request| "Hello, World!")
            .route("/count", move |request: Request| {
                count.fetch_add(request.body().len(), Ordering::Relaxed);
                String::from_utf8_lossy(request.body()).into_owned()
            })
            .start()
            .unwrap();
        // `auto` runs where io_uring is forbidden.
        assert_eq!(server.backend(), if backend == "auto" { "epoll" } else { backend });
        let mut first = connect(&server);
        for _ in 0..2 {
            assert_eq!(first.get("/a.txt").body, b"file");
            assert_eq!(first.get("/hello").body, b"Hello, World!");
        }
        for _ in 0..20 {
            let mut other = connect(&server);
            other.send(b"POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
            assert_eq!(other.response(true).body, b"abc");
        }
        assert_eq!(calls.load(Ordering::Relaxed), 60, "both workers call the same handler");
        let handle = server.handle();
        handle.stop();
        handle.stop();
        let stats = server.wait().unwrap();
        assert_eq!(stats.len(), 2);
        assert_eq!(stats.iter().map(|stats| stats.accepted).sum::<u64>(), 21);
        first.expect_end();
    });
}

#[test]
fn error_of_a_listen_address_did_not_name_it() {
    let error = Server::builder().listen("127.0.0.1").start().map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"cannot resolve the listen address "127.0.0.1": invalid socket address"#
    );
}

/// There are more clients than buffers, and each keeps bytes in one as long as possible.
#[test]
fn few_receive_buffers_do_not_starve_clients() {
    const CLIENTS: usize = 60;
    const LARGE: usize = 1 << 20;
    on_every_backend(|backend| {
        for buffers in [1, 4] {
            let config = Config::default().with(|c| {
                c.buffers = buffers;
                c.buffer_size = 1024;
            });
            let server = Server::builder()
                .config(config)
                .listen("127.0.0.1:0")
                .backend(backend)
                .route("/echo", |request: Request| request.body().to_vec())
                .route("/large", |_: Request| vec![b'x'; LARGE])
                .start()
                .unwrap();
            let post = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 8000\r\n\r\n";
            let body = [b'y'; 8_000];
            let get = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(&server)).collect();
            for (at, client) in clients.iter_mut().enumerate() {
                match at % 3 {
                    // Part of a body, and part of a head.
                    0 => client.send(&[&post[..], &body[..5_000]].concat()),
                    1 => client.send(&post[..20]),
                    // Unread responses, so that further requests have to wait.
                    _ if at < 6 => client.send(&get.repeat(20)),
                    _ => client.send(b"G"),
                }
            }
            for _ in 0..10 {
                let mut other = connect(&server);
                other.send(&[&post[..], &body].concat());
                assert_eq!(other.response(true).body, body, "{backend}");
            }
            for (at, client) in clients.iter_mut().enumerate() {
                match at % 3 {
                    0 => client.send(&body[5_000..]),
                    1 => client.send(&[&post[20..], &body].concat()),
                    _ if at < 6 => continue,
                    _ => client.send(b"ET /none HTTP/1.1\r\nHost: a\r\n\r\n"),
                }
            }
            for (at, client) in clients.iter_mut().enumerate() {
                let response = client.response(true);
                match at % 3 {
                    0 | 1 => assert_eq!(response.body, body, "{backend}"),
                    _ if at < 6 => assert_eq!(response.body.len(), LARGE, "{backend}"),
                    _ => assert_eq!(response.status, 404, "{backend}"),
                }
            }
            drop(clients);
            server.handle().stop();
            let stats = server.wait().unwrap();
            assert_eq!(stats[0].overruns, 0, "{backend}");
        }
    });
}

#[test]
fn large_body_is_streamed_in_both_directions() {
    const LEN: usize = 3_000_000;
    on_every_backend(|backend| {
        let pieces = |request: Request| {
            let body = request.into_body();
            let all = (0..body.len()).step_by(50_000);
            Response::new(Body::pieces(
                all.map(move |at| Ok(body.slice(at..body.len().min(at + 50_000)))),
            ))
        };
        let mut limits = Limits::default();
        limits.max_body_bytes = LEN as u64;
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = server.limits(limits).route("/", pieces).start().unwrap();
        let mut client = connect(&server);
        let body: Vec<u8> = (0..LEN).map(|i| (i / 77) as u8).collect();
        let mut request =
            format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {LEN}\r\n\r\n").into_bytes();
        request.extend_from_slice(&body);
        client.send(&request);
        assert!(client.chunked_response() == body, "{backend}");
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.chunked_response().is_empty(), "{backend}");
    });
}

#[test]
fn dropping_the_server_closes_its_listener() {
    let server = Server::builder().listen("127.0.0.1:0").start().unwrap();
    let address = server.addresses()[0];
    assert_eq!(connect(&server).get("/").status, 200);
    drop(server);
    expect_refused(address);
}

#[test]
fn start_errors_name_their_cause() {
    let error = |builder: Builder| builder.start().unwrap_err().to_string();
    assert!(error(Server::builder().listen("nowhere.invalid:80")).contains("listen address"));
    let server = Server::builder().listen("127.0.0.1:0").backend("abacus");
    assert!(error(server).contains("`abacus`"));
    let server = Server::builder().listen("127.0.0.1:0").files("/does/not/exist");
    assert!(error(server).contains("/does/not/exist"));
}

#[test]
fn response_longer_than_the_send_queue_was_lost() {
    const LEN: usize = 20 << 20;
    on_every_backend(|backend| {
        let bytes = evring_httpd::bytes::Bytes::from(vec![b'x'; LEN]);
        let one = bytes.clone();
        let server = Server::builder()
            .listen("127.0.0.1:0")
            .backend(backend)
            .route("/whole", move |_: Request| bytes.clone())
            .route("/piece", move |_: Request| {
                Response::new(Body::sized(LEN as u64, std::iter::once(Ok(one.clone()))))
            })
            .start()
            .unwrap();
        for target in ["/whole", "/piece"] {
            assert_eq!(connect(&server).get(target).body.len(), LEN, "{backend} {target}");
        }
    });
}

#[test]
fn maximum_durations_are_accepted() {
    use std::time::Duration;
    let max = Duration::MAX;
    let mut limits = Limits::default();
    limits.header_timeout = max;
    limits.keep_alive_timeout = max;
    limits.progress_interval = max;
    limits.cache_ttl = max;
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "file").unwrap();
    on_every_backend(|backend| {
        let server = Server::builder()
            .listen("127.0.0.1:0")
            .backend(backend)
            .files(root.path())
            .limits(limits.clone())
            .start()
            .unwrap();
        let mut client = connect(&server);
        for _ in 0..2 {
            assert_eq!(client.get("/a.txt").body, b"file");
        }
        server.handle().stop();
        server.wait().unwrap();
    });
}
