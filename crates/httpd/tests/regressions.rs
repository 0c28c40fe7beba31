//! What was wrong once, each named after it.

mod serving;
mod stage;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use evring_httpd::evring::backends;
use evring_httpd::{Config, Limits, Request, Root, Site};
use proptest::prelude::*;
use rustix::process::Signal;
use serde_json::Value;
use serving::program::{Serving, httpd, limited};
use serving::{Client, Server, on_every_backend};
use stage::{IntoResponse, Stage, replies, reply};
use tempfile::TempDir;

/// A directory with these files.
fn site(files: &[(&str, &[u8])]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
    }
    root
}

fn get(stage: &mut Stage, target: &str) -> IntoResponse {
    ask(stage, target, "")
}

/// A request with more fields.
fn ask(stage: &mut Stage, target: &str, fields: &str) -> IntoResponse {
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let sent = stage.exchange(request.as_bytes());
    let has_body = !sent.starts_with(b"HTTP/1.1 304 ");
    let (reply, rest) = reply(&sent, has_body);
    assert_eq!(rest.len(), 0, "{target}");
    reply
}

#[test]
fn a_request_of_http_1_2_was_refused_with_505() {
    let root = site(&[("a", b"text")]);
    let mut stage = Stage::new(root.path());
    for minor in 2..=9 {
        let request = format!("GET /a HTTP/1.{minor}\r\nHost: a\r\n\r\n").repeat(2);
        for piece in [request.len(), 1] {
            request.as_bytes().chunks(piece).for_each(|bytes| stage.feed(bytes));
            let all = replies(&std::mem::take(&mut stage.io.sent));
            let found: Vec<_> = all.iter().map(|reply| (reply.status, &reply.body[..])).collect();
            assert_eq!(found, [(200, &b"text"[..]); 2], "{minor} in pieces of {piece}");
        }
    }
    assert_eq!(stage.io.close, None);
}

/// Pieces of heads, broken and sound, of which some pass small limits.
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
    fn a_head_beyond_a_limit_had_another_status_when_it_came_in_pieces(
        pieces in prop::collection::vec(piece(), 0..12),
        start in prop::sample::select(vec!["", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: a\r\n"]),
        line in 16..40usize,
        head in 16..90usize,
        fields in 1..4usize,
    ) {
        let bytes = [start.as_bytes(), &pieces.concat()].concat();
        let limits = Limits { max_request_line_bytes: line, max_head_bytes: head, max_headers: fields, max_body_bytes: 5, ..Limits::default() };
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
fn a_directory_by_a_path_that_ends_in_dots_was_not_found() {
    let root = site(&[("sub/a", b""), ("sub/inner/b", b"")]);
    let mut stage = Stage::with(Site::new(Some(Root(0))).listing(true), root.path());
    let known = |stage: &mut Stage, target: &str| {
        let reply = get(stage, target);
        assert_eq!(reply.status, 200, "{target}");
        reply.body
    };
    let (top, sub) = (known(&mut stage, "/"), known(&mut stage, "/sub/"));
    for target in ["/.", "/./", "/sub/..", "/sub/../", "/sub/inner/../..", "/%2e", "/sub/%2e%2e"] {
        assert_eq!(known(&mut stage, target), top, "{target}");
    }
    for target in ["/sub/.", "/sub/./", "/sub/inner/..", "/sub//", "/./sub/%2E"] {
        assert_eq!(known(&mut stage, target), sub, "{target}");
    }
    assert_eq!(get(&mut stage, "/..").status, 400);
}

#[test]
fn aliases_of_a_path_each_opened_the_file_anew() {
    let root = site(&[("big", &[7; 100_000]), ("a?b", b"other")]);
    let mut stage = Stage::new(root.path());
    for target in
        ["/big", "//big", "/./big", "/%62ig", "/x/../big", "/big?a", "http://h//big", "/big"]
    {
        assert_eq!(get(&mut stage, target).body.len(), 100_000, "{target}");
        assert_eq!(stage.io.works.0, 1, "{target}");
    }
    // The name of another file is not a path with a query.
    assert_eq!(get(&mut stage, "/a%3fb").body, b"other");
    assert_eq!(get(&mut stage, "/a?b").status, 404);
}

#[test]
fn files_that_clients_took_slowly_had_all_descriptors() {
    let root = site(&[("small", b"small")]);
    for n in 0..6 {
        fs::write(root.path().join(n.to_string()), vec![n; 100_000]).unwrap();
    }
    let limits = Limits { max_open_files: 4, ..Limits::default() };
    let mut stage = Stage::with(Site::new(Some(Root(0))).limits(limits), root.path());
    // Those that no client takes any more make room.
    for n in 0..6 {
        assert_eq!(get(&mut stage, &format!("/{n}")).body, vec![n; 100_000]);
    }
    stage.io.slow = true;
    for n in 0..6u8 {
        let reply = get(&mut stage, &format!("/{n}"));
        let expected = if n < 4 { (200, None) } else { (503, Some("1")) };
        assert_eq!((reply.status, reply.field("Retry-After")), expected, "{n}");
    }
    assert_eq!(stage.io.files.len(), 4);
    // What is open already goes on being sent, and so do small files.
    assert_eq!(get(&mut stage, "/0").status, 200);
    assert_eq!(get(&mut stage, "/small").status, 200);
    stage.io.files.clear();
    assert_eq!(get(&mut stage, "/5").status, 200);
    assert_eq!(stage.io.close, None);
}

#[test]
fn bodies_were_bounded_for_each_connection_only() {
    // Three bodies of 40,000 bytes hold 64 KiB each.
    let limits = Limits { max_body_memory: 200_000, ..Limits::default() };
    on_every_backend(|backend| {
        let handler = |request: Request| request.body().len().to_string();
        let server =
            evring_httpd::Server::builder().listen("127.0.0.1:0").backend(backend).status(true);
        let server = server.limits(limits.clone()).route("/take", handler).start().unwrap();
        let connect = || Client::new(TcpStream::connect(server.addresses()[0]).unwrap());
        let mut clients: Vec<_> = (0..4).map(|_| connect()).collect();
        for client in &mut clients {
            client.send(b"POST /take HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n");
            client.send_in_vain(&[b'x'; 39_999]);
        }
        // Which of them has no room is not known.
        let mut refused = loop {
            if let Some(at) = clients.iter().position(Client::has_more) {
                break clients.remove(at);
            }
            thread::yield_now();
        };
        let reply = refused.reply(true);
        assert_eq!((reply.status, reply.field("Retry-After")), (503, Some("1")), "{backend}");
        assert_eq!(counts(&mut connect())["refused_bodies"], 1, "{backend}");
        for client in &mut clients {
            client.send(b"x");
            let reply = client.reply(true);
            assert_eq!((reply.status, &reply.body[..]), (200, &b"40000"[..]), "{backend}");
        }
        // All of it is free again.
        for client in &mut clients {
            client.send(b"POST /take HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n");
            client.send(&[b'x'; 40_000]);
            assert_eq!(client.reply(true).status, 200, "{backend}");
        }
    });
}

/// What a client says to get the rest of a file that it has begun to take.
fn resume(validator: &str) -> String {
    format!("Range: bytes=2-\r\nIf-Range: {validator}\r\n")
}

/// Changes a file of a server but for its length and modification time; what a client knows of it
/// before does not hold after.
fn change_unseen(backend: &'static str, name: &str) {
    let root = site(&[("small", b"before"), ("large", &[b'a'; 70_000])]);
    let path = root.path().join(name);
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let config = Config { roots: vec![root.path().to_owned()], ..Config::default() };
    let limits = Limits { cache_ttl: Duration::ZERO, ..Limits::default() };
    let server = Server::start(backend, config, limits);
    let mut client = server.connect();
    let mut get = |fields: &str| {
        client.send(format!("GET /{name} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
        let head = client.reply(false);
        client.body(head)
    };
    // Its first second is over when a range is resumed by its date.
    let old = loop {
        let reply = get("");
        let date = reply.field("Last-Modified").unwrap().to_owned();
        if get(&resume(&date)).status == 206 {
            break reply;
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
    fs::write(&path, &new).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    // The date is the same, as the tool that restored it wants. Who sends both has the tag count.
    for fields in [
        format!("If-None-Match: {tag}\r\n"),
        format!("If-None-Match: {tag}\r\nIf-Modified-Since: {date}\r\n"),
        resume(&tag),
        resume(&date),
    ] {
        let reply = get(&fields);
        assert!(reply.status == 200 && reply.body == new, "{backend} {fields}");
    }
    assert_eq!(get(&format!("If-Match: {tag}\r\n")).status, 412);
}

#[test]
fn two_contents_with_the_same_modification_time_had_the_same_tag() {
    // All at once, as they do little but wait.
    thread::scope(|scope| {
        on_every_backend(|backend| {
            for name in ["small", "large"] {
                scope.spawn(move || change_unseen(backend, name));
            }
        });
    });
}

#[test]
fn two_writes_within_a_tick_of_the_clock_had_the_same_tag() {
    let root = site(&[]);
    let path = root.path().join("file");
    let limits = Limits { cache_ttl: Duration::ZERO, ..Limits::default() };
    for len in [10, 70_000] {
        for round in 0..100u8 {
            let site = Site::new(Some(Root(0))).limits(limits.clone());
            let mut stage = Stage::with(site, root.path());
            stage.io.tick_ns = 10_000_000;
            fs::write(&path, vec![round; len]).unwrap();
            // What the client sees now may change again before the clock ticks.
            stage.io.wall = SystemTime::now();
            let first = get(&mut stage, "/file");
            fs::write(&path, vec![!round; len]).unwrap();
            stage.pass(Duration::from_secs(2));
            let tag = first.field("ETag").unwrap();
            for fields in [format!("If-None-Match: {tag}\r\n"), resume(tag)] {
                let reply = ask(&mut stage, "/file", &fields);
                assert!(reply.status == 200 && reply.body == vec![!round; len], "{fields}");
            }
        }
    }
}

/// The change time of a file, but for its seconds.
fn time(path: &Path) -> i64 {
    fs::metadata(path).unwrap().ctime_nsec()
}

#[test]
fn a_file_that_had_just_changed_in_place_was_resumed_from_memory() {
    let root = site(&[("small", b"before"), ("large", &[b'a'; 70_000])]);
    let mut stage = Stage::new(root.path());
    for name in ["small", "large"] {
        let target = format!("/{name}");
        let tag = get(&mut stage, &target).field("ETag").unwrap().to_owned();
        assert_eq!(ask(&mut stage, &target, &resume(&tag)).status, 206);
        let path = root.path().join(name);
        let (written, len) = (time(&path), fs::metadata(&path).unwrap().len());
        // For the server that was an hour ago, so it is not to be in the same tick of the clock.
        while time(&path) == written {
            fs::write(&path, vec![b'z'; len as usize]).unwrap();
        }
        // What is in memory is believed for a second, but not here.
        let reply = ask(&mut stage, &target, &resume(&tag));
        assert!(reply.status == 200 && reply.body == vec![b'z'; len as usize], "{name}");
    }
}

/// The mechanisms that can run here.
fn here() -> impl Iterator<Item = &'static str> {
    backends().into_iter().filter(|backend| backend.available.is_ok()).map(|backend| backend.name)
}

/// What the server tells of itself.
fn counts(client: &mut Client) -> Value {
    serde_json::from_slice(&client.get("/.httpd/status.json").body).unwrap()
}

#[test]
fn a_small_limit_of_descriptors_left_one_connection() {
    let root = site(&[("large", &[b'x'; 300_000])]);
    for n in 0..400 {
        fs::write(root.path().join(n.to_string()), n.to_string()).unwrap();
    }
    let root = root.path().to_str().unwrap();
    for backend in here() {
        for (limit, least) in [(40, 12), (64, 30), (128, 70), (512, 300)] {
            let line = format!("ulimit -n {limit}");
            let arguments = ["--listen", "127.0.0.1:0", "--backend", backend, "--root", root];
            let serving = Serving::of(limited(&line, &[&arguments[..], &["--status"]].concat()));
            // It says so where everybody sees it.
            let said = serving.before.split(" connections for each worker").next().unwrap();
            let connections: usize = said.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(serving.before.contains("WARN"), "{}", serving.before);
            assert!(connections >= least, "{backend} {limit}: {}", serving.before);
            let mut clients: Vec<_> = (0..connections).map(|_| serving.connect()).collect();
            for round in 0..2 {
                for (n, client) in clients.iter_mut().enumerate() {
                    let target = if (n + round) % 2 == 0 { "large" } else { &n.to_string() };
                    let head = format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n");
                    client.send(head.as_bytes());
                }
                for client in &mut clients {
                    assert_eq!(client.reply(true).status, 200, "{backend} {limit}");
                }
            }
            let counts = counts(&mut clients[0]);
            assert_eq!(counts["replies_5xx"], 0, "{backend} {limit}");
            assert_eq!(counts["connections_accepted"], connections, "{backend} {limit}");
        }
    }
}

#[test]
fn a_server_without_descriptors_for_anybody_started() {
    let mut command = limited("ulimit -n 16", &["--listen", "127.0.0.1:0"]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("httpd: can't serve with 16 descriptors"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    // With enough for one worker, there is one.
    let arguments = ["--listen", "127.0.0.1:0", "--workers", "8"];
    let serving = Serving::of(limited("ulimit -n 40", &arguments));
    assert!(serving.before.contains(" 1 workers instead of 8"), "{}", serving.before);
    assert!(serving.line.contains(", 1 workers)"), "{}", serving.line);
    assert_eq!(serving.connect().get("/").status, 200);
}

#[test]
fn slow_readers_of_aliases_had_all_descriptors() {
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
    for backend in here() {
        println!("on {backend}");
        // Nobody is reset for being slow, nor left waiting for there being so many.
        let patient = ["--progress-interval", "600", "--max-queue-delay", "0", "--status"];
        let arguments = ["--listen", "127.0.0.1:0", "--backend", backend, "--root", root];
        let all = [&arguments[..], &patient].concat();
        let serving = Serving::of(limited("ulimit -n 1024", &all));
        let slow = |target: &str| {
            let mut client = serving.connect();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            client
        };
        // A file is opened once more when its first second is over, which it is when it is resumed by its date.
        let mut first = serving.connect();
        loop {
            first.send(b"HEAD /big HTTP/1.1\r\nHost: a\r\n\r\n");
            let date = first.reply(false).field("Last-Modified").unwrap().to_owned();
            let request = format!("GET /big HTTP/1.1\r\nHost: a\r\n{}\r\n", resume(&date));
            let mut second = serving.connect();
            second.send(request.as_bytes());
            if second.reply(false).status == 206 {
                break;
            }
        }
        let mut clients: Vec<_> = (0..600).map(|n| slow(&alias(n))).collect();
        for client in &mut clients {
            assert_eq!(client.reply(false).status, 200, "{backend}");
        }
        let open = |name: &str| {
            let links = fs::read_dir(format!("/proc/{}/fd", serving.child.id())).unwrap().flatten();
            let paths = links.filter_map(|link| fs::read_link(link.path()).ok());
            paths.filter(|path| path.ends_with(name)).count()
        };
        assert_eq!(open("big"), 1, "{backend}");
        assert_eq!(serving.connect().get("/small").body, b"small", "{backend}");
        // Different files are open up to a bound, and those beyond are refused for now.
        drop(clients);
        let mut clients: Vec<_> = (0..140).map(|n| slow(&format!("/{n}"))).collect();
        let statuses: Vec<_> =
            clients.iter_mut().map(|client| client.reply(false).status).collect();
        let served = statuses.iter().filter(|status| **status == 200).count();
        let refused = statuses.iter().filter(|status| **status == 503).count();
        assert!(served >= 100 && refused > 0 && served + refused == 140, "{backend} {served}");
        let mut another = serving.connect();
        assert_eq!(another.get("/small").body, b"small", "{backend}");
        assert_eq!(counts(&mut another)["refused_files"], refused, "{backend}");
        // Once they are gone, it goes on.
        drop(clients);
        while another.get("/other").status != 200 {}
    }
}

#[test]
fn a_reader_of_stderr_that_did_not_read_stalled_a_worker() {
    let mut serving = Serving::start(&["--listen", "127.0.0.1:0", "--log-level", "debug"]);
    let mut client = serving.connect();
    // Far more than the pipe and the queue hold.
    let target = format!("/{}", "x".repeat(4000));
    for _ in 0..1000 {
        assert_eq!(client.get(&target).status, 404);
    }
    // What was lost is counted for a reader that comes late.
    let mut lines = 0;
    let lost: usize = loop {
        serving.line.clear();
        assert!(serving.errors.read_line(&mut serving.line).unwrap() > 0);
        if let Some((lost, _)) = serving.line.split_once(" lines of this log were lost") {
            break lost.parse().unwrap();
        }
        assert!(serving.line.contains("404 for GET \"/xxx"), "{}", serving.line);
        lines += 1;
    };
    assert!(lines > 0 && lost > 0 && lines + lost <= 1000, "{lines} {lost}");
    // Nor does it keep the program from ending.
    for _ in 0..1000 {
        assert_eq!(client.get(&target).status, 404);
    }
    serving.signal(Signal::TERM);
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_404_for_a_file_was_said_to_be_for_no_request() {
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

/// Takes away what lets root enter any directory. In a process without privileges, which has none of
/// it, this fails.
fn without_privileges() -> std::io::Result<()> {
    for capability in [1, 2] {
        // SAFETY: it takes no pointers.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    Ok(())
}

#[test]
fn a_root_that_can_not_be_entered_was_served_with_403() {
    let root = site(&[("inner/file", b"text")]);
    let inner = root.path().join("inner");
    for backend in here() {
        let path = inner.to_str().unwrap();
        let mut command = httpd(&["--listen", "127.0.0.1:0", "--backend", backend, "--root", path]);
        // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
        unsafe { command.pre_exec(without_privileges) };
        fs::set_permissions(&inner, Permissions::from_mode(0o600)).unwrap();
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        fs::set_permissions(&inner, Permissions::from_mode(0o700)).unwrap();
        if said.starts_with("listening") {
            child.kill().unwrap();
        }
        assert_eq!(child.wait().unwrap().code(), Some(1), "{backend}: {said}");
        assert!(said.starts_with("httpd: can't open the directory "), "{said}");
        for word in [path, "Permission denied", "chmod"] {
            assert!(said.contains(word), "{said}");
        }
    }
}
