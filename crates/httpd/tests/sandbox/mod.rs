//! Handlers in a sandbox: they see requests first, on every mechanism; hostile ones are disabled, and the
//! site still serves.

#![cfg(feature = "sandbox")]

mod addresses;
mod rejections;
mod requests;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use evring_httpd::Config;

use crate::serving::program::Serving;

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

/// A machine with other work may be overloaded at any time, and then handlers are off.
const NO_ADMISSION: [&str; 2] = ["--max-queue-delay", "0"];

/// The same for a server of the library.
fn without_admission() -> Config {
    Config::default().with(|c| c.admission = None)
}

fn serve(backend: &str, handlers: &[String]) -> (Serving, tempfile::TempDir) {
    let root = root();
    let mut arguments = vec!["--listen", "127.0.0.1:0", "--backend", backend, "--status", "--root"];
    arguments.push(root.path().to_str().unwrap());
    arguments.extend(NO_ADMISSION);
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

/// Serves at two addresses, of which the handlers with `listen=127.0.0.2:0` are bound to the second one.
fn serve_at_two(backend: &str, arguments: &[&str]) -> (Serving, SocketAddr, tempfile::TempDir) {
    let root = root();
    let of_root = ["--status", "--root", root.path().to_str().unwrap(), "--backend", backend];
    let listen = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"];
    let serving = Serving::start(&[&listen[..], &of_root, &NO_ADMISSION, arguments].concat());
    let second = &serving.line[serving.line.find("127.0.0.2:").unwrap()..];
    let end = second.find(|c: char| !matches!(c, '0'..='9' | '.' | ':')).unwrap();
    let second = second[..end].parse().unwrap();
    (serving, second, root)
}

/// Answers everything.
const ALWAYS: &str = r#"(module
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (memory (export "memory") 1 1)
    (data (i32.const 0) "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nhandler")
    (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
        (drop (call $send (i32.const 0) (i32.const 45)))
        (i32.const 1)))"#;
