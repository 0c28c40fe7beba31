//! A child of fork(2) has copies of its parent's kernels and pollers. What it does with them, it does to
//! nothing that its parent uses. This program has one thread at each fork, so that a child may go on as any
//! program does.

mod number;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use number::number;
use shared_ring::poller::{Poller, Readiness, RtSig};
use shared_ring::{
    Completion, Engine, EngineConfig, Errno, Host, Kernel, Mode, Op, OpKind, Outcome,
    PortableKernel, Socket, Submit, SymlinkPolicy, Token, UringConfig, UringKernel, poller::Epoll,
};

/// Runs a child, which ends by itself within ten seconds; its status, in wait(2)'s format.
fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the process has one thread now, or threads that hold no lock.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: passes a number.
        unsafe { libc::alarm(10) };
        child();
        // SAFETY: it ends the process without what its parent has registered to be done.
        unsafe { libc::_exit(0) };
    }
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
    UringKernel::new(&UringConfig { mode, operations: 8, buffers: 4, buffer_size: 64 }).ok()
}

const RECEIVE: Token = Token::new(OpKind::Receive, 0, 0);

/// A kernel that receives from a socket, which lives as long as the other is returned.
fn receiving(kernel: &mut impl Kernel) -> (OwnedFd, UnixStream) {
    let (ours, theirs) = pair();
    let ours = OwnedFd::from(ours);
    let socket = Socket::from(ours.try_clone().unwrap());
    kernel.submit(RECEIVE, Op::Receive { fd: number(&socket) }).unwrap();
    kernel.turn(Some(Instant::now())).unwrap();
    (ours, theirs)
}

fn next(kernel: &mut impl Kernel) -> Completion {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(completion) = kernel.next() {
            return completion;
        }
        assert!(Instant::now() < until, "nothing came");
        kernel.turn(Some(until)).unwrap();
    }
}

fn receives(kernel: &mut impl Kernel, theirs: &mut UnixStream, what: &[u8]) {
    theirs.write_all(what).unwrap();
    match next(kernel) {
        Completion { token: RECEIVE, outcome: Outcome::Received(bytes), .. } => {
            assert_eq!(&*bytes, what)
        }
        other => panic!("{other:?}"),
    }
}

fn a_child_that_dropped_a_ring_cancelled_its_parents_operations() {
    for mode in [Mode::Deferred, Mode::Cooperative, Mode::Immediate] {
        let Some(mut kernel) = ring(mode) else { continue };
        let (_ours, mut theirs) = receiving(&mut kernel);
        let mut kernel = Some(kernel);
        assert_eq!(fork(|| drop(kernel.take())), 0, "{mode:?}");
        receives(kernel.as_mut().unwrap(), &mut theirs, b"still here");
    }
}

fn a_child_that_dropped_a_ring_reaped_its_parents_completions() {
    // What lands at once lies in the queue that both see.
    let Some(mut kernel) = ring(Mode::Immediate) else { return };
    let (_ours, mut theirs) = receiving(&mut kernel);
    theirs.write_all(b"landed").unwrap();
    while kernel.landed() == 0 {
        std::thread::yield_now();
    }
    let mut kernel = Some(kernel);
    assert_eq!(fork(|| drop(kernel.take())), 0);
    let Outcome::Received(bytes) = next(kernel.as_mut().unwrap()).outcome else { panic!() };
    assert_eq!(&*bytes, b"landed");
}

fn a_child_that_used_a_ring_used_its_parents() {
    for mode in [Mode::Deferred, Mode::Cooperative, Mode::Immediate] {
        let Some(mut kernel) = ring(mode) else { continue };
        let (_ours, mut theirs) = receiving(&mut kernel);
        theirs.write_all(b"before").unwrap();
        let mut child = || {
            // What it posts goes nowhere, a turn says so, and what its parent is told is not taken.
            let (ours, _theirs) = pair();
            let socket = Socket::from(OwnedFd::from(ours));
            let posted = Token::new(OpKind::Receive, 1, 0);
            kernel.submit(posted, Op::Receive { fd: number(&socket) }).unwrap();
            kernel.cancel(RECEIVE);
            let fault = kernel.turn(Some(Instant::now())).unwrap_err();
            assert!(fault.context.contains("fork"), "{}", fault.context);
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

fn a_child_can_set_up_a_ring_of_its_own() {
    let Some(kernel) = ring(Mode::Deferred) else { return };
    let child = || {
        let mut own = ring(Mode::Deferred).unwrap();
        let (_ours, mut theirs) = receiving(&mut own);
        receives(&mut own, &mut theirs, b"of its own");
    };
    assert_eq!(fork(child), 0);
    drop(kernel);
}

fn a_child_that_dropped_a_kernel_waited_for_threads_that_it_did_not_have() {
    let config = EngineConfig { operations: 4, buffers: 1, buffer_size: 64 };
    let mut kernel: PortableKernel = Engine::new(Epoll::new().unwrap(), &config).unwrap();
    let root = kernel.host_mut().open_directory(Path::new("/")).unwrap();
    let list = Op::List { root, path: c"proc".into(), symlinks: SymlinkPolicy::Beneath };
    kernel.submit(Token::new(OpKind::File, 0, 0), list).unwrap();
    assert!(matches!(next_of_files(&mut kernel).outcome, Outcome::Listed(_)));
    let mut kernel = Some(kernel);
    let status = fork(|| drop(kernel.take()));
    assert_eq!(status, 0, "{}", libc::WTERMSIG(status));
}

/// Behind the wake that tells of it.
fn next_of_files(kernel: &mut impl Kernel) -> Completion {
    loop {
        let completion = next(kernel);
        if completion.token.kind() == OpKind::File {
            return completion;
        }
    }
}

fn a_child_that_took_a_turn_took_its_parents_events() {
    let config = EngineConfig { operations: 4, buffers: 1, buffer_size: 64 };
    let poller = shared_ring::poller::EpollEdge::new().unwrap();
    let mut kernel = Engine::new(poller, &config).unwrap();
    let (_ours, mut theirs) = receiving(&mut kernel);
    theirs.write_all(b"an edge").unwrap();
    let child = || {
        assert!(kernel.turn(Some(Instant::now())).is_err());
        // Nor does it change what its parent waits for.
        let (ours, _theirs) = pair();
        let socket = Socket::from(OwnedFd::from(ours));
        kernel
            .submit(Token::new(OpKind::Receive, 1, 0), Op::Receive { fd: number(&socket) })
            .unwrap();
        kernel.reap();
        let refused = kernel.next().map(|completion| completion.outcome);
        assert!(matches!(refused, Some(Outcome::Failed(Errno::PERM, None))), "{refused:?}");
    };
    assert_eq!(fork(child), 0);
    let Outcome::Received(bytes) = next(&mut kernel).outcome else { panic!() };
    assert_eq!(&*bytes, b"an edge");
}

fn a_child_that_dropped_signals_took_them_from_its_parent() {
    let mut poller = RtSig::new().unwrap();
    let (ours, mut theirs) = pair();
    let socket = Socket::from(OwnedFd::from(ours));
    let fd = number(&socket);
    poller.set(fd, Readiness::READ).unwrap();
    let mut poller = Some(poller);
    assert_eq!(fork(|| drop(poller.take())), 0);
    // SAFETY: asks for numbers.
    let flags = unsafe { libc::fcntl(fd.raw(), libc::F_GETFL) };
    assert_ne!(flags & libc::O_ASYNC, 0);
    theirs.write_all(b"x").unwrap();
    let mut out = Vec::new();
    poller.as_mut().unwrap().wait(Some(Duration::from_secs(10)), &mut out).unwrap();
    assert!(out.iter().any(|(told, _)| *told == fd), "{out:?}");
}

fn a_child_could_not_take_signals_of_its_own() {
    let poller = RtSig::new().unwrap();
    let mut poller = Some(poller);
    let child = || {
        let mut own = RtSig::new().unwrap();
        let (ours, mut theirs) = pair();
        let socket = Socket::from(OwnedFd::from(ours));
        let fd = number(&socket);
        own.set(fd, Readiness::READ).unwrap();
        // The other one goes first, and leaves the signals of this blocked.
        drop(poller.take());
        theirs.write_all(b"x").unwrap();
        let mut out = Vec::new();
        own.wait(Some(Duration::from_secs(10)), &mut out).unwrap();
        assert!(out.iter().any(|(told, _)| *told == fd), "{out:?}");
    };
    assert_eq!(fork(child), 0);
}

fn a_child_that_heard_a_wake_kept_it_from_its_parent() {
    let config = EngineConfig { operations: 4, buffers: 1, buffer_size: 64 };
    let mut kernel: PortableKernel = Engine::new(Epoll::new().unwrap(), &config).unwrap();
    let waker = kernel.waker();
    waker.wake();
    assert_eq!(fork(|| waker.drain()), 0);
    assert!(matches!(next(&mut kernel).outcome, Outcome::Woken));
}

fn main() {
    let all: [(&str, fn()); 9] = [
        (
            "a_child_that_dropped_a_ring_cancelled_its_parents_operations",
            a_child_that_dropped_a_ring_cancelled_its_parents_operations,
        ),
        (
            "a_child_that_dropped_a_ring_reaped_its_parents_completions",
            a_child_that_dropped_a_ring_reaped_its_parents_completions,
        ),
        ("a_child_that_used_a_ring_used_its_parents", a_child_that_used_a_ring_used_its_parents),
        ("a_child_can_set_up_a_ring_of_its_own", a_child_can_set_up_a_ring_of_its_own),
        (
            "a_child_that_dropped_a_kernel_waited_for_threads_that_it_did_not_have",
            a_child_that_dropped_a_kernel_waited_for_threads_that_it_did_not_have,
        ),
        (
            "a_child_that_took_a_turn_took_its_parents_events",
            a_child_that_took_a_turn_took_its_parents_events,
        ),
        (
            "a_child_that_dropped_signals_took_them_from_its_parent",
            a_child_that_dropped_signals_took_them_from_its_parent,
        ),
        ("a_child_could_not_take_signals_of_its_own", a_child_could_not_take_signals_of_its_own),
        (
            "a_child_that_heard_a_wake_kept_it_from_its_parent",
            a_child_that_heard_a_wake_kept_it_from_its_parent,
        ),
    ];
    // A child that fails must not run what its parent runs.
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    // What cargo passes on for its own tests is of no interest.
    let only = std::env::args().nth(1).filter(|only| !only.starts_with('-'));
    for (name, test) in all {
        if only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            test();
            println!("{name}: ok");
        }
    }
}
