//! The handlers in `examples/handlers`, in Rust, C and WebAssembly text. `ASH_HANDLERS` may name a directory
//! of modules in the place of the committed ones.

#![cfg(feature = "sandbox")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use ash_sandbox::sandbox::{Abort, Bound, Handler, Outcome, Pass, Policy, Sandboxer};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers")
}

fn load(file: &str) -> (Handler, Bound) {
    let path = match std::env::var_os("ASH_HANDLERS") {
        Some(modules) if file.ends_with(".wasm") => Path::new(&modules).join(file),
        _ => directory().join(file),
    };
    let module = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let module = wat::parse_bytes(&module).unwrap();
    let ash = Sandboxer::new(Policy::default()).unwrap().load(&module).unwrap();
    (ash.instantiate(1).unwrap(), ash.bound())
}

fn run(handler: &mut Handler, message: &[u8]) -> (Outcome, Vec<u8>) {
    let outcome = handler.handle_copy(message, 7, Instant::now());
    let memory = handler.memory();
    let sent = handler.sends().iter().flat_map(|range| {
        // SAFETY: the range is in the memory, and no handler runs.
        unsafe { std::slice::from_raw_parts(memory.host_pointer(range.start), range.len()) }
    });
    (outcome, sent.copied().collect())
}

#[test]
fn hello_in_rust_answers_its_path() {
    let (mut handler, _) = load("hello.wasm");
    let (outcome, sent) = run(&mut handler, b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(outcome, Outcome::Handled);
    assert!(sent.ends_with(b"\r\nContent-Length: 21\r\n\r\nHello from a handler\n"), "{sent:?}");
    for other in [&b"GET /hello"[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b""] {
        assert_eq!(run(&mut handler, other), (Outcome::Passed(Pass::ByHandler), vec![]));
    }
}

#[test]
fn increment_in_rust_keeps_its_counter() {
    let (mut handler, _) = load("increment.wasm");
    for (by, count) in [(1u32, 1u32), (41, 42), (u32::MAX, 41)] {
        let reply = (Outcome::Handled, count.to_be_bytes().to_vec());
        assert_eq!(run(&mut handler, &by.to_be_bytes()), reply);
    }
    assert_eq!(run(&mut handler, b"12345"), (Outcome::Passed(Pass::ByHandler), vec![]));
}

#[test]
fn lookup_in_c_keeps_its_table_and_needs_no_checks() {
    let (mut handler, bound) = load("lookup.wasm");
    assert!(matches!(bound, Bound::Acyclic(_)), "{bound:?}");
    for count in [1, 2] {
        assert_eq!(run(&mut handler, b"a"), (Outcome::Handled, vec![0, 0, 0, count]));
    }
    assert_eq!(run(&mut handler, b"b"), (Outcome::Handled, vec![0, 0, 0, 1]));
    assert_eq!(run(&mut handler, b"ab"), (Outcome::Passed(Pass::ByHandler), vec![]));
    assert_eq!(run(&mut handler, b""), (Outcome::Discarded, vec![]));
}

#[test]
fn echo_in_text_sends_the_message_from_where_it_landed() {
    let (mut handler, bound) = load("echo.wat");
    assert!(matches!(bound, Bound::Acyclic(_)), "{bound:?}");
    assert_eq!(run(&mut handler, b"ping"), (Outcome::Handled, b"ping".to_vec()));
    assert!(handler.memory().message_area().contains(&handler.sends()[0].start));
}

#[test]
fn hostile_handlers_are_disabled() {
    for (file, abort) in [
        ("endless.wat", Abort::TooManyOperations),
        ("wild.wat", Abort::Memory),
        ("flood.wat", Abort::TooManyOperations),
    ] {
        let (mut handler, _) = load(file);
        for _ in 0..Policy::default().max_aborts {
            let passed = Outcome::Passed(Pass::Involuntary(abort));
            assert_eq!(run(&mut handler, b"hello"), (passed, vec![]), "{file}");
        }
        assert!(handler.is_disabled(), "{file}");
        assert_eq!(run(&mut handler, b"hello"), (Outcome::Passed(Pass::Disabled), vec![]));
    }
}
