//! Upcalls to another process in front of an application, on every mechanism: the process answers, dies and
//! hangs.

#![cfg(feature = "sandbox")]

mod server;

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::model::{Governor, Machine, Strategy, Workload};
use ash_sandbox::sandbox::{Handler, Sandboxer};
use ash_sandbox::upcall::{Channel, Peer, Policy};
use evring::hooks::{Hooked, Landing, ReceiveHook, Tenant, UpcallHandle, Upcalls};
use evring::owner::Scheduling;
use evring::{
    AnyMechanism, Application, Chunk, Close, Commands, Config, ConnId, Cx, Listener, Others,
    RemoteHandle, Rx,
};
use server::{TIMEOUT, ask, echo_to_a_late_reader, listening, side_by_side, small_queues};

/// Tags by which the application pauses its connections, or to resume them.
const PAUSE: u64 = 1;
const RESUME: u64 = 2;

/// The tag of the upcalls.
const TAG: u64 = 5;

/// Says to the program of this test that it is the process of upcalls.
const PROCESS: &str = "EVRING_TEST_UPCALLS";
/// The file for which messages that begin with `w` wait.
const GO: &str = "EVRING_TEST_UPCALLS_GO";
/// The name of a file beside that one, which the process writes when it begins to serve.
const SERVES: &str = "serves";

/// The process, which the tests start. On its own it does nothing.
#[test]
fn process_of_the_other_tests() {
    if env::var_os(PROCESS).is_none() {
        return;
    }
    let peer = Peer::from_stdin().unwrap();
    fs::write(Path::new(&env::var_os(GO).unwrap()).with_file_name(SERVES), "").unwrap();
    peer.serve(handle).unwrap();
}

/// Does what the first byte of a message says.
fn handle(upcall: &mut ash_sandbox::upcall::Upcall<'_>) -> i32 {
    match upcall.message().first() {
        Some(b'h') => {
            let reply = [b"up:", upcall.message()].concat();
            upcall.send(&reply);
            upcall.post(7, reply.len() as u64);
            1
        }
        Some(b'e') => {
            let echo = upcall.message().to_vec();
            upcall.send(&echo);
            1
        }
        Some(b'd') => 2,
        Some(b'a') => -1,
        Some(b'x') => std::process::exit(0),
        Some(b'w') => {
            let go = env::var_os(GO).unwrap();
            while !Path::new(&go).exists() {
                thread::yield_now();
            }
            upcall.send(b"waited");
            1
        }
        Some(b's') => loop {
            thread::park();
        },
        _ => 0,
    }
}

/// The application: an echo server.
struct Echo;

impl Application for Echo {
    type State = ();
    const MAX_UNCONSUMED: usize = 4096;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let len = rx.bytes().len();
        if len > 0 {
            x.io.send(x.id, Chunk::Copy(b"app:"));
            x.io.send(x.id, Chunk::Copy(rx.bytes()));
            rx.consume(len);
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }

    /// Says whether each connection is paused, and pauses or resumes it.
    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, ()>, tag: u64) {
        let mut next = io.next_open(0);
        while let Some(id) = next {
            let receives = if io.is_receiving(id) { "receives," } else { "is paused," };
            io.send(id, Chunk::Copy(receives.as_bytes()));
            io.set_receiving(id, tag == RESUME);
            next = io.next_open(id.slot() + 1);
        }
    }
}

/// A hook behind the upcalls, which gets no message that the process has.
struct Behind;

impl ReceiveHook for Behind {
    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        if rx.bytes() == b"wait" {
            io.send(id, Chunk::Copy(b"behind"));
            rx.consume(4);
        }
    }
}

/// The upcalls, or those whose wake-ups get lost.
struct Waking(Upcalls, bool);

impl ReceiveHook for Waking {
    fn accepted(&mut self, io: &mut impl Commands, id: ConnId, at: Listener) {
        self.0.accepted(io, id, at);
    }

    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        self.0.received(io, id, rx);
    }

    fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
        self.0.offered(io, id, rx)
    }

    fn holds(&self, id: ConnId) -> bool {
        self.0.holds(id)
    }

    fn drained(&mut self, io: &mut impl Commands, id: ConnId) {
        self.0.drained(io, id);
    }

    fn woken(&mut self, io: &mut impl Commands, tag: u64) -> bool {
        if self.1 { self.0.woken(io, tag) } else { tag == TAG }
    }

    fn timer(&mut self, io: &mut impl Commands, timer: u32) -> bool {
        self.0.timer(io, timer)
    }

    fn closed(&mut self, id: ConnId) {
        self.0.closed(id);
    }
}

/// A server with a process, and what it posts.
struct Server {
    server: Option<server::Server>,
    remote: RemoteHandle,
    upcalls: UpcallHandle,
    tenant: Tenant,
    process: Child,
    events: mpsc::Receiver<(u64, u64)>,
    go: tempfile::TempDir,
}

impl Server {
    fn start(mechanism: &'static str, policy: Policy) -> Server {
        Server::start_with(mechanism, policy, true, handler)
    }

    /// Without `wakes`, the wake-ups of the upcalls get lost.
    fn start_with(
        mechanism: &'static str,
        policy: Policy,
        wakes: bool,
        handler: fn() -> Handler,
    ) -> Server {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let go = tempfile::tempdir().unwrap();
        let process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "process_of_the_other_tests"])
            .env(PROCESS, "1")
            .env(GO, go.path().join("go"))
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let prepare = move |server: &mut AnyMechanism| {
            let (post, events) = mpsc::channel();
            let mut landing = Landing::new().starting_upcalls();
            let tenant = landing.bind(handler(), 8, 512, |buffers| server.add_buffers(buffers));
            let tenant = tenant.unwrap();
            server.set_listener_group(Listener(2), tenant.group()).unwrap();
            let channel = Channel::new(ours, policy).unwrap();
            let (upcalls, handle) = Upcalls::new(channel, &server.remote(), TAG, 3).unwrap();
            let upcalls = upcalls
                .choosing(|_, listener| listener != Listener(1))
                .posting(move |_, kind, value| post.send((kind, value)).unwrap());
            let upcalls = Waking(upcalls, wakes);
            let app = Hooked::new(Hooked::new(Echo, Behind), ((landing, upcalls), Behind));
            (app, (handle, tenant, events))
        };
        let config = small_queues().with(|c| {
            c.listen = vec![c.listen[0]; 3];
            c.buffers = 64;
        });
        let started = server::Server::start_with(mechanism, config, prepare);
        let (server, (upcalls, tenant, events)) = started;
        let remote = server.remote.clone();
        Server { server: Some(server), remote, upcalls, tenant, process, events, go }
    }

    fn connect(&self, listener: usize) -> TcpStream {
        self.server.as_ref().unwrap().connect_to(listener)
    }

    /// Waits until the process serves.
    fn wait_until_serving(&self) {
        let since = Instant::now();
        while !self.go.path().join(SERVES).exists() {
            assert!(since.elapsed() < TIMEOUT, "the process does not serve");
            thread::yield_now();
        }
    }

    /// Waits until the process has a message.
    fn wait_until_submitted(&self) {
        while self.upcalls.counters().submitted == 0 {
            thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.remote.stop();
        let result = self.server.take().map(|server| server.thread.join());
        // A process that sleeps would not notice the end of the server.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !thread::panicking() {
            result.unwrap().unwrap();
        }
    }
}

/// A handler in the sandbox, which starts upcalls with messages that begin with `h` or `w`, and discards those with `q`.
fn handler() -> Handler {
    let module = r#"(module
        (import "ash" "upcall" (func $upcall (result i32)))
        (memory (export "memory") 1 1)
        (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) (local $first i32)
            (local.set $first (i32.load8_u (local.get 0)))
            (if (i32.eq (local.get $first) (i32.const 0x71)) (then (return (i32.const 2))))
            (if (i32.or (i32.eq (local.get $first) (i32.const 0x68)) (i32.eq (local.get $first) (i32.const 0x77)))
                (then (drop (call $upcall))))
            (i32.const 0)))"#;
    let sandboxer = Sandboxer::new(ash_sandbox::sandbox::Policy::default()).unwrap();
    sandboxer.load(&wat::parse_str(module).unwrap()).unwrap().instantiate(1).unwrap()
}

#[test]
fn handler_starts_upcalls_on_every_mechanism() {
    side_by_side(|mechanism| {
        let server = Server::start(mechanism, patient());
        let mut client = server.connect(2);
        ask(&mut client, "hello", "up:hello");
        // The application gets what the handler passes on without an upcall.
        ask(&mut client, "asleep", "app:asleep");
        assert_eq!(server.upcalls.counters().submitted, 1, "{mechanism}");
        // Without a handler, the process gets all.
        ask(&mut server.connect(0), "asleep", "app:asleep");
        assert_eq!(server.upcalls.counters().submitted, 2, "{mechanism}");
        ask(&mut client, "hello again", "up:hello again");
    });
}

#[test]
fn handler_sees_messages_that_arrive_during_an_upcall_on_every_mechanism() {
    side_by_side(|mechanism| {
        let server = Server::start(mechanism, patient());
        let (mut client, mut other) = (server.connect(2), server.connect(1));
        client.write_all(b"wait").unwrap();
        server.wait_until_submitted();
        client.write_all(b"quiet").unwrap();
        // The server has received both.
        ask(&mut other, "hello", "app:hello");
        fs::write(server.go.path().join("go"), "").unwrap();
        ask(&mut client, "", "waited");
        while server.tenant.counters().discarded == 0 {
            assert_eq!(server.upcalls.counters().submitted, 1, "{mechanism}");
            thread::yield_now();
        }
        ask(&mut client, "asleep", "app:asleep");
    });
}

/// The same handler with a governor, for which an abort is dearer in the sandbox than in the process, and the application
/// dearer than both.
fn governed() -> Handler {
    let machine = Machine { ash_abort_us: 1_000.0, context_switch_us: 10_000.0, ..Machine::AEGIS };
    let workload = Workload { handler_us: 200.0, ..Workload::default() };
    let governor = Governor::new(machine, workload).with_upcalls().with_window(4);
    let mut handler = handler();
    handler.set_governor(Some(governor));
    handler
}

#[test]
fn governor_moves_a_handler_that_aborts_too_often_to_upcalls_on_every_mechanism() {
    side_by_side(|mechanism| {
        let server = Server::start_with(mechanism, patient(), true, governed);
        let mut client = server.connect(2);
        let mut discarded = 0;
        let mut discard = |client: &mut TcpStream| {
            client.write_all(b"quiet").unwrap();
            discarded += 1;
            while server.tenant.counters().discarded < discarded {
                thread::yield_now();
            }
        };
        // The handler passes on each second message of a window.
        for _ in 0..2 {
            discard(&mut client);
            ask(&mut client, "echo", "app:echo");
        }
        assert_eq!(server.tenant.strategy(), Strategy::Ash, "{mechanism}");
        assert_eq!(server.upcalls.counters().submitted, 0, "{mechanism}");
        let until_trial = u64::from(4 * Governor::FIRST_TRIAL);
        for _ in 0..until_trial {
            ask(&mut client, "echo", "echo");
            assert_eq!(server.tenant.strategy(), Strategy::Upcall, "{mechanism}");
        }
        assert_eq!(server.upcalls.counters().handled, until_trial, "{mechanism}");
        let counters = server.tenant.counters();
        assert_eq!((counters.governed, counters.passed), (until_trial, until_trial + 2));
        // A trial, in which it passes on none.
        (0..4).for_each(|_| discard(&mut client));
        ask(&mut client, "echo", "app:echo");
        assert_eq!(server.tenant.strategy(), Strategy::Ash, "{mechanism}");
    });
}

/// No test waits for it.
fn patient() -> Policy {
    Policy::default().with(|p| p.timeout = TIMEOUT)
}

#[test]
fn process_answers_before_the_application_on_every_mechanism() {
    side_by_side(|mechanism| {
        let server = Server::start(mechanism, patient());
        let mut client = server.connect(0);
        ask(&mut client, "hello", "up:hello");
        assert_eq!(server.events.recv_timeout(TIMEOUT), Ok((7, 8)));
        ask(&mut client, "passed", "app:passed");
        ask(&mut client, "aborted", "app:aborted");
        // A discarded message has no answer; the next one has.
        client.write_all(b"discarded").unwrap();
        let since = Instant::now();
        while server.upcalls.counters().discarded == 0 && since.elapsed() < TIMEOUT {
            thread::yield_now();
        }
        ask(&mut client, "hi", "up:hi");
        // The other listener has no upcalls.
        ask(&mut server.connect(1), "hello", "app:hello");
        server.upcalls.set_on(false);
        ask(&mut client, "hello", "app:hello");
        server.upcalls.set_on(true);
        // Many clients at once.
        let mut clients: Vec<_> = (0..100).map(|_| server.connect(0)).collect();
        for client in &mut clients {
            client.write_all(b"hey").unwrap();
        }
        for client in &mut clients {
            let mut answer = [0; 6];
            client.read_exact(&mut answer).unwrap();
            // Beyond 64 messages at a time, the application answers.
            assert!(&answer == b"up:hey" || &answer == b"app:he", "{}", answer.escape_ascii());
        }
        let counters = server.upcalls.counters();
        assert_eq!((counters.discarded, counters.passed, counters.expired), (1, 2, 0));
        assert_eq!(counters.submitted, counters.handled + 3);
        // Closed by the client while the process has its message: the end comes after the answer.
        let mut client = server.connect(0);
        client.write_all(b"hello").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = String::new();
        client.read_to_string(&mut all).unwrap();
        assert_eq!(all, "up:hello");
    });
}

#[test]
fn message_of_a_process_that_dies_goes_to_the_application() {
    side_by_side(|mechanism| {
        // Nothing waits for its time: the end of the process is noticed.
        let policy = Policy::default().with(|p| p.timeout = 100 * TIMEOUT);
        let server = Server::start(mechanism, policy);
        let mut client = server.connect(0);
        ask(&mut client, "x marks the spot", "app:x marks the spot");
        // Nor do its successors.
        for n in 0..20 {
            ask(&mut client, format!("hello {n}"), format!("app:hello {n}"));
        }
        let counters = server.upcalls.counters();
        assert!(counters.expired <= 3, "{counters:?}");
        assert_eq!(counters.expired + counters.rejected, 21);
    });
}

#[test]
fn process_that_hangs_delays_its_messages_only_and_is_disabled() {
    side_by_side(|mechanism| {
        let timeout = Duration::from_millis(50);
        let policy = Policy::default().with(|p| {
            p.timeout = timeout;
            p.max_aborts = 2;
        });
        let server = Server::start(mechanism, policy);
        let (mut client, mut other) = (server.connect(0), server.connect(0));
        // Submitted before the process hangs, or after: both end.
        client.write_all(b"sleep").unwrap();
        other.write_all(b"hello").unwrap();
        ask(&mut server.connect(1), "hello", "app:hello");
        ask(&mut client, "", "app:sleep");
        let mut answer = [0; 4];
        other.read_exact(&mut answer).unwrap();
        let answered = &answer == b"up:h";
        other.read_exact(&mut answer).unwrap();
        if !answered {
            other.read_exact(&mut [0; 1]).unwrap();
        }
        // Those that were submitted before it was late are no failures of their own: two or three until it is disabled.
        while server.upcalls.counters().rejected == 0 {
            assert!(server.upcalls.counters().expired <= 3, "{mechanism}");
            ask(&mut client, "hello", "app:hello");
        }
        // Disabled: at once to the application.
        let (expired, rejected) =
            (server.upcalls.counters().expired, server.upcalls.counters().rejected);
        ask(&mut client, "hello", "app:hello");
        assert_eq!(server.upcalls.counters().rejected, rejected + 1);
        // Enabled, it still hangs.
        server.upcalls.enable();
        ask(&mut client, "hello", "app:hello");
        assert_eq!(server.upcalls.counters().expired, expired + 1);
    });
}

/// Rings 5000 times, and returns the time that it took.
fn ring(mut peer: &UnixStream) -> Duration {
    let start = Instant::now();
    for _ in 0..5000 {
        peer.write_all(&[0]).unwrap();
    }
    start.elapsed()
}

/// The time of the rings to a thread that only takes them.
fn ring_at_once() -> Duration {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let takes = thread::spawn(move || while ours.read(&mut [0; 64]).unwrap() > 0 {});
    let time = ring(&theirs);
    drop(theirs);
    takes.join().unwrap();
    time
}

#[test]
fn process_that_rang_without_answers_kept_a_thread_of_the_server_busy() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = AnyMechanism::new("auto", &listening(1)).unwrap();
    let channel = Channel::new(ours, Policy::default()).unwrap();
    let (upcalls, _) = Upcalls::new(channel, &server.remote(), TAG, 0).unwrap();
    // Each look takes up to 64 rings, and the socket holds a few hundred: more than 50 pauses of 10 ms.
    let flooded = ring(&theirs);
    let until = Instant::now() + TIMEOUT;
    let mut at_once = ring_at_once();
    // Other programs may delay these.
    while flooded <= at_once + Duration::from_millis(400) {
        assert!(Instant::now() < until, "{flooded:?}, and {at_once:?} without pauses");
        at_once = at_once.min(ring_at_once());
    }
    drop(upcalls);
}

#[test]
fn answer_that_arrived_before_the_timeout_was_late() {
    side_by_side(|mechanism| {
        let policy = Policy::default().with(|p| p.timeout = Duration::from_secs(6));
        let server = Server::start_with(mechanism, policy, false, handler);
        server.wait_until_serving();
        // The server looks for answers when the time of the upcall is over.
        ask(&mut server.connect(0), "hello", "up:hello");
        let counters = server.upcalls.counters();
        assert_eq!((counters.handled, counters.expired), (1, 0), "{mechanism}");
    });
}

#[test]
fn stop_waits_for_the_answer_to_a_message() {
    side_by_side(|mechanism| {
        let server = Server::start(mechanism, patient());
        let mut client = server.connect(0);
        client.write_all(b"wait").unwrap();
        server.wait_until_submitted();
        server.remote.stop();
        std::fs::write(server.go.path().join("go"), b"").unwrap();
        let mut all = String::new();
        client.read_to_string(&mut all).unwrap();
        assert_eq!(all, "waited");
    });
}

#[test]
fn end_of_an_upcall_resumed_a_connection_that_the_application_had_paused() {
    side_by_side(|mechanism| {
        let server = Server::start(mechanism, patient());
        let mut client = server.connect(0);
        client.write_all(b"wait").unwrap();
        server.wait_until_submitted();
        assert!(server.remote.wake(PAUSE));
        // The upcall is not a pause of the application.
        ask(&mut client, "", "receives,");
        std::fs::write(server.go.path().join("go"), b"").unwrap();
        ask(&mut client, "", "waited");
        client.write_all(b"hello").unwrap();
        assert!(server.remote.wake(RESUME));
        ask(&mut client, "", "is paused,up:hello");
    });
}

#[test]
fn client_that_reads_the_replies_of_the_process_late_is_not_reset() {
    side_by_side(|mechanism| {
        // Bytes that arrive during an upcall are one message: the receive buffers twice at most.
        let policy = patient().with(|p| {
            (p.max_message_bytes, p.max_reply_bytes) = (1 << 20, 1 << 20);
            p.places = 2;
        });
        let server = Server::start(mechanism, policy);
        echo_to_a_late_reader(server.server.as_ref().unwrap().address, b'e');
        let counters = server.upcalls.counters();
        assert_eq!(counters.handled, counters.submitted, "{mechanism}: {counters:?}");
        assert_eq!(counters.rejected, 0, "{mechanism}");
    });
}

#[test]
fn child_of_fork_waited_for_a_thread_of_its_parent() {
    let server = AnyMechanism::new("auto", &Config::default()).unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let channel = Channel::new(ours, patient()).unwrap();
    let (upcalls, _) = Upcalls::new(channel, &server.remote(), TAG, 3).unwrap();
    // SAFETY: the child drops a value and ends; memory can be freed after fork(3).
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: passes a number.
        unsafe { libc::alarm(10) };
        drop(upcalls);
        // SAFETY: it ends the process without the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
}

/// Returns whether this process has a real-time thread of this name.
fn has_real_time_thread(name: &str) -> bool {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    let mut tasks = tasks.flatten().map(|task| task.path());
    tasks.any(|task| {
        let read = |file| fs::read_to_string(task.join(file)).unwrap_or_default();
        // The policy is the 41st field, and the 39th behind the name.
        let stat = read("stat");
        let policy = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(38));
        read("comm").trim_end() == name && policy == Some("1")
    })
}

#[test]
fn thread_that_waits_for_the_process_had_the_policy_of_a_real_time_server() {
    let server = thread::spawn(|| {
        if Scheduling::RealTime.apply().is_err() {
            return println!("not tested: real-time threads are not permitted");
        }
        let server = AnyMechanism::new("poll", &Config::default()).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let channel = Channel::new(ours, Policy::default()).unwrap();
        let _upcalls = Upcalls::new(channel, &server.remote(), TAG, 0).unwrap();
        let start = Instant::now();
        while !has_real_time_thread("upcall-answers") {
            assert!(start.elapsed() < TIMEOUT, "its thread is not real-time");
            thread::yield_now();
        }
    });
    server.join().unwrap();
}
