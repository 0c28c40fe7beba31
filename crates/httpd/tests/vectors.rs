//! The requests of two parsers' suites, as handlers see them.

mod cases;
mod stage;

use std::sync::{Arc, Mutex};

use cases::{CHUNKED, Case, LLHTTP, PICO, PICO_CHUNKS, Verdict};
use evring_httpd::{Request, Site};
use stage::Stage;

/// What becomes of bytes that arrive in pieces of one length.
fn verdicts(bytes: &[u8], piece: usize) -> Vec<Verdict<String>> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let called = Arc::clone(&calls);
    let handler = move |request: Request| {
        let body = String::from_utf8_lossy(request.body()).into_owned();
        let call = (request.method().to_string(), request.uri().to_string(), body);
        called.lock().unwrap().push(call);
        ""
    };
    let mut stage = Stage::with(Site::new(None).route("/", handler), "/nowhere".as_ref());
    for piece in bytes.chunks(piece) {
        stage.feed(piece);
    }
    // What is not whole by now is never answered.
    let sent = stage.io.sent.len();
    stage.end();
    assert_eq!(stage.io.sent.len(), sent);
    let mut calls = std::mem::take(&mut *calls.lock().unwrap()).into_iter();
    let verdict = |reply: &stage::IntoResponse| match reply.status {
        200 => Ok(calls.next().expect("a call for each 200")),
        status => Err(status),
    };
    let verdicts = stage::replies(&stage.io.sent).iter().map(verdict).collect();
    assert_eq!(calls.next(), None);
    verdicts
}

/// Checks a case, with its bytes at once and one by one.
fn check(name: &str, bytes: &[u8], expected: &[Verdict<&str>]) -> Result<(), String> {
    let owned = |(method, target, body): (&str, &str, &str)| {
        (method.to_owned(), target.to_owned(), body.to_owned())
    };
    let expected: Vec<_> = expected.iter().map(|verdict| verdict.map(owned)).collect();
    for piece in [bytes.len(), 1] {
        let found = verdicts(bytes, piece);
        if found != expected {
            return Err(format!("{name}, in pieces of {piece}: {found:?}, not {expected:?}"));
        }
    }
    Ok(())
}

/// Checks all cases of a table.
fn check_all(table: &[Case]) {
    let check = |(name, bytes, expected): &Case| check(name, bytes, expected).err();
    let wrong: Vec<_> = table.iter().filter_map(check).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn requests_of_llhttp() {
    check_all(LLHTTP);
}

#[test]
fn requests_of_picohttpparser() {
    check_all(PICO);
}

#[test]
fn chunks_of_picohttpparser() {
    let check =
        |(name, chunks, expected): &Case| check(name, &[CHUNKED, chunks].concat(), expected).err();
    let wrong: Vec<_> = PICO_CHUNKS.iter().filter_map(check).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
