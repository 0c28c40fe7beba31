//! Handlers of an address, in whose memory its requests land.

use std::fs;
use std::io::BufRead as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
#[cfg(feature = "tls")]
use std::sync::Arc;

use evring_httpd::Server;
#[cfg(feature = "tls")]
use evring_httpd::evring_tls::rustls;
use evring_httpd::handlers::SandboxedHandler;
use evring_httpd::sandbox::{Policy, Sandboxer};
use rustix::process::Signal;

#[cfg(feature = "tls")]
use crate::authority::Authority;
use crate::sandbox::{compiled, counter, handler, serve_at_two};
#[cfg(feature = "tls")]
use crate::sandbox::{root, without_admission};
use crate::serving;
use crate::serving::available;
use crate::serving::program::{Serving, httpd, with_sockets};
#[cfg(feature = "tls")]
use crate::tls;

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
    let (authority, root) = (Authority::new(), root());
    let sandboxer = Sandboxer::new(Policy::default()).unwrap();
    let ash = sandboxer.load(&fs::read(handler("hello.wasm")).unwrap()).unwrap();
    let at: SocketAddr = "127.0.0.1:0".parse().unwrap();
    available().for_each(|backend| {
        let server = Server::builder().config(without_admission()).listen(at).backend(backend);
        let server = server.files(root.path());
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
