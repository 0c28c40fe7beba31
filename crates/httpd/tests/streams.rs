//! Responses that are sent in pieces, to requests with bodies that no handler waits for.

use crate::serving;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evring_httpd::body::{Body, BodySender, BodySink};
use evring_httpd::handlers::{Answer, Handler};
use evring_httpd::http::HeaderMap;
use evring_httpd::http::request::Parts;
use evring_httpd::options::Limits;
use evring_httpd::{Builder, Request, Response, Server};
use serving::{connect, on_every_backend, on_every_backend_at_once};

/// Longer than any wait on the slowest machine.
const LONG: Duration = Duration::from_secs(20);

/// Returns a builder of a server whose handler collects the request's body, and what sends its responses.
fn streaming(backend: &str) -> (Builder, Receiver<BodySender>) {
    let (senders, bodies) = channel();
    let senders = Mutex::new(senders);
    let builder = Server::builder().listen("127.0.0.1:0").backend(backend);
    let builder = builder.route("/stream", move |_: Request| {
        let (sender, body) = Body::channel();
        senders.lock().unwrap().send(sender).unwrap();
        Response::new(body)
    });
    (builder, bodies)
}

const POST: &[u8] = b"POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";

#[test]
fn request_after_a_body_that_a_stream_answered_was_lost() {
    on_every_backend(|backend| {
        let (builder, bodies) = streaming(backend);
        let server = builder.route("/now", |_: Request| "now").start().unwrap();
        let mut client = connect(&server);
        client.send(&[POST, b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n"].concat());
        let mut sender = bodies.recv_timeout(LONG).unwrap();
        client.response(false);
        sender.try_send("piece").unwrap();
        assert_eq!(client.chunk(), b"piece", "{backend}");
        sender.finish();
        assert_eq!(client.chunk(), b"", "{backend}");
        assert_eq!(client.response(true).body, b"now", "{backend}");
    });
}

#[test]
fn stream_that_answered_a_body_was_reset_at_the_time_limit_of_a_head() {
    let mut limits = Limits::default();
    limits.header_timeout = Duration::from_secs(2);
    on_every_backend_at_once(|backend| {
        let (builder, bodies) = streaming(backend);
        let server = builder.limits(limits.clone()).start().unwrap();
        let mut client = connect(&server);
        client.send(POST);
        let mut sender = bodies.recv_timeout(LONG).unwrap();
        client.response(false);
        // Others end at the limit meanwhile.
        for _ in 0..2 {
            connect(&server).expect_end();
        }
        sender.try_send("piece").expect(backend);
        assert_eq!(client.chunk(), b"piece", "{backend}");
    });
}

#[test]
fn cancelled_stream_to_a_client_of_http_1_0_ended_as_if_it_were_complete() {
    on_every_backend(|backend| {
        let (builder, bodies) = streaming(backend);
        let server = builder.start().unwrap();
        // The client of HTTP/1.1 misses the last chunk.
        for version in ["1.0", "1.1"] {
            let mut client = connect(&server);
            client.send(format!("GET /stream HTTP/{version}\r\nHost: a\r\n\r\n").as_bytes());
            let mut sender = bodies.recv_timeout(LONG).unwrap();
            client.response(false);
            sender.try_send("piece").unwrap();
            if version == "1.0" {
                assert_eq!(client.bytes(5), b"piece", "{backend}");
                client.end();
                client.expect_reset();
            } else {
                assert_eq!(client.chunk(), b"piece", "{backend}");
                client.end();
                client.expect_end();
            }
            assert!(sender.is_closed());
        }
    });
}

/// Answers the first bytes of a body by a stream.
struct Early(Mutex<Sender<BodySender>>);

impl Handler for Early {
    fn handle(self: Arc<Self>, _: Parts) -> Answer {
        Answer::Receive(Box::new(EarlySink(self.0.lock().unwrap().clone())))
    }
}

struct EarlySink(Sender<BodySender>);

impl BodySink for EarlySink {
    fn data(&mut self, _: &[u8]) -> Option<Response> {
        let (sender, body) = Body::channel();
        self.0.send(sender).unwrap();
        Some(Response::new(body))
    }

    fn end(self: Box<Self>, _: HeaderMap) -> Response {
        unreachable!("the body was answered")
    }
}

#[test]
fn stream_that_answers_the_beginning_of_a_body_is_complete() {
    on_every_backend(|backend| {
        let (senders, bodies) = channel();
        let builder = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = builder.route("/early", Early(Mutex::new(senders))).start().unwrap();
        let mut client = connect(&server);
        client.send(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        client.send(&[b'x'; 1_000]);
        let mut sender = bodies.recv_timeout(LONG).unwrap();
        assert_eq!(client.response(false).field("Connection"), Some("close"));
        client.send(&[b'x'; 99_000]);
        for piece in ["one", "two"] {
            sender.try_send(piece).unwrap();
            assert_eq!(client.chunk(), piece.as_bytes(), "{backend}");
        }
        sender.finish();
        assert_eq!(client.chunk(), b"", "{backend}");
        client.expect_end();
    });
}
