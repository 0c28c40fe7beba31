//! Modules and responses that are rejected, and where compiled modules are kept.

use std::fs;
use std::io::BufRead as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;

use evring_httpd::Server;
use evring_httpd::handlers::SandboxedHandler;
use evring_httpd::sandbox::{Policy, Sandboxer};

use crate::sandbox::{NO_ADMISSION, compiled, counter, handler, root, serve, without_admission};
use crate::serving;
use crate::serving::program::{Serving, httpd};

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

/// Answers everything, but traps where the path begins with `t`.
const TRAP: &str = r#"(module
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (memory (export "memory") 1 1)
    (data (i32.const 0) "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nhandler")
    (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
        (if (i32.eq (i32.load8_u (i32.add (local.get 0) (i32.const 5))) (i32.const 116))
            (then unreachable))
        (drop (call $send (i32.const 0) (i32.const 45)))
        (i32.const 1)))"#;

#[test]
fn disabled_handler_came_back_with_new_workers_only() {
    let (root, policy) = (root(), Policy::default());
    let max_aborts = policy.max_aborts;
    let ash = Sandboxer::new(policy).unwrap().load(&wat::parse_str(TRAP).unwrap()).unwrap();
    let handler = SandboxedHandler::new("trap", ash);
    let switch = handler.switch();
    let server = Server::builder().config(without_admission()).workers(1).files(root.path());
    let server = server.listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = server.sandbox(handler).start().unwrap();
    let mut client = serving::Client::new(TcpStream::connect(server.addresses()[0]).unwrap());
    let mut get = |path| client.get(path).body;
    assert_eq!(get("/file"), b"handler");
    switch.set_on(false);
    assert_eq!(get("/file"), b"of the site");
    switch.set_on(true);
    assert_eq!(get("/file"), b"handler");
    for _ in 0..2 {
        for _ in 0..max_aborts {
            assert_ne!(get("/trap"), b"handler");
        }
        assert_eq!(get("/file"), b"of the site");
        switch.enable();
        assert_eq!(get("/file"), b"handler");
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

#[test]
fn check_accepted_a_handler_that_no_worker_could_instantiate() {
    // Its message area is larger than the addresses of a memory.
    let policy = Policy::default().with(|policy| policy.message_area_bytes = 1 << 40);
    let sandboxer = Sandboxer::new(policy).unwrap();
    let ash = sandboxer.load(&fs::read(handler("hello.wasm")).unwrap()).unwrap();
    let server = || {
        let hello = SandboxedHandler::new("hello", ash.clone());
        Server::builder().listen(SocketAddr::from(([127, 0, 0, 1], 0))).sandbox(hello)
    };
    for outcome in [server().check(), server().start().map(drop)] {
        let error = outcome.unwrap_err().to_string();
        let expected = "cannot use the handler hello: the memory cannot be set up";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn compiled_handlers_are_kept_in_a_directory_of_this_user() {
    let (cache, root) = (tempfile::tempdir().unwrap(), root());
    let hello = handler("hello.wasm").display().to_string();
    let directory = cache.path().to_str().unwrap();
    let of_cache = ["--listen", "127.0.0.1:0", "--handler", &hello, "--handler-cache", directory];
    let arguments = [&of_cache[..], &NO_ADMISSION].concat();
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
        for check in [&[][..], &["--check-config"]] {
            let output = httpd(&[&arguments[..], check].concat()).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{check:?}: {error}");
            assert!(error.contains("as a cache") && error.contains(reason), "{check:?}: {error}");
        }
    }
}

#[test]
fn check_accepted_a_cache_that_others_can_write_to_and_writes_to_none() {
    let (cache, root) = (tempfile::tempdir().unwrap(), root());
    let hello = handler("hello.wasm").display().to_string();
    let check = |mode| {
        fs::set_permissions(cache.path(), fs::Permissions::from_mode(mode)).unwrap();
        let directory = cache.path().to_str().unwrap();
        let of_cache = ["--handler", &hello, "--handler-cache", directory, "--check-config"];
        let of_root = ["--listen", "127.0.0.1:0", "--root", root.path().to_str().unwrap()];
        httpd(&[&of_root[..], &of_cache].concat()).output().unwrap()
    };
    let output = check(0o700);
    assert!(output.status.success(), "{}", output.stderr.escape_ascii());
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    let output = check(0o777);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("no one else can write to (chmod go-w)"), "{error}");
}
