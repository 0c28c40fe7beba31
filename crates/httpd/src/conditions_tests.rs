use super::*;
use crate::Limits;
use crate::request::{MEMORY, Parsed, parse};

const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

fn file() -> Validators {
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    Validators {
        etag: Some("\"a\"".to_owned()),
        modified: Some(modified),
        is_settled: true,
        is_dated: true,
        resumes_by_date: true,
    }
}

fn with<T>(fields: &str, look: impl FnOnce(&Request<'_, '_>) -> T) -> T {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", fields.replace('|', "\r\n"));
    match parse(head.as_bytes(), &mut { MEMORY }, &Limits::default()) {
        Parsed::Request(request) => look(&request),
        other => panic!("{other:?}: {head}"),
    }
}

#[test]
fn preconditions_in_their_order() {
    use Verdict::{Failed, NotModified, Proceed};
    let cases = [
        (String::new(), Proceed),
        ("If-None-Match: \"a\"|".to_owned(), NotModified),
        ("If-None-Match: W/\"a\"|".to_owned(), NotModified),
        ("If-None-Match: \"b\"|".to_owned(), Proceed),
        ("If-None-Match: \"b\", \"a\"|".to_owned(), NotModified),
        ("If-None-Match: \"b\"|If-None-Match: \"a\"|".to_owned(), NotModified),
        ("If-None-Match: *|".to_owned(), NotModified),
        ("If-None-Match: \"b,\"a\"|".to_owned(), Proceed),
        ("If-None-Match: a|".to_owned(), Proceed),
        ("If-None-Match:|".to_owned(), Proceed),
        ("If-Match: \"a\"|".to_owned(), Proceed),
        ("If-Match: *|".to_owned(), Proceed),
        ("If-Match: W/\"a\"|".to_owned(), Failed),
        ("If-Match: \"b\"|".to_owned(), Failed),
        ("If-Match: \"b\", \"a\"|".to_owned(), Proceed),
        (format!("If-Modified-Since: {MODIFIED}|"), NotModified),
        (format!("If-Modified-Since: {AFTER}|"), NotModified),
        (format!("If-Modified-Since: {BEFORE}|"), Proceed),
        ("If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT|".to_owned(), NotModified),
        ("If-Modified-Since: Sun Nov  6 08:49:37 1994|".to_owned(), NotModified),
        ("If-Modified-Since: yesterday|".to_owned(), Proceed),
        (format!("If-Unmodified-Since: {MODIFIED}|"), Proceed),
        (format!("If-Unmodified-Since: {BEFORE}|"), Failed),
        // The tag counts and the date does not.
        (format!("If-None-Match: \"b\"|If-Modified-Since: {MODIFIED}|"), Proceed),
        (format!("If-Match: \"a\"|If-Unmodified-Since: {BEFORE}|"), Proceed),
        // What must not fail comes before what need not be sent.
        ("If-Match: \"b\"|If-None-Match: \"a\"|".to_owned(), Failed),
        ("If-Match: \"a\"|If-None-Match: \"a\"|".to_owned(), NotModified),
    ];
    for (fields, verdict) in cases {
        assert_eq!(with(&fields, |request| file().judge(request)), verdict, "{fields}");
    }
}

#[test]
fn ranges_count_while_the_file_is_the_same() {
    let cases = [
        (String::new(), true),
        ("If-Range: \"a\"|".to_owned(), true),
        ("If-Range: W/\"a\"|".to_owned(), false),
        ("If-Range: \"b\"|".to_owned(), false),
        (format!("If-Range: {MODIFIED}|"), true),
        (format!("If-Range: {AFTER}|"), false),
        (format!("If-Range: {BEFORE}|"), false),
        ("If-Range: x|".to_owned(), false),
        ("If-Range: \"a\"|If-Range: \"a\"|".to_owned(), false),
    ];
    for (fields, counts) in cases {
        let fields = format!("Range: bytes=0-1|{fields}");
        let found = with(&fields, |request| file().range(request) == Some(b"bytes=0-1"));
        assert_eq!(found, counts, "{fields}");
    }
    assert!(with("Range: bytes=0-1|Range: bytes=2-3|", |r| file().range(r).is_none()));
}
