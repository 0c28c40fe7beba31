//! The program: flags, signals, logs, exit codes.

use crate::serving;

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::evring::mechanisms::backends;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use serving::program::{Serving, httpd, limited};
use serving::{Client, available, refuse_io_uring};

pub(crate) fn output(arguments: &[&str]) -> Output {
    httpd(arguments).output().unwrap()
}

#[test]
fn auto_falls_back_to_epoll_and_prints_the_reason_without_io_uring() {
    let mut command = httpd(&["--listen", "127.0.0.1:0"]);
    // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(refuse_io_uring) };
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let reason = lines.next().unwrap().unwrap();
    assert!(
        reason.contains("using epoll because uring is unavailable: io_uring is forbidden"),
        "{reason}"
    );
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("(backend epoll, "), "{line}");
    let address = line.strip_prefix("listening on http://").unwrap().split(' ').next().unwrap();
    let mut client = Client::new(TcpStream::connect(address).unwrap());
    assert_eq!(client.get("/").status, 200);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn backend_list_shows_forbidden_mechanisms() {
    let mut command = httpd(&["--list-backends"]);
    // SAFETY: as above.
    unsafe { command.pre_exec(refuse_io_uring) };
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("uring ")).unwrap();
    assert!(line.contains("not available: io_uring is forbidden, for example"), "{line}");
}

#[test]
fn every_backend_serves_the_page_and_stops_at_each_signal() {
    for backend in available() {
        for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
            let serving = Serving::start(&["--listen", "127.0.0.1:0", "--backend", backend]);
            let expected = format!(
                "listening on http://{} (backend {}, 1 worker)\n",
                serving.address, backend
            );
            assert_eq!(serving.line, expected);
            let mut idle = serving.connect();
            let page = idle.get("/");
            assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
            let text = String::from_utf8(page.body).unwrap();
            assert!(text.contains(&format!(">{}<", backend)), "{text}");
            assert_eq!(idle.get("/other").status, 404);
            serving.signal(signal);
            serving.expect_success();
            idle.expect_end();
        }
    }
}

#[test]
fn several_workers_serve_a_directory() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "text").unwrap();
    let path = root.path().to_str().unwrap();
    let serving = Serving::start(&["--listen", "127.0.0.1:0", "--root", path, "--workers", "3"]);
    assert!(serving.line.contains(", 3 workers)"), "{}", serving.line);
    for _ in 0..20 {
        assert_eq!(serving.connect().get("/a.txt").body, b"text");
    }
    serving.signal(Signal::TERM);
    serving.expect_success();
}

#[test]
fn json_list_of_backends_is_complete() {
    let output = output(&["--list-backends", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = backends().iter().map(|backend| backend.name).collect();
    assert_eq!(list.iter().map(|entry| &entry["name"]).collect::<Vec<_>>(), names);
    for entry in list {
        assert!(["readiness", "completion"].contains(&entry["family"].as_str().unwrap()));
        assert!(!entry["summary"].as_str().unwrap().is_empty());
        assert_eq!(entry["available"].as_bool().unwrap(), entry["reason"].is_null());
        assert_eq!(entry.as_object().unwrap().len(), 5);
    }
}

#[test]
fn list_of_backends_has_one_line_each() {
    let output = output(&["--list-backends"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), backends().len());
    for (line, backend) in text.lines().zip(backends()) {
        assert!(line.starts_with(backend.name), "{line}");
    }
}

#[test]
fn start_errors_are_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = file.path().to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("access.log");
    let log = log.to_str().unwrap();
    let cases: [(&[&str], &str); 6] = [
        (&["--listen", &taken], "or choose another port"),
        // The log was said to have lost lines, after 2 s.
        (&["--listen", &taken, "--workers", "1", "--access-log", log], &taken),
        (&["--listen", &taken, "--workers", "2"], &taken),
        (&["--listen", "127.0.0.1:0", "--root", "/does/not/exist"], "/does/not/exist"),
        (&["--listen", "127.0.0.1:0", "--root", file], file),
        (&["--listen", "127.0.0.1:0", "--backend", "abacus"], "`abacus`"),
    ];
    for (arguments, what) in cases {
        let output = output(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("httpd: ") && text.contains(what), "{text}");
    }
}

#[test]
fn directory_and_port_are_enough() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "text").unwrap();
    let serving = Serving::start(&[root.path().to_str().unwrap(), "-p", "0"]);
    assert!(serving.address.ip().is_loopback());
    assert!(serving.before.contains("--listing"), "{}", serving.before);
    assert_eq!(serving.connect().get("/a.txt").body, b"text");
    assert_eq!(serving.connect().get("/").status, 404);
    let serving = Serving::start(&[root.path().to_str().unwrap(), "--listing", "--listen", ":0"]);
    assert!(serving.address.ip().is_unspecified());
    assert_eq!(serving.before, "");
    let address = SocketAddr::from(([127, 0, 0, 1], serving.address.port()));
    let page = Client::new(TcpStream::connect(address).unwrap()).get("/");
    assert!(String::from_utf8(page.body).unwrap().contains("a.txt"));
}

#[test]
fn server_serves_during_the_drain_delay() {
    let flags =
        ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--log-level", "info"];
    let mut serving = Serving::start(&[&flags[..], &["--drain-delay", "600"]].concat());
    let mut line = String::new();
    serving.errors.read_line(&mut line).unwrap();
    let (_, address) = line.split_once("metrics at http://").expect("no address of the metrics");
    let address = address.trim_end().strip_suffix("/metrics").unwrap().to_owned();
    let readiness = || Client::new(TcpStream::connect(&*address).unwrap()).get("/readyz").status;
    assert_eq!(readiness(), 200);
    serving.signal(Signal::TERM);
    while readiness() != 503 {}
    assert_eq!(serving.connect().get("/").status, 200);
    // A second signal does not wait.
    serving.signal(Signal::TERM);
    assert_eq!(serving.child.wait().unwrap().code(), Some(1));
}

#[test]
fn lab_handlers_serve_experiments() {
    let serving = Serving::start(&["--listen", "127.0.0.1:0", "--lab"]);
    let mut client = serving.connect();
    assert_eq!(client.get("/bytes?n=0").body, b"");
    assert_eq!(client.get("/bytes?n=200000").body, [b'0'; 200_000]);
    let start = Instant::now();
    assert_eq!(client.get("/spin?us=20000").body, b"20000\n");
    assert!(start.elapsed() >= Duration::from_millis(20));
    for target in ["/spin", "/spin?us=x", "/bytes?n=-1", "/spin?us=99999999999"] {
        assert_eq!(client.get(target).status, 400, "{target}");
    }
    client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(client.response(true).body, b"body");
    let fields = String::from_utf8(client.get("/echo").body).unwrap();
    assert!(fields.starts_with("GET /echo HTTP/1.1\nhost: a\n"), "{fields}");
    drop(client);
    let plain = Serving::start(&["--listen", "127.0.0.1:0"]);
    for target in ["/spin?us=1", "/bytes?n=1", "/echo"] {
        assert_eq!(plain.connect().get(target).status, 404, "{target}");
    }
}

#[test]
fn several_addresses_and_a_host_name_are_listened_on() {
    let arguments = ["--listen", "127.0.0.1:0", "--listen", "localhost:0"];
    let serving = Serving::start(&arguments);
    let addresses: Vec<SocketAddr> = serving
        .line
        .split("http://")
        .skip(1)
        .map(|text| text.split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(addresses.len() >= 2, "{}", serving.line);
    for address in addresses {
        assert_eq!(Client::new(TcpStream::connect(address).unwrap()).get("/").status, 200);
    }
}

#[test]
fn address_shared_by_another_process_is_in_use() {
    let other = Serving::start(&["--listen", "127.0.0.1:0", "--workers", "2"]);
    let at = other.address.to_string();
    let output = output(&["--listen", &at, "--workers", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains(&at));
}

/// Starts the program on the address of one that was killed. The kernel may free the sockets of a ring later than the
/// program tries, which is for 400 ms.
fn start_again(at: &str, backend: &str) -> Serving {
    let begin = Instant::now();
    loop {
        let tries = Instant::now();
        match Serving::try_of(httpd(&["--listen", at, "--backend", backend])) {
            Ok(serving) => return serving,
            Err(output) => {
                let tried = tries.elapsed();
                let has_tried = tried >= Duration::from_millis(390);
                assert!(output.contains("in use") && has_tried, "{backend}, {tried:?}: {output}");
                assert!(begin.elapsed() < Duration::from_secs(20), "{backend}: {output}");
            }
        }
    }
}

#[test]
fn address_was_in_use_after_its_server_was_killed() {
    for backend in available() {
        // No other test has this address, so its port stays free.
        let mut serving = Serving::start(&["--listen", "127.77.0.1:0", "--backend", backend]);
        let at = serving.address.to_string();
        for _ in 0..8 {
            let _open: Vec<_> = (0..20).map(|_| TcpStream::connect(&at).unwrap()).collect();
            serving.connect().get("/");
            serving.signal(Signal::KILL);
            serving.child.wait().unwrap();
            serving = start_again(&at, backend);
        }
    }
}

#[test]
fn connections_used_all_descriptors_and_files_got_503() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "file").unwrap();
    let start = |soft: u32, hard: u32| {
        let line = format!("ulimit -Sn {soft} && ulimit -Hn {hard}");
        let root = root.path().to_str().unwrap();
        Serving::of(limited(&line, &["--listen", "127.0.0.1:0", "--root", root]))
    };
    // The soft limit is raised. The hard limit has room for files.
    for (soft, hard) in [(400, 2000), (700, 700)] {
        let serving = start(soft, hard);
        let mut first = serving.connect();
        assert_eq!(first.get("/none").status, 404);
        let idle: Vec<_> = (0..500).map(|_| TcpStream::connect(serving.address)).collect();
        assert_eq!(first.get("/a.txt").body, b"file", "{soft} {hard}");
        drop(idle);
    }
}

#[test]
fn second_signal_left_the_pid_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    for owner in [None, Some("1\n")] {
        let mut serving = Serving::start(&[
            "-p",
            "0",
            "--drain-delay",
            "600",
            "--pid-file",
            file.to_str().unwrap(),
        ]);
        if let Some(owner) = owner {
            std::fs::write(&file, owner).unwrap();
        }
        // Several that are pending may become one.
        let outcome = loop {
            serving.signal(Signal::TERM);
            if let Some(outcome) = serving.child.try_wait().unwrap() {
                break outcome;
            }
            thread::yield_now();
        };
        assert_eq!(outcome.code(), Some(1));
        // That of another process stays.
        assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), owner);
    }
}

#[test]
fn second_server_took_the_pid_file_of_a_living_one_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let flags = ["-p", "0", "--pid-file", file.to_str().unwrap()];
    let text = || std::fs::read_to_string(&file).unwrap();
    // Neither the number of another program, nor that of a process that has ended, keeps it from starting.
    std::fs::write(&file, format!("{}\n", std::process::id())).unwrap();
    let mut killed = Serving::start(&flags);
    killed.signal(Signal::KILL);
    // It still has its number, as nothing has waited for it.
    while killed.errors.read_line(&mut String::new()).unwrap() > 0 {}
    let serving = Serving::start(&flags);
    killed.child.wait().unwrap();
    let number = serving.child.id();
    assert_eq!(text(), format!("{number}\n"));
    let second = Serving::start(&flags);
    let expected = format!("has had the number of a server that runs, {number}");
    assert!(second.before.contains(&expected), "{}", second.before);
    serving.signal(Signal::TERM);
    serving.expect_success();
    assert_eq!(text(), format!("{}\n", second.child.id()));
    second.signal(Signal::TERM);
    second.expect_success();
    assert!(!file.exists());
}

#[test]
fn failed_start_left_an_empty_pid_file() {
    let dir = tempfile::tempdir().unwrap();
    let [new, old] = ["new", "old"].map(|name| dir.path().join(name));
    std::fs::write(&old, "1\n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for file in [&new, &old] {
        let output = output(&["--listen", &address, "--pid-file", file.to_str().unwrap()]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("cannot listen on"), "{text}");
    }
    assert!(!new.exists());
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "1\n", "that of another process");
}

#[test]
fn status_json_has_the_metrics() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_str().unwrap();
    for backend in available() {
        let arguments = ["--listen", "127.0.0.1:0", "--root", path, "--backend", backend];
        let serving = Serving::start(&[&arguments[..], &["--status"]].concat());
        let mut client = serving.connect();
        assert_eq!(client.get("/none").status, 404);
        let response = client.get("/.httpd/status.json");
        assert_eq!(response.field("content-type"), Some("application/json"));
        assert_eq!(response.field("cache-control"), Some("no-store"));
        let counts: Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!(counts["backend"], backend);
        assert_eq!(counts["responses_4xx"], 1);
        client.status_when(|counts| {
            counts["connections_accepted"] == 1 && counts["system_calls"].as_u64().unwrap() > 0
        });
        let hidden = Serving::start(&arguments);
        assert_eq!(hidden.connect().get("/.httpd/status.json").status, 404);
    }
}

#[test]
fn status_json_had_only_the_worker_that_answers_as_it_is() {
    const CLIENTS: u64 = 16;
    for backend in available() {
        let serving = Serving::start(&["-p", "0", "--backend", backend, "--workers", "3"]);
        // The workers copied their figures with the first request of a second.
        let connect = |_| {
            let mut client = serving.connect();
            assert_eq!(client.get("/").status, 200);
            client
        };
        let mut clients: Vec<_> = (0..CLIENTS).map(connect).collect();
        let response = clients[0].get("/.httpd/status.json");
        assert_eq!(response.field("content-type"), Some("application/json"));
        assert_eq!(response.field("cache-control"), Some("no-store"));
        let counts: Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!(counts["backend"], backend);
        assert_eq!((&counts["workers"], &counts["responses_2xx"]), (&3.into(), &CLIENTS.into()));
        clients[0].status_when(|counts| counts["connections_accepted"] == CLIENTS);
        // It waits in its turn, and other requests of the connection after it.
        clients[1].send(
            b"GET /.httpd/status.json HTTP/1.1\r\nHost: a\r\n\r\nGET /none HTTP/1.1\r\nHost: a\r\n\r\n",
        );
        assert_eq!([(); 2].map(|()| clients[1].response(true).status), [200, 404]);
        let head = clients[2].request("HEAD /.httpd/status.json", "");
        assert!(head.status == 200 && head.body.is_empty());
    }
}

#[test]
fn requests_sent_before_sigterm_were_reset() {
    const OPEN: usize = 100;
    const NEW: usize = 50;
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "content").unwrap();
    let path = root.path().to_str().unwrap();
    for backend in available() {
        // Without admission control, which resets clients that have waited for long.
        let no_admission = ["--max-queue-delay", "0"];
        let arguments = ["--listen", "127.0.0.1:0", "--backend", backend, "--root", path];
        let serving = Serving::start(&[&arguments[..], &no_admission].concat());
        let mut open: Vec<_> = (0..OPEN).map(|_| serving.connect()).collect();
        for client in &mut open {
            assert_eq!(client.get("/file").status, 200);
        }
        // While the program is stopped: requests on open connections and on new ones, half of them for
        // uncached files; then SIGTERM.
        serving.pause();
        let new = (0..NEW).map(|_| serving.connect());
        let mut clients: Vec<_> = open.into_iter().chain(new).collect();
        for (at, client) in clients.iter_mut().enumerate() {
            let target = ["/file", "/missing"][at % 2];
            client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        }
        serving.signal(Signal::TERM);
        serving.signal(Signal::CONT);
        for (at, client) in clients.iter_mut().enumerate() {
            let response = client.response(true);
            assert_eq!(response.status, if at % 2 == 0 { 200 } else { 404 });
            // A response sent before the signal was handled has no `close`, but the connection closes, too.
            client.expect_end();
        }
        // The server waits for them to close, too.
        drop(clients);
        serving.expect_success();
    }
}

/// The server accepts them as connections close and return their descriptors.
#[test]
fn clients_without_a_descriptor_were_reset_at_shutdown() {
    const OPEN: usize = 4;
    const NEW: usize = 12;
    for backend in available() {
        let no_admission = ["--max-queue-delay", "0"];
        let arguments = ["--listen", "127.0.0.1:0", "--backend", backend, "--log-level", "error"];
        let serving = Serving::start(&[&arguments[..], &no_admission].concat());
        let open = [(); OPEN].map(|()| {
            let mut client = serving.connect();
            assert_eq!(client.get("/").status, 200);
            client
        });
        serving.pause();
        // The descriptors of the connections have lower numbers.
        let is_used = |number: &u64| {
            std::fs::exists(format!("/proc/{}/fd/{number}", serving.child.id())).unwrap()
        };
        let first_free = (0..).find(|number| !is_used(number));
        let limit = Rlimit { current: first_free, maximum: first_free };
        prlimit(Some(Pid::from_child(&serving.child)), Resource::Nofile, limit).unwrap();
        let new = [(); NEW].map(|()| {
            let mut client = serving.connect();
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            client
        });
        serving.signal(Signal::TERM);
        serving.signal(Signal::CONT);
        for mut client in new {
            assert_eq!(client.response(true).status, 200, "{backend}");
        }
        drop(open);
        serving.expect_success();
    }
}

#[test]
fn connections_reset_at_shutdown_are_reported() {
    const WAITING: usize = 5;
    for backend in available() {
        let arguments =
            ["--max-connections", "1", "--shutdown-timeout", "0.3", "--backend", backend];
        let mut serving = Serving::start(&[&["--listen", "127.0.0.1:0"], &arguments[..]].concat());
        // An incomplete head keeps the only connection in use.
        let mut busy = serving.connect();
        busy.get("/");
        busy.send(b"GET / HT");
        let waiting: Vec<_> = (0..WAITING).map(|_| serving.connect()).collect();
        serving.signal(Signal::TERM);
        let mut text = String::new();
        serving.errors.read_to_string(&mut text).unwrap();
        let line = format!("{WAITING} connections in the listen queue were reset");
        assert!(text.contains(&line), "{}: {text}", backend);
        drop((busy, waiting));
    }
}

#[test]
fn responses_of_a_draining_server_lacked_connection_close() {
    for backend in available() {
        let serving = Serving::start(&["--listen", "127.0.0.1:0", "--backend", backend]);
        let mut client = serving.connect();
        client.send(b"GET / HTTP/1.1\r\nHo");
        serving.signal(Signal::TERM);
        while TcpStream::connect(serving.address).is_ok() {
            thread::yield_now();
        }
        client.send(b"st: a\r\n\r\n");
        let response = client.response(true);
        let connection = response.field("Connection");
        assert_eq!((response.status, connection), (200, Some("close")), "{}", backend);
        client.expect_end();
        // The server waits for it to close, too.
        drop(client);
        serving.expect_success();
    }
}
