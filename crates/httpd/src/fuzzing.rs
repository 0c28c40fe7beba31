//! Properties that hold for any input from clients; the fuzz targets in `fuzz/` call them.

use evring::Rx;

use crate::decision::coding::{Coding, Codings, choose};
use crate::decision::conditions::{PreconditionResult, Validators};
use crate::limits::Limits;
use crate::message::body::{BodyDecoder, BodyPiece};
use crate::message::head_errors::NoRequest;
use crate::message::path;
use crate::message::range::{self, RangeRequest};
use crate::message::request::{Framing, HeadMemory, KeptHead, parse};

/// A head is rejected, partial or complete, independent of the bytes after it.
///
/// # Panics
/// If the property does not hold.
pub fn head(bytes: &[u8]) {
    let limits = Limits::default();
    let len = match parse(bytes, &mut HeadMemory::new(), &limits) {
        Ok(request) => {
            assert!(
                request.head.ends_with(b"\r\n\r\n") && request.head.len() <= limits.max_head_bytes
            );
            // Only the digit of a later minor version differs.
            let changed = request.head.iter().zip(bytes).filter(|(found, sent)| found != sent);
            assert!(changed.count() <= 1);
            assert!(!request.target.iter().any(|b| b.is_ascii_whitespace()));
            assert!(request.is_http10 || request.all("host").count() == 1);
            let _ = path::split(request.target).map(|(name, _)| path::resolve(name));
            let kept = KeptHead::new(&request, None);
            let (kept, fields) = (kept.request(), request.fields());
            assert_eq!(
                (kept.name, kept.target, kept.head),
                (request.name, request.target, request.head)
            );
            assert!(kept.fields().eq(fields) && kept.method == request.method);
            request.head.len()
        }
        Err(NoRequest::Partial) => return assert!(bytes.len() < limits.max_head_bytes),
        Err(NoRequest::Rejected(status)) => return assert!((400..600).contains(&status.0)),
    };
    for end in (0..len).rev().take(40) {
        let mut memory = HeadMemory::new();
        let before = parse(&bytes[..end], &mut memory, &limits);
        assert!(matches!(before, Err(NoRequest::Partial)), "{before:?} at {end} of {len}");
    }
    let mut memory = HeadMemory::new();
    let whole = parse(&bytes[..len], &mut memory, &limits);
    assert!(whole.is_ok_and(|request| request.head.len() == len));
}

/// The bytes after a body and its content; `None` if the body is incomplete.
pub(crate) type Decoded = Result<Option<(Vec<u8>, Vec<u8>)>, u16>;

/// Decodes a body that arrives in pieces with these ends, in order.
///
/// # Panics
/// If the bytes that are not consumed are unbounded.
pub(crate) fn decode(
    framing: Framing,
    input: &[u8],
    ends: impl Iterator<Item = usize>,
    limits: &Limits,
) -> Decoded {
    let mut body = BodyDecoder::new(framing, limits).map_err(|status| status.0)?;
    let (mut tail, mut content, mut fed) = (Vec::new(), Vec::new(), 0);
    for end in ends.chain([input.len()]) {
        let end = end.clamp(fed, input.len());
        tail.extend_from_slice(&input[fed..end]);
        fed = end;
        let mut rx = Rx::borrowed(&mut tail, false);
        loop {
            match body.next(&mut rx, limits).map_err(|status| status.0)? {
                BodyPiece::Content(n) => {
                    content.extend_from_slice(&rx.bytes()[..n]);
                    rx.consume(n);
                }
                BodyPiece::End(n) => {
                    rx.consume(n);
                    assert!(!body.is_open());
                    return Ok(Some(([rx.bytes(), &input[fed..]].concat(), content)));
                }
                BodyPiece::Partial => break,
            }
        }
        let remaining = rx.bytes().len();
        tail.drain(..tail.len() - remaining);
        assert!(remaining < limits.max_head_bytes, "unconsumed bytes are bounded");
    }
    Ok(None)
}

/// A chunked body decodes the same for any segmentation.
///
/// # Panics
/// If the property does not hold.
pub fn body(bytes: &[u8]) {
    let limits = Limits { max_body_bytes: 10_000, ..Limits::default() };
    let bytes = &bytes[..bytes.len().min(8_000)];
    let read = |step| decode(Framing::Chunked, bytes, (0..bytes.len()).step_by(step), &limits);
    let whole = read(usize::MAX);
    for step in [1, 7] {
        assert_eq!(read(step), whole, "in steps of {step}");
    }
    if let Ok(Some((after, content))) = whole {
        assert!(content.len() + after.len() < bytes.len() && bytes.ends_with(&after));
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
    let mut memory = HeadMemory::new();
    let Ok(request) = parse(&head, &mut memory, &Limits::default()) else { return };
    let modified = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(784_111_777);
    let validators = Validators {
        etag: Some("\"a\"".to_owned()),
        modified: Some(modified),
        resumes_by_date: true,
        ..Validators::default()
    };
    // A list that is only the tag has it; one without its characters has not.
    let is_tag = |field: &[u8]| matches!(field, b"*" | b"\"a\"");
    let may_have_tag = |field: &[u8]| {
        field.contains(&b'*') || field.windows(3).any(|characters| characters == b"\"a\"")
    };
    let is_listed = |name| request.all(name).any(is_tag);
    let may_be_listed = |name| request.all(name).any(may_have_tag);
    let holds = match validators.evaluate(&request) {
        PreconditionResult::Failed if request.has("if-match") => !is_listed("if-match"),
        PreconditionResult::Failed => request.has("if-unmodified-since"),
        _ if request.has("if-match") && !may_be_listed("if-match") => false,
        PreconditionResult::NotModified if request.has("if-none-match") => {
            may_be_listed("if-none-match")
        }
        PreconditionResult::NotModified => request.has("if-modified-since"),
        PreconditionResult::Proceed => !is_listed("if-none-match"),
    };
    assert!(holds, "{}", head.escape_ascii());
    assert!(validators.range(&request).is_none() || request.has("range"));
    let mut available = Codings::default();
    available.add(Coding::Gzip);
    let chosen = choose(&request, available);
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
        fn fields(bytes in "(If-(None-)?Match: [\"aW/, *]{0,9}\r\n|If-(Un)?[Mm]odified-Since: Sun, 06 Nov 199[345] 08:49:37 GMT\r\n|Range: bytes=[0-9-]{0,4}\r\n|Accept-Encoding: [a-z;=0.,* ]{0,12}\r\n){0,3}X: y") {
            conditions(bytes.as_bytes());
        }

        #[test]
        fn paths(bytes in "[/a.%2eE?]{0,20}") {
            path(bytes.as_bytes());
        }
    }
}
