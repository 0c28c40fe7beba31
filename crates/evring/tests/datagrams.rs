//! Handlers in a sandbox on UDP sockets, by io_uring and by epoll.

#![cfg(feature = "sandbox")]

use crate::landing::kept::{EXHAUSTED, FAULT, KEEPER};

use std::fmt::Debug;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{HandlerMemory, MAX_KEPT, Policy, Sandboxer};
use evring::buffers::BufferError;
use evring::datagrams::{
    DatagramConfig, DatagramError, DatagramNotification, DatagramRing, DatagramThread,
};
use evring::hooks::{BindError, LandingCounters};
use evring::mailbox::SendError;

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Does with each datagram what its first byte says: 0 sends it back, 1 sends it back from a reply slot, 2 from the
/// module's own memory, 3 leaves it to the application, 4 sends it back four times, 5 discards it, 6 writes to it, and
/// 7 posts an event with the slot. An empty datagram is sent back.
const HANDLER: &str = r#"
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
  (import "ash" "reply" (func $reply (param i32) (result i32)))
  (import "ash" "post" (func $post (param i64 i64) (result i32)))
  (memory (export "memory") 1 1)
  (func (export "ash_handle")
    (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32) (result i32)
    (local $what i32) (local $at i32)
    (if (i32.eqz (local.get $length)) (then
      (drop (call $send (local.get $offset) (i32.const 0)))
      (return (i32.const 1))))
    (local.set $what (i32.load8_u (local.get $offset)))
    (if (i32.eq (local.get $what) (i32.const 0)) (then
      (drop (call $send (local.get $offset) (local.get $length)))
      (return (i32.const 1))))
    (if (i32.eq (local.get $what) (i32.const 1)) (then
      (local.set $at (call $reply (local.get $length)))
      (drop (call $copy (local.get $at) (local.get $offset) (local.get $length)))
      (drop (call $send (local.get $at) (local.get $length)))
      (return (i32.const 1))))
    (if (i32.eq (local.get $what) (i32.const 2)) (then
      (drop (call $copy (i32.const 64) (local.get $offset) (local.get $length)))
      (drop (call $send (i32.const 64) (local.get $length)))
      (return (i32.const 1))))
    (if (i32.eq (local.get $what) (i32.const 4)) (then
      (drop (call $send (local.get $offset) (local.get $length)))
      (drop (call $send (local.get $offset) (local.get $length)))
      (drop (call $send (local.get $offset) (local.get $length)))
      (drop (call $send (local.get $offset) (local.get $length)))
      (return (i32.const 1))))
    (if (i32.eq (local.get $what) (i32.const 5)) (then (return (i32.const 2))))
    (if (i32.eq (local.get $what) (i32.const 6)) (then
      (i32.store8 (local.get $offset) (i32.const 9))))
    (if (i32.eq (local.get $what) (i32.const 7)) (then
      (drop (call $post (i64.const 70) (i64.extend_i32_u (local.get $slot))))
      (return (i32.const 1))))
    (i32.const 0)))
"#;

/// A socket with a handler, and a client of it.
struct Running {
    thread: DatagramThread,
    ring: DatagramRing,
    client: UdpSocket,
    memory: Weak<HandlerMemory>,
}

/// A client of a socket at this address.
fn connect(to: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind(SocketAddr::new(to.ip(), 0)).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.connect(to).unwrap();
    client
}

impl Running {
    fn start(mechanism: &str, module: &[u8], policy: Policy, config: &DatagramConfig) -> Self {
        Running::start_at("127.0.0.1:0", mechanism, module, policy, config)
    }

    fn start_at(
        at: &str,
        mechanism: &str,
        module: &[u8],
        policy: Policy,
        config: &DatagramConfig,
    ) -> Self {
        Running::start_on(UdpSocket::bind(at).unwrap(), mechanism, module, policy, config)
    }

    fn start_on(
        socket: UdpSocket,
        mechanism: &str,
        module: &[u8],
        policy: Policy,
        config: &DatagramConfig,
    ) -> Self {
        let ash = Sandboxer::new(policy).unwrap().load(&wat::parse_bytes(module).unwrap()).unwrap();
        let (made, memory) = mpsc::channel();
        let handler = move || {
            let handler = ash.instantiate(1)?;
            made.send(Arc::downgrade(handler.memory())).unwrap();
            Ok::<_, ash_sandbox::sandbox::Rejection>(handler)
        };
        let (thread, ring) = DatagramThread::start(mechanism, socket, config, handler).unwrap();
        let client = connect(thread.address());
        Running { thread, ring, client, memory: memory.recv().unwrap() }
    }

    fn send(&self, bytes: &[u8]) {
        assert_eq!(self.client.send(bytes).unwrap(), bytes.len());
    }

    fn receive(&self) -> Vec<u8> {
        receive(&self.client)
    }

    /// Sends a datagram, and expects it back.
    fn echo(&self, bytes: &[u8]) {
        self.send(bytes);
        assert!(self.receive() == bytes, "another reply to {:?}", bytes.first());
    }

    /// Returns the datagram that the application gets next.
    fn passed(&self) -> (SocketAddr, Vec<u8>, usize) {
        match self.ring.wait() {
            Some(DatagramNotification::Datagram { source, bytes, sent_len }) => {
                (source, bytes, sent_len)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends a datagram, and expects that the application gets it as it is.
    fn pass(&self, bytes: &[u8]) {
        self.send(bytes);
        let from = self.client.local_addr().unwrap();
        assert_eq!(self.passed(), (from, bytes.to_vec(), bytes.len()));
    }

    fn counters(&self) -> LandingCounters {
        self.thread.tenant().counters()
    }

    /// Stops the thread. Then the memory of the handler is unmapped.
    fn stop(self) {
        self.thread.stop();
        self.thread.join().unwrap();
        assert_eq!(
            self.ring.send_to(self.client.local_addr().unwrap(), vec![1]),
            Err(SendError::Closed(vec![1]))
        );
        while self.ring.wait().is_some() {}
        assert!(self.memory.upgrade().is_none(), "the memory of the handler leaks");
    }
}

fn receive(client: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        match client.recv(&mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return bytes;
            }
            // The kernel interrupts a thread when a ring of it ends, such as that of a probe.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}"),
        }
    }
}

/// Waits until a counter has the expected value: the thread counts a datagram after its reply.
fn counted<T: PartialEq + Debug>(expected: T, count: impl Fn() -> T) {
    let until = Instant::now() + TIMEOUT;
    while count() != expected && Instant::now() < until {
        thread::yield_now();
    }
    assert_eq!(count(), expected);
}

/// A datagram of this length for which the handler does `what`.
fn datagram(what: u8, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
    bytes[0] = what;
    bytes
}

/// Runs a test on each mechanism that this machine has.
fn on_each(test: impl Fn(&str)) {
    for mechanism in ["uring", "epoll"] {
        if mechanism == "uring"
            && !evring::mechanisms::backends()
                .iter()
                .any(|b| b.name == "uring" && b.available.is_ok())
        {
            println!("not tested: io_uring is not available");
            continue;
        }
        println!("{mechanism}");
        test(mechanism);
    }
}

/// Returns a configuration with which the thread is never overloaded, as this machine may be.
fn config() -> DatagramConfig {
    DatagramConfig::default().with(|c| c.max_queue_delay = None)
}

fn plain(mechanism: &str) -> Running {
    Running::start(mechanism, HANDLER.as_bytes(), Policy::default(), &config())
}

#[test]
fn datagrams_land_in_the_handlers_memory_and_replies_leave_from_it() {
    on_each(|mechanism| {
        let server = plain(mechanism);
        let max = config().max_len as usize;
        // More than there are buffers and reply slots.
        for n in 0..100 {
            for len in [1, 8, 1500, max] {
                server.echo(&datagram((n % 2) as u8, len));
            }
        }
        counted((400, 400), || (server.counters().handled, server.counters().replies_lent));
        let counters = server.counters();
        assert_eq!((counters.landed, counters.copied, counters.handled), (400, 0, 400));
        assert_eq!(
            (counters.replies_lent, counters.replies_copied, counters.bytes_copied),
            (400, 0, 0)
        );
        // The module's own memory may change, so it is copied; the last of several replies with the message holds it.
        server.echo(&datagram(2, 10));
        counted(10, || server.counters().bytes_copied);
        let four = datagram(4, 100);
        server.send(&four);
        // The fourth is beyond the amplification.
        (0..3).for_each(|_| assert!(server.receive() == four));
        // Discarded.
        server.send(&datagram(5, 10));
        server.echo(&datagram(0, 10));
        counted(1, || server.counters().discarded);
        counted(1, || server.thread.counters().replies_dropped);
        assert_eq!(server.ring.poll(), None, "the application gets nothing");
        server.stop();
    });
}

#[test]
fn clients_increment_a_counter_by_datagrams() {
    on_each(|mechanism| {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers/increment.wasm");
        let module = std::fs::read(path).unwrap();
        let config = config();
        let server = Running::start(mechanism, &module, Policy::default(), &config);
        let other = connect(server.thread.address());
        for n in 1..=100u32 {
            let client = if n % 2 == 0 { &server.client } else { &other };
            client.send(&1u32.to_be_bytes()).unwrap();
            assert_eq!(receive(client), n.to_be_bytes());
        }
        server.pass(b"12345");
        server.stop();
    });
}

#[test]
fn application_gets_what_the_handler_leaves_as_it_arrived() {
    on_each(|mechanism| {
        let server = plain(mechanism);
        let left = datagram(3, 1000);
        server.pass(&left);
        // It answers from the same socket.
        let (from, to) = (server.thread.address(), server.client.local_addr().unwrap());
        for len in [0, 10, 9000] {
            let reply = vec![8; len];
            server.ring.send_to(to, reply.clone()).unwrap();
            assert_eq!(server.receive(), reply);
        }
        assert_eq!(server.client.peer_addr().unwrap(), from);
        // Events name the source.
        server.send(&datagram(7, 1));
        let event = server.ring.wait().unwrap();
        assert!(matches!(event, DatagramNotification::Event(source, 70, 0..64) if source == to));
        // Switched off and on.
        server.thread.tenant().set_on(false);
        server.pass(&datagram(0, 10));
        server.thread.tenant().set_on(true);
        server.echo(&datagram(0, 10));
        server.stop();
    });
}

#[test]
fn handler_that_is_aborted_passes_its_datagram_and_is_disabled() {
    on_each(|mechanism| {
        let server = plain(mechanism);
        for aborted in 1..=3 {
            // It tries to write to the datagram.
            server.pass(&datagram(6, 500));
            counted(aborted, || server.counters().aborted);
        }
        server.pass(&datagram(0, 10));
        server.thread.tenant().enable();
        server.echo(&datagram(0, 10));
        counted((3, 4), || (server.counters().aborted, server.counters().passed));
        server.stop();
    });
}

#[test]
fn datagrams_that_a_handler_keeps_stay_until_it_gives_them_back() {
    on_each(|mechanism| {
        let (module, config) = (KEEPER.as_bytes(), config());
        let server = Running::start(mechanism, module, Policy::default(), &config);
        let ask = |what: u8, entry: u8, expected: &[u8]| {
            server.send(&[what, entry, b'.']);
            assert_eq!(server.receive(), expected, "{} {entry}", char::from(what));
        };
        let max = (config.buffers / 2).min(MAX_KEPT as u16) as u8;
        (0..max).for_each(|n| ask(b'k', n, &[0]));
        ask(b'k', max, &[EXHAUSTED]);
        // Others land in each of the other buffers.
        (0..2 * config.buffers).for_each(|_| server.pass(b"other"));
        (0..max).for_each(|n| ask(b'g', n, &[b'k', n, b'.']));
        ask(b'b', 0, &[0]);
        ask(b'b', 0, &[FAULT]);
        ask(b'k', max, &[0]);
        ask(b'g', max, &[b'k', max, b'.']);
        // Aborts that disable it take them from it.
        (0..3).for_each(|_| server.pass(b"!"));
        server.thread.tenant().enable();
        ask(b'b', 1, &[FAULT]);
        (0..max).for_each(|n| ask(b'k', n, &[0]));
        server.stop();
    });
}

#[test]
fn datagram_that_is_too_long_reaches_the_application_cut_and_not_the_handler() {
    on_each(|mechanism| {
        let config = config().with(|c| c.max_len = 512);
        let server = Running::start(mechanism, HANDLER.as_bytes(), Policy::default(), &config);
        let from = server.client.local_addr().unwrap();
        for len in [513, 9000, 60_000] {
            let long = datagram(0, len);
            server.send(&long);
            assert_eq!(server.passed(), (from, long[..512].to_vec(), len));
        }
        counted((3, 0), || (server.thread.counters().truncated, server.counters().landed));
        server.echo(&datagram(0, 512));
        server.stop();
    });
}

#[test]
fn empty_datagrams_are_handled() {
    on_each(|mechanism| {
        let server = plain(mechanism);
        for _ in 0..10 {
            server.echo(&[]);
            server.echo(&datagram(0, 10));
        }
        server.thread.tenant().set_on(false);
        server.pass(&[]);
        server.stop();
    });
}

#[test]
fn handler_serves_ipv6() {
    if let Err(error) = UdpSocket::bind("[::1]:0") {
        return println!("not tested: IPv6 is not available: {error}");
    }
    on_each(|mechanism| {
        let config = config();
        let module = HANDLER.as_bytes();
        let server = Running::start_at("[::1]:0", mechanism, module, Policy::default(), &config);
        server.echo(&datagram(0, 1000));
        server.pass(&datagram(3, 1000));
        server.stop();
    });
}

#[test]
fn flood_over_the_budget_takes_the_normal_path() {
    on_each(|mechanism| {
        let policy = Policy::default().with(|p| p.operations_per_second = 20_000);
        let config = config();
        let server = Running::start(mechanism, HANDLER.as_bytes(), policy, &config);
        // At least one reply, and at least one datagram over the budget.
        let flood = datagram(0, 10);
        server.echo(&flood);
        let until = Instant::now() + TIMEOUT;
        while server.counters().passed == 0 {
            (0..100).for_each(|_| server.send(&flood));
            thread::yield_now();
            assert!(Instant::now() < until, "{mechanism}: never over the budget");
        }
        let (source, bytes, _) = server.passed();
        assert_eq!((source, bytes), (server.client.local_addr().unwrap(), flood));
        assert_eq!(server.counters().aborted, 0);
        server.stop();
    });
}

#[test]
fn flood_that_the_application_does_not_take_is_dropped_and_others_are_served() {
    on_each(|mechanism| {
        let config = config().with(|c| c.capacity = 4);
        let server = Running::start(mechanism, HANDLER.as_bytes(), Policy::default(), &config);
        let flood = connect(server.thread.address());
        for n in 0..20 {
            flood.send(&datagram(3, 100 + n)).unwrap();
            server.echo(&datagram(0, 10));
        }
        counted(16, || server.thread.counters().notifications_dropped);
        for n in 0..4 {
            let from = flood.local_addr().unwrap();
            assert_eq!(server.passed(), (from, datagram(3, 100 + n), 100 + n));
        }
        server.pass(&datagram(3, 10));
        server.stop();
    });
}

#[test]
fn replies_are_no_longer_than_the_amplification_permits() {
    on_each(|mechanism| {
        let started = |max_amplification| {
            let config = config().with(|c| c.max_amplification = max_amplification);
            Running::start(mechanism, HANDLER.as_bytes(), Policy::default(), &config)
        };
        for (max, replies) in [(Some(0), 0), (Some(2), 2), (None, 4)] {
            let server = started(max);
            server.send(&datagram(4, 50));
            (0..replies).for_each(|_| assert_eq!(server.receive(), datagram(4, 50)));
            if max != Some(0) {
                server.echo(&[]);
            }
            counted(4 - replies, || server.thread.counters().replies_dropped);
            server.stop();
        }
    });
}

#[test]
fn empty_replies_were_not_limited() {
    const FLOOD: &str = r#"
    (module
      (import "ash" "send" (func $send (param i32 i32) (result i32)))
      (memory (export "memory") 1 1)
      (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
        (drop (call $send (i32.const 0) (i32.const 0)))
        (drop (call $send (i32.const 0) (i32.const 0)))
        (drop (call $send (i32.const 0) (i32.const 0)))
        (drop (call $send (i32.const 0) (i32.const 0)))
        (drop (call $send (i32.const 0) (i32.const 0)))
        (i32.const 1)))
    "#;
    on_each(|mechanism| {
        let server = Running::start(mechanism, FLOOD.as_bytes(), Policy::default(), &config());
        server.send(&[1]);
        (0..3).for_each(|_| assert!(server.receive().is_empty()));
        counted(2, || server.thread.counters().replies_dropped);
        server.stop();
    });
}

#[test]
fn replies_beyond_those_in_flight_are_dropped() {
    on_each(|mechanism| {
        let config = config().with(|c| {
            c.max_in_flight = 1;
            c.max_amplification = None;
        });
        let server = Running::start(mechanism, HANDLER.as_bytes(), Policy::default(), &config);
        server.send(&datagram(4, 50));
        assert_eq!(server.receive(), datagram(4, 50));
        let counters = || server.thread.counters();
        counted(4, || counters().sent + counters().replies_dropped);
        let dropped = counters().replies_dropped;
        // Over a poller, each has left before the next. The kernel over io_uring sends one of a turn at once, at most.
        let expected = if mechanism == "uring" { 2..=3 } else { 0..=0 };
        assert!(expected.contains(&dropped), "{dropped}");
        (1..4 - dropped).for_each(|_| assert_eq!(server.receive(), datagram(4, 50)));
        // The datagrams of the application wait.
        let to = server.client.local_addr().unwrap();
        (0..20).for_each(|n| server.ring.send_to(to, vec![n; 10]).unwrap());
        (0..20).for_each(|n| assert_eq!(server.receive(), vec![n; 10]));
        server.stop();
    });
}

#[test]
fn peer_that_is_gone_ended_the_receive() {
    on_each(|mechanism| {
        // A port of this address that no other test uses.
        let peer = UdpSocket::bind("127.0.0.7:0").unwrap();
        let at = peer.local_addr().unwrap();
        // A socket that is connected gets the errors of its peer: ECONNREFUSED, for each datagram.
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(at).unwrap();
        let policy = Policy::default();
        let mut running =
            Running::start_on(socket, mechanism, HANDLER.as_bytes(), policy, &config());
        drop(peer);
        for n in 1..=20 {
            running.ring.send_to(at, vec![0]).unwrap();
            counted(n, || {
                let counters = running.thread.counters();
                counters.sent + counters.send_errors
            });
        }
        running.client = UdpSocket::bind(at).unwrap();
        running.client.set_read_timeout(Some(TIMEOUT)).unwrap();
        running.client.connect(running.thread.address()).unwrap();
        running.echo(&datagram(0, 100));
        running.stop();
    });
}

#[test]
fn handlers_are_off_under_overload() {
    on_each(|mechanism| {
        // Every delay is too long.
        let config = config().with(|c| c.max_queue_delay = Some(Duration::ZERO));
        let server = Running::start(mechanism, HANDLER.as_bytes(), Policy::default(), &config);
        let flood = datagram(0, 10);
        while server.counters().overloaded == 0 {
            server.send(&flood);
            thread::yield_now();
        }
        let (source, bytes, _) = server.passed();
        assert_eq!((source, bytes), (server.client.local_addr().unwrap(), flood));
        server.stop();
    });
}

#[test]
fn busy_poll_without_end_ended_the_thread() {
    on_each(|mechanism| {
        let config = config().with(|c| c.busy_poll = Duration::MAX);
        let server = Running::start(mechanism, HANDLER.as_bytes(), Policy::default(), &config);
        server.echo(&datagram(0, 10));
        server.echo(&datagram(0, 10));
        server.stop();
    });
}

#[test]
fn memory_outlives_receives_in_flight() {
    on_each(|mechanism| {
        for _ in 0..5 {
            let server = plain(mechanism);
            let stop = AtomicBool::new(false);
            let flood = connect(server.thread.address());
            thread::scope(|scope| {
                scope.spawn(|| {
                    // Once the socket is closed, sends are refused.
                    while !stop.load(Ordering::Relaxed) {
                        let _ = flood.send(&datagram(1, 1000));
                    }
                });
                while server.counters().handled < 100 {
                    thread::yield_now();
                }
                server.stop();
                stop.store(true, Ordering::Relaxed);
            });
        }
    });
}

#[test]
fn thread_that_cannot_start_says_why() {
    let ash = Sandboxer::new(Policy::default()).unwrap();
    let ash = ash.load(&wat::parse_str(HANDLER).unwrap()).unwrap();
    let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let start = |mechanism: &str, config: &DatagramConfig| {
        let ash = ash.clone();
        let address = socket();
        let at = address.local_addr().unwrap();
        let handler = move || ash.instantiate(1);
        let error = DatagramThread::start(mechanism, address, config, handler).err().unwrap();
        // It keeps no socket.
        UdpSocket::bind(at).unwrap();
        error
    };
    let config = config();
    let error = start("poll", &config);
    assert!(matches!(error, DatagramError::Start(_)));
    assert!(error.to_string().contains("use auto, uring or epoll"), "{error}");
    let error = start("auto", &config.clone().with(|c| c.max_in_flight = 0));
    assert!(error.to_string().contains("max_in_flight"), "{error}");
    let error = start("auto", &config.clone().with(|c| c.buffers = 3));
    assert!(matches!(error, DatagramError::Bind(BindError::Buffers(BufferError::Count(3)))));
    let error = start("auto", &config.clone().with(|c| c.buffers = 1024));
    assert!(matches!(error, DatagramError::Bind(BindError::Buffers(BufferError::TooSmall { .. }))));
    let handler = || Err("no module");
    let error = DatagramThread::start("auto", socket(), &config, handler).err().unwrap();
    assert_eq!(error.to_string(), "no module");
}
