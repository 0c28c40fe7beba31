use evring::files::FileKind;

use super::*;
use crate::limits::Limits;
use crate::message::request::{HeadMemory, parse};

const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

fn file() -> Validators {
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    Validators {
        etag: Some("\"a\"".to_owned()),
        modified: Some(modified),
        is_stable: true,
        is_weak: false,
        is_dated: true,
        resumes_by_date: true,
    }
}

fn with<T>(fields: &str, inspect: impl FnOnce(&RequestHead<'_>) -> T) -> T {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", fields.replace('|', "\r\n"));
    inspect(&parse(head.as_bytes(), &mut HeadMemory::new(), &Limits::default()).unwrap())
}

/// Returns the flags of the validators of a file with these times, in milliseconds after some second.
fn flags_at(changed: u64, modified: u64, wall: u64) -> [bool; 3] {
    let since = |ms| Duration::from_secs(784_111_777) + Duration::from_millis(ms);
    let ns = |ms| since(ms).as_nanos() as i64;
    let meta = Metadata {
        kind: FileKind::Regular,
        len: 3,
        modified_ns: ns(modified),
        changed_ns: ns(changed),
        inode: 7,
    };
    let validators = Validators::of(&meta, None, SystemTime::UNIX_EPOCH + since(wall));
    [validators.is_stable, validators.is_dated, validators.resumes_by_date]
}

#[test]
fn validators_depend_on_clock_resolution() {
    // Within a tick the file may have changed again undetected.
    assert_eq!(flags_at(300, 300, 319), [false, false, false]);
    assert_eq!(flags_at(300, 300, 320), [true, false, false]);
    // The date does not show a change within the remaining second.
    assert_eq!(flags_at(300, 300, 999), [true, false, false]);
    assert_eq!(flags_at(300, 300, 1000), [true, true, true]);
    // The tick may end in the next second, or exactly with this one.
    assert_eq!(flags_at(981, 981, 1001), [true, false, false]);
    assert_eq!(flags_at(981, 981, 2000), [true, true, true]);
    assert_eq!(flags_at(980, 980, 1000), [true, true, true]);
    // A change after the second of Last-Modified disables resuming by date.
    assert_eq!(flags_at(999, 0, 2000), [true, true, true]);
    assert_eq!(flags_at(1000, 999, 2000), [true, true, false]);
}

#[test]
fn preconditions_are_evaluated_in_order() {
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
        // An entity tag takes precedence over a date.
        (format!("If-None-Match: \"b\"|If-Modified-Since: {MODIFIED}|"), Proceed),
        (format!("If-Match: \"a\"|If-Unmodified-Since: {BEFORE}|"), Proceed),
        // If-Match and If-Unmodified-Since come before If-None-Match and If-Modified-Since.
        ("If-Match: \"b\"|If-None-Match: \"a\"|".to_owned(), Failed),
        ("If-Match: \"a\"|If-None-Match: \"a\"|".to_owned(), NotModified),
    ];
    for (fields, expected) in cases {
        assert_eq!(with(&fields, |request| file().evaluate(request)), expected, "{fields}");
    }
}

#[test]
fn range_is_used_if_if_range_matches() {
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
    for (fields, is_used) in cases {
        let fields = format!("Range: bytes=0-1|{fields}");
        let found = with(&fields, |request| file().range(request) == Some(b"bytes=0-1"));
        assert_eq!(found, is_used, "{fields}");
    }
    assert!(with("Range: bytes=0-1|Range: bytes=2-3|", |r| file().range(r).is_none()));
}
