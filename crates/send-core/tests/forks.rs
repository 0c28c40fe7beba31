//! A child of fork(2) has only a copy of its parent's control block. Signals have their former
//! actions there, the child can define its own block, and operations on the copy do not affect the
//! parent. This program has one thread at each fork, so children are not restricted.

use std::env;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use send_core::control_block::{Actions, ControlBlock, Group, Groups, Trigger};
use send_core::kernel::{Delivery, SendKernel};
use send_core::sockets::{SocketConfig, SocketId, Sockets};
use send_core::{Action, Error, EventType, PostError};
use shared_ring::sockets::ListenOptions;
use shared_ring::uring::UringConfig;
use shared_ring::{Host, Kernel, Op, OpKind, Outcome, Submit, Token};

/// Runs a child for at most ten seconds. Returns its status in the format of wait(2).
fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the process has one thread.
    finish(unsafe { libc::fork() }, child)
}

/// The same for a child unknown to the C library.
fn clone(child: impl FnOnce()) -> i32 {
    // SAFETY: without flags it does what fork(2) does, and the process has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    finish(pid as i32, child)
}

fn finish(pid: i32, child: impl FnOnce()) -> i32 {
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: passes a number.
        unsafe { libc::alarm(10) };
        child();
        // SAFETY: it ends the process without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    loop {
        // SAFETY: writes one integer. A signal may end it early.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            return status;
        }
    }
}

fn raise(signal: i32) {
    // SAFETY: passes a number.
    unsafe { libc::raise(signal) };
}

fn action(signal: i32) -> libc::sigaction {
    // SAFETY: a plain C structure, which the call fills in.
    unsafe {
        let mut action = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action);
        action
    }
}

fn is_blocked(signal: i32) -> bool {
    // SAFETY: a plain C structure, which the call fills in.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        libc::sigismember(&set, signal) == 1
    }
}

/// Returns a block that counts a signal.
fn counting(signal: i32) -> (ControlBlock, Arc<AtomicU64>) {
    let mut send = ControlBlock::define(8).unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let kind = EventType::signal(signal).unwrap();
    send.set_handler(Actions::new().on(kind, Action::Count(count.clone())), Trigger::Level);
    send.set_group(kind, Some(Group::FIRST)).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    (send, count)
}

fn is_killed_by(status: i32, signal: i32) -> bool {
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal
}

fn child_swallowed_signals_claimed_by_its_parent() {
    let (_send, count) = counting(libc::SIGTERM);
    let status = fork(|| raise(libc::SIGTERM));
    assert!(is_killed_by(status, libc::SIGTERM), "{status:#x}");
    raise(libc::SIGTERM);
    assert_eq!(count.load(Ordering::Relaxed), 1, "the parent gets its event");
}

fn child_of_clone_swallowed_signals_claimed_by_its_parent() {
    let (_send, count) = counting(libc::SIGTERM);
    let status = clone(|| raise(libc::SIGTERM));
    assert!(is_killed_by(status, libc::SIGTERM), "{status:#x}");
    raise(libc::SIGTERM);
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

fn child_restores_the_former_actions() {
    // The setup of nohup(1).
    // SAFETY: it only sets the action.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    let (send, _) = counting(libc::SIGHUP);
    let child = || {
        assert_eq!(action(libc::SIGHUP).sa_sigaction, libc::SIG_IGN);
        assert_eq!(action(libc::SIGIO).sa_sigaction, libc::SIG_DFL);
        raise(libc::SIGHUP);
    };
    assert_eq!(fork(child), 0);
    let by_clone = || {
        raise(libc::SIGHUP);
        assert_eq!(action(libc::SIGHUP).sa_sigaction, libc::SIG_IGN);
    };
    assert_eq!(clone(by_clone), 0);
    drop(send);
    assert_eq!(action(libc::SIGHUP).sa_sigaction, libc::SIG_IGN);
}

fn notification_stayed_blocked_in_a_child() {
    let (send, _) = counting(libc::SIGUSR1);
    send.set_notify(Groups::NONE).unwrap();
    raise(libc::SIGIO);
    assert!(is_blocked(libc::SIGIO), "the signal found notification off");
    assert_eq!(fork(|| assert!(!is_blocked(libc::SIGIO))), 0);
    assert!(is_blocked(libc::SIGIO));
}

/// Uses signals and the child's own block.
fn use_own_block(parents: ControlBlock) {
    let (mut own, count) = counting(libc::SIGTERM);
    let ticks = Arc::new(AtomicU64::new(0));
    let term = EventType::signal(libc::SIGTERM).unwrap();
    let handler = Actions::new()
        .on(term, Action::Count(count.clone()))
        .on(EventType::TIMER, Action::Count(ticks.clone()));
    own.set_handler(handler, Trigger::Level);
    own.set_group(EventType::TIMER, Some(Group::FIRST.next())).unwrap();
    own.set_timer(Some(Duration::from_millis(1))).unwrap();
    raise(libc::SIGTERM);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    // Dropping the copy affects no signal, no stack, and no timer that may have the same id.
    drop(parents);
    raise(libc::SIGTERM);
    assert_eq!(count.load(Ordering::Relaxed), 2);
    let before = ticks.load(Ordering::Relaxed);
    while ticks.load(Ordering::Relaxed) < before + 3 {
        std::hint::spin_loop();
    }
    let poster = own.poster();
    own.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    std::thread::spawn(move || poster.post(1)).join().unwrap().unwrap();
    drop(own);
    assert_eq!(action(libc::SIGTERM).sa_sigaction, libc::SIG_DFL);
}

fn child_could_not_claim_signals_again() {
    for make in [fork as fn(Box<dyn FnOnce()>) -> i32, clone] {
        let (mut send, count) = counting(libc::SIGTERM);
        send.set_group(EventType::TIMER, Some(Group::FIRST)).unwrap();
        send.set_timer(Some(Duration::from_secs(3600))).unwrap();
        let mut send = Some(send);
        // SAFETY: the copy is dropped in the child, which has its own memory.
        let copy = unsafe { std::ptr::read(&send) }.unwrap();
        let copy = std::mem::ManuallyDrop::new(copy);
        let child = move || use_own_block(std::mem::ManuallyDrop::into_inner(copy));
        assert_eq!(make(Box::new(child)), 0);
        raise(libc::SIGTERM);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop(send.take());
    }
}

fn child_used_the_block_of_its_parent() {
    let (mut send, _) = counting(libc::SIGUSR1);
    let poster = send.poster();
    let term = EventType::signal(libc::SIGTERM).unwrap();
    let child = || {
        assert_eq!(send.set_group(term, Some(Group::FIRST)), Err(Error::InChild));
        assert_eq!(send.set_timer(Some(Duration::from_secs(1))), Err(Error::InChild));
        assert_eq!(send.wait(Groups::ALL, None), Err(Error::InChild));
        assert_eq!(poster.post(3), Err(PostError::Closed(3)));
        send.poll_pending();
        send.handle_events();
        assert_eq!(send.next_event(), None);
        assert_eq!(action(libc::SIGTERM).sa_sigaction, libc::SIG_DFL);
    };
    assert_eq!(fork(child), 0);
}

fn child_took_connections_and_signals_from_its_parent() {
    let sockets = match Sockets::new(&SocketConfig::new(4, 2, 64)) {
        Ok(sockets) => sockets,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let mut send = ControlBlock::with_source(8, sockets).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let number = listener.as_raw_fd();
    send.set_group(EventType::ACCEPT, Some(Group::FIRST)).unwrap();
    let listening = send.auto_accept(listener, None).unwrap();
    let _first = TcpStream::connect(address).unwrap();
    let mut send = Some(send);
    let child = || {
        let inherited = send.as_mut().unwrap();
        inherited.set_deliver(Groups::ALL);
        assert_eq!(inherited.next_event(), None);
        assert_eq!(inherited.release(listening).unwrap_err(), Error::InChild);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(inherited.auto_accept(other, None).unwrap_err(), Error::InChild);
        drop(send.take());
    };
    assert_eq!(fork(child), 0);
    // SAFETY: only queries numbers.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
    assert_ne!(flags & libc::O_ASYNC, 0);
    let send = send.as_mut().unwrap();
    for _ in 0..2 {
        let until = Instant::now() + Duration::from_secs(10);
        assert_eq!(send.wait(Groups::ALL, Some(until)), Ok(true));
        let event = send.next_event().unwrap();
        assert_eq!(event.kind, EventType::ACCEPT);
        let connection = SocketId::of(&event).unwrap();
        assert_ne!(connection, listening);
        let _next = TcpStream::connect(address).unwrap();
    }
}

fn child_that_dropped_a_server_cancelled_its_parents_accept() {
    let operations = 16;
    for delivery in [Delivery::Preemptive, Delivery::Ps2, Delivery::Ps1] {
        let config = UringConfig::new(delivery.mode(), operations, 1, 16);
        let mut kernel = match SendKernel::new(&config, delivery) {
            Ok(kernel) => kernel,
            Err(missing) => return println!("not tested: {missing}"),
        };
        let options = ListenOptions::new(8);
        let at = "127.0.0.1:0".parse().unwrap();
        let (listener, address) = kernel.host_mut().listen(at, &options).unwrap();
        let token = Token::new(OpKind::Accept, 0, 0);
        // SAFETY: the listener is closed at the end, and its descriptor is not used after that.
        let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
        kernel.submit(token, accept).unwrap();
        kernel.turn(Some(Instant::now())).unwrap();
        let mut kernel = Some(kernel);
        let child = || {
            assert!(kernel.as_mut().unwrap().turn(None).is_err());
            drop(kernel.take());
        };
        assert_eq!(fork(child), 0, "{delivery:?}");
        let kernel = kernel.as_mut().unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let accepted = loop {
            if let Some(completion) = kernel.next() {
                break completion.outcome;
            }
            assert!(Instant::now() < until, "{delivery:?}");
            kernel.turn(Some(until)).unwrap();
        };
        let Outcome::Accepted(socket) = accepted else { panic!("{delivery:?}: {accepted:?}") };
        kernel.host_mut().close_unused(socket);
        kernel.host_mut().close_unused(listener);
    }
}

const ALL: [(&str, fn()); 8] = [
    (
        "child_swallowed_signals_claimed_by_its_parent",
        child_swallowed_signals_claimed_by_its_parent,
    ),
    (
        "child_of_clone_swallowed_signals_claimed_by_its_parent",
        child_of_clone_swallowed_signals_claimed_by_its_parent,
    ),
    ("child_restores_the_former_actions", child_restores_the_former_actions),
    ("notification_stayed_blocked_in_a_child", notification_stayed_blocked_in_a_child),
    ("child_could_not_claim_signals_again", child_could_not_claim_signals_again),
    ("child_used_the_block_of_its_parent", child_used_the_block_of_its_parent),
    (
        "child_took_connections_and_signals_from_its_parent",
        child_took_connections_and_signals_from_its_parent,
    ),
    (
        "child_that_dropped_a_server_cancelled_its_parents_accept",
        child_that_dropped_a_server_cancelled_its_parents_accept,
    ),
];

fn main() {
    // Ignores the arguments that cargo passes to its own tests.
    let only = env::args().nth(1).filter(|only| !only.starts_with('-'));
    for (name, test) in ALL {
        if only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            test();
            println!("{name}: ok");
        }
    }
}
