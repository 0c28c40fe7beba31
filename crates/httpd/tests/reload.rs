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
use evring_httpd::{Builder, Config, Error, Handle, Request, Server};
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

/// Waits until fewer generations are ending than may be.
fn wait_until_reloadable(handle: &Handle) {
    assert!(handle.wait_for_room(Duration::from_secs(20)), "the generations do not end");
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
                wait_until_reloadable(&handle);
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
        let last = Instant::now();
        reload(3);
        idle.expect_end();
        let ended = Instant::now();
        next.expect_end();
        let (all, between) = (last.elapsed(), ended.elapsed());
        let is_later = between >= Duration::from_secs(1);
        assert!(is_later, "{keep_alive} s: both ended {all:?} after the last reload");
        assert!(all >= Duration::from_millis(4_500), "{keep_alive} s: it ended after {all:?}");
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
        wait_until_reloadable(&handle);
        handle.reload(builder(n + 1)).unwrap();
    }
    assert_eq!(server.metrics_addresses(), monitor, "the listener of the metrics stays");
    let text = String::from_utf8(connect(monitor[0]).get("/metrics").body).unwrap();
    let count =
        text.lines().find_map(|line| line.strip_prefix("evring_responses_total{class=\"2xx\"} "));
    assert!(count.unwrap().parse::<u64>().unwrap() >= 8, "{text}");
    wait_until_reloadable(&handle);
    handle.reload(version("auto", 1, 9)).unwrap();
    assert!(server.metrics_addresses().is_empty());
    serving::expect_refused(monitor[0]);
}
