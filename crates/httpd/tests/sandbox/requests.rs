//! Which requests a handler gets, and in which order they are answered.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::sandbox::{ALWAYS, counter, handler, root, serve};
use crate::serving::available;
use crate::serving::program::Serving;

#[test]
fn handler_answers_its_requests_before_the_site_on_every_mechanism() {
    let handlers = [handler("hello.wasm").display().to_string()];
    available().for_each(|backend| {
        let (serving, _root) = serve(backend, &handlers);
        let mut client = serving.connect();
        for _ in 0..3 {
            let response = client.get("/hello");
            assert_eq!(response.status, 200);
            assert_eq!(response.body, b"Hello from a handler\n", "{backend}");
            assert_eq!(client.get("/file").body, b"of the site", "{backend}");
        }
        // The handler answers GET alone.
        client.send(b"HEAD /hello HTTP/1.1\r\nHost: h\r\n\r\n");
        let head = client.response(false);
        assert_eq!(head.field("Content-Length"), Some("21"), "{backend}");
        client.send(b"POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab");
        assert_eq!(client.response(true).status, 405, "{backend}");
        assert_eq!(counter(&serving, "sandbox_handled"), 3, "{backend}");
        assert_eq!(counter(&serving, "sandbox_aborts"), 0, "{backend}");
    });
}

#[test]
fn responses_of_handlers_had_neither_date_nor_connection() {
    let handlers = [handler("hello.wasm").display().to_string()];
    available().for_each(|backend| {
        let (serving, _root) = serve(backend, &handlers);
        let mut client = serving.connect();
        for (version, asked, expected) in [
            ("1.1", "", None),
            ("1.0", "Connection: keep-alive\r\n", Some("keep-alive")),
            ("1.1", "Connection: close\r\n", Some("close")),
        ] {
            let head = format!("GET /hello HTTP/{version}\r\nHost: h\r\n{asked}\r\n");
            client.send(head.as_bytes());
            let response = client.response(true);
            assert!(response.head.starts_with("HTTP/1.1 200 OK\r\nDate: "), "{}", response.head);
            assert_eq!(response.field("Connection"), expected, "{backend}: {}", response.head);
            assert!(response.field("Server").is_some_and(|name| name.starts_with("httpd/")));
            assert_eq!(response.body, b"Hello from a handler\n", "{backend}");
        }
        client.expect_end();
    });
}

#[test]
fn pages_that_a_handler_keeps_are_answered_from_its_memory_and_others_from_files() {
    let handlers = [format!("{},path=/cached/", handler("cache.wasm").display())];
    available().for_each(|backend| {
        let (serving, root) = serve(backend, &handlers);
        fs::create_dir(root.path().join("cached")).unwrap();
        fs::write(root.path().join("cached/more"), "not in the cache").unwrap();
        let page = fs::read(handler("pages/index.html")).unwrap();
        let mut client = serving.connect();
        // By its canonical path.
        let response = client.get("/cached/%2e/");
        assert_eq!((response.status, &response.body), (200, &page), "{backend}");
        assert_eq!(response.field("Content-Type"), Some("text/html"), "{backend}");
        let tag = response.field("ETag").unwrap().to_owned();
        for (tag, status, body) in [(&*tag, 304, &b""[..]), ("\"other\"", 200, &page[..])] {
            let head = format!("GET /cached/ HTTP/1.1\r\nHost: h\r\nIf-None-Match: {tag}\r\n\r\n");
            client.send(head.as_bytes());
            let response = client.response(status == 200);
            assert_eq!((response.status, &response.body[..]), (status, body), "{backend}");
        }
        assert_eq!(client.get("/cached/more").body, b"not in the cache", "{backend}");
        assert_eq!(client.get("/file").body, b"of the site", "{backend}");
        // Without a canonical path, a request is the site's.
        assert_eq!(serving.connect().get("/cached/a%2Fb").status, 400, "{backend}");
        assert_eq!(counter(&serving, "sandbox_handled"), 3, "{backend}");
        // It left one to the site; the other one is for another path.
        assert_eq!(counter(&serving, "sandbox_passed"), 1, "{backend}");
    });
}

#[test]
fn request_that_several_handlers_pass_on_was_counted_for_each() {
    let of = |name, path| format!("{},path={path}", handler(name).display());
    let both = |path| [of("cache.wasm", path), of("hello.wasm", path)];
    let (serving, _root) = serve("auto", &[both("/file"), both("/hello")].concat());
    let mut client = serving.connect();
    assert_eq!(client.get("/file").body, b"of the site");
    assert_eq!(counter(&serving, "sandbox_passed"), 1);
    // The second one answers what the first one has passed on.
    assert_eq!(client.get("/hello").body, b"Hello from a handler\n");
    let counters = ["sandbox_handled", "sandbox_passed"].map(|name| counter(&serving, name));
    assert_eq!(counters, [1, 1]);
}

#[test]
fn pipelined_requests_to_a_handler_and_files_are_answered_in_order() {
    let handlers = [handler("hello.wasm").display().to_string()];
    available().for_each(|backend| {
        let (serving, _root) = serve(backend, &handlers);
        let mut client = serving.connect();
        let request = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        client.send((request("/hello") + &request("/file")).repeat(50).as_bytes());
        for _ in 0..50 {
            assert_eq!(client.response(true).body, b"Hello from a handler\n", "{backend}");
            assert_eq!(client.response(true).body, b"of the site", "{backend}");
        }
        client.send(b"GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        assert_eq!(client.response(true).status, 200);
        client.expect_end();
    });
}

#[test]
fn handler_is_bound_to_a_path() {
    let other = format!("{},path=/other/", handler("hello.wasm").display());
    let (serving, _root) = serve("auto", &[other]);
    assert_eq!(serving.connect().get("/hello").body, b"hidden by the handler");
    assert_eq!(counter(&serving, "sandbox_handled"), 0);
}

#[test]
fn handler_whose_path_was_not_canonical_saw_no_request() {
    for path in ["/a b/", "//a b/", "/x/../a b", "/a b"] {
        let root = root();
        let handler = root.path().join("always.wasm");
        fs::write(&handler, wat::parse_str(ALWAYS).unwrap()).unwrap();
        let (serving, _root) = serve("auto", &[format!("{},path={path}", handler.display())]);
        assert_eq!(serving.connect().get("/a%20b/c").body, b"handler", "{path}");
        assert_eq!(serving.connect().get("/file").body, b"of the site", "{path}");
    }
    // The text after the last slash is the beginning of a name.
    let root = root();
    let handler = root.path().join("always.wasm");
    fs::write(&handler, wat::parse_str(ALWAYS).unwrap()).unwrap();
    let (serving, _root) = serve("auto", &[format!("{},path=/.", handler.display())]);
    assert_eq!(serving.connect().get("/.git").body, b"handler");
    assert_eq!(serving.connect().get("/file").body, b"of the site");
}

#[test]
fn equivalent_path_bypassed_a_handler() {
    let handlers = [handler("hello.wasm").display().to_string() + ",path=/hello"];
    let (serving, _root) = serve("auto", &handlers);
    for target in ["/hello", "/hell%6f", "//hello", "/./hello", "/file/../hello"] {
        let body = serving.connect().get(target).body;
        assert_eq!(body, b"Hello from a handler\n", "{target}");
    }
}

#[test]
fn empty_line_before_a_request_bypassed_a_handler() {
    let handlers = [handler("hello.wasm").display().to_string()];
    available().for_each(|backend| {
        let (serving, _root) = serve(backend, &handlers);
        let mut client = serving.connect();
        for (lines, target) in [("\r\n", "/hello"), ("\r\n\r\n", "/hello"), ("\r\n", "/hell%6f")] {
            client.send(format!("{lines}GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            let body = client.response(true).body;
            assert_eq!(body, b"Hello from a handler\n", "{backend}: {lines:?} {target}");
        }
    });
}

#[test]
#[cfg(feature = "basic-auth")]
fn handler_answered_without_the_password_for_its_path() {
    let root = root();
    let users = root.path().join("users");
    // The password is `secret`.
    fs::write(&users, "user:$2y$04$ysEqXs9pzkB8hGmmzrnXA.sQWOVhaXqtgCrYXLJUYk6B6E8DgiXBe\n")
        .unwrap();
    let auth = format!("{},path=/hello", users.display());
    let handler = root.path().join("always.wasm");
    fs::write(&handler, wat::parse_str(ALWAYS).unwrap()).unwrap();
    let handler = format!("{},path=/hello", handler.display());
    let serving = Serving::start(&[
        "--listen",
        "127.0.0.1:0",
        "--root",
        root.path().to_str().unwrap(),
        "--basic-auth",
        &auth,
        "--handler",
        &handler,
    ]);
    for target in
        ["/hello", "/hell%6f", "//hello", "/hello?a", "/hello?#", "/hello?\"", "/hello/../file"]
    {
        let mut client = serving.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        let response = client.response(true);
        assert_ne!(response.body, b"handler", "{target}");
        assert!(matches!(response.status, 200 | 400 | 401), "{target}: {}", response.status);
    }
}

/// Answers with a digit, the number of its tenant.
const TENANT: &str = r#"(module
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (import "ash" "id" (func $id (result i64)))
    (memory (export "memory") 1 1)
    (data (i32.const 0) "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n?")
    (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
        (i32.store8 (i32.const 38) (i32.add (i32.const 48) (i32.wrap_i64 (call $id))))
        (drop (call $send (i32.const 0) (i32.const 39)))
        (i32.const 1)))"#;

#[test]
fn tenants_have_numbers_or_names() {
    let modules = tempfile::tempdir().unwrap();
    let file = modules.path().join("tenant.wasm");
    fs::write(&file, wat::parse_str(TENANT).unwrap()).unwrap();
    let tenants = ["", ",tenant=shop", ",tenant=6", ",tenant=blog-2", ",tenant=shop", ",tenant=9"];
    let handlers: Vec<_> = (0..)
        .zip(tenants)
        .map(|(n, tenant)| format!("{},path=/{n}{tenant}", file.display()))
        .collect();
    let (serving, _root) = serve("auto", &handlers);
    let numbers = (0..tenants.len()).map(|n| serving.connect().get(&format!("/{n}")).body);
    let numbers = numbers.collect::<Vec<_>>().concat();
    // Names, and handlers without a tenant, have the next numbers that no other tenant has.
    assert_eq!(String::from_utf8(numbers).unwrap(), "016219");
}

#[test]
fn handlers_were_on_under_overload() {
    let root = root();
    let handler = handler("hello.wasm").display().to_string();
    let serving = Serving::start(&[
        "--listen",
        "127.0.0.1:0",
        "--status",
        "--lab-routes",
        "--max-queue-delay",
        "0.001",
        "--root",
        root.path().to_str().unwrap(),
        "--handler",
        &handler,
    ]);
    let mut client = serving.connect();
    assert_eq!(client.get("/hello").body, b"Hello from a handler\n");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let Ok(mut client) = TcpStream::connect(serving.address) else { continue };
                    client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
                    let _ = client.write_all(b"GET /spin?us=2000 HTTP/1.1\r\nHost: h\r\n\r\n");
                    let _ = client.read(&mut [0; 100]);
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(20);
        while client.get("/hello").body == b"Hello from a handler\n" && Instant::now() < until {}
        ended.store(true, Ordering::Relaxed);
    });
    let (overloaded, passed) =
        (counter(&serving, "sandbox_overloaded"), counter(&serving, "sandbox_passed"));
    assert!(overloaded > 0 && passed >= overloaded, "{overloaded} of {passed}");
}
