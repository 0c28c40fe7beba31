//! The requests of two parsers' test suites, as handlers receive them.

use crate::cases;
use crate::stage;

use std::sync::{Arc, Mutex};

use cases::{CHUNKED, Case, LLHTTP, Outcome, PICO, PICO_CHUNKS};
use evring_httpd::{Request, Site};
use stage::Stage;

/// Returns the outcomes of bytes that arrive in pieces of `piece` bytes.
fn outcomes(bytes: &[u8], piece: usize) -> Vec<Outcome<String>> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&calls);
    let handler = move |request: Request| {
        let body = String::from_utf8_lossy(request.body()).into_owned();
        let call = (request.method().to_string(), request.uri().to_string(), body);
        recorded.lock().unwrap().push(call);
        ""
    };
    let mut stage = Stage::with(Site::new(None).route("/", handler), "/nowhere".as_ref());
    for piece in bytes.chunks(piece) {
        stage.feed(piece);
    }
    // Incomplete requests are never answered.
    let sent = stage.io.sent.len();
    stage.end();
    assert_eq!(stage.io.sent.len(), sent);
    let mut calls = std::mem::take(&mut *calls.lock().unwrap()).into_iter();
    let outcome = |response: &stage::ParsedResponse| match response.status {
        200 => Ok(calls.next().expect("a call for each 200")),
        status => Err(status),
    };
    let outcomes = stage::responses(&stage.io.sent).iter().map(outcome).collect();
    assert_eq!(calls.next(), None);
    outcomes
}

/// Checks a case, with its bytes in one piece and one by one.
fn check(name: &str, bytes: &[u8], expected: &[Outcome<&str>]) -> Result<(), String> {
    let owned = |(method, target, body): (&str, &str, &str)| {
        (method.to_owned(), target.to_owned(), body.to_owned())
    };
    let expected: Vec<_> = expected.iter().map(|outcome| outcome.map(owned)).collect();
    for piece in [bytes.len(), 1] {
        let found = outcomes(bytes, piece);
        if found != expected {
            return Err(format!(
                "{name}, in pieces of {piece}: found {found:?}, expected {expected:?}"
            ));
        }
    }
    Ok(())
}

fn check_all(table: &[Case]) {
    let check = |(name, bytes, expected): &Case| check(name, bytes, expected).err();
    let failures: Vec<_> = table.iter().filter_map(check).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn llhttp_requests() {
    check_all(LLHTTP);
}

#[test]
fn picohttpparser_requests() {
    check_all(PICO);
}

#[test]
fn picohttpparser_chunked_bodies() {
    let check =
        |(name, chunks, expected): &Case| check(name, &[CHUNKED, chunks].concat(), expected).err();
    let failures: Vec<_> = PICO_CHUNKS.iter().filter_map(check).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
