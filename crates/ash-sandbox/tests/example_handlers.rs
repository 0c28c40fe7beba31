//! The handlers in `examples/handlers`, in Rust, C and WebAssembly text. `ASH_HANDLERS` may name a directory
//! of modules in the place of the committed ones.

#![cfg(feature = "sandbox")]

use crate::memory;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use ash_sandbox::ilp::{Mode, PipeList, checksum};
use ash_sandbox::sandbox::{
    Abort, Ash, Bound, Handler, Outcome, Pass, Policy, Sandboxer, SharedTable,
};
use memory::bytes;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers")
}

fn load(file: &str) -> (Handler, Bound) {
    let ash = ash(file);
    (ash.instantiate(1).unwrap(), ash.bound())
}

fn ash(file: &str) -> Ash {
    let path = match std::env::var_os("ASH_HANDLERS") {
        Some(modules) if file.ends_with(".wasm") => Path::new(&modules).join(file),
        _ => directory().join(file),
    };
    let module = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let module = wat::parse_bytes(&module).unwrap();
    Sandboxer::new(Policy::default()).unwrap().load(&module).unwrap()
}

fn run(handler: &mut Handler, message: &[u8]) -> (Outcome, Vec<u8>) {
    let outcome = handler.handle_copy(message, 7, Instant::now());
    (outcome, handler.sent(message).flatten().copied().collect())
}

/// The same for a message that lands in a buffer of 64 bytes.
fn land(handler: &mut Handler, slot: u32, message: &[u8]) -> (Outcome, Vec<u8>) {
    let start = handler.memory().message_area().start + 64 * slot as usize;
    let to = handler.memory().host_pointer(start);
    // SAFETY: the buffer is in the message area, and nothing else writes to it.
    let landed = unsafe {
        message.as_ptr().copy_to_nonoverlapping(to, message.len());
        std::slice::from_raw_parts(to, message.len())
    };
    let outcome = handler.handle(landed, 7, slot, Instant::now());
    (outcome, handler.sent(landed).flatten().copied().collect())
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
    for (by, count) in [(1u32, 1u32), (41, 42)] {
        let reply = (Outcome::Handled, count.to_be_bytes().to_vec());
        assert_eq!(run(&mut handler, &by.to_be_bytes()), reply);
    }
    assert_eq!(run(&mut handler, b"12345"), (Outcome::Passed(Pass::ByHandler), vec![]));
}

#[test]
fn abort_left_the_state_of_a_handler_in_rust_in_use() {
    let (mut handler, _) = load("increment.wasm");
    // More often than the handler has room for frames on its stack.
    for count in 1..2000u32 {
        let reply = (Outcome::Handled, count.to_be_bytes().to_vec());
        assert_eq!(run(&mut handler, &1u32.to_be_bytes()), reply);
        let too_much = (Outcome::Passed(Pass::Voluntary), vec![]);
        assert_eq!(run(&mut handler, &u32::MAX.to_be_bytes()), too_much);
    }
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
fn cache_in_rust_answers_from_its_pages_and_knows_their_tags() {
    let (mut handler, _) = load("cache.wasm");
    let page = std::fs::read_to_string(directory().join("pages/style.css")).unwrap();
    let (outcome, sent) = run(&mut handler, b"GET /cached/style.css HTTP/1.1\r\nHost: a\r\n\r\n");
    let sent = String::from_utf8(sent).unwrap();
    assert_eq!(outcome, Outcome::Handled);
    let (head, body) = sent.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, page);
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    assert_eq!(field("Content-Length: "), page.len().to_string());
    let tag = field("ETag: ");
    for (tags, status) in [
        (tag.to_owned(), "304 Not Modified"),
        (format!("\"other\", {tag}"), "304 Not Modified"),
        ("*".to_owned(), "304 Not Modified"),
        ("\"other\"".to_owned(), "200 OK"),
        ("\"*\"".to_owned(), "200 OK"),
    ] {
        let request = format!("GET /cached/style.css HTTP/1.1\r\nif-none-match: {tags}\r\n\r\n");
        let (outcome, sent) = run(&mut handler, request.as_bytes());
        assert_eq!(outcome, Outcome::Handled);
        assert!(sent.starts_with(format!("HTTP/1.1 {status}\r\n").as_bytes()), "{tags}");
    }
    for other in [
        "GET /cached/none HTTP/1.1",
        "GET /cached/style.css?a HTTP/1.1",
        "HEAD /cached/ HTTP/1.1",
        "GET",
    ] {
        let request = format!("{other}\r\n\r\n");
        assert_eq!(
            run(&mut handler, request.as_bytes()),
            (Outcome::Passed(Pass::ByHandler), vec![])
        );
    }
}

#[test]
fn publish_in_rust_keeps_a_message_and_answers_with_its_checksum() {
    let (mut handler, _) = load("publish.wasm");
    let mut list = PipeList::new();
    let pipe = list.add(checksum::pipe()).unwrap();
    handler.add_pipes(list.compile(Mode::Read).unwrap(), vec![(pipe, checksum::SUM)]);
    // SAFETY: only `land` writes to the message area, to other slots than the one that is kept.
    unsafe { handler.set_max_kept(1) };
    let passed = Outcome::Passed(Pass::ByHandler);
    assert_eq!(land(&mut handler, 0, b"?"), (passed.clone(), vec![]), "nothing is published");
    let mut last = None;
    // The example of RFC 1071, section 3, behind a word of `=` and 0; and odd lengths.
    for (slot, page, sum) in [
        (0, &b"=\0\0\x01\xf2\x03\xf4\xf5\xf6\xf7"[..], !0x1af3),
        (1, b"=ab", !0x9f61),
        (2, b"=", !0x3d00),
    ] {
        assert_eq!(land(&mut handler, slot, page), (Outcome::Handled, vec![]));
        assert_eq!((handler.keeps(), handler.given_back().first()), (Some(slot), last.as_ref()));
        assert_eq!(handler.events(), [(1, u64::from(sum))]);
        for answers in 1..3 {
            let reply = [&u16::to_be_bytes(sum), page].concat();
            assert_eq!(land(&mut handler, slot + 1, b"?"), (Outcome::Handled, reply));
            assert_eq!(handler.own_counters()[0], u64::from(2 * slot + answers));
        }
        assert_eq!(land(&mut handler, slot + 1, b"other"), (passed.clone(), vec![]));
        last = Some(slot);
    }
    // A message that was copied cannot be kept, and the last one still is.
    let aborted = Outcome::Passed(Pass::Voluntary);
    assert_eq!(run(&mut handler, b"=copied"), (aborted, vec![]));
    assert_eq!(land(&mut handler, 0, b"?"), (Outcome::Handled, b"\xc2\xff=".to_vec()));
}

/// `ci/handlers.sh --update` sets `UPDATE_HANDLERS`.
#[test]
fn modules_of_handlers_in_text_are_those_of_their_sources() {
    let files = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<_> = files.filter(|file| file.extension() == Some("wat".as_ref())).collect();
    assert_eq!(texts.len(), 7, "{texts:?}");
    for text in texts {
        let module = wat::parse_file(&text).unwrap();
        let committed = text.with_extension("wasm");
        if std::env::var_os("UPDATE_HANDLERS").is_some() {
            std::fs::write(&committed, &module).unwrap();
        }
        let is_same = std::fs::read(&committed).is_ok_and(|committed| committed == module);
        assert!(is_same, "{}: run ci/handlers.sh --update", text.display());
    }
}

#[test]
fn echo_in_text_sends_the_message_from_where_it_landed() {
    let (mut handler, bound) = load("echo.wat");
    assert!(matches!(bound, Bound::Acyclic(_)), "{bound:?}");
    assert_eq!(run(&mut handler, b"ping"), (Outcome::Handled, b"ping".to_vec()));
    assert!(handler.memory().message_area().contains(&handler.sends()[0].start));
}

#[test]
fn lock_is_acquired_once_and_the_application_gets_other_requests() {
    let ash = ash("lock.wat");
    assert!(matches!(ash.bound(), Bound::Acyclic(_)), "{:?}", ash.bound());
    let table = SharedTable::with_sections(256, 8).unwrap();
    let mut handler = ash.instantiate_with(1, &table).unwrap();
    let mut ask = |connection, message: &[u8]| {
        let outcome = handler.handle_copy(message, connection, Instant::now());
        let sent: Vec<u8> = handler.sent(message).flatten().copied().collect();
        (outcome, sent)
    };
    let aborted = (Outcome::Passed(Pass::Voluntary), vec![]);
    let passed = (Outcome::Passed(Pass::ByHandler), vec![]);
    assert_eq!(ask(0, b"a\x05"), (Outcome::Handled, b"a\x05".to_vec()));
    assert_eq!(ask(1, b"a\x05"), aborted, "it must not wait");
    assert_eq!(ask(1, b"a\xff"), (Outcome::Handled, b"a\xff".to_vec()));
    assert_eq!(ask(1, b"r\x05"), passed, "it is not its lock");
    assert_eq!(ask(0, b"r\x05"), (Outcome::Handled, b"r\x05".to_vec()));
    assert_eq!(ask(1, b"a\x05"), (Outcome::Handled, b"a\x05".to_vec()));
    assert_eq!(ask(1, b"a"), passed);
    assert_eq!(ask(1, b"q\x05"), passed);
    let in_use = table.lock(7);
    assert_eq!(ask(1, b"a\x07"), aborted, "the application has it");
    drop(in_use);
    assert_eq!(ask(1, b"a\x07"), (Outcome::Handled, b"a\x07".to_vec()));
}

/// Releases the locks of a connection that has closed, as the application does.
fn release_of(table: &SharedTable, connection: u64) {
    for number in 0..table.sections() {
        let lock = table.lock(number);
        if lock[0].load(Ordering::Relaxed) == connection + 1 {
            lock[0].store(0, Ordering::Relaxed);
        }
    }
}

#[test]
fn lock_of_a_connection_that_has_closed_was_held_for_ever() {
    let table = SharedTable::with_sections(256, 8).unwrap();
    let mut handler = ash("lock.wat").instantiate_with(1, &table).unwrap();
    let mut ask = |connection, message| handler.handle_copy(message, connection, Instant::now());
    assert_eq!(ask(0, b"a\x05"), Outcome::Handled);
    assert_eq!(ask(1, b"a\x06"), Outcome::Handled);
    release_of(&table, 0);
    assert_eq!(ask(1, b"a\x05"), Outcome::Handled);
    assert_eq!(ask(2, b"a\x06"), Outcome::Passed(Pass::Voluntary), "it is another one's");
}

#[test]
fn remote_write_of_a_trusted_peer_reaches_any_address_of_the_handler() {
    let (mut handler, bound) = load("remote_write.wat");
    assert!(matches!(bound, Bound::Acyclic(_)), "{bound:?}");
    let write = |address: u32, data: &[u8]| [&address.to_le_bytes(), data].concat();
    assert_eq!(run(&mut handler, &write(300, b"data")).0, Outcome::Handled);
    assert_eq!(bytes(&handler, 299..305), b"\0data\0");
    for useless in [write(65_533, b"data"), write(u32::MAX, b"data"), b"sho".to_vec()] {
        assert_eq!(run(&mut handler, &useless).0, Outcome::Discarded);
    }
}

#[test]
fn remote_write_of_others_stays_within_its_segment() {
    let (mut handler, bound) = load("remote_write_checked.wat");
    assert!(matches!(bound, Bound::Acyclic(_)), "{bound:?}");
    let write = |segment: u32, at: u32, size: u32, data: &[u8]| {
        let header = [segment, at, size].map(u32::to_le_bytes);
        [header.as_flattened(), data].concat()
    };
    assert_eq!(run(&mut handler, &write(0, 4092, 4, b"last")).0, Outcome::Handled);
    assert_eq!(bytes(&handler, 0x1ffb..0x2001), b"\0last\0");
    assert_eq!(run(&mut handler, &write(1, 1, 4, b"data")).0, Outcome::Handled);
    assert_eq!(bytes(&handler, 0x4000..0x4006), b"\0data\0");
    for useless in [
        write(2, 0, 4, b"data"),
        write(0, 4093, 4, b"data"),
        write(0, u32::MAX, 4, b"data"),
        write(1, 0, u32::MAX, b"data"),
        write(1, 0, 3, b"data"),
        write(1, 65, 0, b""),
        b"short".to_vec(),
    ] {
        assert_eq!(run(&mut handler, &useless).0, Outcome::Discarded, "{useless:?}");
    }
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
