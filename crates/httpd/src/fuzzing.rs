//! Properties that hold for any input from clients; the fuzz targets in `fuzz/` call them.

use evring::Rx;

use crate::Limits;
use crate::body::{Body, BodyPiece};
use crate::coding::{Coding, Codings, choose};
use crate::conditions::Validators;
use crate::head_errors::as_http_1_1;
use crate::path;
use crate::range::{self, RangeRequest};
use crate::request::{Framing, MEMORY, Parsed, parse};

/// A head is rejected, partial or complete, independent of the bytes after it.
///
/// # Panics
/// If the property does not hold.
pub fn head(bytes: &[u8]) {
    let limits = Limits::default();
    let len = match parse(bytes, &mut { MEMORY }, &limits) {
        Parsed::Request(request) => {
            assert!(
                request.head.ends_with(b"\r\n\r\n") && request.head.len() <= limits.max_head_bytes
            );
            assert_eq!(request.head, &bytes[..request.head.len()]);
            assert!(!request.target.iter().any(|b| b.is_ascii_whitespace()));
            assert!(request.is_http10 || request.all("host").count() == 1);
            let _ = path::split(request.target).map(|(name, _)| path::resolve(name));
            request.head.len()
        }
        Parsed::Partial => return assert!(bytes.len() < limits.max_head_bytes),
        Parsed::Rejected(status) => return assert!((400..600).contains(&status.0)),
        Parsed::LaterMinor(digit) => return head(&as_http_1_1(bytes, digit)),
    };
    for end in (0..len).rev().take(40) {
        let mut memory = MEMORY;
        let before = parse(&bytes[..end], &mut memory, &limits);
        assert!(matches!(before, Parsed::Partial), "{before:?} at {end} of {len}");
    }
    let mut memory = MEMORY;
    let whole = parse(&bytes[..len], &mut memory, &limits);
    assert!(matches!(whole, Parsed::Request(request) if request.head.len() == len));
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    Open,
    Rejected(u16),
    /// The content, and the number of bytes consumed.
    Whole(Vec<u8>, usize),
}

fn read(bytes: &[u8], step: usize) -> Found {
    let limits = Limits { max_body_bytes: 10_000, ..Limits::default() };
    let Ok(mut body) = Body::new(Framing::Chunked, &limits) else { return Found::Rejected(0) };
    let (mut tail, mut content, mut taken) = (Vec::new(), Vec::new(), 0);
    for piece in bytes.chunks(step.max(1)) {
        tail.extend_from_slice(piece);
        loop {
            let mut rx = Rx::borrowed(&mut tail, false);
            let before = rx.bytes().len();
            let next = body.next(&mut rx, &limits);
            let end = match next {
                Err(status) => return Found::Rejected(status.0),
                Ok(BodyPiece::Partial) => None,
                Ok(BodyPiece::Content(n)) => {
                    content.extend_from_slice(&rx.bytes()[..n]);
                    rx.consume(n);
                    Some(false)
                }
                Ok(BodyPiece::End(n)) => {
                    rx.consume(n);
                    Some(true)
                }
            };
            let used = before - rx.bytes().len();
            taken += used;
            tail.drain(..used);
            match end {
                None => break,
                Some(false) => {}
                Some(true) => return Found::Whole(content, taken),
            }
        }
        assert!(tail.len() < limits.max_head_bytes, "unconsumed bytes are bounded");
    }
    Found::Open
}

/// A chunked body decodes the same for any segmentation.
///
/// # Panics
/// If the property does not hold.
pub fn body(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(8_000)];
    let whole = read(bytes, bytes.len());
    for step in [1, 7] {
        assert_eq!(read(bytes, step), whole, "in steps of {step}");
    }
    if let Found::Whole(content, taken) = whole {
        assert!(content.len() < taken && taken <= bytes.len());
    }
}

/// Ranges are within the file, and in sum no longer than it.
///
/// # Panics
/// If the property does not hold.
pub fn range(bytes: &[u8]) {
    let (len, field) = bytes.split_at(bytes.len().min(4));
    let len = len.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let parts = match range::parse_range(field, len) {
        RangeRequest::Whole | RangeRequest::NotSatisfiable => return,
        RangeRequest::One(part) => vec![part],
        RangeRequest::Several(parts) => {
            assert!(parts.len() > 1 && parts.iter().map(|p| p.end - p.start).sum::<u64>() <= len);
            parts
        }
    };
    assert!(parts.iter().all(|part| part.start < part.end && part.end <= len));
}

/// Conditions and codings are evaluated for any field values; the chosen coding is available.
///
/// # Panics
/// If the property does not hold.
pub fn conditions(bytes: &[u8]) {
    let mut head = b"GET / HTTP/1.1\r\nHost: a\r\n".to_vec();
    head.extend_from_slice(bytes);
    head.extend_from_slice(b"\r\n\r\n");
    let mut memory = MEMORY;
    let Parsed::Request(request) = parse(&head, &mut memory, &Limits::default()) else { return };
    let modified = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(784_111_777);
    let validators = Validators {
        etag: Some("\"a\"".to_owned()),
        modified: Some(modified),
        resumes_by_date: true,
        ..Validators::default()
    };
    let result = validators.evaluate(&request);
    assert_eq!(result, validators.evaluate(&request));
    assert!(validators.range(&request).is_none() || request.has("range"));
    let mut available = Codings::default();
    available.add(Coding::Gzip);
    let chosen = choose(request.all("accept-encoding"), available);
    assert!(chosen.is_none_or(|coding| coding == Coding::Gzip && request.has_accept_encoding));
}

/// A resolved path stays below the root.
///
/// # Panics
/// If the property does not hold.
pub fn path(bytes: &[u8]) {
    let Ok((name, _)) = path::split(bytes) else { return };
    assert!(name.starts_with(b"/"));
    let Ok(path) = path::resolve(name) else { return };
    for (at, part) in path.components().enumerate() {
        let std::path::Component::Normal(part) = part else { panic!("{path:?}") };
        let is_well_known = at == 0 && part == ".well-known";
        assert!(is_well_known || !part.as_encoded_bytes().starts_with(b"."), "{path:?}");
        assert!(!part.as_encoded_bytes().contains(&0), "{path:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads(bytes in "(GET|get|POST) (/|\\*|a)[a-z%.]{0,6} HTTP/1.[01](\r\n|\n)(Host: a\r\n|X:y\r\n|Content-Length: [0-9]\r\n|Transfer-Encoding: chunked\r\n){0,3}(\r\n)?.{0,4}") {
            head(bytes.as_bytes());
        }

        #[test]
        fn bodies(bytes in "([0-9a-f]{1,2}(;a)?\r\n|[a-c]{1,4}|\r\n|0\r\n\r\n|A: b\r\n){0,9}") {
            body(bytes.as_bytes());
        }

        #[test]
        fn ranges(bytes in prop::collection::vec(any::<u8>(), 0..9), field in "bytes=[0-9, -]{0,20}") {
            range(&[&bytes[..], field.as_bytes()].concat());
        }

        #[test]
        fn fields(bytes in "(If-None-Match: [\"aW/, *]{0,9}\r\n|Range: bytes=[0-9-]{0,4}\r\n|Accept-Encoding: [a-z;=0.,* ]{0,12}\r\n){0,3}X: y") {
            conditions(bytes.as_bytes());
        }

        #[test]
        fn paths(bytes in "[/a.%2eE?]{0,20}") {
            path(bytes.as_bytes());
        }
    }
}
