//! Routes, functions around handlers, and the settings of a server, as a user of the library meets them.

use crate::serving;

use std::error::Error as _;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use evring_httpd::body::{BodySink, RequestBody};
use evring_httpd::handlers::{Answer, Handler, Next, Responder, param, shed_if_late, wrap};
use evring_httpd::http::request::Parts;
use evring_httpd::http::{HeaderMap, HeaderValue, StatusCode};
use evring_httpd::options::Limits;
use evring_httpd::{Config, Error, Request, Response, Server, get, put};
use serving::{Client, ParsedResponse, connect, on_every_backend};

fn builder() -> evring_httpd::Builder {
    Server::builder().listen("127.0.0.1:0")
}

/// Sends a request with a body of two bytes, or without one.
fn request(client: &mut Client, line: &str, has_body: bool) -> ParsedResponse {
    let (length, body) = if has_body { ("Content-Length: 2\r\n", "ab") } else { ("", "") };
    client.send(format!("{line} HTTP/1.1\r\nHost: a\r\n{length}\r\n{body}").as_bytes());
    let is_bodiless = line.starts_with("HEAD");
    let head = client.response(false);
    if is_bodiless || head.status == 204 { head } else { client.body(head) }
}

#[test]
fn parameters_match_no_encoded_slash_and_paths_with_a_slash_do() {
    let rest = |request: Request| request.uri().path().to_owned();
    let named = |request: Request| param(&request, "name").unwrap().to_owned();
    let server = builder().route("/one/{name}", named).route("/all/{name}", named);
    let server = server.route("/all/", rest).start().unwrap();
    for (target, status, body) in [
        ("/one/a%20b", 200, "a b"),
        ("/one/a%2Fb", 400, ""),
        ("/one/a/b", 404, ""),
        ("/one/", 404, ""),
        ("/all/a", 200, "a"),
        ("/all/a%2Fb", 200, "/all/a%2Fb"),
        ("/all/a/b", 200, "/all/a/b"),
        ("/all/", 200, "/all/"),
    ] {
        let response = connect(&server).get(target);
        assert_eq!(response.status, status, "{target}");
        assert!(status != 200 || response.body == body.as_bytes(), "{target}: {:?}", response.body);
    }
}

#[test]
fn handler_of_all_paths_below_one_got_paths_that_left_it() {
    let path = |request: Request| request.uri().to_string();
    let server = builder().route("/files/", path).route("/files/{name}/x", path).route("/y", path);
    let server = server.start().unwrap();
    for (target, expected) in [
        ("/files/../../etc/passwd", None),
        ("/files/%2e%2E/../etc/passwd", None),
        ("/files/a%2Fb/../../../etc/passwd", None),
        ("/files/%", None),
        ("/files/a%00", None),
        ("/files/a/../../files/b?c=/../d", Some("/files/b?c=/../d")),
        ("http://h/files/./b", Some("http://h/files/b")),
        ("/files//etc/passwd", Some("/files/etc/passwd")),
        ("//files/a", Some("/files/a")),
        ("/%66iles/a%20b", Some("/files/a%20b")),
        ("/files/%2Fetc/passwd", None),
        ("/files/..%2F..%2Fetc/passwd", None),
        ("/files/a%2f..%2Fb", None),
        ("/files/a%2fb%7e", Some("/files/a%2fb%7e")),
        ("/files/./a%2fhttp:%2f%2fb", Some("/files/a%2Fhttp:%2F%2Fb")),
        ("/files/a/../b/x", Some("/files/b/x")),
        ("/files/../y", Some("/y")),
    ] {
        for method in ["GET", "PUT"] {
            let mut client = connect(&server);
            let line = format!("{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            client.send(line.as_bytes());
            let response = client.response(true);
            let status = if expected.is_some() { 200 } else { 400 };
            assert_eq!(response.status, status, "{method} {target}");
            let body = expected.map(str::as_bytes);
            assert!(body.is_none_or(|body| response.body == body), "{target}: {:?}", response.body);
        }
    }
}

#[test]
fn methods_have_handlers_and_others_get_405() {
    let item = get(|request: Request| format!("item {}", param(&request, "id").unwrap()))
        .put(async |request: Request| request.into_body())
        .delete(|_: Request, responder: Responder| {
            responder.respond(StatusCode::NO_CONTENT);
        });
    let server =
        builder().route("/items/{id}", item).route("/items/", |_: Request| "others").start();
    let server = server.unwrap();
    let mut client = connect(&server);
    let mut answer = |line: &str, has_body| {
        let response = request(&mut client, line, has_body);
        (response.status, String::from_utf8(response.body.clone()).unwrap(), response)
    };
    assert_eq!(answer("GET /items/7", false).1, "item 7");
    assert_eq!(answer("GET /items/a%20%2B", false).1, "item a +");
    assert_eq!(answer("GET /items/7/8", false).1, "others");
    assert_eq!(answer("PUT /items/7", true).1, "ab");
    assert_eq!(answer("DELETE /items/7", false).0, 204);
    let (status, _, head) = answer("HEAD /items/7", false);
    assert_eq!((status, head.field("Content-Length")), (200, Some("6")));
    let (status, _, options) = answer("OPTIONS /items/7", false);
    assert_eq!((status, options.field("allow")), (204, Some("GET, PUT, DELETE, HEAD, OPTIONS")));
    let (status, _, refused) = answer("PATCH /items/7", false);
    assert_eq!((status, refused.field("allow")), (405, options.field("allow")));
    // The body of a request that nobody handles is not read.
    let (status, _, refused) = answer("POST /items/7", true);
    assert_eq!((status, refused.field("Connection")), (405, Some("close")));
}

/// A handler that takes a body piece by piece.
struct Count;

impl Handler for Count {
    fn handle(self: Arc<Self>, _: Parts) -> Answer {
        Answer::Receive(Box::new(Counted(0)))
    }
}

struct Counted(usize);

impl BodySink for Counted {
    fn data(&mut self, bytes: &[u8]) -> Option<Response> {
        self.0 += bytes.len();
        None
    }

    fn end(self: Box<Self>, _: HeaderMap) -> Response {
        use evring_httpd::IntoResponse;
        self.0.to_string().into_response()
    }
}

#[test]
fn function_is_around_handlers_of_every_kind() {
    on_every_backend(|backend| {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&lines);
        let server = builder()
            .backend(backend)
            .wrap(move |request: Request<RequestBody>, next: Next| {
                let line = format!("{} {}", request.method(), request.uri());
                let log = Arc::clone(&log);
                async move {
                    let response = next.run(request).await;
                    log.lock().unwrap().push(format!("{line} {}", response.status().as_u16()));
                    response
                }
            })
            .wrap(async |request: Request<RequestBody>, next: Next| {
                if request.uri().path() == "/secret" {
                    return Err(StatusCode::UNAUTHORIZED);
                }
                let mut response = next.run(request).await;
                response.headers_mut().insert("x-outer", HeaderValue::from_static("yes"));
                Ok(response)
            })
            .route("/plain", |request: Request| request.into_body())
            .route("/async", async |request: Request| request.into_body())
            .route("/later", |request: Request, responder: Responder| {
                responder.respond(request.into_body());
            })
            .route("/dropped", |_: Request, responder: Responder| drop(responder))
            .route("/count", put(Count))
            .route("/secret", |_: Request| "secret")
            .route(
                "/inner",
                wrap(
                    shed_if_late(|_: Request| "inner"),
                    async |_: Request<RequestBody>, next: Next| next.run(Request::default()).await,
                ),
            )
            .start()
            .unwrap();
        let mut client = connect(&server);
        for (line, status, body) in [
            ("POST /plain", 200, "ab"),
            ("POST /async", 200, "ab"),
            ("POST /later", 200, "ab"),
            ("PUT /count", 200, "2"),
            ("POST /inner", 200, "inner"),
            ("POST /dropped", 500, ""),
        ] {
            // The function does not read the body, so the connection closes.
            if line.ends_with("inner") {
                client = self::connect(&server);
            }
            let response = request(&mut client, line, true);
            let text = std::str::from_utf8(&response.body).unwrap();
            assert_eq!((response.status, text), (status, body), "{backend}: {line}");
            assert_eq!(response.field("x-outer"), Some("yes"), "{backend}: {line}");
            if line.ends_with("inner") {
                client = self::connect(&server);
            }
        }
        assert_eq!(request(&mut client, "GET /secret", false).status, 401, "{backend}");
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert_eq!((&*lines[0], &*lines[5]), ("POST /plain 200", "POST /dropped 500"));
    });
}

#[test]
fn panic_in_a_function_around_handlers_gets_500() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let server = builder()
        .wrap(async |_: Request<RequestBody>, _: Next| -> StatusCode { panic!("as intended") })
        .route("/", move |_: Request| {
            count.fetch_add(1, Ordering::Relaxed);
            "unreachable"
        })
        .start()
        .unwrap();
    assert_eq!(connect(&server).get("/").status, 500);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[test]
fn contradictory_settings_are_an_error_and_none_is_ignored() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(one.path().join("a"), "from the config").unwrap();
    let config = Config::default().with(|c| c.roots = vec![one.path().to_owned()]);
    let server = builder().config(config.clone()).start().unwrap();
    assert_eq!(connect(&server).get("/a").body, b"from the config");
    drop(server);
    // The same root twice is no contradiction, in either order.
    drop(builder().config(config.clone()).files(one.path()).start().unwrap());
    drop(builder().files(one.path()).config(config.clone()).start().unwrap());
    let error = builder().config(config).files(other.path()).start().unwrap_err();
    assert!(matches!(error, Error::Conflict(_)), "{error}");
    assert!(error.to_string().contains("one root") && error.source().is_none(), "{error}");

    let second = std::time::Duration::from_secs(1);
    let config = Config::default().with(|c| c.progress_interval = second);
    let described = format!("{:?}", builder().config(config));
    let in_both = described.matches("progress_interval: 1s").count();
    assert_eq!(in_both, 2, "{described}");
    let limits = Limits::default();
    let described = format!("{:?}", builder().limits(limits).config(Config::default()));
    assert!(!described.contains("progress_interval: 1s"), "{described}");
}

#[test]
fn limits_undid_the_rate_of_a_configuration_set_before() {
    let second = std::time::Duration::from_secs(1);
    let config = Config::default().with(|c| (c.progress_interval, c.min_rate) = (second, 4321));
    let mut limits = Limits::default();
    (limits.progress_interval, limits.max_headers) = (2 * second, 7);
    let before = builder().limits(limits.clone()).config(config.clone());
    let after = builder().config(config).limits(limits);
    for builder in [before, after] {
        let described = format!("{builder:?}");
        for of_both in ["progress_interval: 1s", "min_rate: 4321"] {
            assert_eq!(described.matches(of_both).count(), 2, "{described}");
        }
        assert!(described.contains("max_headers: 7"), "{described}");
    }
}

#[test]
fn errors_have_sources() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = Server::builder().listen(taken.local_addr().unwrap()).start().unwrap_err();
    assert!(matches!(error, Error::Start(_)), "{error}");
    let source = |error: &Error| {
        let source = error.source().unwrap().downcast_ref::<std::io::Error>().unwrap();
        assert!(error.to_string().contains(&source.to_string()), "{error}");
        source.kind()
    };
    assert_eq!(source(&error), ErrorKind::AddrInUse);
    let error = Server::builder().listen("no address").start().unwrap_err();
    assert_eq!(source(&error), ErrorKind::InvalidInput);
}

#[test]
fn settings_that_mean_nothing_were_taken_for_others() {
    let errors = [
        (builder().workers(0), "set `workers` to 1 or more"),
        (
            builder().route("/a{x}", |_: Request| ""),
            "the route /a{x}: a parameter is a whole segment",
        ),
        (builder().route("/{*rest}", |_: Request| ""), "end the route in a slash"),
    ];
    for (builder, expected) in errors {
        let error = builder.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(builder.start().unwrap_err().to_string(), error);
    }
}
