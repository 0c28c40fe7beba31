//! The server as a library: what a program of someone else's does with it.

mod serving;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evring_httpd::{Body, Config, Request, Response, Server};
use serving::{Client, on_every_backend};

fn client(server: &Server) -> Client {
    Client::new(TcpStream::connect(server.addresses()[0]).unwrap())
}

#[test]
fn files_and_handlers_of_one_server() {
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
        // Where io_uring is forbidden, that is what is chosen.
        assert_eq!(server.backend(), if backend == "auto" { "epoll" } else { backend });
        let mut first = client(&server);
        for _ in 0..2 {
            assert_eq!(first.get("/a.txt").body, b"file");
            assert_eq!(first.get("/hello").body, b"Hello, World!");
        }
        for _ in 0..20 {
            let mut other = client(&server);
            other.send(b"POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
            assert_eq!(other.reply(true).body, b"abc");
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

/// The clients are more than there are buffers, and each has bytes of its own wait in one as long as it
/// can.
#[test]
fn with_few_receive_buffers_nobody_starves() {
    const CLIENTS: usize = 60;
    const LARGE: usize = 1 << 20;
    on_every_backend(|backend| {
        for buffers in [1, 4] {
            let config = Config { buffers, buffer_size: 1024, ..Config::default() };
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
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| client(&server)).collect();
            for (at, client) in clients.iter_mut().enumerate() {
                match at % 3 {
                    // A part of a body, and of a head.
                    0 => client.send(&[&post[..], &body[..5_000]].concat()),
                    1 => client.send(&post[..20]),
                    // Replies that are not taken, so that what follows has to wait.
                    _ if at < 6 => client.send(&get.repeat(20)),
                    _ => client.send(b"G"),
                }
            }
            for _ in 0..10 {
                let mut witness = client(&server);
                witness.send(&[&post[..], &body].concat());
                assert_eq!(witness.reply(true).body, body, "{backend}");
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
                let reply = client.reply(true);
                match at % 3 {
                    0 | 1 => assert_eq!(reply.body, body, "{backend}"),
                    _ if at < 6 => assert_eq!(reply.body.len(), LARGE, "{backend}"),
                    _ => assert_eq!(reply.status, 404, "{backend}"),
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
fn a_large_body_streams_both_ways() {
    const LEN: usize = 3_000_000;
    on_every_backend(|backend| {
        let pieces = |request: Request| {
            let body = request.into_body();
            let all = (0..body.len()).step_by(50_000);
            Response::new(Body::pieces(
                all.map(move |at| Ok(body.slice(at..body.len().min(at + 50_000)))),
            ))
        };
        let limits =
            evring_httpd::Limits { max_body_bytes: LEN as u64, ..evring_httpd::Limits::default() };
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = server.limits(limits).route("/", pieces).start().unwrap();
        let mut client = client(&server);
        let body: Vec<u8> = (0..LEN).map(|i| (i / 77) as u8).collect();
        let mut request =
            format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {LEN}\r\n\r\n").into_bytes();
        request.extend_from_slice(&body);
        client.send(&request);
        assert!(client.chunked_reply() == body, "{backend}");
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.chunked_reply().is_empty(), "{backend}");
    });
}

#[test]
fn a_dropped_server_is_gone() {
    let server = Server::builder().listen("127.0.0.1:0").start().unwrap();
    let address = server.addresses()[0];
    assert_eq!(client(&server).get("/").status, 200);
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn what_is_wrong_is_said() {
    let said = |builder: evring_httpd::server::Builder| builder.start().unwrap_err().to_string();
    assert!(said(Server::builder().listen("nowhere.invalid:80")).contains("where to listen"));
    let none = Server::builder().listen("127.0.0.1:0").backend("abacus");
    assert!(said(none).contains("`abacus`"));
    let none = Server::builder().listen("127.0.0.1:0").files("/does/not/exist");
    assert!(said(none).contains("/does/not/exist"));
}

#[test]
fn a_reply_longer_than_the_queue_may_be_was_lost() {
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
            assert_eq!(client(&server).get(target).body.len(), LEN, "{backend} {target}");
        }
    });
}

#[test]
fn times_without_a_bound_are_long_ones() {
    use std::time::Duration;
    let forever = Duration::MAX;
    let limits = evring_httpd::Limits {
        header_timeout: forever,
        keep_alive_timeout: forever,
        progress_interval: forever,
        cache_ttl: forever,
        ..evring_httpd::Limits::default()
    };
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
        let mut client = client(&server);
        for _ in 0..2 {
            assert_eq!(client.get("/a.txt").body, b"file");
        }
        server.handle().stop();
        server.wait().unwrap();
    });
}
