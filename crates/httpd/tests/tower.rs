//! Services of tower that are no routers: on every mechanism, and with one defined response whatever they do.

use crate::serving;

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs;
use std::future::{Ready, poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::tower::limit::ConcurrencyLimitLayer;
use ::tower::util::{BoxCloneService, service_fn};
use ::tower::{Layer, Service};
use evring_httpd::body::{BodyError, RequestBody};
use evring_httpd::bytes::Bytes;
use evring_httpd::http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRAILER};
use evring_httpd::http::{Method, Response, StatusCode};
use evring_httpd::options::Limits;
use evring_httpd::{Builder, Request, Server};
use http_body::{Body, Frame, SizeHint};
use serving::{Client, connect, on_every_backend};
use tempfile::NamedTempFile;
use tokio::sync::oneshot;

/// Longer than any wait on the slowest machine.
const LONG: Duration = Duration::from_secs(20);

type Incoming = Request<RequestBody>;

fn builder(backend: &str) -> Builder {
    Server::builder().listen("127.0.0.1:0").backend(backend)
}

/// A body of frames that exist.
#[derive(Default)]
struct Frames {
    frames: VecDeque<Frame<Bytes>>,
    len: Option<u64>,
}

impl From<&'static str> for Frames {
    fn from(text: &'static str) -> Self {
        let frames = [Frame::data(Bytes::from_static(text.as_bytes()))].into();
        Frames { frames, len: Some(text.len() as u64) }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.frames.pop_front().map(Ok))
    }

    fn size_hint(&self) -> SizeHint {
        self.len.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Receives the frames of a body.
async fn frames(body: RequestBody) -> Result<VecDeque<Frame<Bytes>>, BodyError> {
    let (mut body, mut frames) = (pin!(body), VecDeque::new());
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        frames.push_back(frame?);
    }
    Ok(frames)
}

/// The behaviour of a [`Stepwise`] service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// It is ready once the test has woken it.
    ReadyLater,
    NeverReady,
    FailsToBeReady(&'static str),
    Fails(&'static str),
}

/// A service that has to be ready before each call, by itself: its clones are not.
struct Stepwise {
    behaviour: Behaviour,
    wakers: Sender<Waker>,
    polls: u32,
}

impl Clone for Stepwise {
    fn clone(&self) -> Self {
        Stepwise { behaviour: self.behaviour, wakers: self.wakers.clone(), polls: 0 }
    }
}

impl Service<Incoming> for Stepwise {
    type Response = Response<Frames>;
    type Error = &'static str;
    type Future = Ready<Result<Response<Frames>, &'static str>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        self.polls += 1;
        match self.behaviour {
            Behaviour::NeverReady => Poll::Pending,
            Behaviour::FailsToBeReady(reason) => Poll::Ready(Err(reason)),
            Behaviour::ReadyLater if self.polls == 1 => {
                self.wakers.send(context.waker().clone()).unwrap();
                Poll::Pending
            }
            Behaviour::ReadyLater | Behaviour::Fails(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, _: Incoming) -> Self::Future {
        assert!(self.polls > 0, "called before it was ready");
        ready(match self.behaviour {
            Behaviour::Fails(reason) => Err(reason),
            _ => Ok(Response::new("served".into())),
        })
    }
}

fn stepwise(behaviour: Behaviour) -> (Stepwise, Receiver<Waker>) {
    let (wakers, woken) = channel();
    (Stepwise { behaviour, wakers, polls: 0 }, woken)
}

#[test]
fn service_is_called_when_it_is_ready() {
    on_every_backend(|backend| {
        let (service, wakers) = stepwise(Behaviour::ReadyLater);
        let server = builder(backend).route("/", service).start().unwrap();
        let mut client = connect(&server);
        for _ in 0..3 {
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let waker = wakers.recv_timeout(LONG).unwrap();
            assert!(!client.has_more(), "{backend}: answered before it was ready");
            waker.wake();
            assert_eq!(client.response(true).body, b"served", "{backend}");
        }
    });
}

#[test]
fn service_that_fails_gets_500_and_one_that_is_never_ready_503() {
    let log = NamedTempFile::new().unwrap();
    let logged = || fs::read_to_string(log.path()).unwrap();
    let subscriber = tracing_subscriber::fmt().with_writer(Arc::new(log.reopen().unwrap()));
    tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    on_every_backend(|backend| {
        for (behaviour, status) in [
            (Behaviour::Fails("failed"), 500),
            (Behaviour::FailsToBeReady("not ready"), 500),
            (Behaviour::NeverReady, 503),
        ] {
            let mut limits = Limits::default();
            if status == 503 {
                limits.handler_timeout = Duration::from_millis(50);
            }
            let (service, _wakers) = stepwise(behaviour);
            let server = builder(backend).limits(limits).route("/", service).start().unwrap();
            let before = logged().len();
            let mut client = connect(&server);
            let response = client.get("/");
            let fields = (response.status, response.field("Connection"));
            assert_eq!(fields, (status, Some("close")), "{backend}, {behaviour:?}");
            client.expect_end();
            if let Behaviour::Fails(reason) | Behaviour::FailsToBeReady(reason) = behaviour {
                let line = format!("a service failed: {reason}");
                assert!(logged()[before..].contains(&line), "{backend}: {}", logged());
            }
        }
    });
}

#[test]
fn service_had_to_be_sync() {
    on_every_backend(|backend| {
        let calls = Cell::new(0);
        let boxed = BoxCloneService::new(service_fn(move |request: Incoming| {
            calls.set(calls.get() + 1);
            let is_first = calls.get() == 1;
            async move {
                let status = if is_first { StatusCode::OK } else { StatusCode::CONFLICT };
                let body = Frames { frames: frames(request.into_body()).await?, len: None };
                let mut response = Response::new(body);
                *response.status_mut() = status;
                Ok::<_, BodyError>(response)
            }
        }));
        let server = builder(backend).workers(2).route("/", boxed).start().unwrap();
        let mut clients: Vec<_> = (0..8).map(|_| connect(&server)).collect();
        for _ in 0..2 {
            for client in &mut clients {
                client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
            }
            for client in &mut clients {
                let (status, body) = chunked(client);
                // Each request has a clone of the first.
                assert_eq!((status, body.as_slice()), (200, &b"body"[..]), "{backend}");
            }
        }
    });
}

/// Receives a response that is chunked, without trailer fields.
fn chunked(client: &mut Client) -> (u16, Vec<u8>) {
    let status = client.response(false).status;
    let mut body = Vec::new();
    loop {
        match client.chunk() {
            chunk if chunk.is_empty() => return (status, body),
            chunk => body.extend(chunk),
        }
    }
}

#[test]
fn layer_limits_the_calls_in_progress() {
    on_every_backend(|backend| {
        let (calls, called) = channel();
        let service = service_fn(move |_: Incoming| {
            let (answer, answered) = oneshot::channel::<&'static str>();
            calls.send(answer).unwrap();
            async { answered.await.map(|text| Response::new(Frames::from(text))) }
        });
        let limited = ConcurrencyLimitLayer::new(2).layer(service);
        let server = builder(backend).route("/", limited).route("/now", || "now").start().unwrap();
        let mut clients: Vec<_> = (0..5).map(|_| connect(&server)).collect();
        for client in &mut clients {
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        let mut running = VecDeque::new();
        for left in (1..=5).rev() {
            while running.len() < left.min(2) {
                running.push_back(called.recv_timeout(LONG).unwrap());
            }
            // The worker has seen what was sent before.
            assert_eq!(connect(&server).get("/now").body, b"now");
            assert!(called.try_recv().is_err(), "{backend}: more than 2 calls at once");
            running.pop_front().unwrap().send("held").unwrap();
        }
        for client in &mut clients {
            assert_eq!(client.response(true).body, b"held", "{backend}");
        }
    });
}

/// A response of `len` bytes in two frames with trailer fields, some of which are not permitted there.
fn with_trailers(len: Option<u64>, is_declared: bool) -> Response<Frames> {
    let mut trailers = HeaderMap::new();
    for (name, value) in [
        ("x-sum", "1a"),
        ("content-length", "99"),
        ("x-sum", "2b"),
        ("set-cookie", "a=b"),
        ("proxy-authenticate", "Basic"),
        ("warning", "199 - \"a\""),
    ] {
        trailers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let data = |text: &'static str| Frame::data(Bytes::from_static(text.as_bytes()));
    let frames = [data("ab"), data("cde"), Frame::trailers(trailers)].into();
    let mut response = Response::new(Frames { frames, len });
    if is_declared {
        response.headers_mut().insert(TRAILER, HeaderValue::from_static("x-sum"));
    }
    response
}

#[test]
fn trailers_of_a_response_were_dropped() {
    const SENT: &str = "2\r\nab\r\n3\r\ncde\r\n0\r\nx-sum: 1a\r\nx-sum: 2b\r\n\r\n";
    const DROPPED: &str = "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n";
    on_every_backend(|backend| {
        let service = service_fn(async |request: Incoming| {
            Ok::<_, Infallible>(match request.uri().path() {
                "/chunked" => with_trailers(None, false),
                "/sized" => with_trailers(Some(5), false),
                _ => with_trailers(Some(5), true),
            })
        });
        let server = builder(backend).route("/", service).start().unwrap();
        let mut client = connect(&server);
        for (path, fields, expected) in [
            ("/chunked", "TE: trailers\r\n", SENT),
            ("/chunked", "TE: gzip;q=0.5, Trailers\r\nConnection: TE\r\n", SENT),
            ("/chunked", "TE: deflate\r\nTE: trailers\r\n", SENT),
            ("/chunked", "", DROPPED),
            ("/chunked", "TE: gzip, xtrailers\r\n", DROPPED),
            ("/declared", "TE: trailers\r\n", SENT),
            ("/declared", "", "abcde"),
            ("/sized", "TE: trailers\r\n", "abcde"),
        ] {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
            let head = client.response(false);
            let is_chunked = head.field("Transfer-Encoding") == Some("chunked");
            assert_eq!(is_chunked, expected != "abcde", "{backend}: {path} {fields}");
            assert_eq!(head.field("Content-Length").is_some(), !is_chunked, "{backend}");
            let body = client.bytes(expected.len());
            assert_eq!(String::from_utf8(body).unwrap(), expected, "{backend}: {path} {fields}");
        }
        // Without chunks there are no trailers.
        client.send(b"HEAD /chunked HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n");
        assert_eq!(client.response(false).status, 200);
        client.send(b"GET /declared HTTP/1.0\r\nTE: trailers\r\n\r\n");
        assert_eq!(client.response(true).body, b"abcde", "{backend}");
        client.expect_end();
    });
}

/// As a router removes the body for HEAD.
#[test]
fn head_of_a_service_whose_length_is_unknown_had_length_0() {
    on_every_backend(|backend| {
        let service = service_fn(async |request: Incoming| {
            let body = if request.method() == Method::HEAD { "" } else { "abcde" };
            Ok::<_, Infallible>(Response::new(body.to_owned()))
        });
        let server = builder(backend).route("/", service).start().unwrap();
        let mut client = connect(&server);
        client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = client.response(false);
        assert_eq!((head.status, head.field("Content-Length")), (200, None), "{backend}");
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let full = client.response(true);
        assert_eq!((full.field("Content-Length"), &full.body[..]), (Some("5"), &b"abcde"[..]));
    });
}

#[test]
fn service_receives_the_trailers_of_a_request() {
    on_every_backend(|backend| {
        let service = service_fn(async |request: Incoming| {
            let frames = frames(request.into_body()).await?;
            Ok::<_, BodyError>(Response::new(Frames { frames, len: None }))
        });
        let server = builder(backend).route("/", service).start().unwrap();
        let mut client = connect(&server);
        client.send(
            b"POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n\
              3\r\nabc\r\n0\r\nX-Sum: 1a\r\n\r\n",
        );
        client.response(false);
        let expected = b"3\r\nabc\r\n0\r\nx-sum: 1a\r\n\r\n";
        assert_eq!(client.bytes(expected.len()), expected, "{backend}");
    });
}

#[test]
fn length_that_a_response_declares_was_dropped() {
    on_every_backend(|backend| {
        let service = service_fn(async |request: Incoming| {
            let declared = &request.uri().path()[1..];
            let data = |text: &'static str| Frame::data(Bytes::from_static(text.as_bytes()));
            let mut response =
                Response::new(Frames { frames: [data("ab"), data("cde")].into(), len: None });
            let length = HeaderValue::from_str(declared).unwrap();
            response.headers_mut().insert(CONTENT_LENGTH, length);
            Ok::<_, Infallible>(response)
        });
        let server = builder(backend).route("/", service).start().unwrap();
        let mut client = connect(&server);
        for line in ["GET /5", "HEAD /5", "GET /5"] {
            let response = client.request(line, "");
            let framing = (response.field("Content-Length"), response.field("Transfer-Encoding"));
            assert_eq!(framing, (Some("5"), None), "{backend}: {line}");
            let expected = if line == "HEAD /5" { "" } else { "abcde" };
            assert_eq!(response.body, expected.as_bytes(), "{backend}: {line}");
        }
        for path in ["/4", "/6"] {
            let mut client = connect(&server);
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            client.expect_reset();
        }
        // It is no length, so the body is chunked.
        client.send(b"GET /+5 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(chunked(&mut client), (200, b"abcde".to_vec()), "{backend}");
    });
}

#[test]
fn body_of_a_request_with_a_length_had_no_size_hint() {
    on_every_backend(|backend| {
        let service = service_fn(async |request: Incoming| {
            let mut body = pin!(request.into_body());
            let mut hints = vec![body.size_hint().exact()];
            while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
                frame?;
                hints.push(body.size_hint().exact());
            }
            hints.dedup();
            let text = Frame::data(Bytes::from(format!("{hints:?}")));
            Ok::<_, BodyError>(Response::new(Frames { frames: [text].into(), len: None }))
        });
        let server = builder(backend).route("/", service).start().unwrap();
        let mut client = connect(&server);
        for (head, body, expected) in [
            ("Content-Length: 4", "body", "[Some(4), Some(0)]"),
            ("Transfer-Encoding: chunked", "4\r\nbody\r\n0\r\n\r\n", "[None]"),
            ("Content-Length: 0", "", "[Some(0)]"),
        ] {
            client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n{body}").as_bytes());
            let (status, hints) = chunked(&mut client);
            let hints = String::from_utf8(hints).unwrap();
            assert_eq!((status, hints.as_str()), (200, expected), "{backend}: {head}");
        }
    });
}
