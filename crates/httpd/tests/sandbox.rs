//! Handlers in a sandbox: they see requests first, on every mechanism; hostile ones are disabled, and the
//! site goes on.

#![cfg(feature = "sandbox")]

use crate::serving;
#[cfg(feature = "tls")]
use crate::tls;

use std::fs;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::Server;
#[cfg(feature = "tls")]
use evring_httpd::evring_tls::rustls;
use evring_httpd::handlers::SandboxedHandler;
use evring_httpd::sandbox::{Policy, Sandboxer};
use rustix::process::Signal;
use serving::available;
use serving::program::{Serving, httpd, with_sockets};

fn handler(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers").join(name)
}

/// A directory with files that handlers do not answer.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "of the site").unwrap();
    fs::write(root.path().join("hello"), "hidden by the handler").unwrap();
    root
}

fn serve(backend: &str, handlers: &[String]) -> (Serving, tempfile::TempDir) {
    let root = root();
    let mut arguments = vec!["--listen", "127.0.0.1:0", "--backend", backend, "--status", "--root"];
    arguments.push(root.path().to_str().unwrap());
    for handler in handlers {
        arguments.extend(["--handler", handler]);
    }
    (Serving::start(&arguments), root)
}

/// Compiles a handler in text.
fn compiled(name: &str, into: &Path) -> PathBuf {
    let path = into.join(name).with_extension("wasm");
    fs::write(&path, wat::parse_file(handler(name)).unwrap()).unwrap();
    path
}

fn counter(serving: &Serving, name: &str) -> u64 {
    serving.connect().status()[name].as_u64().unwrap()
}

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
        assert_eq!(counter(&serving, "sandbox_handled"), 3, "{backend}");
        // It left one to the site; the other one is for another path.
        assert_eq!(counter(&serving, "sandbox_passed"), 1, "{backend}");
    });
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

/// Serves at two addresses, of which the handlers with `listen=127.0.0.2:0` are bound to the second one.
fn serve_at_two(backend: &str, arguments: &[&str]) -> (Serving, SocketAddr, tempfile::TempDir) {
    let root = root();
    let of_root = ["--status", "--root", root.path().to_str().unwrap(), "--backend", backend];
    let listen = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"];
    let serving = Serving::start(&[&listen[..], &of_root, arguments].concat());
    let second = &serving.line[serving.line.find("127.0.0.2:").unwrap()..];
    let end = second.find(|c: char| !matches!(c, '0'..='9' | '.' | ':')).unwrap();
    let second = second[..end].parse().unwrap();
    (serving, second, root)
}

#[test]
fn handler_of_an_address_gets_its_requests_where_they_land_on_every_mechanism() {
    let module = format!("{},listen=127.0.0.2:0", handler("hello.wasm").display());
    available().for_each(|backend| {
        let (serving, second, _root) = serve_at_two(backend, &["--handler", &module]);
        let mut client = serving::Client::new(TcpStream::connect(second).unwrap());
        let request = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        let landed = || counter(&serving, "sandbox_landed");
        for _ in 0..10 {
            assert_eq!(client.get("/hello").body, b"Hello from a handler\n", "{backend}");
            assert_eq!(client.get("/file").body, b"of the site", "{backend}");
        }
        assert_eq!(landed(), 20, "{backend}");
        // In order, also those that are copied, as they wait for a response before them.
        client.send((request("/hello") + &request("/file")).repeat(20).as_bytes());
        for _ in 0..20 {
            assert_eq!(client.response(true).body, b"Hello from a handler\n", "{backend}");
            assert_eq!(client.response(true).body, b"of the site", "{backend}");
        }
        let (handled, passed) =
            (counter(&serving, "sandbox_handled"), counter(&serving, "sandbox_passed"));
        assert_eq!((handled, passed), (30, 30), "{backend}");
        // A request in two pieces is put together elsewhere, and one whose path is not canonical is changed.
        let before = landed();
        let (first, rest) = ("GET /hel", "lo HTTP/1.1\r\nHost: h\r\n\r\n");
        client.send(first.as_bytes());
        // The server has received them when it answers the second request that another connection sends later: between the
        // two, it has handled all that had arrived before the first.
        let mut other = serving.connect();
        (0..2).for_each(|_| assert_eq!(other.get("/file").status, 200));
        client.send(rest.as_bytes());
        assert_eq!(client.response(true).body, b"Hello from a handler\n", "{backend}");
        client.send(request("/./hello").as_bytes());
        assert_eq!(client.response(true).body, b"Hello from a handler\n", "{backend}");
        assert_eq!(landed(), before, "{backend}");
        // Other addresses are not the handler's.
        assert_eq!(serving.connect().get("/hello").body, b"hidden by the handler", "{backend}");
        assert_eq!(counter(&serving, "sandbox_handled"), 32, "{backend}");
    });
}

#[test]
fn messages_land_in_the_memory_of_the_first_handler_of_an_address() {
    let file = handler("hello.wasm").display().to_string();
    let first = format!("{file},path=/file,listen=127.0.0.2:0");
    let second = format!("{file},listen=127.0.0.2:0");
    let modules = ["--handler", &first, "--handler", &second, "--workers", "2"];
    let (serving, address, _root) = serve_at_two("auto", &modules);
    for _ in 0..8 {
        let mut client = serving::Client::new(TcpStream::connect(address).unwrap());
        // The first one passes it on.
        assert_eq!(client.get("/file").body, b"of the site");
        assert_eq!(client.get("/hello").body, b"Hello from a handler\n");
        assert_eq!(serving.connect().get("/hello").body, b"hidden by the handler");
    }
    assert_eq!(counter(&serving, "sandbox_landed"), 8);
    assert_eq!(counter(&serving, "sandbox_handled"), 8);
}

#[test]
fn handler_stays_bound_to_its_address_after_a_reload() {
    let module = format!("{},listen=127.0.0.2:0", handler("hello.wasm").display());
    let arguments = ["--log-level", "info", "--handler", &module];
    let (mut serving, second, _root) = serve_at_two("auto", &arguments);
    assert!(reload(&mut serving).contains("settings reloaded"));
    let mut client = serving::Client::new(TcpStream::connect(second).unwrap());
    assert_eq!(client.get("/hello").body, b"Hello from a handler\n");
    assert_eq!(serving.connect().get("/hello").body, b"hidden by the handler");
    assert_eq!(counter(&serving, "sandbox_landed"), 1);
}

#[test]
#[cfg(feature = "tls")]
fn handler_of_an_address_with_tls_gets_what_is_decrypted() {
    let (authority, root) = (tls::Authority::new(), root());
    let sandboxer = Sandboxer::new(Policy::default()).unwrap();
    let ash = sandboxer.load(&fs::read(handler("hello.wasm")).unwrap()).unwrap();
    let at: SocketAddr = "127.0.0.1:0".parse().unwrap();
    available().for_each(|backend| {
        let server = Server::builder().listen(at).backend(backend).files(root.path());
        let server = server.tls(authority.options("localhost", &["localhost"]));
        let hello = SandboxedHandler::new("hello", ash.clone()).listener(at);
        let server = server.sandbox(hello).start().unwrap();
        let config = Arc::new(authority.trusting(&[&rustls::version::TLS13]));
        for (target, expected) in [("/hello", "Hello from a handler\n"), ("/file", "of the site")] {
            let mut connection = tls::connect(&server, &config, "localhost");
            let response = tls::get(&mut connection, target).unwrap();
            assert_eq!(tls::body(&response), expected.as_bytes(), "{backend}");
        }
    });
}

#[test]
fn bodies_longer_than_the_memory_of_a_handler_pass_through_its_buffers() {
    let module = format!("{},listen=127.0.0.2:0", handler("hello.wasm").display());
    available().for_each(|backend| {
        let (_serving, address, _root) =
            serve_at_two(backend, &["--lab-routes", "--handler", &module]);
        let mut client = serving::Client::new(TcpStream::connect(address).unwrap());
        let body: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        let head =
            format!("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
        client.send(&[head.as_bytes(), &body].concat());
        let response = client.response(true);
        assert_eq!(response.status, 200, "{backend}");
        assert!(response.body == body, "{backend}: {} bytes", response.body.len());
        assert_eq!(client.get("/hello").body, b"Hello from a handler\n", "{backend}");
    });
}

#[test]
fn handler_of_an_address_that_the_server_does_not_have_is_rejected() {
    let module = format!("{},listen=127.0.0.2:1", handler("hello.wasm").display());
    for check in [&[][..], &["--check-config"]] {
        let arguments = [&["--listen", "127.0.0.1:0", "--handler", &module][..], check].concat();
        let output = httpd(&arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("is for 127.0.0.2:1, where the server serves nothing"), "{error}");
    }
    let output = httpd(&["--handler", "a.wasm,listen=nowhere"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("expected ADDR:PORT"), "{error}");
}

/// Reloads the settings, and waits until they are used or rejected.
fn reload(serving: &mut Serving) -> String {
    serving.signal(Signal::HUP);
    loop {
        let mut line = String::new();
        assert!(serving.errors.read_line(&mut line).unwrap() > 0);
        if line.contains("settings reloaded") || line.contains("stay as they were") {
            return line;
        }
    }
}

#[test]
fn check_rejected_a_handler_at_an_address_of_a_service_manager() {
    let given = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = given.local_addr().unwrap();
    let module = format!("{},listen={at}", handler("hello.wasm").display());
    let arguments = ["--log-level", "info", "--handler", &module];
    // As a unit does before the start, without the socket.
    let output = httpd(&arguments).arg("--check-config").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut serving = Serving::of(with_sockets([given], &arguments));
    let line = reload(&mut serving);
    assert!(line.contains("settings reloaded"), "{line}");
    let mut client = serving::Client::new(TcpStream::connect(at).unwrap());
    assert_eq!(client.get("/hello").body, b"Hello from a handler\n");
}

#[test]
fn handler_of_an_address_of_ipv4_was_not_bound_to_a_socket_of_both_families() {
    for with_listen in [false, true] {
        let given = TcpListener::bind("[::]:0").unwrap();
        let port = given.local_addr().unwrap().port();
        let listen = format!("[::]:{port}");
        let module = format!("{},listen=0.0.0.0:{port}", handler("hello.wasm").display());
        let mut arguments = vec!["--log-level", "info", "--handler", &module];
        if with_listen {
            arguments.extend(["--listen", &listen]);
        }
        let output = httpd(&arguments).arg("--check-config").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut serving = Serving::of(with_sockets([given], &arguments));
        for _ in 0..2 {
            let at = (Ipv4Addr::LOCALHOST, port);
            let mut client = serving::Client::new(TcpStream::connect(at).unwrap());
            assert_eq!(client.get("/hello").body, b"Hello from a handler\n");
            let line = reload(&mut serving);
            assert!(line.contains("settings reloaded"), "{line}");
        }
    }
}

#[test]
#[cfg(feature = "tls")]
fn handler_of_an_address_that_redirects_started_and_saw_no_request() {
    let module = format!("{},listen=127.0.0.2:0", handler("hello.wasm").display());
    let tls = ["--tls-self-signed", "--listen", "127.0.0.1:0", "--tls-redirect", "127.0.0.2:0"];
    for check in [&[][..], &["--check-config"]] {
        let arguments = [&tls[..], &["--handler", &module], check].concat();
        let mut child = httpd(&arguments).spawn().unwrap();
        let mut errors = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("httpd: ") && !line.contains("listening on") {
            line.clear();
            assert!(errors.read_line(&mut line).unwrap() > 0);
        }
        // Fails if it has ended.
        let _ = child.kill();
        child.wait().unwrap();
        assert!(line.contains("is for 127.0.0.2:0, where the server serves nothing"), "{line}");
    }
}

#[test]
fn second_address_of_a_handler_was_ignored_if_the_server_does_not_have_it() {
    let sandboxer = Sandboxer::new(Policy::default()).unwrap();
    let ash = sandboxer.load(&fs::read(handler("hello.wasm")).unwrap()).unwrap();
    let at: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let other: SocketAddr = "127.0.0.2:1".parse().unwrap();
    let server = |addresses: &[SocketAddr]| {
        let hello = SandboxedHandler::new("hello", ash.clone());
        let hello = addresses.iter().fold(hello, |hello, at| hello.listener(*at));
        Server::builder().listen(at).sandbox(hello)
    };
    server(&[at]).check().unwrap();
    drop(server(&[at]).start().unwrap());
    for outcome in [server(&[at, other]).check(), server(&[at, other]).start().map(drop)] {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("the handler hello is for 127.0.0.2:1"), "{error}");
    }
}

#[test]
fn requests_that_no_handler_got_were_counted_as_landed() {
    let modules = tempfile::tempdir().unwrap();
    let module = compiled("endless.wat", modules.path()).display().to_string();
    let module = format!("{module},listen=127.0.0.2:0");
    let (serving, address, _root) = serve_at_two("auto", &["--handler", &module]);
    let mut client = serving::Client::new(TcpStream::connect(address).unwrap());
    let max_aborts = u64::from(Policy::default().max_aborts);
    for _ in 0..max_aborts + 5 {
        assert_eq!(client.get("/file").body, b"of the site");
    }
    assert_eq!(counter(&serving, "sandbox_aborts"), max_aborts);
    assert_eq!(counter(&serving, "sandbox_landed"), max_aborts);
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
    // What follows the last slash is the beginning of a name.
    let root = root();
    let handler = root.path().join("always.wasm");
    fs::write(&handler, wat::parse_str(ALWAYS).unwrap()).unwrap();
    let (serving, _root) = serve("auto", &[format!("{},path=/.", handler.display())]);
    assert_eq!(serving.connect().get("/.git").body, b"handler");
    assert_eq!(serving.connect().get("/file").body, b"of the site");
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
    // Names have the first numbers behind those of handlers without a tenant that no other tenant has.
    assert_eq!(String::from_utf8(numbers).unwrap(), "076879");
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

#[test]
fn compiled_handlers_are_kept_in_a_directory_of_this_user() {
    let (cache, root) = (tempfile::tempdir().unwrap(), root());
    let hello = handler("hello.wasm").display().to_string();
    let directory = cache.path().to_str().unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--handler", &hello, "--handler-cache", directory];
    let mut kept = Vec::new();
    for _ in 0..2 {
        let serving = Serving::start(&arguments);
        assert_eq!(serving.connect().get("/hello").body, b"Hello from a handler\n");
        let file = fs::read_dir(cache.path()).unwrap().next().unwrap().unwrap();
        kept.push((file.path(), file.metadata().unwrap().modified().unwrap()));
    }
    assert_eq!(kept[0], kept[1]);
    #[cfg(feature = "user")]
    {
        let output = httpd(&[&arguments[..], &["--user", "root"]].concat()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("handler-cache keeps compiled handlers for one user"), "{error}");
    }
    fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for (directory, reason) in [
        (directory, "no one else can write to (chmod go-w)"),
        (root.path().join("missing").to_str().unwrap(), "No such file"),
    ] {
        let arguments = ["--handler", &hello, "--handler-cache", directory];
        let output = httpd(&arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("as a cache") && error.contains(reason), "{error}");
    }
}

#[test]
fn hostile_handlers_are_disabled_and_the_site_serves_on() {
    let modules = tempfile::tempdir().unwrap();
    for (name, reason) in [
        ("endless.wat", "it used up the operations of an invocation"),
        ("wild.wat", "it accessed memory that is not its own"),
        ("flood.wat", "it used up the operations of an invocation"),
    ] {
        let module = compiled(name, modules.path()).display().to_string();
        let hello = handler("hello.wasm").display().to_string();
        let (mut serving, _root) = serve("auto", &[module.clone(), hello]);
        let mut client = serving.connect();
        for _ in 0..10 {
            assert_eq!(client.get("/file").body, b"of the site", "{name}");
            assert_eq!(client.get("/hello").body, b"Hello from a handler\n", "{name}");
        }
        let aborts = counter(&serving, "sandbox_aborts");
        assert_eq!(aborts, u64::from(Policy::default().max_aborts), "{name}");
        let mut line = String::new();
        serving.errors.read_line(&mut line).unwrap();
        let expected = format!("the handler {module} is disabled after too many aborts: {reason}");
        assert!(line.contains(&expected), "{line}");
    }
}

/// Answers `GET /forged` with these bytes.
fn forger(response: &str) -> Vec<u8> {
    let data: String = response.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
            (import "ash" "send" (func $send (param i32 i32) (result i32)))
            (memory (export "memory") 1 1)
            (data (i32.const 0) "{data}")
            (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
                (drop (call $send (i32.const 0) (i32.const {})))
                (i32.const 1)))"#,
        response.len()
    );
    wat::parse_str(text).unwrap()
}

#[test]
fn handler_forged_the_next_response_of_the_connection() {
    const NEXT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let modules = tempfile::tempdir().unwrap();
    for (n, (response, reason)) in [
        (
            format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{NEXT}"),
            "its Content-Length is 2",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok".into(), "its Content-Length is 9"),
        (format!("HTTP/1.1 103 Early Hints\r\n\r\n{NEXT}"), "103 is no final status"),
        (
            format!("HTTP/1.1 204 No Content\r\n\r\n{NEXT}"),
            "a response with the status 204 has no body",
        ),
        (
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT}"),
            "it has Transfer-Encoding",
        ),
        (
            format!("HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\n\n{NEXT}"),
            "a field line is malformed",
        ),
        (NEXT.replace("1.1", "1.0"), "it does not begin with a status line"),
    ]
    .into_iter()
    .enumerate()
    {
        let module = modules.path().join(n.to_string()).with_extension("wasm");
        fs::write(&module, forger(&response)).unwrap();
        let handler = format!("{},path=/file", module.display());
        let (mut serving, _root) = serve("auto", &[handler]);
        let mut client = serving.connect();
        // Pipelined, as a proxy sends requests of several clients on one connection.
        client.send(b"GET /file HTTP/1.1\r\nHost: h\r\n\r\nGET /hello HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.response(true).body, b"of the site", "{response}");
        assert_eq!(client.response(true).body, b"hidden by the handler", "{response}");
        for _ in 0..10 {
            assert_eq!(client.get("/file").body, b"of the site", "{response}");
        }
        assert_eq!(counter(&serving, "sandbox_handled"), 0, "{response}");
        let aborts = counter(&serving, "sandbox_aborts");
        assert_eq!(aborts, u64::from(Policy::default().max_aborts), "{response}");
        let mut lines = String::new();
        for _ in 0..=aborts {
            serving.errors.read_line(&mut lines).unwrap();
        }
        assert!(lines.contains(&format!("sent what is not one response: {reason}")), "{lines}");
        assert!(lines.contains("aborts: it sent what the protocol does not permit"), "{lines}");
    }
}

#[test]
fn module_that_is_no_handler_is_rejected_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.wasm");
    for (module, reason) in [
        (&b"not a module"[..], "it is no WebAssembly module"),
        (b"(module)", "must define one memory"),
        (br#"(module (import "wasi" "open" (func)) (memory (export "memory") 1 1))"#, "wasi"),
    ] {
        fs::write(&file, wat::parse_bytes(module).unwrap_or(module.into())).unwrap();
        let output = httpd(&["--handler", file.to_str().unwrap()]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("cannot use the handler") && error.contains(reason), "{error}");
    }
    let output = httpd(&["--handler", "/nowhere.wasm"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("cannot read the handler /nowhere.wasm"), "{error}");
    for (flag, reason) in [
        ("a.wasm,path=api", "a path that begins with a slash"),
        ("a.wasm,path=/../api", "a path that begins with a slash and stays below the root"),
        ("a.wasm,tenant=", "a tenant's number, or a name"),
        ("a.wasm,tenant=18446744073709551616", "a tenant's number, or a name"),
        ("a.wasm,fuel=3", "expected path=/PREFIX, tenant=NAME or listen=ADDR:PORT, not `fuel=3`"),
    ] {
        let output = httpd(&["--handler", flag]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(error.contains(reason), "{error}");
    }
}

/// Answers everything.
const ALWAYS: &str = r#"(module
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (memory (export "memory") 1 1)
    (data (i32.const 0) "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nhandler")
    (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
        (drop (call $send (i32.const 0) (i32.const 45)))
        (i32.const 1)))"#;

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

#[test]
fn equivalent_path_bypassed_a_handler() {
    let handlers = [handler("hello.wasm").display().to_string() + ",path=/hello"];
    let (serving, _root) = serve("auto", &handlers);
    for target in ["/hello", "/hell%6f", "//hello", "/./hello", "/file/../hello"] {
        let body = serving.connect().get(target).body;
        assert_eq!(body, b"Hello from a handler\n", "{target}");
    }
}
