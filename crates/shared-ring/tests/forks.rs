//! A child of fork(2) has copies of its parent's kernels and pollers. Using them does not affect the
//! parent. This program has one thread at each fork, so that a child may call any function.

mod number;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use number::number;
use shared_ring::buffers::BufferGroup;
use shared_ring::files::{FileOp, FileOutcome, PathAt, SymlinkPolicy};
use shared_ring::poller::{POLLERS, Poller, Readiness, RtSig};
use shared_ring::sockets::ListenOptions;
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Completion, Engine, EngineConfig, Errno, Host, Kernel, Op, OpKind, Outcome, PortableKernel,
    Socket, Submit, Token, poller::Epoll,
};

/// Runs `child` in a forked process of at most ten seconds. Returns its status in wait(2)'s format.
fn fork(child: impl FnOnce()) -> i32 {
    wait(begin(child))
}

/// Begins to run `child` in a forked process of at most ten seconds.
fn begin(child: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the process has one thread now, or threads that hold no lock.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: passes a number.
        unsafe { libc::alarm(10) };
        child();
        // SAFETY: it ends the process without the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    pid
}

/// Waits for a child. Returns its status in wait(2)'s format.
fn wait(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: writes one integer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (ours, theirs)
}

fn ring(mode: Mode) -> Option<UringKernel> {
    UringKernel::new(&UringConfig::new(mode, 8, 4, 64))
        .inspect_err(|missing| println!("not tested in {mode:?}: {missing}"))
        .ok()
}

const RECEIVE: Token = Token::new(OpKind::Receive, 0, 0);

/// Starts to receive from a socket. Returns a duplicate, which keeps it open, and its peer.
fn receiving(kernel: &mut impl Kernel) -> (OwnedFd, UnixStream) {
    let (ours, theirs) = pair();
    let ours = OwnedFd::from(ours);
    let socket = Socket::from(ours.try_clone().unwrap());
    kernel
        .submit(RECEIVE, Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT })
        .unwrap();
    kernel.turn(Some(Instant::now())).unwrap();
    (ours, theirs)
}

fn next(kernel: &mut impl Kernel) -> Completion {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(completion) = kernel.next() {
            return completion;
        }
        assert!(Instant::now() < until, "no completion");
        kernel.turn(Some(until)).unwrap();
    }
}

fn receives(kernel: &mut impl Kernel, theirs: &mut UnixStream, bytes: &[u8]) {
    theirs.write_all(bytes).unwrap();
    match next(kernel) {
        Completion { token: RECEIVE, outcome: Outcome::Received(received), .. } => {
            assert_eq!(&*received, bytes)
        }
        other => panic!("{other:?}"),
    }
}

fn dropping_a_ring_in_a_child_cancelled_the_parents_operations() {
    for mode in [Mode::Deferred, Mode::Cooperative, Mode::Immediate] {
        let Some(mut kernel) = ring(mode) else { continue };
        let (_ours, mut theirs) = receiving(&mut kernel);
        let mut kernel = Some(kernel);
        assert_eq!(fork(|| drop(kernel.take())), 0, "{mode:?}");
        receives(kernel.as_mut().unwrap(), &mut theirs, b"still here");
    }
}

fn dropping_a_ring_in_a_child_reaped_the_parents_completions() {
    // In this mode completions land at once, in the queue that both processes share.
    let Some(mut kernel) = ring(Mode::Immediate) else { return };
    let (_ours, mut theirs) = receiving(&mut kernel);
    theirs.write_all(b"landed").unwrap();
    while kernel.raw_pending() == 0 {
        std::thread::yield_now();
    }
    let mut kernel = Some(kernel);
    assert_eq!(fork(|| drop(kernel.take())), 0);
    let Outcome::Received(bytes) = next(kernel.as_mut().unwrap()).outcome else { panic!() };
    assert_eq!(&*bytes, b"landed");
}

fn using_a_ring_in_a_child_affected_the_parent() {
    for mode in [Mode::Deferred, Mode::Cooperative, Mode::Immediate] {
        let Some(mut kernel) = ring(mode) else { continue };
        let (_ours, mut theirs) = receiving(&mut kernel);
        theirs.write_all(b"before").unwrap();
        let mut child = || {
            // Its operations are not submitted, a turn fails, and it takes no completions of its parent.
            let (ours, _theirs) = pair();
            let socket = Socket::from(OwnedFd::from(ours));
            let posted = Token::new(OpKind::Receive, 1, 0);
            kernel
                .submit(posted, Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT })
                .unwrap();
            kernel.cancel(RECEIVE);
            let error = kernel.turn(Some(Instant::now())).unwrap_err();
            assert!(error.context.contains("fork"), "{}", error.context);
            kernel.reap();
            assert!(kernel.next().is_none() && kernel.next_raw().is_none());
            assert!(!kernel.begin(Token::new(OpKind::Watch, 2, 0), number(&socket)));
            assert!(kernel.flush().is_err() && kernel.end(RECEIVE).is_err());
        };
        assert_eq!(fork(&mut child), 0, "{mode:?}");
        let Outcome::Received(bytes) = next(&mut kernel).outcome else { panic!("{mode:?}") };
        assert_eq!(&*bytes, b"before");
        receives(&mut kernel, &mut theirs, b"behind");
    }
}

fn child_can_create_its_own_ring() {
    let Some(kernel) = ring(Mode::Deferred) else { return };
    let child = || {
        let mut own = ring(Mode::Deferred).unwrap();
        let (_ours, mut theirs) = receiving(&mut own);
        receives(&mut own, &mut theirs, b"own ring");
    };
    assert_eq!(fork(child), 0);
    drop(kernel);
}

fn dropping_a_kernel_in_a_child_waited_for_missing_threads() {
    let config = EngineConfig::new(4, 1, 64);
    let mut kernel: PortableKernel = Engine::new(Epoll::new().unwrap(), &config).unwrap();
    let root = kernel.host_mut().open_directory(Path::new("/")).unwrap();
    let path = PathAt { root, path: c"proc".into(), symlinks: SymlinkPolicy::Beneath };
    let list = Op::File(FileOp::List(path));
    kernel.submit(Token::new(OpKind::File, 0, 0), list).unwrap();
    assert!(matches!(
        next_file_completion(&mut kernel).outcome,
        Outcome::File(FileOutcome::Listed(_))
    ));
    let mut kernel = Some(kernel);
    let status = fork(|| drop(kernel.take()));
    assert_eq!(status, 0, "{}", libc::WTERMSIG(status));
}

/// Returns the next completion of a file operation, after the wake that announces it.
fn next_file_completion(kernel: &mut impl Kernel) -> Completion {
    loop {
        let completion = next(kernel);
        if completion.token.kind() == OpKind::File {
            return completion;
        }
    }
}

fn turn_in_a_child_consumed_the_parents_events() {
    let config = EngineConfig::new(4, 1, 64);
    let poller = shared_ring::poller::EpollEdge::new().unwrap();
    let mut kernel = Engine::new(poller, &config).unwrap();
    let (_ours, mut theirs) = receiving(&mut kernel);
    theirs.write_all(b"an edge").unwrap();
    let child = || {
        assert!(kernel.turn(Some(Instant::now())).is_err());
        // It does not change its parent's interest set either.
        let (ours, _theirs) = pair();
        let socket = Socket::from(OwnedFd::from(ours));
        kernel
            .submit(
                Token::new(OpKind::Receive, 1, 0),
                Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT },
            )
            .unwrap();
        kernel.reap();
        let outcome = kernel.next().map(|completion| completion.outcome);
        assert!(matches!(outcome, Some(Outcome::Failed(Errno::PERM, None))), "{outcome:?}");
    };
    assert_eq!(fork(child), 0);
    let Outcome::Received(bytes) = next(&mut kernel).outcome else { panic!() };
    assert_eq!(&*bytes, b"an edge");
}

fn dropping_rtsig_in_a_child_disabled_the_parents_signals() {
    let mut poller = RtSig::new().unwrap();
    let (ours, mut theirs) = pair();
    let socket = Socket::from(OwnedFd::from(ours));
    let fd = number(&socket);
    poller.set(fd, Readiness::READ).unwrap();
    let mut poller = Some(poller);
    assert_eq!(fork(|| drop(poller.take())), 0);
    // SAFETY: returns a number.
    let flags = unsafe { libc::fcntl(fd.raw(), libc::F_GETFL) };
    assert_ne!(flags & libc::O_ASYNC, 0);
    theirs.write_all(b"x").unwrap();
    let mut out = Vec::new();
    poller.as_mut().unwrap().wait(Some(Duration::from_secs(10)), &mut out).unwrap();
    assert!(out.iter().any(|(ready, _)| *ready == fd), "{out:?}");
}

fn child_could_not_create_its_own_rtsig() {
    let poller = RtSig::new().unwrap();
    let mut poller = Some(poller);
    let child = || {
        let mut own = RtSig::new().unwrap();
        let (ours, mut theirs) = pair();
        let socket = Socket::from(OwnedFd::from(ours));
        let fd = number(&socket);
        own.set(fd, Readiness::READ).unwrap();
        // Dropping the parent's copy first must leave the signals of this one blocked.
        drop(poller.take());
        theirs.write_all(b"x").unwrap();
        let mut out = Vec::new();
        own.wait(Some(Duration::from_secs(10)), &mut out).unwrap();
        assert!(out.iter().any(|(ready, _)| *ready == fd), "{out:?}");
    };
    assert_eq!(fork(child), 0);
}

fn closed_descriptor_signalled_while_a_child_had_a_copy() {
    let mut poller = RtSig::new().unwrap();
    let (ours, theirs) = pair();
    // As in a child between fork(2) and execve(2), a copy keeps the file open.
    let copy = ours.try_clone().unwrap();
    let socket = Socket::from(OwnedFd::from(ours));
    poller.set(number(&socket), Readiness::READ).unwrap();
    poller.forget(number(&socket));
    drop((socket, poller));
    // Once the poller has unblocked its signals, one more would terminate the process.
    (&theirs).write_all(b"x").unwrap();
    drop(copy);
}

/// Accepts a connection and begins to receive from it. Returns its socket and the client.
fn accepted(kernel: &mut impl Kernel) -> (Socket, TcpStream) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (listener, at) = kernel.host_mut().listen(any, &ListenOptions::new(1)).unwrap();
    let accept = Token::new(OpKind::Accept, 0, 0);
    kernel.submit(accept, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
    let client = TcpStream::connect(at).unwrap();
    let Outcome::Accepted(socket) = next(kernel).outcome else { panic!() };
    kernel.cancel(accept);
    assert!(next(kernel).is_last);
    kernel.submit(accept, Op::Close { socket: listener }).unwrap();
    kernel
        .submit(RECEIVE, Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT })
        .unwrap();
    kernel.turn(Some(Instant::now())).unwrap();
    (socket, client)
}

/// Cancels the receive and closes the socket. Returns the number of system calls of the close.
fn close(kernel: &mut impl Kernel, socket: Socket) -> u64 {
    kernel.cancel(RECEIVE);
    assert!(next(kernel).is_last);
    let before = kernel.counters().system_calls;
    kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket }).unwrap();
    kernel.counters().system_calls - before
}

/// Must run first: until a process forks, it closes a socket by one call.
fn closed_connection_that_a_child_still_had_was_reported() {
    let config = EngineConfig::new(4, 4, 64);
    for (name, open) in POLLERS.iter().filter(|(name, _)| *name != "rtsig") {
        let mut kernel = Engine::new(open().unwrap(), &config).unwrap();
        let (socket, _client) = accepted(&mut kernel);
        assert_eq!(close(&mut kernel, socket), 1, "{name}");
    }
    for (name, open) in POLLERS {
        let mut kernel = Engine::new(open().unwrap(), &config).unwrap();
        let (socket, mut client) = accepted(&mut kernel);
        let (until_closed, closes) = rustix::pipe::pipe().unwrap();
        let mut closes = Some(closes);
        let child = begin(|| {
            drop(closes.take());
            let _ = rustix::io::read(&until_closed, &mut [0]);
        });
        close(&mut kernel, socket);
        client.write_all(b"x").unwrap();
        let until = Instant::now() + Duration::from_millis(100);
        kernel.turn(Some(until)).unwrap();
        assert!(Instant::now() >= until, "{name}: it woke for a closed socket");
        drop(closes.take());
        assert_eq!(wait(child), 0);
    }
}

fn drain_in_a_child_consumed_the_parents_wake() {
    let config = EngineConfig::new(4, 1, 64);
    let mut kernel: PortableKernel = Engine::new(Epoll::new().unwrap(), &config).unwrap();
    let waker = kernel.waker();
    waker.wake();
    assert_eq!(fork(|| waker.drain()), 0);
    assert!(matches!(next(&mut kernel).outcome, Outcome::Woken));
}

fn main() {
    let all: [(&str, fn()); 11] = [
        (
            "closed_connection_that_a_child_still_had_was_reported",
            closed_connection_that_a_child_still_had_was_reported,
        ),
        (
            "dropping_a_ring_in_a_child_cancelled_the_parents_operations",
            dropping_a_ring_in_a_child_cancelled_the_parents_operations,
        ),
        (
            "dropping_a_ring_in_a_child_reaped_the_parents_completions",
            dropping_a_ring_in_a_child_reaped_the_parents_completions,
        ),
        (
            "using_a_ring_in_a_child_affected_the_parent",
            using_a_ring_in_a_child_affected_the_parent,
        ),
        ("child_can_create_its_own_ring", child_can_create_its_own_ring),
        (
            "dropping_a_kernel_in_a_child_waited_for_missing_threads",
            dropping_a_kernel_in_a_child_waited_for_missing_threads,
        ),
        (
            "turn_in_a_child_consumed_the_parents_events",
            turn_in_a_child_consumed_the_parents_events,
        ),
        (
            "dropping_rtsig_in_a_child_disabled_the_parents_signals",
            dropping_rtsig_in_a_child_disabled_the_parents_signals,
        ),
        ("child_could_not_create_its_own_rtsig", child_could_not_create_its_own_rtsig),
        (
            "closed_descriptor_signalled_while_a_child_had_a_copy",
            closed_descriptor_signalled_while_a_child_had_a_copy,
        ),
        ("drain_in_a_child_consumed_the_parents_wake", drain_in_a_child_consumed_the_parents_wake),
    ];
    // A child that panics must not run its parent's panic hook.
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    // Ignore the flags that cargo passes to test harnesses.
    let only = std::env::args().nth(1).filter(|only| !only.starts_with('-'));
    for (name, test) in all {
        if only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            test();
            println!("{name}: ok");
        }
    }
}
