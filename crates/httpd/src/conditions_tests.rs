use evring::FileKind;

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

/// What is known of a file that was changed at one time and modified at another, and looked at later; in
/// milliseconds after some second.
fn looked_at(changed: u64, modified: u64, wall: u64) -> [bool; 3] {
    let since = |ms| Duration::from_secs(784_111_777) + Duration::from_millis(ms);
    let ns = |ms| since(ms).as_nanos() as i64;
    let meta = Metadata {
        kind: FileKind::Regular,
        len: 3,
        modified_ns: ns(modified),
        changed_ns: ns(changed),
        inode: 7,
    };
    let of = Validators::of(&meta, None, SystemTime::UNIX_EPOCH + since(wall));
    [of.is_settled, of.is_dated, of.resumes_by_date]
}

#[test]
fn validators_are_as_good_as_the_clocks_that_made_them() {
    // Within a tick the file may have changed again, and nothing shows it.
    assert_eq!(looked_at(300, 300, 319), [false, false, false]);
    assert_eq!(looked_at(300, 300, 320), [true, false, false]);
    // Nor does the date show a change within the rest of the second.
    assert_eq!(looked_at(300, 300, 999), [true, false, false]);
    assert_eq!(looked_at(300, 300, 1000), [true, true, true]);
    // The tick may end in the next second, or with this one.
    assert_eq!(looked_at(981, 981, 1001), [true, false, false]);
    assert_eq!(looked_at(981, 981, 2000), [true, true, true]);
    assert_eq!(looked_at(980, 980, 1000), [true, true, true]);
    // A file that was changed after the second that its date tells is not the same for certain.
    assert_eq!(looked_at(999, 0, 2000), [true, true, true]);
    assert_eq!(looked_at(1000, 999, 2000), [true, true, false]);
}

#[test]
fn preconditions_in_their_order() {
    use PreconditionResult::{Failed, NotModified, Proceed};
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
        assert_eq!(with(&fields, |request| file().evaluate(request)), verdict, "{fields}");
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
