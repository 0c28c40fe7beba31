//! The site's responses without a kernel; the test controls every event.

use crate::stage;

use std::fs;
use std::time::{Duration, SystemTime};

use evring_httpd::evring::{Application, Close, HIGH_WATER};
use evring_httpd::options::Limits;
use evring_httpd::{Root, Site, State};
use stage::bad::{Bad, bad};
use stage::{ParsedResponse, Stage, response, responses};
use tempfile::TempDir;

/// A directory of a few files.
fn site() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    write(&root, "hello.txt", b"Hello, World");
    write(&root, "index.html", b"<p>root</p>");
    fs::create_dir(root.path().join("sub")).unwrap();
    write(&root, "sub/index.html", b"<p>sub</p>");
    fs::create_dir(root.path().join("bare")).unwrap();
    write(&root, ".secret", b"no");
    write(&root, "large.bin", &vec![7; 70_000]);
    write(&root, "medium.bin", &vec![8; 40_000]);
    write(&root, "empty", b"");
    root
}

fn write(root: &TempDir, name: &str, contents: &[u8]) {
    fs::write(root.path().join(name), contents).unwrap();
}

fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

fn one(stage: &mut Stage, request: &[u8]) -> ParsedResponse {
    let mut all = responses(&stage.exchange(request));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn file_response_has_all_fields() {
    let root = site();
    let mut stage = Stage::new(root.path());
    for _ in 0..2 {
        let response = one(&mut stage, &get("/hello.txt"));
        assert_eq!((response.status, &response.body[..]), (200, &b"Hello, World"[..]));
        assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
        assert_eq!(response.field("Content-Length"), Some("12"));
        assert!(response.field("Server").unwrap().starts_with("httpd/"));
        assert!(response.field("Last-Modified").unwrap().ends_with(" GMT"));
        assert_eq!(response.field("Connection"), None);
    }
    assert_eq!(stage.io.close, None);
}

#[test]
fn small_file_is_read_once() {
    let root = site();
    let mut stage = Stage::new(root.path());
    for target in ["/hello.txt", "/hello.txt", "/hello.txt?a", "http://b/hello.txt"] {
        one(&mut stage, &get(target));
    }
    assert_eq!(stage.io.file_ops, (1, 3, 1));
    stage.pass(Duration::from_millis(1100));
    one(&mut stage, &get("/hello.txt?b"));
    one(&mut stage, &get("/hello.txt"));
    assert_eq!(stage.io.file_ops, (1, 7, 1));
}

#[test]
fn changed_file_is_noticed_after_the_ttl() {
    let root = site();
    let mut stage = Stage::new(root.path());
    one(&mut stage, &get("/hello.txt"));
    fs::write(root.path().join("hello.txt"), b"Changed").unwrap();
    stage.pass(Duration::from_millis(1100));
    assert_eq!(one(&mut stage, &get("/hello.txt")).body, b"Changed");
    fs::remove_file(root.path().join("hello.txt")).unwrap();
    stage.pass(Duration::from_millis(1100));
    assert_eq!(one(&mut stage, &get("/hello.txt")).status, 404);
}

#[test]
fn just_changed_file_is_not_cached() {
    let root = site();
    let mut stage = Stage::new(root.path());
    let new = root.path().join("new");
    // Written again until its second is not over by the second request.
    stage.io.wall = loop {
        fs::write(&new, b"new").unwrap();
        let modified = fs::metadata(&new).unwrap().modified().unwrap();
        if modified.duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_millis() < 800 {
            break modified;
        }
    };
    one(&mut stage, &get("/new"));
    stage.pass(Duration::from_millis(100));
    // When the second of its change is over, it is opened once more.
    for opened in [2, 2, 3, 3] {
        let response = one(&mut stage, &get("/new"));
        assert_eq!(stage.io.file_ops.0, opened);
        assert!(response.field("ETag").is_some() && response.field("Last-Modified").is_some());
        stage.pass(Duration::from_millis(if opened == 2 { 700 } else { 0 }));
    }
}

#[test]
fn date_is_the_current_second() {
    let root = site();
    let mut stage = Stage::new(root.path());
    let mut dates = Vec::new();
    for _ in 0..3 {
        let response = one(&mut stage, &get("/hello.txt"));
        dates.push(response.field("Date").unwrap().to_owned());
        assert_eq!(dates.last().unwrap(), &httpdate::fmt_http_date(stage.io.wall));
        stage.pass(Duration::from_millis(700));
    }
    dates.dedup();
    assert!(dates.len() >= 2, "{dates:?}");
}

#[test]
fn head_is_get_without_the_body() {
    let root = site();
    let mut stage = Stage::new(root.path());
    for target in ["/hello.txt", "/medium.bin", "/large.bin", "/", "/empty", "/none"] {
        for _ in 0..2 {
            let got = one(&mut stage, &get(target));
            let request = format!("HEAD {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            let sent = stage.exchange(request.as_bytes());
            let (head, rest) = response(&sent, false);
            assert_eq!((head.status, &head.fields), (got.status, &got.fields), "{target}");
            assert!(rest.is_empty());
        }
    }
}

#[test]
fn directory_redirects_to_a_slash_and_serves_its_index() {
    let root = site();
    let mut stage = Stage::new(root.path());
    assert_eq!(one(&mut stage, &get("/")).body, b"<p>root</p>");
    assert_eq!(one(&mut stage, &get("/sub/")).body, b"<p>sub</p>");
    for (target, location) in
        [("/sub", "/sub/"), ("/sub?a=b", "/sub/?a=b"), ("//sub", "/sub/"), ("/./sub", "/sub/")]
    {
        let response = one(&mut stage, &get(target));
        assert_eq!((response.status, response.field("Location")), (301, Some(location)));
    }
    assert_eq!(one(&mut stage, &get("/bare/")).status, 404);
    assert_eq!(one(&mut stage, &get("/hello.txt/")).status, 404);
    assert_eq!(stage.io.close, None);
}

#[test]
fn hidden_and_missing_files_get_the_same_response() {
    let root = site();
    let mut stage = Stage::new(root.path());
    let (hidden, missing) = (get("/.secret"), get("/missing"));
    let (hidden, missing) = (one(&mut stage, &hidden), one(&mut stage, &missing));
    assert_eq!(hidden, missing);
    assert_eq!((hidden.status, stage.io.close), (404, None));
}

#[test]
fn each_method_gets_its_status() {
    let root = site();
    let known = ["POST", "PUT", "DELETE", "TRACE", "PATCH"].map(|method| (method, "/", 405));
    let others = [
        ("GET", "/", 200),
        ("HEAD", "/", 200),
        ("OPTIONS", "/", 204),
        ("OPTIONS", "*", 204),
        ("CONNECT", "a:80", 405),
        ("BREW", "/", 501),
        ("get", "/", 501),
    ];
    for (method, target, status) in known.into_iter().chain(others) {
        let mut stage = Stage::new(root.path());
        let request = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        stage.feed(request.as_bytes());
        let (response, _) = response(&stage.io.sent, false);
        assert_eq!(response.status, status, "{method} {target}");
        let allow = [204, 405].contains(&status).then_some("GET, HEAD, OPTIONS");
        assert_eq!(response.field("Allow"), allow, "{method} {target}");
    }
}

#[test]
fn request_with_another_method_ended_the_connection_although_it_had_no_body() {
    let root = site();
    for (first, goes_on) in [
        ("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ("BREW / HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ("BREW / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", false),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", false),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false),
        ("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", false),
    ] {
        let mut stage = Stage::new(root.path());
        stage.feed(&[first.as_bytes(), &get("/")].concat());
        let statuses: Vec<_> =
            responses(&stage.io.sent).iter().map(|response| response.status).collect();
        assert_eq!(statuses.get(1), goes_on.then_some(&200), "{first}");
    }
}

#[test]
fn malformed_requests_are_rejected_for_any_segmentation() {
    let root = site();
    let mut stage = Stage::new(root.path());
    for Bad(request, status) in bad() {
        let name = String::from_utf8_lossy(&request[..request.len().min(80)]).into_owned();
        let check = |stage: &mut Stage, at: usize| {
            let response = responses(&stage.io.sent);
            let found: Vec<u16> = response.iter().map(|response| response.status).collect();
            assert_eq!(found, [status], "{name:?} split at {at}");
            assert_eq!(response[0].field("Connection"), Some("close"), "{name:?}");
            assert_eq!(stage.io.close, Some(Close::Linger), "{name:?}");
            let allow = (status == 405).then_some("GET, HEAD, OPTIONS");
            assert_eq!(response[0].field("Allow"), allow, "{name:?}");
            stage.connect();
        };
        let step = if request.len() > 1000 { 997 } else { 1 };
        for at in (0..request.len()).step_by(step) {
            stage.feed(&request[..at]);
            stage.feed(&request[at..]);
            check(&mut stage, at);
        }
        request.chunks(1).for_each(|byte| stage.feed(byte));
        check(&mut stage, 0);
    }
}

#[test]
fn pipelined_requests_can_be_split_anywhere() {
    let root = site();
    let mut stage = Stage::new(root.path());
    let mut stream = Vec::new();
    for target in ["/hello.txt", "/large.bin", "/none", "/sub", "/", "/medium.bin", "/hello.txt"] {
        stream.extend(get(target));
        stream.extend(format!("HEAD {target} HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").bytes());
        stream.extend(b"GET /hello.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /");
    }
    let expected = stage.exchange(&stream);
    for at in 0..stream.len() {
        stage.feed(&stream[..at]);
        stage.feed(&stream[at..]);
        assert!(stage.io.sent == expected, "split at {at}");
        stage.io.sent.clear();
    }
    stream.chunks(1).for_each(|byte| stage.feed(byte));
    assert!(stage.io.sent == expected);
    assert_eq!(stage.io.close, None);
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    let root = site();
    let mut stage = Stage::new(root.path());
    let request = [b"\r\n\r\n".to_vec(), get("/hello.txt")].concat();
    assert_eq!(one(&mut stage, &request).status, 200);
}

#[test]
fn connection_field_and_version_determine_persistence() {
    let root = site();
    let mut stage = Stage::new(root.path());
    const CASES: [(&str, &str, Option<&str>, bool); 9] = [
        ("1.1", "", None, false),
        ("1.1", "Connection: keep-alive\r\n", None, false),
        ("1.1", "Connection: close\r\n", Some("close"), true),
        ("1.1", "Connection: x, CLOSE\r\n", Some("close"), true),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", Some("close"), true),
        ("1.0", "", Some("close"), true),
        ("1.0", "Connection: Keep-Alive\r\n", Some("keep-alive"), false),
        ("1.0", "Connection: x , keep-alive\r\n", Some("keep-alive"), false),
        ("1.0", "Connection: keep-alive, close\r\n", Some("close"), true),
    ];
    for target in ["/hello.txt", "/large.bin", "/medium.bin", "/none"] {
        for (version, fields, connection, closes) in CASES {
            let request = format!("GET {target} HTTP/{version}\r\nHost: a\r\n{fields}\r\n");
            let response = one(&mut stage, request.as_bytes());
            assert_eq!(response.field("Connection"), connection, "{request}");
            assert_eq!(stage.io.close, closes.then_some(Close::Flush), "{request}");
            stage.connect();
        }
    }
}

#[test]
fn last_response_lingers_if_the_client_sends_more() {
    let root = site();
    let mut stage = Stage::new(root.path());
    stage.feed(b"GET /hello.txt HTTP/1.0\r\n\r\nmore");
    assert_eq!(stage.io.close, Some(Close::Linger));
    assert_eq!(responses(&stage.io.sent).len(), 1);
}

#[test]
fn pipelined_requests_wait_for_a_client_that_does_not_read() {
    let root = site();
    let mut stage = Stage::new(root.path());
    one(&mut stage, &get("/medium.bin"));
    stage.io.blocked = true;
    stage.feed(&get("/medium.bin").repeat(10));
    assert_eq!(responses(&stage.io.sent).len(), 2);
    assert!(stage.io.paused);
    stage.unblock();
    assert_eq!(responses(&stage.io.sent).len(), 10);
    assert!(!stage.io.paused);

    stage.io.blocked = true;
    stage.feed(&get("/medium.bin").repeat(10));
    stage.pass(FIRST_CHECK + Limits::default().progress_interval);
    assert_eq!(stage.io.close, Some(Close::Reset));
}

#[test]
fn pipelined_errors_wait_for_a_client_that_does_not_read() {
    let root = site();
    let mut stage = Stage::new(root.path());
    stage.io.blocked = true;
    for _ in 0..3 {
        stage.feed(&get("/.hidden").repeat(400));
    }
    assert!(stage.io.paused && stage.io.sent.len() < HIGH_WATER + 1024);
    stage.unblock();
    assert_eq!(responses(&stage.io.sent).len(), 1200);
}

#[test]
fn large_files_are_queued_one_at_a_time() {
    let root = site();
    let mut stage = Stage::new(root.path());
    stage.io.blocked = true;
    let targets = ["/large.bin", "/larger.bin"].repeat(10);
    write(&root, "larger.bin", &[9; 80_000]);
    stage.feed(&targets.iter().map(|target| get(target)).collect::<Vec<_>>().concat());
    for n in 1..=20 {
        let all = responses(&stage.io.sent);
        // Each file is opened once.
        assert_eq!((all.len(), stage.io.file_ops.0), (n, n.min(2) as u32));
        assert_eq!(stage.io.paused, n < 20);
        stage.take(100_000);
    }
    for (response, target) in responses(&stage.io.sent).iter().zip(targets) {
        let expected = if target == "/large.bin" { 70_000 } else { 80_000 };
        assert_eq!((response.body.len(), response.field("Connection")), (expected, None));
    }
    assert_eq!(stage.io.close, None);
}

#[test]
fn malformed_head_in_two_pieces_before_eof_was_not_rejected() {
    let root = site();
    let mut stage = Stage::new(root.path());
    stage.feed(b"GE");
    stage.feed(b"%/ ");
    stage.end();
    assert!(stage.io.sent.starts_with(b"HTTP/1.1 400 "));
}

#[test]
fn half_closed_connection_gets_its_responses() {
    let root = site();
    let mut stage = Stage::new(root.path());
    stage.io.blocked = true;
    stage.feed(&get("/medium.bin").repeat(4));
    stage.end();
    stage.unblock();
    assert_eq!(responses(&stage.io.sent).len(), 4);
    assert_eq!(stage.io.close, Some(Close::Flush));
    stage.connect();
    stage.feed(b"GET / HT");
    stage.end();
    assert_eq!((stage.io.close, stage.io.sent.len()), (Some(Close::Flush), 0));
}

#[test]
fn date_of_a_timeout_was_that_of_what_had_arrived() {
    let root = site();
    let mut stage = Stage::new(root.path());
    stage.feed(b"G");
    stage.pass(Limits::default().header_timeout);
    let response = &responses(&stage.io.sent)[0];
    let now = httpdate::fmt_http_date(stage.io.wall);
    assert_eq!((response.status, response.field("Date")), (408, Some(&now[..])));
}

#[test]
fn timeouts_close_connections() {
    let root = site();
    let mut stage = Stage::new(root.path());
    let Limits { header_timeout, keep_alive_timeout, progress_interval, .. } = Limits::default();
    let almost = header_timeout - Duration::from_millis(1);

    // no bytes
    stage.pass(header_timeout);
    assert_eq!((stage.io.close, stage.io.sent.len()), (Some(Close::Flush), 0));
    // one byte at a time
    stage.connect();
    one(&mut stage, &get("/"));
    stage.feed(b"G");
    stage.pass(almost);
    stage.feed(b"E");
    stage.pass(Duration::from_millis(1));
    assert_eq!(responses(&stage.io.sent)[0].status, 408);
    assert_eq!(stage.io.close, Some(Close::Linger));
    // an incomplete body
    stage.connect();
    stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na");
    stage.pass(progress_interval);
    assert_eq!(responses(&stage.io.sent)[0].status, 408);
    // idle between two requests
    stage.connect();
    one(&mut stage, &get("/"));
    stage.pass(keep_alive_timeout - Duration::from_millis(1));
    one(&mut stage, &get("/"));
    stage.pass(keep_alive_timeout - Duration::from_millis(1));
    assert_eq!(stage.io.close, None);
    stage.pass(Duration::from_millis(1));
    assert_eq!((stage.io.close, stage.io.sent.len()), (Some(Close::Flush), 0));
}

#[test]
fn empty_line_after_a_request_counted_as_the_next_one() {
    const MILLISECOND: Duration = Duration::from_millis(1);
    let root = site();
    let Limits { header_timeout, keep_alive_timeout, .. } = Limits::default();
    let mut stage = Stage::new(root.path());
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\r\n";
    for pieces in [&[&request[..]][..], &[&request[..request.len() - 1], b"\n"]] {
        let sent: Vec<u8> = pieces.iter().flat_map(|piece| stage.exchange(piece)).collect();
        assert_eq!(responses(&sent)[0].status, 200);
        assert!(stage.app.is_idle(stage::ID, &stage.state));
        stage.pass(keep_alive_timeout - MILLISECOND);
        assert_eq!((stage.io.close, stage.io.sent.len()), (None, 0));
        assert_eq!(one(&mut stage, &get("/")).status, 200);
    }
    // The time for the next head begins with its first byte.
    stage.feed(b"\r\n");
    stage.pass(keep_alive_timeout - header_timeout);
    stage.feed(b"G");
    stage.pass(header_timeout - MILLISECOND);
    assert_eq!((stage.io.close, stage.io.sent.len()), (None, 0));
    assert_eq!(one(&mut stage, &get("/")[1..]).status, 200);
    // A second empty line begins a request, as one before the first request does.
    for is_first in [false, true] {
        if is_first {
            stage.connect();
        } else {
            stage.feed(b"\r\n");
        }
        stage.feed(b"\r\n");
        stage.pass(header_timeout);
        assert_eq!(responses(&stage.io.sent)[0].status, 408);
    }
}

#[test]
fn connections_whose_file_operation_timed_out_were_not_counted() {
    let root = site();
    let mut stage = Stage::with(Site::new(Some(Root(0))).status(true), root.path());
    stage.io.hangs = true;
    stage.feed(&get("/hello.txt"));
    stage.pass(Limits::default().progress_interval);
    assert_eq!((stage.io.close, stage.io.sent.len()), (Some(Close::Reset), 0));
    stage.io.hangs = false;
    stage.connect();
    let status = one(&mut stage, &get("/.httpd/status.json"));
    let status: serde_json::Value = serde_json::from_slice(&status.body).unwrap();
    for (name, expected) in [("files", 1), ("silent", 0), ("idle", 0)] {
        assert_eq!(status[format!("{name}_timed_out")], expected, "{name}: {status}");
    }
    assert_eq!(status["reset_slow"], 0, "{status}");
}

const MILLISECOND: Duration = Duration::from_millis(1);
/// Time from a response that fills the queue to the first look at what its client takes.
const FIRST_CHECK: Duration = Duration::from_millis(100);

#[test]
fn client_that_does_not_read_a_large_file_is_reset() {
    let root = site();
    let progress_interval = Limits::default().progress_interval;
    for more in [&b""[..], b"G", &get("/hello.txt")] {
        let mut stage = Stage::new(root.path());
        stage.io.blocked = true;
        stage.feed(&[&get("/large.bin"), more].concat());
        stage.pass(FIRST_CHECK + progress_interval - MILLISECOND);
        assert_eq!(stage.io.close, None);
        stage.pass(MILLISECOND);
        assert_eq!(stage.io.close, Some(Close::Reset));
    }
}

/// The kernel takes the whole response, so that nothing is queued.
#[test]
fn client_that_takes_nothing_was_watched_after_the_keep_alive_timeout() {
    let root = site();
    let progress_interval = Limits::default().progress_interval;
    let mut stage = Stage::new(root.path());
    (stage.io.blocked, stage.io.kernel_takes) = (true, true);
    stage.feed(&get("/large.bin"));
    stage.pass(FIRST_CHECK + progress_interval - MILLISECOND);
    assert_eq!(stage.io.close, None);
    stage.pass(MILLISECOND);
    assert_eq!(stage.io.close, Some(Close::Reset));
}

/// The client's kernel takes them; the client does not read.
#[test]
fn bytes_that_a_client_takes_at_once_doubled_its_time() {
    let root = site();
    write(&root, "larger.bin", &[9; 1_000_000]);
    let limits = Limits::default();
    for kernel_takes in [false, true] {
        let mut stage = Stage::new(root.path());
        (stage.io.blocked, stage.io.kernel_takes) = (true, kernel_takes);
        stage.feed(&get("/larger.bin"));
        stage.take(500_000);
        stage.pass(FIRST_CHECK + limits.progress_interval - MILLISECOND);
        assert_eq!(stage.io.close, None);
        stage.pass(MILLISECOND);
        assert_eq!(stage.io.close, Some(Close::Reset));
    }
}

#[test]
fn client_at_the_minimum_rate_gets_a_large_file() {
    let root = site();
    write(&root, "larger.bin", &[9; 1_000_000]);
    let limits = Limits::default();
    let enough = u64::from(limits.min_rate) * limits.progress_interval.as_secs();
    let mut stage = Stage::new(root.path());
    stage.io.blocked = true;
    stage.feed(&get("/larger.bin"));
    let rounds = 1_000_000 / enough;
    for _ in 0..rounds {
        stage.take(enough);
        stage.pass(limits.progress_interval);
        assert_eq!(stage.io.close, None);
    }
    assert!(limits.progress_interval * rounds as u32 > limits.keep_alive_timeout);
    // The keep-alive timeout begins when everything is sent.
    stage.take(enough);
    stage.pass(limits.keep_alive_timeout - MILLISECOND);
    assert_eq!(stage.io.close, None);
    stage.unblock();
    stage.io.sent.clear();
    one(&mut stage, &get("/hello.txt"));
    stage.pass(limits.keep_alive_timeout);
    assert_eq!(stage.io.close, Some(Close::Flush));
}

#[test]
fn client_below_the_minimum_rate_is_reset() {
    let root = site();
    write(&root, "larger.bin", &[9; 1_000_000]);
    let limits = Limits::default();
    let enough = u64::from(limits.min_rate) * limits.progress_interval.as_secs();
    let mut stage = Stage::new(root.path());
    stage.io.blocked = true;
    stage.feed(&get("/larger.bin"));
    stage.pass(FIRST_CHECK);
    stage.take(enough);
    stage.pass(limits.progress_interval);
    stage.take(enough - 1);
    stage.pass(limits.progress_interval - MILLISECOND);
    assert_eq!(stage.io.close, None);
    stage.pass(MILLISECOND);
    assert_eq!(stage.io.close, Some(Close::Reset));
}

#[test]
fn client_that_takes_nothing_of_a_small_response_was_kept_until_the_keep_alive_timeout() {
    let root = site();
    let limits = Limits::default();
    for takes in [true, false] {
        let mut stage = Stage::new(root.path());
        one(&mut stage, &get("/medium.bin"));
        stage.io.blocked = true;
        stage.feed(&get("/medium.bin"));
        stage.pass(limits.progress_interval);
        assert_eq!(stage.io.close, None);
        if takes {
            stage.unblock();
        }
        // The first look was after a sixteenth.
        stage.pass(limits.progress_interval / 16);
        if takes {
            assert_eq!(stage.io.close, None);
            stage.pass(limits.keep_alive_timeout);
        }
        assert_eq!(stage.io.close, Some(if takes { Close::Flush } else { Close::Reset }));
    }
}

#[test]
fn look_after_a_response_leaves_the_keep_alive_timeout() {
    let root = site();
    for seconds in [1, 60] {
        let mut limits = Limits::default();
        limits.keep_alive_timeout = Duration::from_secs(seconds);
        let app = Site::new(Some(evring_httpd::Root(0))).limits(limits.clone());
        let mut stage = Stage::with(app, root.path());
        for _ in 0..2 {
            one(&mut stage, &get("/medium.bin"));
            stage.pass(limits.keep_alive_timeout - MILLISECOND);
            assert_eq!(stage.io.close, None);
        }
        stage.pass(MILLISECOND);
        assert_eq!(stage.io.close, Some(Close::Flush));
    }
}

#[test]
fn body_timeout_does_not_cut_the_previous_response() {
    let root = site();
    let limits = Limits::default();
    let mut stage = Stage::new(root.path());
    stage.io.blocked = true;
    stage.feed(&get("/large.bin"));
    stage.feed(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n");
    stage.pass(limits.progress_interval - MILLISECOND);
    assert_eq!(stage.io.close, None);
    stage.unblock();
    stage.pass(limits.progress_interval);
    let statuses: Vec<_> =
        responses(&stage.io.sent).iter().map(|response| response.status).collect();
    assert_eq!((&statuses[..], stage.io.close), (&[200, 408][..], Some(Close::Linger)));
}

/// The client takes the end of its first response late, and sends a part of a request.
#[test]
fn partial_request_behind_a_slow_response_got_another_keep_alive_timeout() {
    let root = site();
    let limits = Limits::default();
    let body = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";
    for part in [&b"GET / HTTP/1.1\r\n"[..], body] {
        for stops in [false, true] {
            let mut stage = Stage::new(root.path());
            (stage.io.blocked, stage.io.kernel_takes) = (true, true);
            stage.feed(&get("/large.bin"));
            stage.feed(part);
            stage.pass(limits.header_timeout.max(limits.progress_interval));
            assert_eq!(stage.io.close, None);
            stage.unblock();
            if stops {
                stage.stop();
                assert_eq!(stage.io.close, None);
            }
            stage.pass(limits.progress_interval);
            let statuses: Vec<_> =
                responses(&stage.io.sent).iter().map(|response| response.status).collect();
            assert_eq!((&statuses[..], stage.io.close), (&[200, 408][..], Some(Close::Linger)));
        }
    }
}

/// As above, with a part of a TLS record.
#[test]
fn partial_record_behind_a_slow_response_got_another_keep_alive_timeout() {
    let root = site();
    let limits = Limits::default();
    let mut stage = Stage::new(root.path());
    (stage.io.blocked, stage.io.kernel_takes) = (true, true);
    stage.feed(&get("/large.bin"));
    stage.is_partial = true;
    stage.feed(b"");
    stage.pass(limits.header_timeout.max(limits.progress_interval));
    assert_eq!(stage.io.close, None);
    stage.unblock();
    stage.pass(limits.progress_interval);
    let statuses: Vec<_> =
        responses(&stage.io.sent).iter().map(|response| response.status).collect();
    assert_eq!((&statuses[..], stage.io.close), (&[200][..], Some(Close::Flush)));
}

/// The client sends the rest of the record after the header timeout.
#[test]
fn partial_record_behind_a_full_queue_began_a_request() {
    let root = site();
    let limits = Limits::default();
    let mut stage = Stage::new(root.path());
    stage.io.blocked = true;
    stage.feed(&get("/large.bin"));
    stage.is_partial = true;
    stage.feed(b"");
    assert!(stage.io.paused);
    stage.pass(limits.header_timeout + MILLISECOND);
    stage.unblock();
    assert!(!stage.io.paused);
    stage.pass(limits.header_timeout - MILLISECOND);
    assert_eq!(stage.io.close, None);
    stage.pass(MILLISECOND);
    assert_eq!(stage.io.close, Some(Close::Flush));
}

/// The first check finds bytes that the client has not acknowledged.
#[test]
fn distant_client_was_idle_for_longer_than_the_keep_alive_timeout() {
    let root = site();
    for seconds in [5, 60] {
        let mut limits = Limits::default();
        limits.keep_alive_timeout = Duration::from_secs(seconds);
        let app = Site::new(Some(evring_httpd::Root(0))).limits(limits.clone());
        let mut stage = Stage::with(app, root.path());
        (stage.io.blocked, stage.io.kernel_takes) = (true, true);
        stage.feed(&get("/large.bin"));
        stage.pass(FIRST_CHECK);
        stage.unblock();
        stage.pass(limits.keep_alive_timeout - MILLISECOND);
        assert_eq!(stage.io.close, None);
        stage.pass(limits.progress_interval / 16 + MILLISECOND);
        assert_eq!(stage.io.close, Some(Close::Flush), "{seconds} s");
    }
}

/// Looks in between do not judge the client.
#[test]
fn client_that_takes_the_rest_from_the_kernel_has_the_whole_interval() {
    let root = site();
    write(&root, "larger.bin", &[9; 1_000_000]);
    let limits = Limits::default();
    let enough = u64::from(limits.min_rate) * limits.progress_interval.as_secs();
    let mut stage = Stage::new(root.path());
    (stage.io.blocked, stage.io.kernel_takes) = (true, true);
    stage.feed(&get("/larger.bin"));
    stage.pass(FIRST_CHECK);
    for taken in [enough, enough, enough - 1] {
        stage.pass(limits.progress_interval - MILLISECOND);
        assert_eq!(stage.io.close, None);
        stage.take(taken);
        stage.pass(MILLISECOND);
        assert_eq!(stage.io.close, (taken < enough).then_some(Close::Reset));
    }
}

#[test]
fn stopping_server_answers_and_closes() {
    let root = site();
    let mut stage = Stage::new(root.path());
    stage.feed(b"GET / HTTP/1.1\r\n");
    stage.stop();
    assert_eq!(stage.io.close, None);
    assert_eq!(one(&mut stage, b"Host: a\r\n\r\n").field("Connection"), Some("close"));
    assert_eq!(stage.io.close, Some(Close::Linger));
    stage.connect();
    stage.stop();
    assert_eq!(stage.io.close, Some(Close::Flush));
}

#[test]
fn site_without_a_root_serves_one_page() {
    let mut stage = Stage::with(Site::new(None).backend("semaphore"), "/nowhere".as_ref());
    for target in ["/", "/", "/index.html", "/?a"] {
        let response = one(&mut stage, &get(target));
        assert_eq!(response.field("Content-Type"), Some("text/html; charset=utf-8"));
        let text = String::from_utf8(response.body).unwrap();
        assert!(text.contains("semaphore") && !text.contains("{backend}"), "{text}");
    }
    assert_eq!(one(&mut stage, &get("/a")).status, 404);
    assert_eq!(stage.io.file_ops, (0, 0, 0));
}

#[test]
fn file_above_the_cached_size_is_not_read() {
    let root = site();
    let mut limits = Limits::default();
    limits.max_cached_file_bytes = 20;
    let mut stage = Stage::with(Site::new(Some(evring_httpd::Root(0))).limits(limits), root.path());
    for (target, reads) in [("/hello.txt", 1), ("/medium.bin", 1), ("/medium.bin", 1)] {
        assert_eq!(one(&mut stage, &get(target)).status, 200);
        assert_eq!(stage.io.file_ops.2, reads);
    }
}

#[test]
fn connection_state_is_small() {
    assert!(size_of::<State>() <= 48, "{} bytes", size_of::<State>());
}
