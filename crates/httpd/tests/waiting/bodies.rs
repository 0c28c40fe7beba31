//! Bodies of requests and responses that arrive in pieces.

use std::future::poll_fn;
use std::io::{ErrorKind, Write};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::body::{Body, BodyError, RequestBody};
use evring_httpd::bytes::Bytes;
use evring_httpd::http::StatusCode;
use evring_httpd::options::Limits;
use evring_httpd::{Request, Response};

use crate::serving::{connect, on_every_backend, on_every_backend_at_once};
use crate::waiting::{LONG, OnDrop, builder, shared_channel};

/// A body whose pieces the test sends arrives piece by piece, and an unfinished one resets.
#[test]
fn pieces_of_a_channel_arrive_one_by_one() {
    on_every_backend(|backend| {
        let (bodies, body_of) = shared_channel();
        let server = builder(backend)
            .route("/", move |_: Request| {
                let (sender, body) = Body::channel();
                bodies().send(sender).unwrap();
                Response::new(body)
            })
            .start()
            .unwrap();
        let mut first = connect(&server);
        first.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut sender = body_of.recv_timeout(LONG).unwrap();
        assert_eq!(first.response(false).field("Transfer-Encoding"), Some("chunked"));
        for piece in ["one", "two"] {
            sender.try_send(piece).unwrap();
            assert_eq!(first.chunk(), piece.as_bytes(), "{backend}");
        }
        sender.finish();
        assert_eq!(first.chunk(), b"", "{backend}");
        // The pipelined request follows. Its body is not finished.
        let sender = body_of.recv_timeout(LONG).unwrap();
        first.response(false);
        drop(sender);
        first.expect_reset();
    });
}

#[test]
fn handler_that_left_a_body_that_had_arrived_closed_the_connection() {
    on_every_backend(|backend| {
        let handler = async |_: Request<RequestBody>| "ready";
        let server = builder(backend).route("/", handler).start().unwrap();
        let mut client = connect(&server);
        let chunked = "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
        for body in ["Content-Length: 2\r\n\r\nab", chunked] {
            client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{body}").as_bytes());
            let response = client.response(true);
            assert_eq!(response.field("Connection"), None, "{backend}: {body}");
            assert_eq!((response.status, &response.body[..]), (200, &b"ready"[..]));
        }
        // With the rest of a body that has not arrived, it closes.
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na");
        assert_eq!(client.response(true).field("Connection"), Some("close"), "{backend}");
        client.expect_end();
    });
}

#[test]
fn sender_of_a_body_waits_for_a_slow_client() {
    const PIECES: usize = 4_000;
    static PIECE: [u8; 16 * 1024] = [b'x'; 16 * 1024];
    on_every_backend(|backend| {
        let (results, result) = shared_channel();
        let server = builder(backend)
            .route("/", move |_: Request| {
                let (mut sender, body) = Body::channel();
                let results = results();
                thread::spawn(move || {
                    let sent = (0..PIECES).take_while(|_| sender.try_send(&PIECE[..]).is_ok());
                    results.send((sent.count(), sender)).unwrap();
                });
                Response::new(body)
            })
            .start()
            .unwrap();
        let mut client = connect(&server);
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (sent, sender) = result.recv_timeout(LONG).unwrap();
        assert!(sent < PIECES, "{backend}: nothing bounds the pieces");
        sender.finish();
        assert_eq!(client.chunked_response().len(), sent * PIECE.len(), "{backend}");
    });
}

/// The body ends after a wait for its last piece, when the kernel has all bytes.
#[test]
fn client_that_takes_nothing_of_a_stream_was_kept_until_the_keep_alive_timeout() {
    const PIECES: usize = 40;
    let mut limits = Limits::default();
    limits.keep_alive_timeout = Duration::from_secs(3600);
    limits.progress_interval = Duration::from_millis(50);
    on_every_backend_at_once(|backend| {
        let server = builder(backend)
            .limits(limits.clone())
            .route("/", |_: Request| {
                let mut polls = 0;
                Response::new(Body::poll_fn(None, move |context| {
                    polls += 1;
                    if polls % 2 == 0 {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    let piece = Bytes::from_static(&[b'x'; 10_000]);
                    Poll::Ready((polls < 2 * PIECES).then_some(Ok::<_, std::io::Error>(piece)))
                }))
            })
            .start()
            .unwrap();
        let mut client = connect(&server);
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.expect_reset();
    });
}

#[test]
fn body_of_a_request_waits_for_its_handler() {
    const LEN: usize = 16 << 20;
    on_every_backend(|backend| {
        let gate: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
        let closed = Arc::clone(&gate);
        let mut limits = Limits::default();
        limits.max_body_bytes = LEN as u64;
        limits.max_body_memory = 200_000;
        let server = builder(backend)
            .limits(limits)
            .route("/", move |request: Request<RequestBody>| {
                let gate = Arc::clone(&closed);
                async move {
                    poll_fn(|context| {
                        let mut gate = gate.lock().unwrap();
                        gate.1 = Some(context.waker().clone());
                        if gate.0 { Poll::Ready(()) } else { Poll::Pending }
                    })
                    .await;
                    let (mut body, mut len) = (request.into_body(), 0);
                    while let Some(piece) = body.next().await {
                        len += piece?.len();
                    }
                    Ok::<_, BodyError>(len.to_string())
                }
            })
            .start()
            .unwrap();
        let mut client = connect(&server);
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LEN}\r\n\r\n");
        client.send(head.as_bytes());
        let until = Instant::now() + LONG;
        while gate.lock().unwrap().1.is_none() {
            assert!(Instant::now() < until, "{backend}: the handler was not called");
            thread::sleep(Duration::from_millis(1));
        }
        // The kernel's buffers fill up.
        let piece = vec![b'x'; 1 << 16];
        let mut sent = 0;
        client.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        while sent < LEN {
            match client.stream.write(&piece[..piece.len().min(LEN - sent)]) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        assert!(sent < LEN, "{backend}: nothing bounds the body");
        client.stream.set_write_timeout(Some(LONG)).unwrap();
        let waker = {
            let mut gate = gate.lock().unwrap();
            gate.0 = true;
            gate.1.take()
        };
        waker.expect("the handler waits").wake();
        while sent < LEN {
            let n = piece.len().min(LEN - sent);
            client.send(&piece[..n]);
            sent += n;
        }
        assert_eq!(client.response(true).body, LEN.to_string().as_bytes(), "{backend}");
    });
}

#[test]
fn body_is_echoed_while_it_arrives() {
    on_every_backend(|backend| {
        let server = builder(backend)
            .route("/", async |request: Request<RequestBody>| {
                let mut body = request.into_body();
                Response::new(Body::poll_fn(None, move |context| {
                    body.poll_next(context)
                        .map(|piece| piece.map(|p| p.map_err(std::io::Error::other)))
                }))
            })
            .start()
            .unwrap();
        let mut client = connect(&server);
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(b"3\r\none\r\n");
        assert_eq!(client.response(false).status, 200);
        assert_eq!(client.chunk(), b"one", "{backend}");
        client.send(b"3\r\ntwo\r\n");
        assert_eq!(client.chunk(), b"two", "{backend}");
        client.send(b"0\r\n\r\n");
        assert_eq!(client.chunk(), b"", "{backend}");
        // The head was sent when it was not known whether the body would be read.
        client.expect_end();
    });
}

#[test]
fn body_that_nobody_reads_is_discarded() {
    on_every_backend(|backend| {
        let server = builder(backend)
            .route("/ignore", async |_: Request<RequestBody>| "ignored")
            .route("/drop", |request: Request<RequestBody>| {
                drop(request);
                let mut polls = 0;
                poll_fn(move |context| {
                    polls += 1;
                    context.waker().wake_by_ref();
                    if polls < 5 { Poll::Pending } else { Poll::Ready("dropped") }
                })
            })
            .start()
            .unwrap();
        for path in ["/ignore", "/drop"] {
            let mut client = connect(&server);
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n");
            client.send(head.as_bytes());
            client.send_rejected(&vec![b'x'; 300_000]);
            assert_eq!(client.response(true).body.last(), Some(&b'd'), "{backend}: {path}");
        }
    });
}

#[test]
fn client_continues_when_the_handler_wants_the_body() {
    on_every_backend(|backend| {
        let server = builder(backend)
            .route("/", async |request: Request| request.into_body())
            .route("/no", async |_: Request<RequestBody>| StatusCode::FORBIDDEN)
            .start()
            .unwrap();
        let head = |path: &str| {
            format!(
                "PUT {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
            )
        };
        let mut first = connect(&server);
        first.send(head("/").as_bytes());
        assert_eq!(first.response(false).status, 100, "{backend}");
        first.send(b"ab");
        assert_eq!(first.response(true).body, b"ab", "{backend}");
        let mut second = connect(&server);
        second.send(head("/no").as_bytes());
        assert_eq!(second.response(true).status, 403, "{backend}");
        second.expect_end();
    });
}

#[test]
fn malformed_slow_and_large_bodies_end_the_handler() {
    on_every_backend_at_once(|backend| {
        let (dropped, is_dropped) = shared_channel();
        let mut limits = Limits::default();
        limits.max_body_memory = 100_000;
        // Longer than a busy machine takes to run a client that sends.
        limits.progress_interval = Duration::from_secs(2);
        let server = builder(backend)
            .limits(limits)
            .route("/", move |request: Request<RequestBody>| {
                let guard = OnDrop(dropped());
                async move {
                    let bytes = request.into_body().bytes().await;
                    drop(guard);
                    bytes.map(|bytes| bytes.len().to_string())
                }
            })
            .start()
            .unwrap();
        let chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (body, status) in [(&b"1\r\nxx\r\n"[..], 400), (b"fffffff\r\n", 413), (b"5\r\nx", 408)]
        {
            let mut client = connect(&server);
            client.send(&[&chunked[..], body].concat());
            assert_eq!(client.response(true).status, status, "{backend}");
            client.expect_end();
            is_dropped.recv_timeout(LONG).expect("the future is dropped");
        }
        let mut client = connect(&server);
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n");
        client.send_rejected(&[b'x'; 200_000]);
        assert_eq!(client.response(true).status, 503, "{backend}");
        is_dropped.recv_timeout(LONG).unwrap();
    });
}

#[test]
fn body_of_a_request_counted_until_the_end_of_the_response() {
    const LEN: usize = 400_000;
    on_every_backend(|backend| {
        let (bodies, body_of) = shared_channel();
        let mut limits = Limits::default();
        // Of two, even if a buffer that grows doubles.
        limits.max_body_memory = 1_000_000;
        let server = builder(backend)
            .limits(limits)
            .route("/", move |_: Request| {
                let (sender, body) = Body::channel();
                bodies().send(sender).unwrap();
                async move { Response::new(body) }
            })
            .start()
            .unwrap();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LEN}\r\n\r\n");
        let mut open = Vec::new();
        for n in 0..4 {
            let mut client = connect(&server);
            client.send(head.as_bytes());
            client.send_rejected(&[b'x'; LEN]);
            assert_eq!(client.response(false).status, 200, "{backend}: {n} have their responses");
            open.push((client, body_of.recv_timeout(LONG).unwrap()));
        }
    });
}

#[test]
fn body_whose_bytes_were_complete_waited_for_its_end() {
    on_every_backend(|backend| {
        let server = builder(backend)
            .route("/", |request: Request| {
                let len: usize = request.uri().query().unwrap().parse().unwrap();
                let mut piece = Bytes::from_static(&b"piece"[..len]);
                Response::new(Body::poll_fn(Some(len as u64), move |_| match piece.is_empty() {
                    true => Poll::Pending,
                    false => Poll::Ready(Some(Ok(std::mem::take(&mut piece)))),
                }))
            })
            .start()
            .unwrap();
        let mut client = connect(&server);
        for (target, body) in [("/?5", "piece"), ("/?0", ""), ("/?2", "pi")] {
            assert_eq!(client.get(target).body, body.as_bytes(), "{backend}: {target}");
        }
    });
}
