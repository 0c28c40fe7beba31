//! Connections that switch to another protocol, on every mechanism.

use crate::serving;

use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use evring_httpd::body::Body;
use evring_httpd::handlers::{Responder, Upgraded, upgrade};
use evring_httpd::options::Limits;
use evring_httpd::{Request, Response, Server, http};
use serving::{Client, on_every_backend, on_every_backend_at_once};

const HEAD: &str =
    "HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\n";

async fn echo(mut connection: Upgraded) {
    while let Some(bytes) = connection.read().await {
        if connection.write(bytes).await.is_err() {
            return;
        }
    }
}

fn start(backend: &str, limits: Limits) -> Server {
    let server = Server::builder().listen("127.0.0.1:0").backend(backend).limits(limits);
    server
        .route("/now", |_: Request| -> Response { upgrade("echo", echo) })
        .route("/waits", async |_: Request| -> Response { upgrade("echo", echo) })
        .route("/panics", |_: Request| -> Response {
            upgrade("echo", |_| async { panic!("a test") })
        })
        .start()
        .unwrap()
}

fn tcp(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.addresses()[0]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Switches a connection, and sends bytes with the request. Returns the head of the response.
fn switch(stream: &mut TcpStream, target: &str, bytes: &[u8]) -> String {
    let request = format!("GET {target} {HEAD}");
    stream.write_all(&[request.as_bytes(), bytes].concat()).unwrap();
    head(stream)
}

/// Receives the head of a response.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn bytes_pass_in_both_directions_until_the_client_ends() {
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
    on_every_backend(|backend| {
        let mut limits = Limits::default();
        // More than what waits for the handler at most, and far less than what is sent.
        limits.max_body_memory = 400_000;
        let server = start(backend, limits);
        for target in ["/now", "/waits"] {
            let mut stream = tcp(&server);
            let head = switch(&mut stream, target, b"first");
            assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
            assert!(head.contains("\r\nConnection: Upgrade\r\n"), "{head}");
            assert!(head.contains("\r\nupgrade: echo\r\n"), "{head}");
            let mut first = [0; 5];
            stream.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"first");
            let mut received = Vec::new();
            thread::scope(|scope| {
                let mut sending = stream.try_clone().unwrap();
                let long = &long;
                scope.spawn(move || {
                    sending.write_all(long).unwrap();
                    sending.shutdown(Shutdown::Write).unwrap();
                });
                stream.read_to_end(&mut received).unwrap();
            });
            assert!(received == long, "{} bytes came back", received.len());
        }
    });
}

#[test]
fn bytes_and_the_end_that_came_while_the_handler_waited_did_not_reach_the_protocol() {
    // Few bytes; so many that the server stops receiving; and the end of what the client sends.
    let cases = [(5, false), (5, true), (0, true), (20_000, false), (20_000, true)];
    on_every_backend(|backend| {
        let (held, handler) = channel::<Responder>();
        let mut limits = Limits::default();
        limits.half_close = true;
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).limits(limits);
        let server = server
            .route("/held", move |_: Request, responder: Responder| held.send(responder).unwrap())
            .start()
            .unwrap();
        for (len, ends) in cases {
            let mut stream = tcp(&server);
            let bytes = vec![b'x'; len];
            stream.write_all(&[format!("GET /held {HEAD}").as_bytes(), &bytes].concat()).unwrap();
            let responder = handler.recv().unwrap();
            if ends {
                stream.shutdown(Shutdown::Write).unwrap();
            }
            // The worker has received all that, too, when it answers another client.
            assert_eq!(serving::connect(&server).get("/none").status, 404);
            let response: Response = upgrade("echo", echo);
            responder.respond(response);
            assert!(head(&mut stream).starts_with("HTTP/1.1 101 "), "{backend}");
            let mut echoed = vec![0; len];
            stream.read_exact(&mut echoed).unwrap();
            if !ends {
                stream.write_all(b"more").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            }
            stream.read_to_end(&mut echoed).unwrap();
            let expected = if ends { bytes } else { [&bytes[..], b"more"].concat() };
            assert!(echoed == expected, "{backend}: {len} bytes, {} came back", echoed.len());
        }
    });
}

#[test]
fn connection_that_switched_while_it_received_lost_the_bytes_behind_the_request() {
    on_every_backend(|backend| {
        // It answers when it is polled again, which happens as more has arrived than the server keeps.
        let second_poll = async |_: Request| -> Response {
            let mut polls = 0;
            poll_fn(|_| {
                polls += 1;
                if polls > 1 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            upgrade("echo", echo)
        };
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = server.route("/", second_poll).start().unwrap();
        for (len, ends) in [(20_000, false), (5, true)] {
            let mut stream = tcp(&server);
            let bytes = vec![b'x'; len];
            stream.write_all(&[format!("GET / {HEAD}").as_bytes(), &bytes].concat()).unwrap();
            if ends {
                stream.shutdown(Shutdown::Write).unwrap();
            }
            assert!(head(&mut stream).starts_with("HTTP/1.1 101 "), "{backend}");
            let mut echoed = vec![0; len];
            stream.read_exact(&mut echoed).unwrap();
            assert!(echoed == bytes, "{backend}");
            if ends {
                assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{backend}");
            }
        }
    });
}

#[test]
fn requests_that_do_not_ask_for_an_upgrade_get_426() {
    on_every_backend(|backend| {
        let server = start(backend, Limits::default());
        let mut client = Client::new(tcp(&server));
        for target in ["/now", "/waits"] {
            let response = client.get(target);
            assert_eq!((response.status, response.field("Upgrade")), (426, Some("echo")));
            let body = "Content-Length: 4\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nbody";
            client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\n{body}").as_bytes());
            assert_eq!(client.response(true).status, 426);
        }
        // Proxies may send the option for every request.
        client.send(b"GET /now HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\r\n");
        let response = client.response(true);
        assert_eq!((response.status, response.field("Connection")), (426, Some("Upgrade")));
        client.send(b"GET /now HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
        assert_eq!(client.response(true).status, 426);
    });
}

#[test]
fn protocol_that_a_handler_offers_was_not_an_option_of_the_connection() {
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let offer = |_: Request| {
            let response = http::Response::builder().status(426).header("Upgrade", "echo");
            response.body(Body::from("echo only\n")).unwrap()
        };
        let server = server.route("/", offer).start().unwrap();
        let response = Client::new(tcp(&server)).get("/");
        assert_eq!(response.field("upgrade"), Some("echo"), "{backend}");
        assert_eq!(response.field("Connection"), Some("Upgrade"), "{backend}");
    });
}

#[test]
fn idle_connection_outlasts_the_limits_of_requests() {
    on_every_backend_at_once(|backend| {
        let limit = Duration::from_secs(2);
        let mut limits = Limits::default();
        limits.header_timeout = limit;
        limits.keep_alive_timeout = limit;
        limits.progress_interval = limit;
        limits.handler_timeout = limit;
        let server = start(backend, limits);
        let mut stream = tcp(&server);
        switch(&mut stream, "/now", b"");
        // Others end at their limits meanwhile.
        for _ in 0..2 {
            tcp(&server).read_to_end(&mut Vec::new()).unwrap();
        }
        stream.write_all(b"still").unwrap();
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"still");
    });
}

/// Sends the count of pieces when the handler's future is dropped.
struct Report(Arc<AtomicUsize>, Sender<usize>);

impl Drop for Report {
    fn drop(&mut self) {
        self.1.send(self.0.load(Ordering::Relaxed)).unwrap();
    }
}

#[test]
fn handler_waits_for_a_client_that_does_not_read_which_is_reset() {
    const PIECE: &[u8] = &[b'x'; 16 * 1024];
    on_every_backend(|backend| {
        let (sender, ended) = channel();
        let sender = Mutex::new(sender);
        let endless = move |_: Request| -> Response {
            let sent = Arc::new(AtomicUsize::new(0));
            let report = Report(Arc::clone(&sent), sender.lock().unwrap().clone());
            upgrade("endless", |mut connection| async move {
                let _report = report;
                while connection.write(PIECE).await.is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let mut limits = Limits::default();
        limits.progress_interval = Duration::from_millis(100);
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).limits(limits);
        let server = server.route("/", endless).start().unwrap();
        let mut stream = tcp(&server);
        switch(&mut stream, "/", b"");
        // The number of bytes that fit into the buffers of the kernel and the server.
        let bytes = ended.recv_timeout(Duration::from_secs(20)).unwrap() * PIECE.len();
        assert!((1 << 16..32 << 20).contains(&bytes), "{bytes}");
        // Wake-ups of the handler by its own pipe queued pieces beyond a full send queue, up to its maximum.
        server.handle().stop();
        let overruns: u64 = server.wait().unwrap().iter().map(|stats| stats.overruns).sum();
        assert_eq!(overruns, 0, "{backend}");
    });
}

#[test]
fn connection_received_nothing_after_a_first_piece_that_filled_the_send_queue() {
    const FIRST: &[u8] = &[b'x'; 100_000];
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = server.route("/", |_: Request| -> Response {
            upgrade("first", |mut connection| async move {
                if connection.write(FIRST).await.is_ok() {
                    echo(connection).await;
                }
            })
        });
        let server = server.start().unwrap();
        let mut stream = tcp(&server);
        switch(&mut stream, "/", b"");
        stream.read_exact(&mut vec![0; FIRST.len()]).unwrap();
        stream.write_all(b"then").unwrap();
        let mut then = [0; 4];
        stream.read_exact(&mut then).unwrap();
        assert_eq!(&then, b"then", "{backend}");
    });
}

#[test]
fn stop_ends_the_input_of_a_protocol_which_says_goodbye() {
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = server.route("/", |_: Request| -> Response {
            upgrade("goodbye", |mut connection| async move {
                while connection.read().await.is_some() {}
                let _ = connection.write(&b"goodbye"[..]).await;
            })
        });
        let server = server.start().unwrap();
        let mut stream = tcp(&server);
        switch(&mut stream, "/", b"x");
        server.handle().stop();
        let mut last = Vec::new();
        stream.read_to_end(&mut last).unwrap();
        assert_eq!(last, b"goodbye", "{backend}");
    });
}

#[test]
fn panic_of_a_protocol_resets_its_connection_only() {
    on_every_backend(|backend| {
        let server = start(backend, Limits::default());
        let mut stream = tcp(&server);
        stream.write_all(format!("GET /panics {HEAD}").as_bytes()).unwrap();
        let mut received = Vec::new();
        // The reset discards what was not received before.
        let end = stream.read_to_end(&mut received).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{backend}");
        let mut stream = tcp(&server);
        switch(&mut stream, "/waits", b"x");
        stream.read_exact(&mut [0]).unwrap();
    });
}

#[test]
fn request_got_101_while_the_server_stopped() {
    on_every_backend(|backend| {
        let (held, handler) = channel::<Responder>();
        let server = Server::builder()
            .listen("127.0.0.1:0")
            .backend(backend)
            .route("/held", move |_: Request, responder: Responder| held.send(responder).unwrap())
            .start()
            .unwrap();
        let mut idle = Client::new(tcp(&server));
        assert_eq!(idle.get("/").status, 404);
        let mut stream = tcp(&server);
        stream.write_all(format!("GET /held {HEAD}").as_bytes()).unwrap();
        let responder = handler.recv().unwrap();
        server.handle().stop();
        // The worker has seen the stop.
        idle.expect_end();
        let response: Response = upgrade("echo", echo);
        responder.respond(response);
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 503 "), "{backend}: {text}");
        assert!(text.contains("\r\nConnection: close\r\n"), "{backend}: {text}");
        server.wait().unwrap();
    });
}
