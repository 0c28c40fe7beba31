//! Tests of the access log.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use super::*;
use crate::limits::Limits;
use crate::message::request::{HeadMemory, parse};

fn line(head: &str) -> String {
    line_in(LogFormat::Combined, head)
}

fn line_in(format: LogFormat, head: &str) -> String {
    let mut memory = HeadMemory::new();
    let parsed = parse(head.as_bytes(), &mut memory, &Limits::default());
    let logged = match &parsed {
        Ok(request) => LoggedRequest::Request(request),
        Err(_) => LoggedRequest::Bytes(head.as_bytes()),
    };
    let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
    let peer = Some([192, 0, 2, 1].into());
    let mut out = Vec::new();
    let time = Some(Duration::from_micros(34));
    let now = || SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_012);
    let entry = LogEntry { peer, date, now, logged, status: 200, body: 12, time };
    entry.put_line(format, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn lines_have_the_combined_format() {
    let head = "GET /a?b HTTP/1.1\r\nHost: h\r\nReferer: http://r/\r\nUser-Agent: u v\r\n\r\n";
    let expected = "192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b HTTP/1.1\" 200 12 \
                    \"http://r/\" \"u v\"\n";
    assert_eq!(line(head), expected);
    let expected = |logged: &str| {
        format!("192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] \"{logged}\" 200 12 \"-\" \"-\"\n")
    };
    assert_eq!(line(""), expected("-"));
    assert_eq!(line("no \"sense\" \r\n\r\n"), expected("no \\x22sense\\x22 "));
    assert_eq!(line(&"x".repeat(1000)), expected(&"x".repeat(MAX_INVALID_LINE_BYTES)));
}

#[test]
fn lines_with_their_times_have_the_combined_format_first() {
    for head in ["GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: u 1\r\n\r\n", ""] {
        let combined = line(head);
        let expected = format!("{} 34\n", combined.trim_end_matches('\n'));
        assert_eq!(line_in(LogFormat::Timed, head), expected);
    }
}

#[test]
#[cfg(feature = "cli")]
fn lines_of_json_are_objects_whatever_a_client_sends() {
    let head =
        "GET /a?\\b HTTP/1.1\r\nHost: h\r\nReferer: http://r/\r\nUser-Agent: u\"\\\u{e9}\r\n\r\n";
    let value = |head| {
        let line = line_in(LogFormat::Json, head);
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        serde_json::from_str::<serde_json::Value>(&line).unwrap()
    };
    let expected = serde_json::json!({
        "time": 784_111_777.012, "client": "192.0.2.1", "method": "GET", "target": "/a?\\b",
        "host": "h", "referer": "http://r/", "user_agent": "u\"\\\u{c3}\u{a9}",
        "status": 200, "bytes": 12, "microseconds": 34,
    });
    assert_eq!(value(head), expected);
    assert_eq!(value("\u{0}\"\r\n\r\n")["invalid"], "\u{0}\"");
    assert_eq!(value("").get("invalid"), None);
}

#[test]
fn passwords_of_an_invalid_request_were_logged_as_json() {
    for end in ["\r\n", "\n"] {
        let secrets =
            format!("Authorization: Basic c2VjcmV0{end}Cookie: c2VjcmV0{end}{end}c2VjcmV0");
        let head = format!("GET /a.txt HTTP/1.1{end}no field{end}{secrets}");
        for format in [LogFormat::Combined, LogFormat::Timed, LogFormat::Json] {
            let line = line_in(format, &head);
            assert!(line.contains("\"GET /a.txt HTTP/1.1\""), "{line}");
            assert!(!line.contains("c2VjcmV0"), "{line}");
            // Empty lines in front of a request are no part of it.
            assert_eq!(line_in(format, &format!("\r\n\r\n{head}")), line);
        }
    }
}

#[test]
fn newline_that_ends_a_cut_line_was_counted_as_a_lost_line() {
    let metrics = Metrics::default();
    let path = Some(PathBuf::from("/dev/full"));
    let to = AccessLog { path, ..AccessLog::default() };
    let mut target = LogTarget::open(to, metrics.clone()).unwrap();
    target.is_partial = true;
    for lost in [1, 2] {
        target.write(b"line\n", b"");
        assert_eq!((target.lost, metrics.own().log_lines_lost.get()), (Some(lost), lost));
    }
}

#[test]
fn log_write_error_was_reported_at_each_write() {
    let metrics = Metrics::default();
    let path = Some(PathBuf::from("/dev/full"));
    let to = AccessLog { path, ..AccessLog::default() };
    let mut target = LogTarget::open(to, metrics.clone()).unwrap();
    let write = |target: &mut LogTarget, text: &[u8]| target.write(text, b"");
    // The error is logged when `lost` becomes `Some`, and not again before it was `None`.
    for lost in [1, 2] {
        write(&mut target, b"line\n");
        assert_eq!((target.lost, metrics.own().log_lines_lost.get()), (Some(lost), lost));
        write(&mut target, b"");
        assert_eq!(target.lost, Some(lost));
    }
    target.file = Some(tempfile::tempfile().unwrap());
    write(&mut target, b"line\n");
    assert_eq!((target.lost, metrics.own().log_lines_lost.get()), (None, 2));
}

#[test]
fn line_that_was_cut_was_joined_to_the_next_one() {
    let metrics = Metrics::default();
    let mut target = LogTarget::open(AccessLog::default(), metrics.clone()).unwrap();
    // A pipe with room for 99 bytes in its last page: of a long write, it takes what is not a whole page.
    const ROOM: usize = 65_536;
    const PAGE: usize = 4096;
    let (reader, writer) = io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    let mut reader = File::from(OwnedFd::from(reader));
    target.file = Some(File::from(OwnedFd::from(writer)));
    let mut room = vec![0; ROOM];
    target.write(&[b'a'; ROOM - 100], b"\n");
    assert_eq!(target.lost, None);
    target.write(b"b\nc", &[&[b'c'; PAGE][..], b"\nd\n"].concat());
    assert_eq!((target.lost, metrics.own().log_lines_lost.get()), (Some(2), 2));
    let n = io::Read::read(&mut reader, &mut room).unwrap();
    assert_eq!(&room[ROOM - 100..n], b"\nb\ncccc");
    target.write(b"e\n", b"");
    let n = io::Read::read(&mut reader, &mut room).unwrap();
    assert_eq!(&room[..n], b"\ne\n");
}

#[test]
fn lines_of_a_ring_that_wraps_were_divided() {
    // Each write to this socket is a message.
    let (reader, socket) = UnixDatagram::pair().unwrap();
    let mut target = LogTarget::open(AccessLog::default(), Metrics::default()).unwrap();
    target.file = Some(File::from(OwnedFd::from(socket)));
    target.is_partial = true;
    target.write(b"one\ntw", b"o\nthree\n");
    let mut message = [0; 64];
    let n = reader.recv(&mut message).unwrap();
    assert_eq!(&message[..n], b"\none\ntwo\nthree\n");
}

#[test]
fn client_bytes_are_escaped() {
    let head = "GET / HTTP/1.0\r\nUser-Agent: a\" 200 1 \"\\\u{e9}\t\r\n\r\n";
    let line = line(head);
    assert!(line.ends_with(" \"a\\x22 200 1 \\x22\\x5C\\xC3\\xA9\"\n"), "{line}");
}

#[test]
fn line_behind_one_that_was_cut_was_appended_to_it_after_a_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let to = AccessLog::from(path.clone());
    let mut target = LogTarget::open(to, Metrics::default()).unwrap();
    target.write(b"begin", b"");
    target.reopen();
    target.write(b"whole\n", b"");
    assert_eq!(std::fs::read(&path).unwrap(), b"begin\nwhole\n");
    // In another file there is none.
    target.write(b"begin", b"");
    std::fs::rename(&path, dir.path().join("old")).unwrap();
    target.reopen();
    target.write(b"whole\n", b"");
    assert_eq!(std::fs::read(&path).unwrap(), b"whole\n");
}
