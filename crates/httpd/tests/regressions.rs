//! Regression tests, each named after its defect.

use crate::serving;
use crate::stage;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use evring_httpd::body::RequestBody;
use evring_httpd::evring::AnyMechanism;
use evring_httpd::options::Limits;
use evring_httpd::{Config, Request, Root, Site};
use proptest::prelude::*;
use rustix::process::Signal;
use serde_json::Value;
use serving::program::{Serving, httpd, limited};
use serving::{Client, Server, available, on_every_backend};
use stage::{ParsedResponse, Stage, response, responses};
use tempfile::TempDir;

/// Creates a directory with these files.
fn site(files: &[(&str, &[u8])]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
    }
    root
}

fn get(stage: &mut Stage, target: &str) -> ParsedResponse {
    get_with(stage, target, "")
}

fn get_with(stage: &mut Stage, target: &str, fields: &str) -> ParsedResponse {
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let sent = stage.exchange(request.as_bytes());
    let has_body = !sent.starts_with(b"HTTP/1.1 304 ");
    let (response, rest) = response(&sent, has_body);
    assert_eq!(rest.len(), 0, "{target}");
    response
}

#[test]
fn http_1_2_request_was_rejected_with_505() {
    let root = site(&[("a", b"text")]);
    let mut stage = Stage::new(root.path());
    for minor in 2..=9 {
        let request = format!("GET /a HTTP/1.{minor}\r\nHost: a\r\n\r\n").repeat(2);
        for piece in [request.len(), 1] {
            request.as_bytes().chunks(piece).for_each(|bytes| stage.feed(bytes));
            let all = responses(&std::mem::take(&mut stage.io.sent));
            let found: Vec<_> =
                all.iter().map(|response| (response.status, &response.body[..])).collect();
            assert_eq!(found, [(200, &b"text"[..]); 2], "{minor} in pieces of {piece}");
        }
    }
    assert_eq!(stage.io.close, None);
}

/// Pieces of heads, malformed and valid; some exceed the small limits.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let fixed = prop::sample::select(vec![
        "\r\n",
        "\n",
        "\r",
        " ",
        "\0",
        ":",
        "GET",
        "GET / ",
        "GET /a ",
        "HEAD / ",
        "POST /a ",
        "M ",
        "http://h/",
        "http://h:x/",
        "HTTP/1.1",
        "HTTP/1.1\r\n",
        "HTTP/1.0\r\n",
        "HTTP/1.2\r\n",
        "HTTP/2.0\r\n",
        "HTTP/1.1\n",
        "HTTP/1.1 \r\n",
        "HTTQ",
        "Host: a\r\n",
        "Host: [a\r\n",
        "Host: a\n",
        "A: b\r\n",
        "A : b\r\n",
        " b\r\n",
        "\r\n\r\n",
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "1\r\nx\r\n",
        "0\r\n",
        "abc",
        "\u{e4}",
    ]);
    prop_oneof![
        8 => fixed.prop_map(|text| text.as_bytes().to_vec()),
        1 => (0..30usize).prop_map(|n| vec![b'a'; n]),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn status_of_a_head_beyond_a_limit_depended_on_segmentation(
        pieces in prop::collection::vec(piece(), 0..12),
        start in prop::sample::select(vec!["", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: a\r\n"]),
        line in 16..40usize,
        head in 16..90usize,
        fields in 1..4usize,
    ) {
        let bytes = [start.as_bytes(), &pieces.concat()].concat();
        let mut limits = Limits::default();
limits.max_request_line_bytes = line;
limits.max_head_bytes = head;
limits.max_headers = fields;
limits.max_body_bytes = 5;
        let site = Site::new(None).limits(limits).route("/", |request: Request| request.into_body());
        let mut stage = Stage::with(site, "/nowhere".as_ref());
        let mut outcome = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            stage.connect();
            pieces.for_each(|bytes| stage.feed(bytes));
            stage.end();
            (String::from_utf8_lossy(&stage.io.sent).into_owned(), stage.io.close.is_some())
        };
        let whole = outcome(&mut [&bytes[..]].into_iter());
        prop_assert_eq!(&outcome(&mut bytes.chunks(1)), &whole);
        for at in 1..bytes.len() {
            let (first, second) = bytes.split_at(at);
            prop_assert_eq!(&outcome(&mut [first, second].into_iter()), &whole, "cut at {}", at);
        }
    }
}

#[test]
fn empty_line_behind_a_request_counted_as_head_if_more_came_with_it() {
    let first = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let next = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut limits = Limits::default();
    limits.max_head_bytes = next.len();
    let site = Site::new(None).limits(limits);
    let mut stage = Stage::with(site, "/nowhere".as_ref());
    let bytes = [&first[..], b"\r\n", next].concat();
    for at in 1..bytes.len() {
        stage.connect();
        let (before, after) = bytes.split_at(at);
        let sent = [stage.exchange(before), stage.exchange(after)].concat();
        let statuses: Vec<_> = responses(&sent).iter().map(|response| response.status).collect();
        assert_eq!(statuses, [200, 404], "cut at {at}");
    }
}

#[test]
fn directory_path_ending_in_dots_was_not_found() {
    let root = site(&[("sub/a", b""), ("sub/inner/b", b"")]);
    let mut stage = Stage::with(Site::new(Some(Root(0))).listing(true), root.path());
    let page = |stage: &mut Stage, target: &str| {
        let response = get(stage, target);
        assert_eq!(response.status, 200, "{target}");
        response.body
    };
    let (top, sub) = (page(&mut stage, "/"), page(&mut stage, "/sub/"));
    for target in ["/.", "/./", "/sub/..", "/sub/../", "/sub/inner/../..", "/%2e", "/sub/%2e%2e"] {
        assert_eq!(page(&mut stage, target), top, "{target}");
    }
    for target in ["/sub/.", "/sub/./", "/sub/inner/..", "/sub//", "/./sub/%2E"] {
        assert_eq!(page(&mut stage, target), sub, "{target}");
    }
    assert_eq!(get(&mut stage, "/..").status, 400);
}

#[test]
fn equivalent_paths_opened_the_file_again() {
    let root = site(&[("big", &[7; 100_000]), ("a?b", b"other")]);
    let mut stage = Stage::new(root.path());
    for target in
        ["/big", "//big", "/./big", "/%62ig", "/x/../big", "/big?a", "http://h//big", "/big"]
    {
        assert_eq!(get(&mut stage, target).body.len(), 100_000, "{target}");
        assert_eq!(stage.io.file_ops.0, 1, "{target}");
    }
    // An encoded question mark is part of the name.
    assert_eq!(get(&mut stage, "/a%3fb").body, b"other");
    assert_eq!(get(&mut stage, "/a?b").status, 404);
}

#[test]
fn slow_readers_of_files_used_all_descriptors() {
    let root = site(&[("small", b"small")]);
    for n in 0..6 {
        fs::write(root.path().join(n.to_string()), vec![n; 100_000]).unwrap();
    }
    let mut limits = Limits::default();
    limits.max_open_files = 4;
    let mut stage = Stage::with(Site::new(Some(Root(0))).limits(limits), root.path());
    // Files that are not being sent are closed to make room.
    for n in 0..6 {
        assert_eq!(get(&mut stage, &format!("/{n}")).body, vec![n; 100_000]);
    }
    stage.io.slow = true;
    for n in 0..6u8 {
        let response = get(&mut stage, &format!("/{n}"));
        let expected = if n < 4 { (200, None) } else { (503, Some("1")) };
        assert_eq!((response.status, response.field("Retry-After")), expected, "{n}");
    }
    assert_eq!(stage.io.files.len(), 4);
    // Open files and small files are still served.
    assert_eq!(get(&mut stage, "/0").status, 200);
    assert_eq!(get(&mut stage, "/small").status, 200);
    stage.io.files.clear();
    assert_eq!(get(&mut stage, "/5").status, 200);
    assert_eq!(stage.io.close, None);
}

#[test]
fn body_memory_was_bounded_per_connection_only() {
    // Three bodies of 40,000 bytes hold 64 KiB each.
    let mut limits = Limits::default();
    limits.max_body_memory = 200_000;
    on_every_backend(|backend| {
        let handler = |request: Request| request.body().len().to_string();
        let server =
            evring_httpd::Server::builder().listen("127.0.0.1:0").backend(backend).status(true);
        let server = server.limits(limits.clone()).route("/take", handler).start().unwrap();
        let connect = || Client::new(TcpStream::connect(server.addresses()[0]).unwrap());
        let mut clients: Vec<_> = (0..4).map(|_| connect()).collect();
        for client in &mut clients {
            client.send(b"POST /take HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n");
            client.send_rejected(&[b'x'; 39_999]);
        }
        // Any of them may be the rejected one.
        let mut rejected = loop {
            if let Some(at) = clients.iter().position(Client::has_more) {
                break clients.remove(at);
            }
            thread::yield_now();
        };
        let response = rejected.response(true);
        assert_eq!((response.status, response.field("Retry-After")), (503, Some("1")), "{backend}");
        assert_eq!(connect().status()["rejected_bodies"], 1, "{backend}");
        for client in &mut clients {
            client.send(b"x");
            let response = client.response(true);
            assert_eq!((response.status, &response.body[..]), (200, &b"40000"[..]), "{backend}");
        }
        // All body memory is free again.
        for client in &mut clients {
            client.send(b"POST /take HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n");
            client.send(&[b'x'; 40_000]);
            let response = client.response(true);
            assert_eq!(response.status, 200, "{backend}: {response:?}");
        }
    });
}

/// The fields of a client that resumes a download.
fn resume(validator: &str) -> String {
    format!("Range: bytes=2-\r\nIf-Range: {validator}\r\n")
}

/// Changes a file, in place or by another one in its place, but not its length and modification time. Validators from
/// before the change must not match afterwards.
fn change_unseen(backend: &'static str, name: &str, in_place: bool) {
    let root = site(&[("small", b"before"), ("large", &[b'a'; 70_000])]);
    let path = root.path().join(name);
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let config = Config::default().with(|c| c.roots = vec![root.path().to_owned()]);
    let mut limits = Limits::default();
    limits.cache_ttl = Duration::ZERO;
    let server = Server::start(backend, config, limits);
    let mut client = server.connect();
    let mut get = |fields: &str| {
        client.send(format!("GET /{name} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
        let head = client.response(false);
        client.body(head)
    };
    // A range is resumed by date once the second of the change is over.
    let old = loop {
        let date = get("").field("Last-Modified").unwrap().to_owned();
        if get(&resume(&date)).status == 206 {
            // The tag of before may have been that of a file of the present second.
            break get("");
        }
        thread::yield_now();
    };
    let tag = old.field("ETag").unwrap().to_owned();
    let date = old.field("Last-Modified").unwrap().to_owned();
    assert_eq!(get(&format!("If-None-Match: {tag}\r\n")).status, 304);
    assert_eq!(get(&format!("If-Modified-Since: {date}\r\n")).status, 304);
    assert_eq!(get(&resume(&tag)).status, 206, "{backend}");
    assert_eq!(get(&resume(&date)).status, 206, "{backend}");

    let new = vec![b'z'; old.body.len()];
    let written = if in_place { path.clone() } else { root.path().join("new") };
    fs::write(&written, &new).unwrap();
    fs::File::options().write(true).open(&written).unwrap().set_modified(time).unwrap();
    if !in_place {
        fs::rename(&written, &path).unwrap();
    }
    // The tool restored the date, so it still matches alone. With both, the tag counts.
    for fields in [
        format!("If-None-Match: {tag}\r\n"),
        format!("If-None-Match: {tag}\r\nIf-Modified-Since: {date}\r\n"),
        resume(&tag),
        resume(&date),
    ] {
        let response = get(&fields);
        assert!(response.status == 200 && response.body == new, "{backend} {fields}");
    }
    assert_eq!(get(&format!("If-Match: {tag}\r\n")).status, 412);
}

#[test]
fn contents_with_equal_modification_times_had_the_same_tag() {
    // Concurrently, as they mostly wait.
    thread::scope(|scope| {
        on_every_backend(|backend| {
            for (name, in_place) in
                [("small", true), ("large", true), ("small", false), ("large", false)]
            {
                scope.spawn(move || change_unseen(backend, name, in_place));
            }
        });
    });
}

#[test]
fn writes_within_one_clock_tick_had_the_same_tag() {
    let root = site(&[]);
    let path = root.path().join("file");
    let mut limits = Limits::default();
    limits.cache_ttl = Duration::ZERO;
    for len in [10, 70_000] {
        for round in 0..100u8 {
            let site = Site::new(Some(Root(0))).limits(limits.clone());
            let mut stage = Stage::with(site, root.path());
            stage.io.tick_ns = 10_000_000;
            fs::write(&path, vec![round; len]).unwrap();
            // The content served now may change again before the clock ticks.
            stage.io.wall = SystemTime::now();
            let first = get(&mut stage, "/file");
            fs::write(&path, vec![!round; len]).unwrap();
            stage.pass(Duration::from_secs(2));
            let tag = first.field("ETag").unwrap();
            for fields in [format!("If-None-Match: {tag}\r\n"), resume(tag)] {
                let response = get_with(&mut stage, "/file", &fields);
                assert!(response.status == 200 && response.body == vec![!round; len], "{fields}");
            }
        }
    }
}

/// Returns the nanoseconds of a file's change time.
fn time(path: &Path) -> i64 {
    fs::metadata(path).unwrap().ctime_nsec()
}

#[test]
fn just_changed_file_was_resumed_from_the_cache() {
    let root = site(&[("small", b"before"), ("large", &[b'a'; 70_000])]);
    let mut stage = Stage::new(root.path());
    for name in ["small", "large"] {
        let target = format!("/{name}");
        let tag = get(&mut stage, &target).field("ETag").unwrap().to_owned();
        assert_eq!(get_with(&mut stage, &target, &resume(&tag)).status, 206);
        let path = root.path().join(name);
        let (written, len) = (time(&path), fs::metadata(&path).unwrap().len());
        // The stage's clock is an hour ahead, so the change needs another change time to be noticed.
        while time(&path) == written {
            fs::write(&path, vec![b'z'; len as usize]).unwrap();
        }
        // The cached file is still fresh, but If-Range revalidates it.
        let response = get_with(&mut stage, &target, &resume(&tag));
        assert!(response.status == 200 && response.body == vec![b'z'; len as usize], "{name}");
    }
}

#[test]
fn low_descriptor_limit_left_one_connection() {
    let root = site(&[("large", &[b'x'; 300_000])]);
    for n in 0..400 {
        fs::write(root.path().join(n.to_string()), n.to_string()).unwrap();
    }
    let root = root.path().to_str().unwrap();
    for backend in available() {
        for (limit, min) in [(40, 12), (64, 30), (128, 70), (512, 300)] {
            let line = format!("ulimit -n {limit}");
            let arguments = ["--listen", "127.0.0.1:0", "--backend", backend, "--root", root];
            let serving = Serving::of(limited(&line, &[&arguments[..], &["--status"]].concat()));
            // The number is logged at the default level.
            let text = serving.before.split(" connections per worker").next().unwrap();
            let connections: usize = text.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(serving.before.contains("WARN"), "{}", serving.before);
            assert!(connections >= min, "{backend} {limit}: {}", serving.before);
            let mut clients: Vec<_> = (0..connections).map(|_| serving.connect()).collect();
            for round in 0..2 {
                for (n, client) in clients.iter_mut().enumerate() {
                    let target = if (n + round) % 2 == 0 { "large" } else { &n.to_string() };
                    let head = format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n");
                    client.send(head.as_bytes());
                }
                for client in &mut clients {
                    assert_eq!(client.response(true).status, 200, "{backend} {limit}");
                }
            }
            let is_expected = |counts: &Value| counts["connections_accepted"] == connections;
            let counts = clients[0].status_when(is_expected);
            assert_eq!(counts["responses_5xx"], 0, "{backend} {limit}");
        }
    }
}

#[test]
fn burst_of_connections_took_the_descriptors_of_files() {
    const CLIENTS: usize = 400;
    let root = site(&[]);
    for n in 0..CLIENTS {
        fs::write(root.path().join(n.to_string()), n.to_string()).unwrap();
    }
    let root = root.path().to_str().unwrap();
    for backend in available() {
        let arguments = ["--listen", "127.0.0.1:0", "--backend", backend, "--root", root];
        // Admission control would reset connections that have waited long.
        let arguments = [&arguments[..], &["--max-queue-delay", "0"]].concat();
        let serving = Serving::of(limited("ulimit -n 64", &arguments));
        println!("on {backend}");
        // All of them wait in the backlog when the server runs again.
        serving.pause();
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| serving.connect()).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            let head = format!("GET /{n} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            client.send(head.as_bytes());
        }
        serving.signal(Signal::CONT);
        for client in &mut clients {
            let response = client.response(true);
            assert_eq!(response.status, 200, "{backend}: {response:?}");
        }
    }
}

#[test]
fn server_started_with_too_few_descriptors() {
    let mut command = limited("ulimit -n 16", &["--listen", "127.0.0.1:0"]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("httpd: cannot serve with 16 descriptors"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    // If they suffice for one worker, there is one.
    let arguments = ["--listen", "127.0.0.1:0", "--workers", "8", "--log-level", "info"];
    let serving = Serving::of(limited("ulimit -n 40", &arguments));
    assert!(serving.before.contains(" 1 worker instead of 8"), "{}", serving.before);
    assert!(serving.before.contains(" open files per worker instead of "), "{}", serving.before);
    assert!(serving.line.contains(", 1 worker)"), "{}", serving.line);
    assert_eq!(serving.connect().get("/").status, 200);
}

#[test]
fn slow_readers_of_equivalent_paths_used_all_descriptors() {
    let root = site(&[("small", b"small")]);
    let large = (0..140).map(|n| n.to_string()).chain(["big".to_owned(), "other".to_owned()]);
    for name in large {
        fs::File::create(root.path().join(name)).unwrap().set_len(20_000_000).unwrap();
    }
    let root = root.path().to_str().unwrap();
    let names = ["big", "%62ig", "b%69g", "bi%67", "%62%69g", "b%69%67", "%62i%67", "%62%69%67"];
    let alias = |n: usize| {
        format!("{}/{}{}", "/.".repeat(n / 16), "/".repeat(n % 2), names[n / 2 % names.len()])
    };
    for backend in available() {
        println!("on {backend}");
        // Without resets of slow clients and without admission control.
        let patient = ["--progress-interval", "600", "--max-queue-delay", "0", "--status"];
        let arguments = ["--listen", "127.0.0.1:0", "--backend", backend, "--root", root];
        let all = [&arguments[..], &patient].concat();
        let serving = Serving::of(limited("ulimit -n 1024", &all));
        let slow = |target: &str| {
            let mut client = serving.connect();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            client
        };
        // A file is opened again once the second of its change is over; then a range is resumed by date.
        let mut first = serving.connect();
        loop {
            first.send(b"HEAD /big HTTP/1.1\r\nHost: a\r\n\r\n");
            let date = first.response(false).field("Last-Modified").unwrap().to_owned();
            let request = format!("GET /big HTTP/1.1\r\nHost: a\r\n{}\r\n", resume(&date));
            let mut second = serving.connect();
            second.send(request.as_bytes());
            if second.response(false).status == 206 {
                break;
            }
        }
        let mut clients: Vec<_> = (0..600).map(|n| slow(&alias(n))).collect();
        for client in &mut clients {
            assert_eq!(client.response(false).status, 200, "{backend}");
        }
        let open = |name: &str| {
            let links = fs::read_dir(format!("/proc/{}/fd", serving.child.id())).unwrap().flatten();
            let paths = links.filter_map(|link| fs::read_link(link.path()).ok());
            paths.filter(|path| path.ends_with(name)).count()
        };
        assert_eq!(open("big"), 1, "{backend}");
        assert_eq!(serving.connect().get("/small").body, b"small", "{backend}");
        // The number of open files is limited; requests for further ones get 503.
        drop(clients);
        let mut clients: Vec<_> = (0..140).map(|n| slow(&format!("/{n}"))).collect();
        let statuses: Vec<_> =
            clients.iter_mut().map(|client| client.response(false).status).collect();
        let served = statuses.iter().filter(|status| **status == 200).count();
        let rejected = statuses.iter().filter(|status| **status == 503).count();
        assert!(served >= 100 && rejected > 0 && served + rejected == 140, "{backend} {served}");
        let mut another = serving.connect();
        assert_eq!(another.get("/small").body, b"small", "{backend}");
        assert_eq!(another.status()["rejected_files"], rejected, "{backend}");
        // When the clients have closed, there is room again.
        drop(clients);
        while another.get("/other").status != 200 {}
    }
}

#[test]
fn blocked_reader_of_stderr_blocked_a_worker() {
    for backend in available() {
        let arguments = ["--listen", "127.0.0.1:0", "--log-level", "debug", "--backend", backend];
        let mut serving = Serving::start(&arguments);
        let mut client = serving.connect();
        // Far more than the capacity of pipe and queue.
        let target = format!("/{}", "x".repeat(4000));
        for _ in 0..1000 {
            assert_eq!(client.get(&target).status, 404);
        }
        // Lost lines are reported to a late reader.
        let mut lines = 0;
        let lost: usize = loop {
            serving.line.clear();
            assert!(serving.errors.read_line(&mut serving.line).unwrap() > 0);
            if let Some((lost, _)) = serving.line.split_once(" log lines were lost") {
                break lost.parse().unwrap();
            }
            assert!(serving.line.contains("404 for GET \"/xxx"), "{}", serving.line);
            lines += 1;
        };
        assert!(lines > 0 && lost > 0 && lines + lost <= 1000, "{lines} {lost}");
        // Unread output does not prevent the exit, either.
        for _ in 0..1000 {
            assert_eq!(client.get(&target).status, 404);
        }
        serving.signal(Signal::TERM);
        assert_eq!(serving.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn log_of_404_for_a_file_lacked_the_request() {
    let root = site(&[]);
    let root = root.path().to_str().unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--root", root, "--log-level", "debug"];
    let mut serving = Serving::start(&arguments);
    serving.connect().get("/none");
    serving.line.clear();
    while !serving.line.contains("404") {
        assert!(serving.errors.read_line(&mut serving.line).unwrap() > 0);
    }
    assert!(serving.line.contains("404 for GET \"/none\""), "{}", serving.line);
}

/// Removes the capabilities that let root enter any directory (CAP_DAC_OVERRIDE and
/// CAP_DAC_READ_SEARCH). Without privileges the calls fail, which is fine.
fn without_privileges() -> std::io::Result<()> {
    for capability in [1, 2] {
        // SAFETY: it takes no pointers.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    Ok(())
}

#[test]
fn inaccessible_root_was_served_with_403() {
    let root = site(&[("inner/file", b"text")]);
    let inner = root.path().join("inner");
    for backend in available() {
        let path = inner.to_str().unwrap();
        let mut command = httpd(&["--listen", "127.0.0.1:0", "--backend", backend, "--root", path]);
        // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
        unsafe { command.pre_exec(without_privileges) };
        fs::set_permissions(&inner, Permissions::from_mode(0o600)).unwrap();
        let mut child = command.spawn().unwrap();
        let mut text = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut text).unwrap();
        fs::set_permissions(&inner, Permissions::from_mode(0o700)).unwrap();
        if text.starts_with("listening") {
            child.kill().unwrap();
        }
        assert_eq!(child.wait().unwrap().code(), Some(1), "{backend}: {text}");
        assert!(text.starts_with("httpd: cannot open the directory "), "{text}");
        for word in [path, "Permission denied", "chmod"] {
            assert!(text.contains(word), "{text}");
        }
    }
}

#[test]
fn body_whose_last_piece_filled_its_pipe_never_ended() {
    let mechanism = AnyMechanism::new("epoll", &Config::default()).unwrap();
    let count = async |request: Request<RequestBody>| {
        let (mut body, mut len) = (request.into_body(), 0);
        while let Some(Ok(piece)) = body.next().await {
            len += piece.len();
        }
        len.to_string()
    };
    let site = Site::new(None).remote(&mechanism.remote()).route("/", count);
    let mut stage = Stage::with(site, Path::new("."));
    // Chunks that together fill the pipe several times arrive at once, with the end.
    let chunk = [&b"9c40\r\n"[..], &[b'x'; 40_000], b"\r\n"].concat();
    for (framing, body, len) in [
        ("Content-Length: 100000", vec![b'x'; 100_000], "100000"),
        ("Transfer-Encoding: chunked", [&chunk.repeat(5)[..], b"0\r\n\r\n"].concat(), "200000"),
    ] {
        stage.exchange(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").as_bytes());
        let sent = stage.exchange(&body);
        assert_eq!(responses(&sent)[0].body, len.as_bytes(), "{framing}");
    }
}

#[test]
fn clients_that_had_shut_down_their_side_and_did_not_read_delayed_others_that_read() {
    const BYTES: usize = 16_000_000;
    let root = site(&[]);
    let root = root.path().to_str().unwrap();
    for backend in available() {
        println!("on {backend}");
        let arguments = ["--listen", "127.0.0.1:0", "--workers", "1", "--backend", backend];
        let serving = Serving::start(&[&arguments[..], &["--root", root, "--lab"]].concat());
        let ask = || {
            let mut client = serving.connect();
            let head = format!("GET /bytes?n={BYTES} HTTP/1.1\r\nHost: a\r\n\r\n");
            client.send(head.as_bytes());
            client.end();
            client
        };
        let silent: Vec<_> = (0..24).map(|_| ask()).collect();
        for client in &silent {
            client.wait_readable();
        }
        assert_eq!(ask().response(true).body.len(), BYTES, "{backend}");
    }
}

/// Returns the CPU time of a process, in ticks of 10 ms (proc_pid_stat(5)).
fn cpu_ticks(serving: &Serving) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", serving.child.id())).unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn clients_that_had_shut_down_their_side_and_did_not_read_kept_a_worker_busy() {
    let root = site(&[]);
    fs::File::create(root.path().join("large")).unwrap().set_len(64 << 20).unwrap();
    let root = root.path().to_str().unwrap();
    let start = |backend| {
        let arguments = ["--listen", "127.0.0.1:0", "--workers", "1", "--backend", backend];
        Serving::start(&[&arguments[..], &["--root", root, "--lab"]].concat())
    };
    // All mechanisms at once, as each test waits.
    let servers: Vec<_> = available().map(|backend| (backend, start(backend))).collect();
    let mut clients = Vec::new();
    for (_, serving) in &servers {
        for target in ["/large", "/bytes?n=64000000"] {
            let mut client = serving.connect();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            client.end();
            clients.push(client);
        }
    }
    clients.iter().for_each(Client::wait_readable);
    // Once the sockets are full, the servers have nothing to do.
    let mut busy = Vec::new();
    for _ in 0..20 {
        let before: Vec<_> = servers.iter().map(|(_, serving)| cpu_ticks(serving)).collect();
        thread::sleep(Duration::from_millis(500));
        let now = servers.iter().zip(before);
        let now = now.map(|((backend, serving), before)| (*backend, cpu_ticks(serving) - before));
        busy = now.filter(|(_, ticks)| *ticks > 2).collect();
        if busy.is_empty() {
            return;
        }
    }
    panic!("ticks in half a second: {busy:?}");
}
