//! Handlers of requests: what they are given, and what becomes of their replies.

mod stage;

use std::io;
use std::time::Duration;

use evring_httpd::evring::{Close, HIGH_WATER, Lateness};
use evring_httpd::http::request::Parts;
use evring_httpd::http::{HeaderMap, Method, StatusCode, Version};
use evring_httpd::{
    Answer, Body, BodySink, Handler, Limits, Request, Response, Site, shed_if_late,
};
use stage::{Stage, reply};

fn stage(site: Site) -> Stage {
    Stage::with(site, "/nowhere".as_ref())
}

fn site(path: &str, handler: impl Handler) -> Site {
    Site::new(None).route(path, handler)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The reply to a request that has one, with a bar for each line end.
fn one(stage: &mut Stage, request: &str) -> (u16, String) {
    let sent = stage.exchange(request.replace('|', "\r\n").as_bytes());
    let (reply, rest) = reply(&sent, true);
    assert!(rest.is_empty(), "{:?}", text(rest));
    (reply.status, text(&reply.body))
}

#[test]
fn a_closure_gets_the_whole_request() {
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
            assert_eq!(text(&reply(&sent, true).0.body), expected, "split at {at}");
        }
    }
    assert_eq!(stage.io.close, None);
    assert_eq!(one(&mut stage, "GET /b HTTP/1.1|Host: h||").0, 404);
}

#[test]
fn requests_behind_a_body_are_answered_in_turn() {
    let mut stage = stage(site("/", |request: Request| text(request.body())));
    let sent = stage.exchange(
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1\
          GET / HTTP/1.1\r\nHost: a\r\n\r\n\
          POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n3\r\n0\r\nA: b\r\n\r\n\
          POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n4",
    );
    let bodies: Vec<_> = stage::replies(&sent).iter().map(|reply| text(&reply.body)).collect();
    assert_eq!(bodies, ["1", "", "3", "4"]);
}

#[test]
fn leave_to_send_a_body_is_given() {
    let mut stage = stage(site("/", |request: Request| text(request.body())));
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    assert_eq!(stage.exchange(head), b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(one(&mut stage, "ab"), (200, "ab".to_owned()));
    let head = "POST / HTTP/1.0|Expect: 100-continue|Content-Length: 2||ab";
    assert_eq!(one(&mut stage, head), (200, "ab".to_owned()));
}

#[test]
fn a_body_that_is_too_long_is_refused() {
    let limits = Limits { max_body_bytes: 5, ..Limits::default() };
    for body in ["Content-Length: 6||", "Transfer-Encoding: chunked||3|abc|3|"] {
        let mut stage = stage(site("/", |_: Request| "taken").limits(limits.clone()));
        let request = format!("POST / HTTP/1.1|Host: a|{body}");
        assert_eq!(one(&mut stage, &request).0, 413);
        assert_eq!(stage.io.close, Some(Close::Linger));
    }
}

#[test]
fn a_body_may_be_slow_but_not_too_slow() {
    let limits = Limits::default();
    let enough = (limits.progress_interval.as_secs() * u64::from(limits.min_rate)) as usize;
    let mut stage = stage(site("/", |request: Request| request.body().len().to_string()));
    stage.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    stage.feed(&vec![b'x'; enough]);
    stage.pass(limits.progress_interval);
    assert!(stage.io.sent.is_empty() && stage.io.close.is_none());
    stage.feed(&vec![b'x'; enough - 1]);
    stage.pass(limits.progress_interval);
    assert_eq!(reply(&stage.io.sent, true).0.status, 408);
    assert_eq!(stage.io.close, Some(Close::Linger));
}

#[test]
fn replies_of_many_kinds() {
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
        let (head, rest) = reply(&head, false);
        assert_eq!((head.status, rest), (status, &b""[..]));
        assert_eq!(head.field("Content-Length"), Some(&*body.len().to_string()));
    }
}

fn ok(piece: &'static str) -> io::Result<bytes::Bytes> {
    Ok(bytes::Bytes::from_static(piece.as_bytes()))
}

#[test]
fn what_has_no_body_has_no_length() {
    let mut stage = stage(site("/", |_: Request| (StatusCode::NO_CONTENT, "none")));
    let sent = text(&stage.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(sent.starts_with("HTTP/1.1 204 No Content\r\n") && sent.ends_with("\r\n\r\n"));
    assert!(!sent.contains("Content-Length") && !sent.contains("none"), "{sent}");
}

#[test]
fn fields_that_frame_are_the_servers() {
    let mut stage = stage(site("/", |_: Request| {
        let response = Response::builder()
            .header("Content-Length", "100")
            .header("Transfer-Encoding", "gzip")
            .header("Connection", "close")
            .header("X-Own", "kept");
        response.body("body".into()).unwrap()
    }));
    let sent = stage.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (reply, _) = reply(&sent, true);
    assert_eq!((reply.field("Content-Length"), reply.field("x-own")), (Some("4"), Some("kept")));
    assert_eq!(
        (reply.field("transfer-encoding"), reply.field("Connection")),
        (None, Some("close"))
    );
    // So that what a pipelining client sends on does not destroy the reply.
    assert_eq!(stage.io.close, Some(Close::Linger));
}

#[test]
fn pieces_without_a_length_come_in_chunks() {
    let pieces = |_: Request| Response::new(Body::pieces([ok("ab"), ok(""), ok("c")].into_iter()));
    let mut stage = stage(site("/", pieces));
    let sent = text(&stage.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(
        sent.contains("\r\nTransfer-Encoding: chunked\r\n") && !sent.contains("Content-Length")
    );
    assert!(sent.ends_with("\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), "{sent}");
    assert_eq!(stage.io.close, None);
    // HTTP/1.0 has no chunks; the end of the connection is that of the body.
    let sent = text(&stage.exchange(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    assert!(sent.contains("\r\nConnection: close\r\n") && sent.ends_with("\r\n\r\nabc"), "{sent}");
    assert_eq!(stage.io.close, Some(Close::Linger));
}

#[test]
fn pieces_are_made_as_the_client_takes_them() {
    const PIECE: usize = 10_000;
    let pieces = |_: Request| {
        let all = (0..100).map(|n| Ok(vec![n; PIECE].into()));
        Response::new(Body::sized(100 * PIECE as u64, all))
    };
    let mut stage = stage(site("/", pieces));
    stage.io.stuck = true;
    stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(stage.io.sent.len() < HIGH_WATER + 2 * PIECE, "{}", stage.io.sent.len());
    assert!(stage.io.paused);
    while stage.io.sent.len() < 200 * PIECE {
        let before = stage.io.sent.len();
        stage.take(50_000);
        assert!(stage.io.sent.len() - before <= 50_000 + 2 * PIECE + HIGH_WATER);
    }
    let all = stage::replies(&stage.io.sent);
    assert_eq!(all.len(), 2);
    assert!(
        all.iter().all(|reply| reply.body.chunks(PIECE).zip(0..).all(|(c, n)| c == [n; PIECE]))
    );
}

#[test]
fn a_reply_that_can_not_go_on_ends_in_a_reset() {
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
fn a_panic_costs_one_reply() {
    let panics = |_: Request| -> &'static str { panic!("in a handler") };
    let mut stage = stage(site("/", panics));
    assert_eq!(one(&mut stage, "GET / HTTP/1.1|Host: a||").0, 500);
    assert_eq!(stage.io.close, Some(Close::Linger));
}

/// Counts what it is given, and has had enough after some bytes.
struct Counter(usize);

impl Handler for Counter {
    fn handle(self: std::sync::Arc<Self>, head: Parts) -> Answer {
        if head.method == Method::DELETE {
            return Answer::Respond(evring_httpd::IntoResponse::into_response(
                StatusCode::FORBIDDEN,
            ));
        }
        Answer::Receive(Box::new(Count { most: self.0, bytes: 0 }))
    }
}

struct Count {
    most: usize,
    bytes: usize,
}

impl BodySink for Count {
    fn data(&mut self, bytes: &[u8]) -> Option<Response> {
        self.bytes += bytes.len();
        let enough = self.bytes > self.most;
        enough
            .then(|| evring_httpd::IntoResponse::into_response((StatusCode::BAD_REQUEST, "enough")))
    }

    fn end(self: Box<Self>, trailers: HeaderMap) -> Response {
        evring_httpd::IntoResponse::into_response(format!("{} {trailers:?}", self.bytes))
    }
}

#[test]
fn a_body_can_be_received_piece_by_piece() {
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
fn an_upload_that_was_whole_after_the_stop_had_its_connection_wait() {
    let mut stage = stage(site("/", |request: Request| text(request.body())));
    stage.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
    stage.stop();
    assert_eq!(stage.io.close, None);
    let (reply, _) = reply(&stage.exchange(b"dy"), true);
    assert_eq!((reply.field("Connection"), &reply.body[..]), (Some("close"), &b"body"[..]));
    assert_eq!(stage.io.close, Some(Close::Linger));
}

#[test]
fn a_streamed_reply_that_ended_after_the_stop_had_its_connection_wait() {
    let pieces =
        |_: Request| Response::new(Body::pieces((0..40).map(|_| Ok(vec![b'x'; 10_000].into()))));
    let mut stage = stage(site("/", pieces));
    stage.io.stuck = true;
    stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    stage.stop();
    assert_eq!(stage.io.close, None);
    for _ in 0..10 {
        stage.unstick();
    }
    assert!(stage.io.sent.ends_with(b"\r\n0\r\n\r\n"));
    assert_eq!(stage.io.close, Some(Close::Flush));
}

#[test]
fn handlers_were_passed_by_on_the_way_to_files() {
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
fn a_site_of_handlers_does_not_show_itself_unless_told_to() {
    let status = "GET /.httpd/status.json HTTP/1.1|Host: h||";
    let page = "GET / HTTP/1.1|Host: h||";
    let answer = |_: Request| "own";
    for (told, expected) in [(None, 404), (Some(false), 404), (Some(true), 200)] {
        let site = site("/own", answer);
        let site = if let Some(on) = told { site.status(on) } else { site };
        let mut stage = stage(site);
        assert_eq!(one(&mut stage, status).0, expected, "{told:?}");
        assert_eq!(one(&mut stage, page).0, expected, "{told:?}");
    }
    let mut quiet = stage(Site::new(None).status(false));
    assert_eq!(one(&mut quiet, page).0, 404);
}

#[test]
fn endless_empty_pieces_stopped_the_worker() {
    let pieces = |_: Request| Response::new(Body::pieces(std::iter::repeat_with(|| ok(""))));
    let mut stage = stage(site("/", pieces));
    stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(stage.io.close, Some(Close::Reset));
}

#[test]
fn refusals_of_a_broken_body_behind_head_had_a_body() {
    let mut stage = stage(site("/", |_: Request| "text"));
    let head = "HEAD / HTTP/1.1|Host: a|Transfer-Encoding: chunked||";
    for broken in [format!("{head}x|"), "||HEAD x HTTP/1.1||".to_owned()] {
        let sent = stage.exchange(broken.replace('|', "\r\n").as_bytes());
        assert!(
            sent.starts_with(b"HTTP/1.1 400 ") && sent.ends_with(b"\r\n\r\n"),
            "{}",
            text(&sent)
        );
        stage.connect();
    }
    // This is no HEAD, as shows when the bytes come one by one.
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
fn what_is_costly_is_refused_to_who_comes_late() {
    let site =
        site("/costly", shed_if_late(|_: Request| "done")).route("/quick", |_: Request| "done");
    let mut stage = stage(site);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let ask = |stage: &mut Stage, path: &str| text(&stage.exchange(get(path).as_bytes()));
    assert!(ask(&mut stage, "/costly").starts_with("HTTP/1.1 200 OK\r\n"));
    stage.io.lateness = Lateness::Late;
    let refused = ask(&mut stage, "/costly");
    assert!(refused.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{refused}");
    assert!(refused.contains("\r\nRetry-After: 1\r\n"), "{refused}");
    // The connection goes on, and what is quick is not worth a refusal.
    assert!(ask(&mut stage, "/quick").starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(stage.io.close, None);
    // A body that nobody wants ends it.
    let post = b"POST /costly HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n";
    let refused = text(&stage.exchange(post));
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("\r\nConnection: close\r\n"), "{refused}");
    stage.connect();
    stage.io.lateness = Lateness::Abandoned;
    assert_eq!(ask(&mut stage, "/costly"), "", "nobody waits for a reply");
    assert_eq!(stage.io.close, Some(Close::Reset));
}

/// Something of a handler's whose end panics.
#[derive(Clone)]
struct Fragile;

impl Drop for Fragile {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn a_panic_at_the_end_of_a_handlers_value_stopped_the_worker() {
    let pieces = |_: Request| {
        let fragile = Fragile;
        let piece = move || {
            let _ = &fragile;
            ok("x")
        };
        Response::new(Body::pieces(std::iter::repeat_with(piece).take(2)))
    };
    let mut stage = stage(site("/", pieces));
    let reply = text(&stage.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(reply.ends_with("0\r\n\r\n"), "{reply}");
    // Without a body it is dropped at once.
    let reply = text(&stage.exchange(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");

    let extended = |_: Request| {
        let mut response = Response::new(Body::from("text"));
        response.extensions_mut().insert(Fragile);
        response
    };
    let mut stage = self::stage(site("/", extended));
    let reply = text(&stage.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(reply.ends_with("text"), "{reply}");
}
