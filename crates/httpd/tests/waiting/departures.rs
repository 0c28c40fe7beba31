//! Clients that leave while a handler waits, or have sent their last request.

use std::future::pending;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::body::Body;
use evring_httpd::bytes::Bytes;
use evring_httpd::options::Limits;
use evring_httpd::{Builder, Request, Response};

use crate::serving::{connect, on_every_backend};
use crate::waiting::{LONG, OnDrop, builder, left_to_the_test, shared_channel};

#[test]
fn future_is_dropped_when_the_client_has_gone() {
    on_every_backend(|backend| {
        let (handler, requests) = left_to_the_test();
        let (builder, has_started, is_dropped) = quiet(backend);
        let server = builder.route("/later", handler).start().unwrap();
        let get = |path: &str| {
            let mut client = connect(&server);
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            client
        };
        let first = get("/head");
        has_started.recv_timeout(LONG).unwrap();
        drop(first);
        is_dropped.recv_timeout(LONG).expect(backend);
        let mut second = get("/body");
        second.response(false);
        drop(second);
        is_dropped.recv_timeout(LONG).expect(backend);
        let third = get("/later");
        let (_, responder) = requests.recv_timeout(LONG).unwrap();
        drop(third);
        while !responder.is_cancelled() {
            thread::yield_now();
        }
        assert!(!responder.respond("no client"));
    });
}

/// Returns a builder of a server whose handlers never answer, or never send another piece, and what tells that they were
/// dropped.
fn quiet(backend: &str) -> (Builder, Receiver<()>, Receiver<()>) {
    let (dropped, is_dropped) = shared_channel();
    let dropped = Arc::new(dropped);
    let also = Arc::clone(&dropped);
    let (started, has_started) = shared_channel();
    let builder = builder(backend)
        .route("/head", move |_: Request| {
            let guard = OnDrop(dropped());
            started().send(()).unwrap();
            async move {
                pending::<()>().await;
                drop(guard);
                "never"
            }
        })
        .route("/body", move |_: Request| {
            let guard = OnDrop(also());
            let mut first = Some(Bytes::from_static(b"first"));
            Response::new(Body::poll_fn(None, move |_| {
                let _ = &guard;
                first.take().map_or(Poll::Pending, |first| Poll::Ready(Some(Ok(first))))
            }))
        });
    (builder, has_started, is_dropped)
}

#[test]
fn reset_after_the_beginning_of_the_next_request_was_not_noticed() {
    on_every_backend(|backend| {
        let (builder, has_started, is_dropped) = quiet(backend);
        let server = builder.start().unwrap();
        for path in ["/head", "/body"] {
            let mut client = connect(&server);
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\nG").as_bytes());
            match path {
                "/head" => has_started.recv_timeout(LONG).unwrap(),
                _ => drop(client.response(false)),
            }
            client.send(b"E");
            // The worker has received that, too, when it answers another client.
            assert_eq!(connect(&server).get("/none").status, 404);
            client.reset();
            is_dropped.recv_timeout(LONG).expect(backend);
        }
    });
}

#[test]
fn quiet_stream_to_a_client_that_could_not_be_watched_had_no_time_limit() {
    on_every_backend(|backend| {
        let (builder, _, is_dropped) = quiet(backend);
        let mut limits = Limits::default();
        limits.handler_timeout = Duration::from_millis(50);
        let server = builder.limits(limits).start().unwrap();
        // More than the server keeps, and another request before the end.
        for (more, ends) in [(vec![b'x'; Limits::MAX_HEAD_BYTES], false), (b"G".to_vec(), true)] {
            let mut client = connect(&server);
            client.send(&[&b"GET /body HTTP/1.1\r\nHost: a\r\n\r\n"[..], &more].concat());
            client.response(false);
            if ends {
                client.end();
            }
            is_dropped.recv_timeout(LONG).expect(backend);
        }
    });
}

#[test]
fn half_closed_client_gets_its_response_if_it_is_permitted() {
    on_every_backend(|backend| {
        for half_close in [true, false] {
            let (handler, requests) = left_to_the_test();
            let mut limits = Limits::default();
            limits.half_close = half_close;
            let server = builder(backend).limits(limits).route("/", handler).start().unwrap();
            let mut client = connect(&server);
            client.send(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
            client.end();
            for path in ["/1", "/2"] {
                let (name, responder) = requests.recv_timeout(LONG).unwrap();
                assert_eq!(name, path, "{backend}");
                if !half_close && path == "/2" {
                    while !responder.is_cancelled() {
                        thread::yield_now();
                    }
                    break;
                }
                assert!(responder.respond(name));
                assert_eq!(client.response(true).body, path.as_bytes(), "{backend}");
            }
            client.expect_end();
        }
    });
}

#[test]
fn request_of_a_client_that_left_was_not_logged() {
    let dir = tempfile::tempdir().unwrap();
    on_every_backend(|backend| {
        let path = dir.path().join(backend);
        let _ = std::fs::remove_file(&path);
        let (handler, requests) = left_to_the_test();
        let server = builder(backend).route("/", handler);
        let server = server.access_log(path.clone().into()).start().unwrap();
        let mut client = connect(&server);
        client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        let waiting = requests.recv_timeout(LONG).unwrap();
        drop(client);
        let logged = || std::fs::read_to_string(&path).unwrap();
        while logged().is_empty() {
            thread::yield_now();
        }
        assert!(logged().contains("\"GET /a HTTP/1.1\" 499 0 "), "{backend}: {}", logged());
        drop(waiting);
        drop(server);
        assert_eq!(logged().lines().count(), 1, "{backend}: {}", logged());
    });
}

#[test]
fn upload_of_a_client_that_left_was_not_logged() {
    let dir = tempfile::tempdir().unwrap();
    on_every_backend(|backend| {
        let path = dir.path().join(format!("upload-{backend}"));
        let server = builder(backend).route("/", |request: Request| request.into_body());
        let server = server.access_log(path.clone().into()).start().unwrap();
        let logged = || std::fs::read_to_string(&path).unwrap();
        for number in 1..3 {
            let mut client = connect(&server);
            client.send(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 300\r\n\r\nabc");
            match number {
                1 => client.end(),
                _ => drop(client),
            }
            let until = Instant::now() + LONG;
            while logged().lines().count() < number {
                assert!(Instant::now() < until, "{backend}: {}", logged());
                thread::yield_now();
            }
        }
        drop(server);
        let (lines, all) = (logged().lines().count(), logged());
        assert_eq!(all.matches("\"POST /a HTTP/1.1\" 499 0 ").count(), 2, "{backend}: {all}");
        assert_eq!(lines, 2, "{backend}: {all}");
    });
}

#[test]
fn half_closed_client_got_a_part_of_a_response_that_does_not_wait() {
    const BYTES: usize = 1 << 20;
    on_every_backend(|backend| {
        let server = builder(backend).route("/", |_: Request| vec![b'x'; BYTES]).start().unwrap();
        let mut client = connect(&server);
        // The first response fills the send queue, so the second request is processed with the end.
        client.send(&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2));
        client.end();
        for _ in 0..2 {
            assert_eq!(client.response(true).body.len(), BYTES, "{backend}");
        }
        client.expect_end();
    });
}
