//! Handlers that wait: on every mechanism, with one defined response whatever they do.

use crate::serving;

use std::future::{pending, poll_fn};
use std::io::{ErrorKind, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use evring_httpd::body::{Body, BodyError, RequestBody};
use evring_httpd::bytes::Bytes;
use evring_httpd::handlers::{ClientAddr, Pool, Responder};
use evring_httpd::http::StatusCode;
use evring_httpd::options::Limits;
use evring_httpd::{Builder, Request, Response, Server};
use serving::{Client, connect, on_every_backend};

/// Longer than any wait on the slowest machine.
const LONG: Duration = Duration::from_secs(20);

fn builder(backend: &str) -> Builder {
    Server::builder().listen("127.0.0.1:0").backend(backend)
}

/// A handler that leaves the requests, with their responders, to the test.
fn left_to_the_test()
-> (impl Fn(Request, Responder) + Send + Sync + 'static, Receiver<(String, Responder)>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let handler = move |request: Request, responder: Responder| {
        let _ = sender.lock().unwrap().send((request.uri().path().to_owned(), responder));
    };
    (handler, receiver)
}

/// Sends when it is dropped.
struct OnDrop(Sender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A sender for handlers, which threads share.
fn shared_channel<T: Send + 'static>() -> (impl Fn() -> Sender<T> + Send + Sync, Receiver<T>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    (move || sender.lock().unwrap().clone(), receiver)
}

#[test]
fn another_thread_answers_in_any_order() {
    on_every_backend(|backend| {
        let (handler, requests) = left_to_the_test();
        let server = builder(backend).route("/", handler).start().unwrap();
        let mut clients: Vec<_> = (0..5).map(|_| connect(&server)).collect();
        let mut responders = Vec::new();
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            responders.push(requests.recv_timeout(LONG).unwrap());
        }
        while let Some((path, responder)) = responders.pop() {
            assert!(!responder.is_cancelled());
            assert!(responder.respond(path));
        }
        for (n, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.response(true).body, format!("/{n}").as_bytes(), "{backend}");
        }
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    on_every_backend(|backend| {
        let (handler, requests) = left_to_the_test();
        let server = builder(backend)
            .route("/later/", handler)
            .route("/now", |_: Request| "now")
            .route("/echo", async |request: Request| request.into_body())
            .start()
            .unwrap();
        let mut client = connect(&server);
        // More than the server keeps of a connection in one piece.
        let long = "x".repeat(8_000);
        let mut sent = String::new();
        for n in 0..20 {
            sent += &format!(
                "GET /later/{n} HTTP/1.1\r\nHost: a\r\n\r\nGET /now HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n\
                 POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\necho"
            );
        }
        client.send(sent.as_bytes());
        for n in 0..20 {
            let (path, responder) = requests.recv_timeout(LONG).unwrap();
            assert!(!client.has_more(), "{backend}: a response came before its turn");
            assert!(responder.respond(path));
            assert_eq!(client.response(true).body, format!("/later/{n}").as_bytes(), "{backend}");
            assert_eq!(client.response(true).body, b"now", "{backend}");
            assert_eq!(client.response(true).body, b"echo", "{backend}");
        }
    });
}

#[test]
fn handler_that_does_not_answer_gets_503() {
    on_every_backend(|backend| {
        let (handler, requests) = left_to_the_test();
        let (dropped, is_dropped) = shared_channel();
        let mut limits = Limits::default();
        limits.handler_timeout = Duration::from_millis(50);
        let server = builder(backend)
            .limits(limits)
            .route("/later", handler)
            .route("/never", move |_: Request| {
                let guard = OnDrop(dropped());
                async move {
                    pending::<()>().await;
                    drop(guard);
                    "never"
                }
            })
            .start()
            .unwrap();
        let mut first = connect(&server);
        let response = first.get("/later");
        assert_eq!((response.status, response.field("Connection")), (503, Some("close")));
        assert_eq!(response.field("Retry-After"), Some("1"));
        first.expect_end();
        let (_, responder) = requests.recv_timeout(LONG).unwrap();
        assert!(responder.is_cancelled());
        assert!(!responder.respond("too late"), "{backend}");
        assert_eq!(connect(&server).get("/never").status, 503, "{backend}");
        is_dropped.recv_timeout(LONG).expect("the future is dropped");
    });
}

#[test]
fn handler_that_panics_or_drops_its_responder_gets_500() {
    on_every_backend(|backend| {
        let (handler, requests) = left_to_the_test();
        let server = builder(backend)
            .route("/later", handler)
            .route("/drop", |_: Request, responder: Responder| drop(responder))
            .route("/panic", |_: Request, _: Responder| panic!("as intended"))
            .route("/first", |_: Request| {
                assert!(backend.is_empty(), "before there is a future, as intended");
                async { "unreachable" }
            })
            .route("/second", async |request: Request| {
                let mut polls = 0;
                poll_fn(|context| {
                    polls += 1;
                    assert!(polls < 2, "in the second poll, as intended");
                    context.waker().wake_by_ref();
                    Poll::<()>::Pending
                })
                .await;
                request.into_body()
            })
            .route("/hello", |_: Request| "hello")
            .start()
            .unwrap();
        for path in ["/drop", "/panic", "/first", "/second"] {
            let mut client = connect(&server);
            let response = client.get(path);
            assert_eq!(response.status, 500, "{backend}: {path}");
            assert_eq!(response.field("Connection"), Some("close"));
            client.expect_end();
        }
        let mut client = connect(&server);
        client.send(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
        let (_, responder) = requests.recv_timeout(LONG).unwrap();
        thread::spawn(move || drop(responder));
        assert_eq!(client.response(true).status, 500, "{backend}");
        assert_eq!(self::connect(&server).get("/hello").body, b"hello", "{backend}");
    });
}

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
    on_every_backend(|backend| {
        let (dropped, is_dropped) = shared_channel();
        let mut limits = Limits::default();
        limits.max_body_memory = 100_000;
        limits.progress_interval = Duration::from_millis(300);
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
fn request_has_the_address_of_its_client() {
    on_every_backend(|backend| {
        let server = builder(backend)
            .route("/", async |request: Request| {
                request.extensions().get::<ClientAddr>().unwrap().0.to_string()
            })
            .start()
            .unwrap();
        let mut client = connect(&server);
        let address = client.stream.local_addr().unwrap().to_string();
        for _ in 0..2 {
            assert_eq!(client.get("/").body, address.as_bytes(), "{backend}");
        }
    });
}

#[test]
fn stop_waits_for_handlers() {
    on_every_backend(|backend| {
        let (handler, requests) = left_to_the_test();
        let server = builder(backend).route("/", handler).start().unwrap();
        let mut client = connect(&server);
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (_, responder) = requests.recv_timeout(LONG).unwrap();
        server.handle().stop();
        assert!(responder.respond("last"));
        let response = client.response(true);
        assert_eq!((response.status, &response.body[..]), (200, &b"last"[..]), "{backend}");
        client.expect_end();
        server.wait().unwrap();
    });
}

/// More wake-ups than a worker's queue holds reach all connections.
#[test]
fn all_connections_are_woken_at_once() {
    const CLIENTS: usize = 1_500;
    on_every_backend(|backend| {
        // select(2) has no higher descriptors.
        let count = if backend == "select" { 400 } else { CLIENTS };
        let (handler, requests) = left_to_the_test();
        let server = builder(backend).route("/", handler).start().unwrap();
        let mut clients: Vec<_> = (0..count).map(|_| connect(&server)).collect();
        for client in &mut clients {
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        let responders: Vec<_> =
            (0..count).map(|_| requests.recv_timeout(LONG).unwrap().1).collect();
        for responder in responders {
            assert!(responder.respond("woken"));
        }
        for client in &mut clients {
            assert_eq!(client.response(true).body, b"woken", "{backend}");
        }
    });
}

#[test]
fn pool_runs_calls_that_block_and_rejects_too_many() {
    on_every_backend(|backend| {
        let (gates, gate) = shared_channel::<Sender<()>>();
        let pool = Pool::new(1, 1).unwrap();
        let server = builder(backend)
            .route("/echo", pool.handler(|request: Request| request.into_body()))
            .route("/panic", pool.handler(|_: Request| -> String { panic!("as intended") }))
            .route(
                "/block",
                pool.handler(move |_: Request| {
                    let (sender, receiver) = channel();
                    gates().send(sender).unwrap();
                    receiver.recv().unwrap();
                    "unblocked"
                }),
            )
            .route("/run", move |request: Request| {
                let pool = pool.clone();
                async move { pool.run(move || request.uri().to_string()).await }
            })
            .start()
            .unwrap();
        let mut first = connect(&server);
        assert_eq!(first.get("/run").body, b"/run", "{backend}");
        assert_eq!(connect(&server).get("/panic").status, 500, "{backend}");
        first.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
        assert_eq!(first.response(true).body, b"ab", "{backend}");
        first.send(b"GET /block HTTP/1.1\r\nHost: a\r\n\r\n");
        let blocked = gate.recv_timeout(LONG).unwrap();
        // The thread is busy: one call waits, the next one is rejected. They may arrive in any order.
        let mut others = [connect(&server), connect(&server)];
        for other in &mut others {
            other.send(b"GET /run HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        let mut statuses = Vec::new();
        let rejected = others.iter().cycle().position(Client::has_more).unwrap() % 2;
        statuses.push(others[rejected].response(true).status);
        blocked.send(()).unwrap();
        assert_eq!(first.response(true).body, b"unblocked", "{backend}");
        statuses.push(others[1 - rejected].response(true).status);
        assert_eq!(statuses, [503, 200], "{backend}");
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
fn head_of_a_handler_without_a_body_had_length_0() {
    on_every_backend(|backend| {
        let handler = |request: Request| {
            let mut response = Response::new(Body::default());
            if let Some(length) = request.uri().query() {
                response.headers_mut().insert("content-length", length.parse().unwrap());
            }
            response
        };
        let server = builder(backend).route("/", handler).start().unwrap();
        let mut client = connect(&server);
        for (query, length) in [("?5", "5"), ("?0", "0"), ("?+5", "0"), ("", "0")] {
            let head = client.request(&format!("HEAD /{query}"), "");
            assert_eq!((head.status, head.field("Content-Length")), (200, Some(length)), "{query}");
        }
        assert_eq!(client.get("/?5").field("Content-Length"), Some("0"), "of its body");
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
#[cfg(feature = "tokio")]
fn handlers_and_bodies_that_used_timers_of_tokio_worked_with_one_mechanism_only() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    let runtime = runtime.unwrap();
    fn wait() -> tokio::time::Sleep {
        tokio::time::sleep(Duration::from_millis(1))
    }
    on_every_backend(|backend| {
        let builder = builder(backend).tokio(runtime.handle().clone());
        let server = builder
            .route("/handler", async |_: Request| {
                wait().await;
                "waited"
            })
            .route("/spawns", |_: Request, responder: Responder| {
                tokio::spawn(async { responder.respond("spawned") });
            })
            .route("/body", |_: Request| {
                // The timer is made when the body is sent.
                let (mut timer, mut left) = (None, 3);
                Response::new(Body::poll_fn(Some(18), move |context| {
                    let sleep = timer.get_or_insert_with(|| Box::pin(wait()));
                    if sleep.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    timer = None;
                    left -= 1;
                    Poll::Ready((left >= 0).then_some(Ok(Bytes::from_static(b"piece "))))
                }))
            })
            .start()
            .unwrap();
        let mut client = connect(&server);
        assert_eq!(client.get("/handler").body, b"waited", "{backend}");
        assert_eq!(client.get("/spawns").body, b"spawned", "{backend}");
        assert_eq!(client.get("/body").body, b"piece piece piece ", "{backend}");
    });
}
