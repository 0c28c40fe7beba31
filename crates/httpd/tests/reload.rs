//! Servers whose settings are replaced while they serve.

use crate::serving;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use evring_httpd::evring::Stats;
use evring_httpd::evring::sockets::{ListenOptions, ListeningSocket};
use evring_httpd::handlers::Responder;
use evring_httpd::options::Limits;
use evring_httpd::{Builder, Config, Error, Request, Server};
use serving::{Client, available, on_every_backend, on_every_backend_at_once};

/// Reloads for each mechanism, unless `RELOADS` says another number.
const RELOADS: usize = 5;

const CLIENTS: usize = 3;

/// Returns a builder of a server that answers with its version.
fn version(backend: &str, workers: u16, version: usize) -> Builder {
    let text = version.to_string();
    // Workers that are replaced have no time limit.
    let config = Config::default().with(|c| c.drain_timeout = Duration::ZERO);
    let builder = Server::builder().config(config).backend(backend).workers(workers);
    builder.route("/", move |_: Request| text.clone())
}

fn connect(at: SocketAddr) -> Client {
    Client::new(TcpStream::connect(at).unwrap())
}

/// Makes requests until `stop` is set, on connections that the server may end with a response only.
fn request(at: SocketAddr, stop: &AtomicBool, requests: &AtomicU64) {
    let mut client = connect(at);
    while !stop.load(Ordering::Relaxed) {
        let response = client.get("/");
        assert_eq!(response.status, 200);
        requests.fetch_add(1, Ordering::Relaxed);
        if response.field("Connection") == Some("close") {
            client.expect_end();
            client = connect(at);
        }
    }
}

/// Returns a connection to a worker that answers with this version.
fn connect_to_version(at: SocketAddr, version: usize) -> Client {
    loop {
        let mut client = connect(at);
        if client.get("/").body == version.to_string().as_bytes() {
            return client;
        }
    }
}

#[test]
fn sockets_of_a_reload_that_failed_were_kept() {
    let server = Server::builder().listen("127.0.0.1:0").start().unwrap();
    let handle = server.handle();
    let address = ([127, 0, 0, 1], 0).into();
    let socket = ListeningSocket::bind(address, &ListenOptions::new(16)).unwrap();
    let address = socket.address();
    let sockets = || handle.listening_sockets().len();
    let before = sockets();
    let inherits = || Server::builder().inherit(vec![socket.clone()]);
    let twice = inherits().listen(address.to_string()).listen(address.to_string());
    assert!(matches!(handle.reload(twice), Err(Error::Duplicate(_))));
    assert_eq!(sockets(), before);
    // One that is given again is the same.
    for _ in 0..2 {
        handle.reload(inherits().listen(server.addresses()[0].to_string())).unwrap();
        assert_eq!(sockets(), 2, "that of the server, and the given one");
    }
    assert_eq!(handle.addresses().len(), 1);
    server.handle().stop();
    server.wait().unwrap();
    assert_eq!(sockets(), 0);
}

#[test]
fn no_request_fails_while_settings_are_replaced() {
    let reloads = std::env::var("RELOADS").map_or(RELOADS, |n| n.parse().unwrap());
    on_every_backend(|backend| {
        let listen = Config::default().with(|c| c.listen = vec![([127, 0, 0, 1], 0).into()]);
        let server = version(backend, 2, 0).config(listen).start().unwrap();
        let (address, handle) = (server.addresses()[0], server.handle());
        let (stop, requests) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let spawn = |_| scope.spawn(|| request(address, &stop, &requests));
            let clients: Vec<_> = (0..CLIENTS).map(spawn).collect();
            for n in 1..=reloads {
                // The number of workers changes, too: from 2 to 1, 2 and 3.
                handle.reload(version(backend, (n % 3) as u16 + 1, n)).unwrap();
                let before = requests.load(Ordering::Relaxed);
                while requests.load(Ordering::Relaxed) < before + 30 {
                    if clients.iter().any(ScopedJoinHandle::is_finished) {
                        stop.store(true, Ordering::Relaxed);
                        panic!("a request failed on {backend}");
                    }
                    thread::yield_now();
                }
                connect_to_version(address, n);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(server.addresses(), [address], "{backend}");
        handle.stop();
        let stats = server.wait().unwrap();
        assert!(stats.len() <= 3, "{backend}: {} workers", stats.len());
        assert_eq!(stats.iter().map(|stats| stats.reset_at_stop).sum::<u64>(), 0, "{backend}");
    });
}

#[test]
fn statistics_of_workers_that_reloads_had_replaced_were_kept_one_by_one() {
    let server = version("auto", 2, 0).listen("127.0.0.1:0").start().unwrap();
    let (address, handle) = (server.addresses()[0], server.handle());
    let mut connections = 0;
    for (n, workers) in [1, 3, 2, 1, 2].into_iter().enumerate() {
        // The workers before have ended, or there is no room for others.
        while !handle.can_reload() {
            thread::yield_now();
        }
        handle.reload(version("auto", workers, n + 1)).unwrap();
        loop {
            let mut client = connect(address);
            connections += 1;
            if client.get("/").body == (n + 1).to_string().as_bytes() {
                break;
            }
        }
    }
    handle.stop();
    let stats = server.wait().unwrap();
    assert_eq!(stats.len(), 3, "the maximum number of workers at a time");
    let sum = |value: fn(&Stats) -> u64| stats.iter().map(value).sum::<u64>();
    assert_eq!((sum(|s| s.accepted), sum(|s| s.closed)), (connections, connections));
}

#[test]
fn connection_keeps_its_settings_until_its_next_response() {
    on_every_backend(|backend| {
        let server = version(backend, 1, 0).listen("127.0.0.1:0").start().unwrap();
        let (address, handle) = (server.addresses()[0], server.handle());
        let mut early = connect(address);
        assert_eq!(early.get("/").body, b"0");
        handle.reload(version(backend, 1, 1)).unwrap();
        connect_to_version(address, 1);
        // The worker may hear of its successor after the next request.
        loop {
            let response = early.get("/");
            assert_eq!(response.body, b"0", "{backend}");
            if response.field("Connection") == Some("close") {
                break;
            }
        }
        early.expect_end();
        handle.stop();
        server.wait().unwrap();
    });
}

#[test]
fn reload_from_real_time_signals_to_sigio_ended_the_process() {
    let backends = ["rtsig", "send", "rtsig"];
    if let Some(missing) = backends.iter().find(|name| !available().any(|other| other == **name)) {
        return println!("not tested: {missing} is not available");
    }
    let server = version(backends[0], 1, 0).listen("127.0.0.1:0").start().unwrap();
    let address = server.addresses()[0];
    connect_to_version(address, 0);
    for (n, backend) in backends.into_iter().enumerate().skip(1) {
        server.handle().reload(version(backend, 1, n)).unwrap();
        // The first one may have connected before the worker watched the listener.
        connect_to_version(address, n);
        connect_to_version(address, n);
    }
    server.handle().stop();
    server.wait().unwrap();
}

#[test]
fn settings_that_cannot_be_used_leave_the_old_ones() {
    let server = version("auto", 1, 0).listen("127.0.0.1:0").start().unwrap();
    let (address, handle) = (server.addresses()[0], server.handle());
    let mut early = connect(address);
    assert_eq!(early.get("/").body, b"0");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    for builder in [
        Server::builder().files("/does/not/exist"),
        Server::builder().backend("no such mechanism"),
        Server::builder().listen(at),
        Server::builder().workers(3).listen(at),
    ] {
        handle.reload(builder).unwrap_err();
        let response = early.get("/");
        assert_eq!((&response.body[..], response.field("Connection")), (&b"0"[..], None));
        assert_eq!(connect(address).get("/").body, b"0");
    }
    handle.stop();
    server.wait().unwrap();
    let error = handle.reload(version("auto", 1, 1)).unwrap_err();
    assert!(error.to_string().contains("the server ends"), "{error}");
}

/// A builder whose requests to `/later` wait for an answer of the test.
fn later(version: usize) -> (Builder, Receiver<Responder>) {
    let (responders, responder) = channel();
    let responders = Mutex::new(responders);
    let builder = self::version("auto", 1, version);
    let builder = builder.route("/later", move |_: Request, responder: Responder| {
        let _ = responders.lock().unwrap().send(responder);
    });
    (builder, responder)
}

#[test]
fn reload_beyond_the_maximum_of_generations_reset_responses() {
    let (builder, mut responder) = later(0);
    let server = builder.listen("127.0.0.1:0").start().unwrap();
    let (address, handle) = (server.addresses()[0], server.handle());
    let mut busy = Vec::new();
    for n in 0..4 {
        let mut client = connect_to_version(address, n);
        client.send(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
        busy.push((client, responder.recv().unwrap()));
        assert_eq!(handle.can_reload(), n < 3);
        let (builder, next) = later(n + 1);
        match handle.reload(builder) {
            Ok(()) => responder = next,
            Err(error) => {
                assert!(n == 3 && matches!(error, Error::StillEnding), "{n}: {error}");
                assert!(error.to_string().contains("workers that finish responses"), "{error}");
                let error = handle.reload(Server::builder().workers(0)).unwrap_err();
                assert!(!matches!(error, Error::StillEnding), "wrong settings went unnoticed");
            }
        }
    }
    // The settings have stayed.
    assert_eq!(connect(address).get("/").body, b"3");
    for (n, (mut client, responder)) in busy.into_iter().enumerate() {
        assert!(responder.respond("later"));
        assert_eq!(client.response(true).body, b"later");
        if n == 0 {
            client.expect_end();
            while !handle.can_reload() {
                thread::yield_now();
            }
            handle.reload(later(4).0).unwrap();
            connect_to_version(address, 4);
        }
    }
    handle.stop();
    server.wait().unwrap();
}

#[test]
fn long_responses_of_three_generations_blocked_reloads_for_ever() {
    let with_timeout = |n| {
        let (builder, responder) = later(n);
        let config = Config::default().with(|c| c.drain_timeout = Duration::from_millis(1));
        (builder.config(config), responder)
    };
    let (builder, mut responder) = with_timeout(0);
    let server = builder.listen("127.0.0.1:0").start().unwrap();
    let (address, handle) = (server.addresses()[0], server.handle());
    // Stops no workers that accept.
    handle.stop_oldest();
    let mut busy = Vec::new();
    for n in 0..3 {
        let mut client = connect_to_version(address, n);
        client.send(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
        busy.push((client, responder.recv().unwrap()));
        let (builder, next) = with_timeout(n + 1);
        handle.reload(builder).unwrap();
        responder = next;
    }
    assert!(!handle.can_reload());
    handle.stop_oldest();
    while !handle.can_reload() {
        thread::yield_now();
    }
    handle.reload(with_timeout(4).0).unwrap();
    connect_to_version(address, 4);
    // The others have their responses.
    for (mut client, responder) in busy.drain(1..) {
        assert!(responder.respond("later"));
        assert_eq!(client.response(true).body, b"later");
    }
}

#[test]
fn idle_connection_kept_the_workers_before_a_reload() {
    on_every_backend_at_once(|backend| {
        let server = version(backend, 1, 0).listen("127.0.0.1:0").start().unwrap();
        let (address, handle) = (server.addresses()[0], server.handle());
        let (mut idle, mut active) = (connect(address), connect(address));
        assert_eq!((idle.get("/").body, active.get("/").body), (b"0".to_vec(), b"0".to_vec()));
        handle.reload(version(backend, 1, 1)).unwrap();
        // A request that was sent is answered, whether or not the worker has received it.
        assert_eq!(active.get("/").body, b"0", "{backend}");
        idle.expect_end();
        active.expect_end();
    });
}

#[test]
fn idle_connection_got_more_time_at_a_reload() {
    // Reloads 4 s apart, and an idle connection that would have closed by itself.
    let test = |keep_alive, first_reload: bool| {
        let mut limits = Limits::default();
        limits.keep_alive_timeout = Duration::from_secs(keep_alive);
        let builder = version("auto", 1, 0).listen("127.0.0.1:0").limits(limits);
        let server = builder.start().unwrap();
        let (address, handle) = (server.addresses()[0], server.handle());
        let mut idle = connect(address);
        idle.get("/");
        let reload = |n| handle.reload(version("auto", 1, n)).unwrap();
        if first_reload {
            reload(1);
        }
        thread::sleep(Duration::from_secs(4));
        reload(2);
        let mut next = connect_to_version(address, 2);
        reload(3);
        idle.expect_end();
        thread::sleep(Duration::from_secs(1));
        assert!(!next.has_more(), "{keep_alive} s: both ended 5 s after the last reload");
        next.expect_end();
    };
    thread::scope(|scope| {
        scope.spawn(|| test(60, true));
        scope.spawn(|| test(6, false));
    });
}

#[test]
fn generation_that_started_after_the_server_had_retired_stopped_it() {
    let (entered, has_entered) = channel();
    let (unblock, blocked) = channel::<()>();
    let state = Mutex::new((entered, blocked));
    let (builder, responder) = later(0);
    let server = builder
        .listen("127.0.0.1:0")
        .route("/block", move |_: Request| {
            let state = state.lock().unwrap();
            state.0.send(()).unwrap();
            state.1.recv().unwrap();
            "unblocked"
        })
        .start()
        .unwrap();
    let (address, handle) = (server.addresses()[0], server.handle());
    let (mut first, mut second) = (connect(address), connect(address));
    first.send(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
    let responder = responder.recv().unwrap();
    second.send(b"GET /block HTTP/1.1\r\nHost: a\r\n\r\n");
    has_entered.recv().unwrap();
    let outcome = thread::scope(|scope| {
        let reload =
            scope.spawn(|| server.handle().reload(version("auto", 1, 1).listen("127.0.0.2:0")));
        // The generation waits for the worker before, which is busy, to stop accepting.
        while server.addresses() == [address] {
            thread::yield_now();
        }
        handle.retire();
        unblock.send(()).unwrap();
        reload.join().unwrap()
    });
    // On a slow machine, the generation has started before the server retired.
    assert!(matches!(outcome, Ok(()) | Err(Error::Ended)), "{outcome:?}");
    assert_eq!(second.response(true).body, b"unblocked");
    assert!(!first.is_reset_within(Duration::from_millis(200)), "the server was stopped");
    responder.respond("later");
    assert_eq!(first.response(true).body, b"later");
    server.wait().unwrap();
}

/// Returns the maximum length of a listening socket's queue.
fn backlog(socket: &ListeningSocket) -> u32 {
    // SAFETY: the type is plain data, for which zeroes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info` (tcp(7)).
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    assert_eq!(result, 0);
    info.tcpi_sacked
}

#[test]
fn backlog_of_sockets_that_stay_was_that_of_the_first_settings() {
    on_every_backend(|backend| {
        let with_backlog = |version: usize, length| {
            let config = Config::default().with(|c| c.backlog = length);
            self::version(backend, 2, version).config(config)
        };
        let server = with_backlog(0, 16).listen("127.0.0.1:0").start().unwrap();
        let handle = server.handle();
        for (n, length) in [(1, 64), (2, 32), (3, 0)] {
            handle.reload(with_backlog(n, length)).unwrap();
            // Each worker of the generation sets it before it serves.
            let start = Instant::now();
            while handle.listening_sockets().iter().any(|socket| backlog(socket) != length) {
                assert!(start.elapsed() < Duration::from_secs(20), "{backend}: {length}");
                thread::yield_now();
            }
        }
    });
}

#[test]
fn addresses_can_change() {
    let server = version("auto", 2, 0).listen("127.0.0.1:0").start().unwrap();
    let (before, handle) = (server.addresses()[0], server.handle());
    handle.reload(version("auto", 2, 1).listen("127.0.0.2:0").listen(before)).unwrap();
    let [added, kept] = server.addresses()[..] else { panic!("{:?}", server.addresses()) };
    assert_eq!(kept, before);
    connect_to_version(added, 1);
    connect_to_version(kept, 1);
    handle.reload(version("auto", 2, 2).listen(added)).unwrap();
    connect_to_version(added, 2);
    while TcpStream::connect(before).is_ok() {}
    handle.stop();
    server.wait().unwrap();
}

#[test]
fn address_of_ipv6_was_in_use_if_workers_listened_on_that_of_ipv4() {
    let server = version("auto", 2, 0).listen("0.0.0.0:0").start().unwrap();
    let (ipv4, handle) = (server.addresses()[0], server.handle());
    let ipv6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, ipv4.port()));
    handle.reload(version("auto", 2, 1).listen(ipv4).listen(ipv6)).unwrap();
    assert_eq!(server.addresses(), [ipv4, ipv6]);
    connect_to_version((Ipv6Addr::LOCALHOST, ipv4.port()).into(), 1);
    connect_to_version((Ipv4Addr::LOCALHOST, ipv4.port()).into(), 1);
    handle.stop();
    server.wait().unwrap();
}

#[test]
fn status_of_one_worker_had_old_figures_of_those_before_it() {
    on_every_backend(|backend| {
        let (sender, responders) = channel();
        let sender = Mutex::new(sender);
        let builder = |version: &'static str| {
            let builder = Server::builder().backend(backend).status(true);
            builder.route("/version", move |_: Request| version)
        };
        let later = move |_: Request, responder: Responder| {
            sender.lock().unwrap().send(responder).unwrap();
        };
        let server = builder("old").route("/later", later).listen("127.0.0.1:0").start().unwrap();
        let at = server.addresses()[0];
        let mut pending = connect(at);
        pending.send(b"GET /later HTTP/1.1\r\nHost: h\r\n\r\n");
        // The worker runs until this handler has answered.
        let responder = responders.recv().unwrap();
        let mut idle: Vec<_> = (0..16).map(|_| connect(at)).collect();
        idle.iter_mut().for_each(|client| assert_eq!(client.get("/version").body, b"old"));
        server.handle().reload(builder("new")).unwrap();
        let mut connected = 1 + idle.len() as u64;
        let mut client = loop {
            let mut client = connect(at);
            connected += 1;
            if client.get("/version").body == b"new" {
                break client;
            }
        };
        // The worker of before closes them.
        drop(idle);
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let status = client.status();
            let counts = ["connections_accepted", "connections_closed"];
            let counts = counts.map(|name| status[name].as_u64().unwrap());
            // This client and the pending one.
            if counts == [connected, connected - 2] {
                break;
            }
            assert!(Instant::now() < until, "{backend}: {counts:?} of {connected} connections");
        }
        responder.respond("done");
        assert_eq!(pending.response(true).body, b"done");
    });
}

#[test]
#[cfg(feature = "metrics")]
fn metrics_count_all_generations() {
    let builder = |n| version("auto", 1, n).metrics_listen("127.0.0.1:0");
    let server = builder(0).listen("127.0.0.1:0").start().unwrap();
    let (address, handle) = (server.addresses()[0], server.handle());
    let monitor = server.metrics_addresses();
    for n in 0..8 {
        connect_to_version(address, n);
        handle.reload(builder(n + 1)).unwrap();
    }
    assert_eq!(server.metrics_addresses(), monitor, "the listener of the metrics stays");
    let text = String::from_utf8(connect(monitor[0]).get("/metrics").body).unwrap();
    let count =
        text.lines().find_map(|line| line.strip_prefix("evring_responses_total{class=\"2xx\"} "));
    assert!(count.unwrap().parse::<u64>().unwrap() >= 8, "{text}");
    handle.reload(version("auto", 1, 9)).unwrap();
    assert!(server.metrics_addresses().is_empty());
    assert!(TcpStream::connect(monitor[0]).is_err());
}

#[cfg(feature = "cli")]
mod program {
    use std::fs;
    use std::io::{BufRead, Read};
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

    use super::serving::program::{Serving, httpd, limited};
    use super::*;

    /// A program with a file of settings.
    struct Configured {
        dir: tempfile::TempDir,
        serving: Serving,
    }

    impl Configured {
        /// Starts the program; `DIR` stands for a directory.
        fn start(settings: &str, arguments: &[&str]) -> Self {
            Self::of(httpd, settings, arguments)
        }

        /// As [`Configured::start`], after a shell command.
        fn limited(line: &str, settings: &str) -> Self {
            Self::of(|arguments| limited(line, arguments), settings, &[])
        }

        fn of(command: impl Fn(&[&str]) -> Command, settings: &str, arguments: &[&str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("a.txt"), "text").unwrap();
            let file = dir.path().join("httpd.toml");
            fs::write(&file, settings.replace("DIR", dir.path().to_str().unwrap())).unwrap();
            let file = file.to_str().unwrap();
            let arguments: Vec<_> = ["--config", file].iter().chain(arguments).copied().collect();
            Configured { serving: Serving::of(command(&arguments)), dir }
        }

        fn reload(&self, settings: &str) {
            let settings = settings.replace("DIR", self.dir.path().to_str().unwrap());
            fs::write(self.dir.path().join("httpd.toml"), settings).unwrap();
            self.serving.signal(Signal::HUP);
        }

        /// Returns the next line of standard error.
        fn line(&mut self) -> String {
            let mut line = String::new();
            self.serving.errors.read_line(&mut line).unwrap();
            line
        }
    }

    #[test]
    fn hangup_reads_the_settings_again() {
        let mut program =
            Configured::start("listen = ['127.0.0.1:0']\nroot = 'DIR'\nlog-level = 'info'\n", &[]);
        assert_eq!(program.serving.connect().get("/").status, 404);
        program.reload("listen = ['127.0.0.1:0']\nroot = 'DIR'\nlisting = true\nworkers = 3\n");
        while program.serving.connect().get("/").status != 200 {}
        assert_eq!(program.serving.connect().get("/a.txt").body, b"text");
        // The log level is set after the new workers serve, and before the next reload.
        program.reload("no-such-setting = 1\n");
        while !program.line().contains("the settings stay as they were") {}
        program.serving.signal(Signal::TERM);
        let mut rest = String::new();
        program.serving.errors.read_to_string(&mut rest).unwrap();
        assert!(
            !rest.contains("shutting down"),
            "the log level is that of the new settings: {rest}"
        );
        assert!(program.serving.child.wait().unwrap().success());
    }

    /// Answers requests of up to 200 bytes, and aborts for longer ones.
    #[cfg(feature = "sandbox")]
    const SHORT: &str = r#"(module
        (import "ash" "send" (func $send (param i32 i32) (result i32)))
        (memory (export "memory") 1 1)
        (data (i32.const 0) "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nhandler")
        (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
            (if (i32.gt_u (local.get 1) (i32.const 200)) (then (unreachable)))
            (drop (call $send (i32.const 0) (i32.const 45)))
            (i32.const 1)))"#;

    #[cfg(feature = "sandbox")]
    #[test]
    fn reload_enables_a_handler_that_was_disabled() {
        let modules = tempfile::tempdir().unwrap();
        let file = modules.path().join("short.wasm");
        fs::write(&file, wat::parse_str(SHORT).unwrap()).unwrap();
        let settings =
            format!("listen = ['127.0.0.1:0']\nroot = 'DIR'\nhandler = ['{}']\n", file.display());
        let program = Configured::start(&settings, &[]);
        let get = |path: &str| program.serving.connect().get(path).body;
        assert_eq!(get("/a.txt"), b"handler");
        let long = format!("/a.txt?{}", "x".repeat(300));
        for _ in 0..3 {
            assert_eq!(get(&long), b"text");
        }
        assert_eq!(get("/a.txt"), b"text", "the handler is disabled");
        program.reload(&settings);
        while get("/a.txt") != b"handler" {}
    }

    #[test]
    fn wrong_settings_are_reported_and_the_old_ones_stay() {
        let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR'\n";
        let mut program = Configured::start(settings, &["--listing"]);
        let cases = [
            ("root = 'DIR'\nlisen = []\n", ":2:1: there is no setting `lisen`"),
            ("root = 'DIR/none'\n", "cannot read the directory"),
            (
                "root = 'DIR'\ntls-cert = ['a']\ntls-key = ['b']\n",
                ":2:12: `tls-cert`: cannot read the file a",
            ),
            (
                "listen = ['192.0.2.1:1']\nroot = 'DIR'\n",
                "192.0.2.1:1: Cannot assign requested address (os error 99); no interface of this machine has",
            ),
        ];
        for (settings, reason) in cases {
            program.reload(settings);
            let line = program.line();
            assert!(line.contains("the settings stay as they were: "), "{line}");
            assert!(line.contains(reason), "{line}");
            assert_eq!(program.serving.connect().get("/").status, 200, "as by the command line");
        }
        program.serving.signal(Signal::TERM);
        assert!(program.serving.child.wait().unwrap().success());
    }

    /// Starts a program at a port of one address, then at that of all, or the reverse; returns its last settings, and
    /// the advice.
    fn narrow_or_widen(from: &str, to: &str) -> (Configured, [String; 2]) {
        let settings = |ip: &str, port| format!("listen = ['{ip}:{port}']\nroot = 'DIR'\n");
        let program = Configured::start(&settings(from, 0), &[]);
        let port = program.serving.address.port();
        let advice = format!(
            "`listen`: cannot listen on {to}:{port}: this server listens on {from}:{port}: restart it"
        );
        (program, [settings(to, port), advice])
    }

    #[test]
    fn reload_that_narrows_or_widens_an_address_had_no_advice() {
        for (from, to) in [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")] {
            let (mut program, [settings, advice]) = narrow_or_widen(from, to);
            program.reload(&settings);
            let line = program.line();
            assert!(line.contains("the settings stay as they were: "), "{line}");
            assert!(line.contains(&format!("httpd.toml:1:10: {advice}")), "{line}");
            let at = ("127.0.0.1", program.serving.address.port());
            let mut client = Client::new(TcpStream::connect(at).unwrap());
            assert_eq!(client.get("/a.txt").status, 200);
        }
    }

    #[test]
    fn successor_that_narrows_an_address_was_told_of_another_program() {
        let (mut program, [settings, advice]) = narrow_or_widen("0.0.0.0", "127.0.0.1");
        fs::write(
            program.dir.path().join("httpd.toml"),
            settings.replace("DIR", program.dir.path().to_str().unwrap()),
        )
        .unwrap();
        program.serving.signal(Signal::USR2);
        let line = program.line();
        assert!(line.contains(&format!("httpd.toml:1:10: {advice}")), "{line}");
        let line = program.line();
        assert!(line.contains("this process continues"), "{line}");
    }

    #[test]
    fn failed_look_up_at_a_reload_ended_the_server() {
        let settings = "root = 'DIR'\n";
        let mut program = Configured::start(settings, &["--listen", "localhost:0"]);
        // Without descriptors, no name can be looked up.
        let pid = Pid::from_child(&program.serving.child);
        let limit = getrlimit(Resource::Nofile);
        let none = Rlimit { current: Some(0), maximum: limit.maximum };
        let before = prlimit(Some(pid), Resource::Nofile, none).unwrap();
        program.reload(settings);
        let line = program.line();
        assert!(
            line.contains("the settings stay as they were: invalid value 'localhost:0'"),
            "{line}"
        );
        prlimit(Some(pid), Resource::Nofile, before).unwrap();
        assert_eq!(program.serving.connect().get("/a.txt").status, 200);
    }

    /// Returns the number of workers.
    fn workers(program: &Configured) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", program.serving.child.id())).unwrap();
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
        let names = tasks.filter_map(|task| name(task.unwrap()).ok());
        names.filter(|name| name == "worker\n").count()
    }

    #[test]
    fn generations_that_had_ended_were_counted() {
        let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR'\nshutdown-timeout = 0.1\n";
        let mut program = Configured::start(settings, &["--log-level", "info"]);
        let content = vec![b'x'; 30 << 20];
        fs::write(program.dir.path().join("large"), &content).unwrap();
        let mut client = program.serving.connect();
        client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
        // The worker has the request.
        client.wait_readable();
        for _ in 0..6 {
            program.reload(settings);
            while !program.line().contains("settings reloaded") {}
            while workers(&program) > 2 {
                thread::yield_now();
            }
        }
        let response = client.response(true);
        assert_eq!((response.status, response.body.len()), (200, content.len()));
        program.serving.signal(Signal::TERM);
        assert!(program.serving.child.wait().unwrap().success());
    }

    #[test]
    fn each_reload_that_changed_a_limit_left_descriptors_of_the_metrics() {
        const RELOADS: usize = 20;
        let settings = |seconds: usize| {
            let addresses = "listen = ['127.0.0.1:0']\nmetrics-listen = '127.0.0.1:0'\n";
            format!("{addresses}keep-alive-timeout = {seconds}\n")
        };
        let mut program = Configured::start(&settings(60), &["--log-level", "info"]);
        let files = format!("/proc/{}/fd", program.serving.child.id());
        let descriptors = || fs::read_dir(&files).unwrap().count();
        let before = descriptors();
        for n in 0..RELOADS {
            program.reload(&settings(30 + n % 2));
            while !program.line().contains("settings reloaded") {}
        }
        // The last workers that were replaced end soon.
        let start = Instant::now();
        while descriptors() >= before + RELOADS {
            let now = descriptors();
            assert!(start.elapsed() < Duration::from_secs(20), "{now} instead of {before}");
            thread::yield_now();
        }
    }

    #[test]
    fn descriptors_of_workers_that_still_live_were_given_to_new_ones() {
        let settings = "listen = ['127.0.0.1:0']\nlog-level = 'info'\nmax-connections = 1000\n";
        let mut program = Configured::limited("ulimit -n 128", settings);
        let granted = |text: &str| {
            let (before, _) = text.split_once(" connections per worker instead of 1000")?;
            before.rsplit(' ').next()?.parse::<u32>().ok()
        };
        let at_start = granted(&program.serving.before).unwrap();
        let mut clients: Vec<_> = (0..20).map(|_| program.serving.connect()).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
        program.reload(settings);
        let at_reload = loop {
            if let Some(connections) = granted(&program.line()) {
                break connections;
            }
        };
        // Files have a part, too.
        assert!(at_reload + 15 <= at_start, "{at_reload} of {at_start}");
    }

    #[test]
    fn log_did_not_say_how_long_a_reload_limits_connections() {
        let settings = "listen = ['127.0.0.1:0']\nlog-level = 'info'\nmax-connections = 1000\n";
        let mut program = Configured::limited("ulimit -n 128", settings);
        program.reload(settings);
        let mut lines = program.serving.errors.by_ref().lines().map(Result::unwrap);
        let lines: Vec<_> =
            lines.by_ref().take_while(|line| !line.contains("settings reloaded")).collect();
        assert!(lines.iter().any(|line| line.contains("until the next reload")), "{lines:?}");
    }

    #[test]
    fn reload_beyond_the_maximum_waits_for_the_end_of_a_download() {
        // The clients wait longer than a slow client may.
        let settings = |listing: bool| {
            let fixed = "listen = ['127.0.0.1:0']\nroot = 'DIR'\nprogress-interval = 600\n";
            format!("{fixed}listing = {listing}\n")
        };
        let mut program = Configured::start(&settings(false), &["--log-level", "info"]);
        let content = vec![b'x'; 30 << 20];
        fs::write(program.dir.path().join("large"), &content).unwrap();
        let mut clients = Vec::new();
        for n in 0..4 {
            let mut client = program.serving.connect();
            client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
            // The worker has the request.
            client.wait_readable();
            clients.push(client);
            program.reload(&settings(n == 3));
            let expected =
                if n == 3 { "the reload waits, for at most 600 s: " } else { "settings reloaded" };
            while !program.line().contains(expected) {}
        }
        let status = |program: &Configured| program.serving.connect().get("/").status;
        assert_eq!(status(&program), 404, "the settings have stayed");
        let whole = |client: &mut Client| {
            let response = client.response(true);
            assert_eq!((response.status, response.body.len()), (200, content.len()));
        };
        whole(&mut clients[0]);
        while !program.line().contains("WARN settings reloaded after a deferral") {}
        assert_eq!(status(&program), 200);
        clients[1..].iter_mut().for_each(whole);
        program.serving.signal(Signal::TERM);
        assert!(program.serving.child.wait().unwrap().success());
    }

    #[test]
    fn deferred_reload_stops_the_oldest_workers_at_its_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The clients wait longer than a slow client may.
        let settings = |listing: bool| {
            let fixed = "listen = ['127.0.0.1:0']\nroot = 'DIR'\nprogress-interval = 600\n\
                         shutdown-timeout = 0.1\nreload-timeout = 0.5\n";
            let workers = if listing { 2 } else { 1 };
            format!("{fixed}listing = {listing}\nworkers = {workers}\n")
        };
        let with_manager = |arguments: &[&str]| {
            let mut command = httpd(arguments);
            command.env("NOTIFY_SOCKET", dir.path().join("notify"));
            command
        };
        let arguments = ["--log-level", "info"];
        let mut program = Configured::of(with_manager, &settings(false), &arguments);
        fs::File::create(program.dir.path().join("large")).unwrap().set_len(64 << 20).unwrap();
        let mut clients = Vec::new();
        for n in 0..4 {
            let mut client = program.serving.connect();
            client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
            // The worker has the request.
            client.wait_readable();
            clients.push(client);
            program.reload(&settings(n == 3));
            let expected =
                if n == 3 { "the reload waits, for at most 0.5 s: " } else { "settings reloaded" };
            while !program.line().contains(expected) {}
        }
        while !program.line().contains("the deferred reload stops the oldest workers") {}
        clients[0].expect_reset();
        while !program.line().contains("WARN settings reloaded after a deferral") {}
        assert_eq!(program.serving.connect().get("/").status, 200);
        for client in &clients[1..] {
            assert!(!client.is_reset_within(Duration::ZERO), "only the oldest workers stop");
        }
        let mut statuses = Vec::new();
        while statuses.len() < 6 {
            let mut message = [0; 1024];
            let n = manager.recv(&mut message).unwrap();
            let message = std::str::from_utf8(&message[..n]).unwrap();
            let lines = message.lines().filter_map(|line| line.strip_prefix("STATUS="));
            statuses.extend(lines.map(str::to_owned));
        }
        let ready = program.serving.line.trim_end();
        assert_eq!(statuses[..4], [ready; 4], "at the start, and after three reloads");
        assert_eq!(statuses[4], "a reload waits for the workers of earlier ones");
        assert_eq!(statuses[5], ready.replace("1 worker", "2 workers"));
    }

    #[test]
    fn reload_during_the_drain_delay_stopped_announcing_the_end() {
        let settings =
            "listen = ['127.0.0.1:0']\nroot = 'DIR'\ndrain-delay = 600\nlisting = LISTING\n";
        let settings = |listing: &str| settings.replace("LISTING", listing);
        let mut program = Configured::start(&settings("false"), &["--log-level", "info"]);
        program.serving.signal(Signal::TERM);
        let ends =
            |response: &serving::ParsedResponse| response.field("Connection") == Some("close");
        while !ends(&program.serving.connect().get("/a.txt")) {}
        program.reload(&settings("true"));
        while !program.line().contains("settings reloaded") {}
        let response = program.serving.connect().get("/");
        assert_eq!(response.status, 200, "the settings are the new ones");
        assert!(ends(&response), "{}", response.head);
    }

    #[test]
    fn log_was_not_reopened_while_a_reload_waits_for_a_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let [notify, pipe, log, old] =
            ["notify", "cert.pem", "log", "old"].map(|name| dir.path().join(name));
        let manager = UnixDatagram::bind(&notify).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        // It has a writer, which does not write.
        let _writer = fs::File::options().read(true).write(true).open(&pipe).unwrap();
        let settings = format!("listen = ['127.0.0.1:0']\naccess-log = '{}'\n", log.display());
        let with_manager = |arguments: &[&str]| {
            let mut command = httpd(arguments);
            command.env("NOTIFY_SOCKET", &notify);
            command
        };
        let program = Configured::of(with_manager, &settings, &[]);
        let reopens = || {
            let start = Instant::now();
            while !log.exists() {
                assert!(start.elapsed() < Duration::from_secs(20), "the log was not opened again");
                thread::yield_now();
            }
        };
        fs::rename(&log, &old).unwrap();
        let pipe = pipe.display();
        program.reload(&format!("{settings}tls-cert = '{pipe}'\ntls-key = '{pipe}'\n"));
        let mut message = [0; 1024];
        loop {
            let n = manager.recv(&mut message).unwrap();
            if message[..n].starts_with(b"RELOADING=1") {
                break;
            }
        }
        reopens();
        // Now the reload waits for the pipe.
        fs::rename(&log, &old).unwrap();
        program.serving.signal(Signal::USR1);
        reopens();
    }

    #[test]
    fn downloads_outlive_a_reload() {
        let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR'\nshutdown-timeout = 0.1\n";
        let mut program = Configured::start(settings, &["--log-level", "info"]);
        let content = vec![b'x'; 30 << 20];
        fs::write(program.dir.path().join("large"), &content).unwrap();
        let mut client = program.serving.connect();
        client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
        program.reload(settings);
        while !program.line().contains("settings reloaded") {}
        assert_eq!(program.serving.connect().get("/a.txt").status, 200);
        let response = client.response(true);
        assert_eq!((response.status, response.body.len()), (200, content.len()));
        program.serving.signal(Signal::TERM);
        assert!(program.serving.child.wait().unwrap().success());
    }
}
