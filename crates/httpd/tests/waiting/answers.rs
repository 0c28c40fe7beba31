//! When and how handlers answer.

use std::future::{pending, poll_fn};
use std::sync::mpsc::{Sender, channel};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use evring_httpd::body::Body;
use evring_httpd::handlers::{ClientAddr, Pool, Responder};
use evring_httpd::options::Limits;
use evring_httpd::{Request, Response};

use crate::serving::{Client, connect, on_every_backend};
use crate::waiting::{LONG, OnDrop, builder, left_to_the_test, shared_channel};

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
        let (handler, requests) = left_to_the_test();
        let (gates, gate) = shared_channel::<Sender<()>>();
        let block = move |_: Request| {
            let (sender, receiver) = channel();
            gates().send(sender).unwrap();
            receiver.recv().unwrap();
            "unblocked"
        };
        let server = builder(backend).route("/", handler).route("/block", block).start().unwrap();
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(&server)).collect();
        for client in &mut clients {
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        let responders: Vec<_> =
            (0..CLIENTS).map(|_| requests.recv_timeout(LONG).unwrap().1).collect();
        // The worker takes no wake-up before the last one.
        let mut blocking = connect(&server);
        blocking.send(b"GET /block HTTP/1.1\r\nHost: a\r\n\r\n");
        let blocked = gate.recv_timeout(LONG).unwrap();
        for responder in responders {
            assert!(responder.respond("woken"));
        }
        blocked.send(()).unwrap();
        assert_eq!(blocking.response(true).body, b"unblocked", "{backend}");
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
fn calls_of_clients_that_had_left_kept_their_places_in_a_pool() {
    on_every_backend(|backend| {
        let (calls, call) = shared_channel();
        let (dropped, is_dropped) = shared_channel();
        let pool = Pool::new(1, 1).unwrap();
        let of_test = pool.clone();
        let server = builder(backend)
            .route("/", move |_: Request| {
                let (pool, calls, guard) = (pool.clone(), calls(), OnDrop(dropped()));
                async move {
                    let result = pool.run(|| "called");
                    calls.send(()).unwrap();
                    let result = result.await;
                    drop(guard);
                    result
                }
            })
            .start()
            .unwrap();
        // The only thread is busy.
        let (end, has_ended) = channel::<()>();
        let (begin, has_begun) = channel();
        let held = of_test.run(move || {
            begin.send(()).unwrap();
            let _ = has_ended.recv();
        });
        has_begun.recv_timeout(LONG).unwrap();
        for _ in 0..3 {
            let mut client = connect(&server);
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            call.recv_timeout(LONG).unwrap();
            assert!(!client.has_more(), "{backend}: no place");
            drop(client);
            is_dropped.recv_timeout(LONG).expect("the future is dropped");
        }
        let mut client = connect(&server);
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        call.recv_timeout(LONG).unwrap();
        drop(end);
        let response = client.response(true);
        assert_eq!((response.status, &response.body[..]), (200, &b"called"[..]), "{backend}");
        drop(held);
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
#[cfg(feature = "tokio")]
fn handlers_and_bodies_that_used_timers_of_tokio_worked_with_one_mechanism_only() {
    use evring_httpd::bytes::Bytes;

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
