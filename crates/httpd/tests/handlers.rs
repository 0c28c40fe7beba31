//! Request handlers: their requests and responses.

use crate::stage;

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evring_httpd::body::{Body, BodySink};
use evring_httpd::bytes::Bytes;
use evring_httpd::evring::{AnyMechanism, Close, Config, HIGH_WATER, Lateness};
use evring_httpd::handlers::{Answer, Handler, constant, shed_if_late};
use evring_httpd::http::request::Parts;
use evring_httpd::http::{HeaderMap, Method, StatusCode, Version};
use evring_httpd::options::Limits;
use evring_httpd::{Head, Request, Response, Site, get};
use stage::{Stage, response};

fn stage(site: Site) -> Stage {
    Stage::with(site, "/nowhere".as_ref())
}

fn site(path: &str, handler: impl Handler) -> Site {
    Site::new(None).route(path, handler)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sends a request, with a bar for each line end, and returns status and body of the response.
fn one(stage: &mut Stage, request: &str) -> (u16, String) {
    let sent = stage.exchange(request.replace('|', "\r\n").as_bytes());
    let (response, rest) = response(&sent, true);
    assert!(rest.is_empty(), "{:?}", text(rest));
    (response.status, text(&response.body))
}

#[test]
fn closure_gets_the_complete_request() {
    let mut stage = stage(site("/a/", |request: Request| {
        assert_eq!(request.version(), Version::HTTP_11);
        format!(
            "{} {} {} {:?}",
            request.method(),
            request.uri(),
            request.headers()["x"].to_str().unwrap(),
            text(request.body()),
        )
    }));
    let cases = [
        ("GET /a/b?c HTTP/1.1|Host: h|X: y||", "GET /a/b?c y \"\""),
        ("POST /a/ HTTP/1.1|Host: h|X: y|Content-Length: 3||abc", "POST /a/ y \"abc\""),
        (
            "PUT /a/ HTTP/1.1|Host: h|X: y|Transfer-Encoding: chunked||2|ab|1|c|0||",
            "PUT /a/ y \"abc\"",
        ),
        ("BREW /a/pot HTTP/1.1|Host: h|X: y||", "BREW /a/pot y \"\""),
        ("GET http://h/a/ HTTP/1.1|Host: h|X: y||", "GET http://h/a/ y \"\""),
    ];
    for (request, expected) in cases {
        assert_eq!(one(&mut stage, request), (200, expected.to_owned()));
        let whole = request.replace('|', "\r\n");
        for at in 0..whole.len() {
            stage.feed(&whole.as_bytes()[..at]);
            stage.feed(&whole.as_bytes()[at..]);
            let sent = std::mem::take(&mut stage.io.sent);
            assert_eq!(text(&response(&sent, true).0.body), expected, "split at {at}");
        }
    }
    assert_eq!(stage.io.close, None);
    assert_eq!(one(&mut stage, "GET /b HTTP/1.1|Host: h||").0, 404);
}

#[test]
fn pipelined_requests_after_bodies_are_answered_in_order() {
    let mut stage = stage(site("/", |request: Request| text(request.body())));
    let sent = stage.exchange(
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1\
          GET / HTTP/1.1\r\nHost: a\r\n\r\n\
          POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n3\r\n0\r\nA: b\r\n\r\n\
          POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n4",
    );
    let bodies: Vec<_> =
        stage::responses(&sent).iter().map(|response| text(&response.body)).collect();
    assert_eq!(bodies, ["1", "", "3", "4"]);
}

#[test]
fn expect_100_continue_is_answered() {
    let mut stage = stage(site("/", |request: Request| text(request.body())));
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    assert_eq!(stage.exchange(head), b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(one(&mut stage, "ab"), (200, "ab".to_owned()));
    let head = "POST / HTTP/1.0|Expect: 100-continue|Content-Length: 2||ab";
    assert_eq!(one(&mut stage, head), (200, "ab".to_owned()));
}

#[test]
fn too_long_body_is_rejected_with_413() {
    let mut limits = Limits::default();
    limits.max_body_bytes = 5;
    for body in ["Content-Length: 6||", "Transfer-Encoding: chunked||3|abc|3|"] {
        let mut stage = stage(site("/", |_: Request| "taken").limits(limits.clone()));
        let request = format!("POST / HTTP/1.1|Host: a|{body}");
        assert_eq!(one(&mut stage, &request).0, 413);
        assert_eq!(stage.io.close, Some(Close::Linger));
    }
}

#[test]
fn body_below_the_minimum_rate_gets_408() {
    let limits = Limits::default();
    let enough = (limits.progress_interval.as_secs() * u64::from(limits.min_rate)) as usize;
    let mut stage = stage(site("/", |request: Request| request.body().len().to_string()));
    stage.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    stage.feed(&vec![b'x'; enough]);
    stage.pass(limits.progress_interval);
    assert!(stage.io.sent.is_empty() && stage.io.close.is_none());
    stage.feed(&vec![b'x'; enough - 1]);
    stage.pass(limits.progress_interval);
    assert_eq!(response(&stage.io.sent, true).0.status, 408);
    assert_eq!(stage.io.close, Some(Close::Linger));
}

#[test]
fn handlers_can_return_many_types() {
    type Made = fn(Request) -> Response;
    let cases: [(Made, &str); 6] = [
        (|_| evring_httpd::IntoResponse::into_response("text"), "200 text"),
        (|_| evring_httpd::IntoResponse::into_response(StatusCode::CREATED), "201 "),
        (
            |_| evring_httpd::IntoResponse::into_response((StatusCode::IM_A_TEAPOT, "tea")),
            "418 tea",
        ),
        (
            |_| evring_httpd::IntoResponse::into_response(Err::<&str, _>(StatusCode::BAD_GATEWAY)),
            "502 ",
        ),
        (|_| Response::new(Vec::from("bytes").into()), "200 bytes"),
        (|_| Response::new(Body::sized(3, [ok("a"), ok("bc")].into_iter())), "200 abc"),
    ];
    for (handler, expected) in cases {
        let mut stage = stage(site("/", handler));
        let (status, body) = one(&mut stage, "GET / HTTP/1.1|Host: a||");
        assert_eq!(format!("{status} {body}"), expected);
        let head = stage.exchange(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (head, rest) = response(&head, false);
        assert_eq!((head.status, rest), (status, &b""[..]));
        assert_eq!(head.field("Content-Length"), Some(&*body.len().to_string()));
    }
}

fn ok(piece: &'static str) -> io::Result<bytes::Bytes> {
    Ok(bytes::Bytes::from_static(piece.as_bytes()))
}

#[test]
fn bodiless_status_has_no_content_length() {
    let mut stage = stage(site("/", |_: Request| (StatusCode::NO_CONTENT, "none")));
    let sent = text(&stage.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(sent.starts_with("HTTP/1.1 204 No Content\r\n") && sent.ends_with("\r\n\r\n"));
    assert!(!sent.contains("Content-Length") && !sent.contains("none"), "{sent}");
}

#[test]
fn framing_fields_of_handlers_are_ignored() {
    let mut stage = stage(site("/", |_: Request| {
        let response = Response::builder()
            .header("Content-Length", "100")
            .header("Transfer-Encoding", "gzip")
            .header("Connection", "close")
            .header("X-Own", "kept");
        response.body("body".into()).unwrap()
    }));
    let sent = stage.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (response, _) = response(&sent, true);
    assert_eq!(
        (response.field("Content-Length"), response.field("x-own")),
        (Some("4"), Some("kept"))
    );
    assert_eq!(
        (response.field("transfer-encoding"), response.field("Connection")),
        (None, Some("close"))
    );
    // Lingers, so that further bytes of a pipelining client do not destroy the response.
    assert_eq!(stage.io.close, Some(Close::Linger));
}

#[test]
fn connect_with_a_path_reached_a_handler() {
    for target in ["/", "/a:443", "http://h:443/"] {
        let mut stage = stage(site("/", |_: Request| "handled"));
        assert_eq!(one(&mut stage, &format!("CONNECT {target} HTTP/1.1|Host: h||")).0, 400);
        assert_eq!(stage.io.close, Some(Close::Linger), "{target}");
    }
}

#[test]
fn query_with_a_backslash_was_rejected() {
    let query = |request: Request| request.uri().query().unwrap_or_default().to_owned();
    let mut stage = stage(
        site("/", query)
            .route("/head", |head: &Head<'_>| head.query().unwrap_or_default().to_owned()),
    );
    for (target, expected) in
        [("/search?path=C:\\x", "path=C:\\x"), ("/head?\\", "\\"), ("http://h?\\?\\", "\\?\\")]
    {
        let request = format!("GET {target} HTTP/1.1|Host: h||");
        assert_eq!(one(&mut stage, &request), (200, expected.to_owned()), "{target}");
    }
    assert_eq!(stage.io.close, None);
}

#[test]
fn body_of_unknown_length_is_chunked() {
    let pieces = |_: Request| Response::new(Body::pieces([ok("ab"), ok(""), ok("c")].into_iter()));
    let mut stage = stage(site("/", pieces));
    let sent = text(&stage.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(
        sent.contains("\r\nTransfer-Encoding: chunked\r\n") && !sent.contains("Content-Length")
    );
    assert!(sent.ends_with("\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), "{sent}");
    assert_eq!(stage.io.close, None);
    // HTTP/1.0 has no chunks; closing the connection ends the body.
    let sent = text(&stage.exchange(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    assert!(sent.contains("\r\nConnection: close\r\n") && sent.ends_with("\r\n\r\nabc"), "{sent}");
    assert_eq!(stage.io.close, Some(Close::Linger));
}

#[test]
fn pieces_are_produced_as_the_client_reads() {
    const PIECE: usize = 10_000;
    let pieces = |_: Request| {
        let all = (0..100).map(|n| Ok(vec![n; PIECE].into()));
        Response::new(Body::sized(100 * PIECE as u64, all))
    };
    let mut stage = stage(site("/", pieces));
    stage.io.blocked = true;
    stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(stage.io.sent.len() < HIGH_WATER + 2 * PIECE, "{}", stage.io.sent.len());
    assert!(stage.io.paused);
    while stage.io.sent.len() < 200 * PIECE {
        let before = stage.io.sent.len();
        stage.take(50_000);
        assert!(stage.io.sent.len() - before <= 50_000 + 2 * PIECE + HIGH_WATER);
    }
    let all = stage::responses(&stage.io.sent);
    assert_eq!(all.len(), 2);
    assert!(
        all.iter().all(|response| response
            .body
            .chunks(PIECE)
            .zip(0..)
            .all(|(c, n)| c == [n; PIECE]))
    );
}

#[test]
fn failed_streamed_body_resets_the_connection() {
    type Made = fn(Request) -> Response;
    let cases: [Made; 4] = [
        |_| Response::new(Body::pieces([ok("a"), Err(io::Error::other("broken"))].into_iter())),
        |_| Response::new(Body::sized(2, [ok("a")].into_iter())),
        |_| Response::new(Body::sized(2, [ok("abc")].into_iter())),
        |_| Response::new(Body::pieces(std::iter::once_with(|| panic!("in a piece")))),
    ];
    for handler in cases {
        let mut stage = stage(site("/", handler));
        stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(stage.io.close, Some(Close::Reset));
    }
}

#[test]
fn panic_in_a_handler_is_answered_with_500() {
    let panics = |_: Request| -> &'static str { panic!("in a handler") };
    let mut stage = stage(site("/", panics));
    assert_eq!(one(&mut stage, "GET / HTTP/1.1|Host: a||").0, 500);
    assert_eq!(stage.io.close, Some(Close::Linger));
}

/// Counts the bytes of a body, and rejects it after a number of bytes.
struct Counter(usize);

impl Handler for Counter {
    fn handle(self: std::sync::Arc<Self>, head: Parts) -> Answer {
        if head.method == Method::DELETE {
            return Answer::Respond(evring_httpd::IntoResponse::into_response(
                StatusCode::FORBIDDEN,
            ));
        }
        Answer::Receive(Box::new(Count { max: self.0, bytes: 0 }))
    }
}

struct Count {
    max: usize,
    bytes: usize,
}

impl BodySink for Count {
    fn data(&mut self, bytes: &[u8]) -> Option<Response> {
        self.bytes += bytes.len();
        (self.bytes > self.max)
            .then(|| evring_httpd::IntoResponse::into_response((StatusCode::BAD_REQUEST, "enough")))
    }

    fn end(self: Box<Self>, trailers: HeaderMap) -> Response {
        evring_httpd::IntoResponse::into_response(format!("{} {trailers:?}", self.bytes))
    }
}

#[test]
fn sink_receives_a_body_in_pieces_and_can_end_it() {
    let mut stage = stage(site("/", Counter(5)));
    let chunked = "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||";
    let sent =
        one(&mut stage, &format!("{chunked}2|ab|3|cde|0|Sum: 7|Host: b|Content-Length: 9||"));
    assert_eq!(sent, (200, "5 {\"sum\": \"7\"}".to_owned()));
    assert_eq!(stage.io.close, None);
    assert_eq!(one(&mut stage, &format!("{chunked}6|abcdef|")), (400, "enough".to_owned()));
    assert_eq!(stage.io.close, Some(Close::Linger));
    stage.connect();
    assert_eq!(one(&mut stage, "DELETE / HTTP/1.1|Host: a|Content-Length: 3||").0, 403);
    assert_eq!(stage.io.close, Some(Close::Linger));
    stage.connect();
    assert_eq!(one(&mut stage, "DELETE / HTTP/1.1|Host: a||").0, 403);
    assert_eq!(stage.io.close, None);
    stage.pass(Duration::from_secs(1));
}

#[test]
fn upload_completed_after_stop_left_its_connection_open() {
    let mut stage = stage(site("/", |request: Request| text(request.body())));
    stage.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
    stage.stop();
    assert_eq!(stage.io.close, None);
    let (response, _) = response(&stage.exchange(b"dy"), true);
    assert_eq!((response.field("Connection"), &response.body[..]), (Some("close"), &b"body"[..]));
    assert_eq!(stage.io.close, Some(Close::Linger));
}

#[test]
fn streamed_response_completed_after_stop_left_its_connection_open() {
    let pieces =
        |_: Request| Response::new(Body::pieces((0..40).map(|_| Ok(vec![b'x'; 10_000].into()))));
    let mut stage = stage(site("/", pieces));
    stage.io.blocked = true;
    stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    stage.stop();
    assert_eq!(stage.io.close, None);
    for _ in 0..10 {
        stage.unblock();
    }
    assert!(stage.io.sent.ends_with(b"\r\n0\r\n\r\n"));
    assert_eq!(stage.io.close, Some(Close::Flush));
}

#[test]
fn equivalent_paths_bypassed_handlers() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("private")).unwrap();
    std::fs::write(root.path().join("private/x"), "secret").unwrap();
    let forbid = |_: Request| StatusCode::FORBIDDEN;
    let site = Site::new(Some(evring_httpd::Root(0))).route("/private/", forbid);
    let mut stage = Stage::with(site, root.path());
    for target in ["/private/x", "/%70rivate/x", "//private/x", "/a/../private/x", "/./private/x"] {
        for method in ["GET", "DELETE"] {
            let request = format!("{method} {target} HTTP/1.1|Host: h||");
            assert_eq!(one(&mut stage, &request).0, 403, "{request}");
        }
    }
}

#[test]
fn site_with_handlers_has_no_status_page_by_default() {
    let status = "GET /.httpd/status.json HTTP/1.1|Host: h||";
    let page = "GET / HTTP/1.1|Host: h||";
    let answer = |_: Request| "own";
    for (status_option, expected) in [(None, 404), (Some(false), 404), (Some(true), 200)] {
        let site = site("/own", answer);
        let site = if let Some(on) = status_option { site.status(on) } else { site };
        let mut stage = stage(site);
        assert_eq!(one(&mut stage, status).0, expected, "{status_option:?}");
        assert_eq!(one(&mut stage, page).0, expected, "{status_option:?}");
    }
    let mut disabled = stage(Site::new(None).status(false));
    assert_eq!(one(&mut disabled, page).0, 404);
}

#[test]
fn stream_to_a_connection_that_a_layer_had_closed_blocked_the_worker() {
    let mut stage = stage(site("/", |_: Request| {
        Response::new(Body::pieces(std::iter::repeat_with(|| ok("more"))))
    }));
    stage.io.refuses = true;
    stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(stage.io.close, Some(Close::Reset));
}

#[test]
fn endless_empty_pieces_blocked_the_worker() {
    let pieces = |_: Request| Response::new(Body::pieces(std::iter::repeat_with(|| ok(""))));
    let mut stage = stage(site("/", pieces));
    stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(stage.io.close, Some(Close::Reset));
}

#[test]
fn error_response_to_head_with_a_malformed_body_had_a_body() {
    let mut stage = stage(site("/", |_: Request| "text"));
    let head = "HEAD / HTTP/1.1|Host: a|Transfer-Encoding: chunked||";
    for malformed in [format!("{head}x|"), "||HEAD x HTTP/1.1||".to_owned()] {
        let sent = stage.exchange(malformed.replace('|', "\r\n").as_bytes());
        assert!(
            sent.starts_with(b"HTTP/1.1 400 ") && sent.ends_with(b"\r\n\r\n"),
            "{}",
            text(&sent)
        );
        stage.connect();
    }
    // The leading tab makes this an invalid request, not HEAD; also if the bytes arrive in pieces.
    for pieces in
        [&[&b"\tHEAD / HTTP/1.1\r\n\r\n"[..]][..], &[&b"\t"[..], b"HEAD / HTTP/1.1\r\n\r\n"]]
    {
        pieces.iter().for_each(|piece| stage.feed(piece));
        assert!(stage.io.sent.ends_with(b"\n400 Bad Request\n"), "{}", text(&stage.io.sent));
        stage.connect();
    }
    stage.feed(head.replace('|', "\r\n").as_bytes());
    stage.feed(b"1\r\n");
    stage.pass(Limits::default().progress_interval);
    assert!(stage.io.sent.ends_with(b"\r\n\r\n"), "{}", text(&stage.io.sent));
}

#[test]
fn expensive_handler_is_shed_for_late_requests() {
    let site =
        site("/expensive", shed_if_late(|_: Request| "done")).route("/quick", |_: Request| "done");
    let mut stage = stage(site);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let send = |stage: &mut Stage, path: &str| text(&stage.exchange(get(path).as_bytes()));
    assert!(send(&mut stage, "/expensive").starts_with("HTTP/1.1 200 OK\r\n"));
    stage.io.lateness = Lateness::Late;
    let shed = send(&mut stage, "/expensive");
    assert!(shed.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{shed}");
    assert!(shed.contains("\r\nRetry-After: 1\r\n"), "{shed}");
    // The connection stays open, and other handlers still answer.
    assert!(send(&mut stage, "/quick").starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(stage.io.close, None);
    // An unread body closes it.
    let post = b"POST /expensive HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n";
    let shed = text(&stage.exchange(post));
    assert!(shed.starts_with("HTTP/1.1 503 "), "{shed}");
    assert!(shed.contains("\r\nConnection: close\r\n"), "{shed}");
    stage.connect();
    stage.io.lateness = Lateness::Abandoned;
    assert_eq!(send(&mut stage, "/expensive"), "", "no response");
    assert_eq!(stage.io.close, Some(Close::Reset));
}

#[test]
fn handlers_of_heads_get_their_parts_and_a_body_is_not_used() {
    let site = Site::new(None)
        .route("/nothing", || "nothing")
        .route("/constant", constant("text/css", "a {}"))
        .route("/large", constant("text/css", vec![b'x'; 10_000]))
        .route("/head", |head: &Head<'_>| {
            let field = String::from_utf8_lossy(head.field("x-Y").unwrap_or_default());
            let (method, path) = (head.method(), head.path());
            format!("{method} {path} {:?} {field} {:?}", head.query(), head.param("id"))
        })
        .route("/head/{id}", |head: &Head<'_>| {
            format!("{} {:?} {:?}", head.path(), head.query(), head.param("id"))
        })
        .route("/fails", || Err::<&str, _>((StatusCode::IM_A_TEAPOT, "tea")))
        .route("/panics", || -> &str { panic!("as intended") });
    let mut stage = stage(site);
    let cases = [
        ("GET /nothing HTTP/1.1|Host: a||", "nothing"),
        ("GET //nothing?x HTTP/1.1|Host: a||", "nothing"),
        ("POST /nothing HTTP/1.1|Host: a|Content-Length: 2||ab", "nothing"),
        ("GET /constant HTTP/1.1|Host: a||", "a {}"),
        ("POST /constant HTTP/1.1|Host: a|Content-Length: 2||ab", "a {}"),
        ("GET /head HTTP/1.1|Host: a|X-y: z||", "GET /head None z None"),
        ("PUT http://a/head?q HTTP/1.1|Host: a||", "PUT /head Some(\"q\")  None"),
        (
            "PUT /head?q HTTP/1.1|Host: a|X-Y: b|Content-Length: 1||a",
            "PUT /head Some(\"q\") b None",
        ),
        ("GET /head/%41?q HTTP/1.1|Host: a||", "/head/%41 Some(\"q\") Some(\"A\")"),
    ];
    for (request, expected) in cases {
        for _ in 0..2 {
            assert_eq!(one(&mut stage, request), (200, expected.to_owned()), "{request}");
        }
    }
    assert_eq!(stage.io.close, None);
    assert_eq!(one(&mut stage, "GET /large HTTP/1.1|Host: a||").1, "x".repeat(10_000));
    assert_eq!(one(&mut stage, "GET /fails HTTP/1.1|Host: a||"), (418, "tea".to_owned()));
    let head = stage.exchange(b"HEAD /constant HTTP/1.1\r\nHost: a\r\n\r\n");
    let (head, rest) = response(&head, false);
    assert_eq!(
        (head.field("Content-Length"), head.field("Content-Type")),
        (Some("4"), Some("text/css"))
    );
    assert!(rest.is_empty());
    assert_eq!(one(&mut stage, "GET /panics HTTP/1.1|Host: a||").0, 500);
    assert_eq!(stage.io.close, Some(Close::Linger));
}

#[test]
fn constant_response_of_a_handler_that_sheds_is_shed() {
    let mut stage = stage(site("/", shed_if_late(constant("text/css", "a {}"))));
    stage.io.lateness = Lateness::Late;
    assert_eq!(one(&mut stage, "GET / HTTP/1.1|Host: a||").0, 503);
}

/// A response that the server makes once.
struct Once(AtomicUsize);

impl Handler for Once {
    fn handle(self: Arc<Self>, _: Parts) -> Answer {
        panic!("the server has the response")
    }

    fn constant(&self) -> Option<(&'static str, Bytes)> {
        Some(("text/plain", self.0.fetch_add(1, Ordering::Relaxed).to_string().into()))
    }
}

#[test]
fn constant_response_of_a_method_was_made_for_each_request() {
    let mut stage = stage(site("/", get(Once(AtomicUsize::new(0))).post(|_: Request| "post")));
    let first = one(&mut stage, "GET / HTTP/1.1|Host: a||");
    assert_eq!(first.0, 200);
    for _ in 0..3 {
        assert_eq!(one(&mut stage, "GET / HTTP/1.1|Host: a||"), first);
        assert_eq!(one(&mut stage, "POST / HTTP/1.1|Host: a||").1, "post");
        assert_eq!(one(&mut stage, "PUT / HTTP/1.1|Host: a||").0, 405);
    }
}

#[test]
fn next_request_was_not_received_after_a_body_that_filled_the_send_queue_once() {
    let mut stage = stage(site("/", |_: Request| vec![b'x'; 300_000]));
    for _ in 0..2 {
        let sent = stage.exchange(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let (response, rest) = response(&sent, true);
        assert_eq!((response.status, response.body.len(), rest.len()), (200, 300_000, 0));
        assert!(!stage.io.paused);
    }
}

#[test]
#[cfg(feature = "cli")]
fn status_101_that_upgrade_had_not_made_was_not_logged() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt().with_writer(Arc::new(log.reopen().unwrap()));
    tracing::subscriber::with_default(subscriber.finish(), || {
        for (status, advice) in [(101, "make it by `upgrade`"), (102, "a final status")] {
            let before = std::fs::read_to_string(log.path()).unwrap().len();
            let status = StatusCode::from_u16(status).unwrap();
            let mut stage = stage(site("/", move |_: Request| status));
            assert_eq!(one(&mut stage, "GET / HTTP/1.1|Host: a||").0, 500);
            let logged = std::fs::read_to_string(log.path()).unwrap();
            let lines: Vec<_> = logged[before..].lines().collect();
            assert!(lines.len() == 1 && lines[0].contains(advice), "{status}: {lines:?}");
        }
    });
}

#[test]
fn clients_were_asked_for_bodies_that_are_not_used() {
    let site = || Site::new(None).route("/a", constant("text/plain", "a")).route("/b", || "b");
    for path in ["a", "b"] {
        let mut stage = stage(site());
        let head = format!("PUT /{path} HTTP/1.1|Host: a|Expect: 100-continue|Content-Length: 2||");
        assert_eq!(one(&mut stage, &head), (200, path.to_owned()));
        assert!(stage.io.close.is_some(), "the body does not follow");
        // A client of HTTP/1.0 does not wait.
        let mut stage = self::stage(site());
        let request = format!("PUT /{path} HTTP/1.0|Expect: 100-continue|Content-Length: 2||ab");
        assert_eq!(one(&mut stage, &request), (200, path.to_owned()));
    }
}

#[test]
fn body_that_waits_hung_at_a_site_without_a_handle() {
    let mut stage = stage(site("/", |_: Request| {
        Response::new(Body::poll_fn(None, |_| std::task::Poll::Pending))
    }));
    assert_eq!(one(&mut stage, "GET / HTTP/1.1|Host: a||").0, 500);
    assert!(stage.io.close.is_some());
}

#[test]
fn handler_of_a_client_that_had_left_after_an_empty_line_was_not_cancelled() {
    let mechanism = AnyMechanism::new("auto", &Config::default()).unwrap();
    let site = Site::new(None).route("/", |_: Request| async { pending::<&str>().await });
    let mut stage = stage(site.remote(&mechanism.remote()));
    for (behind, is_cancelled) in [("", true), ("\r\n", true), ("G", false)] {
        stage.connect();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        stage.feed(format!("{head}{behind}").as_bytes());
        assert_eq!(stage.io.close, None);
        stage.end();
        assert_eq!(stage.io.close.is_some(), is_cancelled, "{behind:?}");
    }
}
