//! Values of handlers whose drop panics.

use crate::stage;

use std::iter;
use std::panic::panic_any;
use std::sync::Arc;

use evring_httpd::body::{Body, BodySender};
use evring_httpd::bytes::Bytes;
use evring_httpd::evring::{AnyMechanism, Close, Config};
use evring_httpd::handlers::{Answer, Handler, upgrade};
use evring_httpd::http::request::Parts;
use evring_httpd::http::{HeaderName, HeaderValue, StatusCode};
use evring_httpd::{Request, Response, Site};
use stage::{Stage, response};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const HEAD: &[u8] = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";

fn stage(handler: impl Handler) -> Stage {
    Stage::with(Site::new(None).route("/", handler), "/nowhere".as_ref())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A value of a handler whose drop panics.
#[derive(Clone)]
struct Fragile;

impl Drop for Fragile {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

/// Memory whose owner panics when it is dropped.
struct FragileMemory(Vec<u8>, Fragile);

impl AsRef<[u8]> for FragileMemory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Returns bytes whose owner panics when it is dropped.
fn fragile(len: usize) -> Bytes {
    Bytes::from_owner(FragileMemory(vec![b'x'; len], Fragile))
}

/// Returns a response with two fields whose memory is fragile.
fn with_fields(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    for name in ["a", "b"] {
        let value = HeaderValue::from_maybe_shared(fragile(10)).unwrap();
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
    response
}

#[test]
fn panic_in_drop_of_a_handlers_value_ended_the_worker() {
    let pieces = |_: Request| {
        let fragile = Fragile;
        let piece = move || {
            let _ = &fragile;
            Ok(Bytes::from("x"))
        };
        Response::new(Body::pieces(iter::repeat_with(piece).take(2)))
    };
    let mut stage = stage(pieces);
    let response = text(&stage.exchange(GET));
    assert!(response.ends_with("0\r\n\r\n"), "{response}");
    // HEAD drops the body at once.
    let response = text(&stage.exchange(HEAD));
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");

    let extended = |_: Request| {
        let mut response = Response::new(Body::from("text"));
        response.extensions_mut().insert(Fragile);
        response
    };
    let mut stage = self::stage(extended);
    let response = text(&stage.exchange(GET));
    assert!(response.ends_with("text"), "{response}");
}

#[test]
fn payloads_of_a_handlers_panics_leaked() {
    let count = Arc::new(());
    let payload = Arc::clone(&count);
    let mut stage = stage(move |_: Request| -> &'static str { panic_any(Arc::clone(&payload)) });
    for _ in 0..3 {
        assert_eq!(response_status(&stage.exchange(GET)), 500);
        stage.connect();
    }
    // The test and the handler have one each.
    assert_eq!(Arc::strong_count(&count), 2);
}

#[test]
fn panic_in_drop_of_a_short_or_long_body_ended_the_worker() {
    for len in [0, 1, 100, 4096, 4097, 300_000] {
        for handler in
            [(|len| Response::new(fragile(len).into())) as fn(usize) -> Response, |len| {
                with_fields(fragile(len))
            }]
        {
            let mut stage = stage(move |_: Request| handler(len));
            for _ in 0..2 {
                let sent = stage.exchange(GET);
                let (response, rest) = response(&sent, true);
                let expected = (200, len, 0);
                assert_eq!((response.status, response.body.len(), rest.len()), expected);
                let sent = stage.exchange(HEAD);
                assert_eq!(response_status(&sent), 200, "{len}");
            }
        }
        let mut plain = stage(move |_: Request| fragile(len));
        assert_eq!(response(&plain.exchange(GET), true).0.body.len(), len);
        assert_eq!(response_status(&plain.exchange(HEAD)), 200);
    }
}

fn response_status(sent: &[u8]) -> u16 {
    response(sent, false).0.status
}

#[test]
fn panic_in_drop_of_a_body_whose_client_left_ended_the_worker() {
    let mut stage = stage(|_: Request| fragile(400_000));
    stage.io.blocked = true;
    let sent = stage.exchange(GET);
    assert!(sent.len() < 400_000, "all was sent");
    stage.connect();
    stage.io.blocked = false;
    assert_eq!(response(&stage.exchange(GET), true).0.body.len(), 400_000);
}

#[test]
fn panic_in_drop_of_a_piece_that_is_too_long_ended_the_worker() {
    let mut stage = stage(|_: Request| {
        Response::new(Body::sized(5, iter::repeat_with(|| Ok(fragile(3))).take(2)))
    });
    let sent = text(&stage.exchange(GET));
    assert!(sent.ends_with("\r\n\r\nxxx"), "{sent}");
    assert_eq!(stage.io.close, Some(Close::Reset));
    let mut stage =
        self::stage(|_: Request| Response::new(Body::pieces(iter::repeat_with(|| Ok(fragile(0))))));
    stage.exchange(GET);
    assert_eq!(stage.io.close, Some(Close::Reset));
}

#[test]
fn panics_in_drops_of_header_fields_ended_the_worker() {
    // A response without further fields, one with so many that their map is not used again, one that is no final
    // response, and one that switches to another protocol although the client has not asked.
    let many = |_: Request| {
        let mut response = with_fields("text");
        for i in 0..200 {
            let name = HeaderName::try_from(format!("x-{i}")).unwrap();
            response.headers_mut().insert(name, HeaderValue::from_static("y"));
        }
        response
    };
    let few = |_: Request| with_fields("text");
    for (mut stage, status) in [(stage(few), 200), (stage(many), 200)] {
        for _ in 0..2 {
            let sent = stage.exchange(GET);
            let (response, _) = response(&sent, true);
            assert_eq!((response.status, text(&response.body)), (status, "text".to_owned()));
        }
    }
    let mut early = stage(|_: Request| {
        let mut response = with_fields(fragile(10));
        *response.status_mut() = StatusCode::CONTINUE;
        response.extensions_mut().insert(Fragile);
        response
    });
    assert_eq!(response(&early.exchange(GET), true).0.status, 500);
    let mut switches = stage(|_: Request| {
        let mut response: Response = upgrade("x", |_| async {});
        response.headers_mut().extend(with_fields("").into_parts().0.headers);
        *response.body_mut() = fragile(10).into();
        response.extensions_mut().insert(Fragile);
        response
    });
    assert_eq!(response(&switches.exchange(GET), true).0.status, 426);
}

#[test]
fn panics_in_drops_of_pieces_in_a_channel_ended_the_process() {
    let handler = |_: Request| {
        let (mut sender, body) = Body::channel();
        for _ in 0..3 {
            sender.try_send(fragile(100)).unwrap();
        }
        BodySender::finish(sender);
        Response::new(body)
    };
    let mechanism = AnyMechanism::new("auto", &Config::default()).unwrap();
    let site = Site::new(None).route("/", handler).remote(&mechanism.remote());
    let mut stage = Stage::with(site, "/nowhere".as_ref());
    assert_eq!(response_status(&stage.exchange(HEAD)), 200);
    let sent = text(&stage.exchange(GET));
    assert!(sent.ends_with("0\r\n\r\n"), "{sent}");
}

/// Its constant response is fragile once the server asks for it at a request.
struct Constant(std::sync::atomic::AtomicUsize);

impl Handler for Constant {
    fn handle(self: Arc<Self>, _: Parts) -> Answer {
        panic!("the server has the response")
    }

    fn constant(&self) -> Option<(&'static str, Bytes)> {
        let calls = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Some(("text/plain", if calls == 0 { Bytes::new() } else { fragile(10) }))
    }
}

#[test]
fn panic_in_drop_of_a_constant_response_ended_the_worker() {
    let mut stage = stage(Constant(Default::default()));
    for _ in 0..2 {
        assert_eq!(response(&stage.exchange(GET), true).0.body, b"xxxxxxxxxx");
    }
}

/// A handler whose own drop panics.
struct FragileHandler(Fragile);

impl Handler for FragileHandler {
    fn handle(self: Arc<Self>, _: Parts) -> Answer {
        let response = Answer::Respond(Response::default());
        // The route still has the handler.
        drop(self);
        response
    }
}

#[test]
fn panic_in_drop_of_a_handler_ended_the_worker() {
    let mut stage = stage(FragileHandler(Fragile));
    assert_eq!(response(&stage.exchange(GET), true).0.status, 200);
    drop(stage);
}
