//! No notification is lost at any instruction. Another thread posts an event between every two
//! instructions of operations on masks, sections and sockets. (x86-64 can trap after each
//! instruction.) Without the variable `EXHAUSTIVE`, after every third.

#![cfg(target_arch = "x86_64")]

use std::arch::asm;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{hint, mem, ptr, thread};

use send_core::control_block::{Actions, ControlBlock, Group, Groups, SetFlag, Trigger};
use send_core::kernel::{Delivery, SendKernel};
use send_core::sockets::{SocketConfig, SocketId, Sockets};
use send_core::{Action, EventType};
use shared_ring::sockets::ListenOptions;
use shared_ring::uring::UringConfig;
use shared_ring::{Host, Kernel, Op, OpKind, Outcome, Submit, Token};

/// Number of instructions after which the event arrives, and number executed.
static ARRIVE_AT: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU64 = AtomicU64::new(0);
/// Requests a post of the other thread, and reports it.
static POST: AtomicBool = AtomicBool::new(false);
static POSTED: AtomicBool = AtomicBool::new(false);

/// Runs after every instruction.
extern "C" fn step(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if STEPS.fetch_add(1, Ordering::Relaxed) + 1 == ARRIVE_AT.load(Ordering::Relaxed) {
        POST.store(true, Ordering::Release);
        while !POSTED.load(Ordering::Acquire) {
            hint::spin_loop();
        }
        // The signal is pending, and arrives when this returns. Stop trapping.
        let context: *mut libc::ucontext_t = context.cast();
        // SAFETY: the kernel's structure exists while the handler runs.
        unsafe { (*context).uc_mcontext.gregs[libc::REG_EFL as usize] &= !0x100 };
    }
}

fn trap_after_each_instruction() {
    // SAFETY: plain C structures for which all zero bytes are a valid value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let step: extern "C" fn(_, *mut libc::siginfo_t, *mut libc::c_void) = step;
    let _: extern "C" fn(libc::c_int, _, _) = step;
    action.sa_sigaction = step as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler changes atomic numbers; while it runs, notification is blocked.
    unsafe {
        libc::sigaddset(&mut action.sa_mask, libc::SIGIO);
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
    }
}

/// Sets or clears the trap flag, which raises SIGTRAP after each instruction.
macro_rules! trap {
    (on) => {
        // SAFETY: the handler is installed. The code changes only the trap flag.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") }
    };
    (off) => {
        // SAFETY: as above.
        unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") }
    };
}

/// Posts an event after each instruction of `operation`. Asserts that it is handled once, by the
/// end of the operation or right after it.
fn at_each_instruction(name: &str, mut operation: impl FnMut(&mut ControlBlock)) -> u64 {
    let mut send = ControlBlock::define(8).unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let handler = Actions::new().on(EventType::USER, Action::Count(count.clone()));
    send.set_handler(handler, Trigger::Level);
    send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    let poster = send.poster();
    let done = Arc::new(AtomicBool::new(false));
    let other = thread::spawn({
        let done = done.clone();
        move || {
            while !done.load(Ordering::Acquire) {
                if POST.swap(false, Ordering::AcqRel) {
                    poster.post(1).unwrap();
                    POSTED.store(true, Ordering::Release);
                }
                hint::spin_loop();
            }
        }
    });
    let stride = if std::env::var_os("EXHAUSTIVE").is_some() { 1 } else { 3 };
    let mut at = 0;
    loop {
        at += stride;
        send.set_notify(Groups::ALL).unwrap();
        count.store(0, Ordering::Relaxed);
        STEPS.store(0, Ordering::Relaxed);
        POSTED.store(false, Ordering::Relaxed);
        ARRIVE_AT.store(at, Ordering::Relaxed);
        trap!(on);
        operation(&mut send);
        trap!(off);
        if !POSTED.load(Ordering::Acquire) {
            break;
        }
        let taken = count.load(Ordering::Relaxed);
        assert_eq!(taken, 1, "{name}: the event that arrived after instruction {at} was lost");
    }
    done.store(true, Ordering::Release);
    other.join().unwrap();
    at
}

/// The same with a connection that arrives after each instruction of a turn of a ring's loop, which
/// must find it without sleeping.
fn at_each_instruction_of_a_turn(delivery: Delivery) {
    let config = UringConfig::new(delivery.mode(), 16, 1, 16);
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
    let done = Arc::new(AtomicBool::new(false));
    let other = thread::spawn({
        let done = done.clone();
        move || {
            while !done.load(Ordering::Acquire) {
                if POST.swap(false, Ordering::AcqRel) {
                    drop(TcpStream::connect(address).unwrap());
                    POSTED.store(true, Ordering::Release);
                }
                hint::spin_loop();
            }
        }
    });
    let past = Some(Instant::now());
    // An unoptimized turn has thousands of instructions; test about 150 of them.
    ARRIVE_AT.store(u64::MAX, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    trap!(on);
    kernel.turn(past).unwrap();
    let none = kernel.next();
    trap!(off);
    assert!(none.is_none());
    let stride = (STEPS.load(Ordering::Relaxed) / 150).max(1);
    let mut at = 0;
    loop {
        at += stride;
        STEPS.store(0, Ordering::Relaxed);
        POSTED.store(false, Ordering::Relaxed);
        ARRIVE_AT.store(at, Ordering::Relaxed);
        trap!(on);
        kernel.turn(past).unwrap();
        let first = kernel.next();
        trap!(off);
        if !POSTED.load(Ordering::Acquire) {
            break;
        }
        let (begin, max) = (Instant::now(), Duration::from_secs(5));
        let accepted = first.or_else(|| {
            kernel.turn(Some(begin + max)).unwrap();
            kernel.next()
        });
        assert!(begin.elapsed() < max, "{delivery:?}: a turn slept, by instruction {at}");
        match accepted.map(|completion| completion.outcome) {
            Some(Outcome::Accepted(socket)) => kernel.host_mut().close_unused(socket),
            other => panic!("{delivery:?}, by instruction {at}: {other:?}"),
        }
    }
    done.store(true, Ordering::Release);
    other.join().unwrap();
    kernel.host_mut().close_unused(listener);
}

/// The same with a byte that arrives at a socket after each instruction of `operation`, which
/// returns the number of bytes received. A byte not received must raise an event.
fn at_each_instruction_of_a_socket(
    name: &str,
    mut operation: impl FnMut(&mut ControlBlock<Sockets>, SocketId) -> Option<usize>,
) {
    let sockets = match Sockets::new(&SocketConfig::new(1, 1, 16)) {
        Ok(sockets) => sockets,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let mut send = ControlBlock::with_source(8, sockets).unwrap();
    let notified = Arc::new(AtomicBool::new(false));
    send.set_handler(SetFlag(notified.clone()), Trigger::Edge);
    send.set_notify(Groups::ALL).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nodelay(true).unwrap();
    let socket = send.watch(listener.accept().unwrap().0, Group::FIRST).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let other = thread::spawn({
        let done = done.clone();
        move || {
            while !done.load(Ordering::Acquire) {
                if POST.swap(false, Ordering::AcqRel) {
                    client.write_all(b"x").unwrap();
                    POSTED.store(true, Ordering::Release);
                }
                hint::spin_loop();
            }
        }
    });
    // Test about 300 of its instructions.
    ARRIVE_AT.store(u64::MAX, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    trap!(on);
    operation(&mut send, socket);
    trap!(off);
    let stride = (STEPS.load(Ordering::Relaxed) / 300).max(1);
    let mut at = 0;
    loop {
        at += stride;
        while send.next_event().is_some() {}
        notified.store(false, Ordering::Relaxed);
        STEPS.store(0, Ordering::Relaxed);
        POSTED.store(false, Ordering::Relaxed);
        ARRIVE_AT.store(at, Ordering::Relaxed);
        trap!(on);
        let taken = operation(&mut send, socket);
        trap!(off);
        if !POSTED.load(Ordering::Acquire) {
            assert_eq!(taken, None);
            break;
        }
        if taken.is_none() {
            assert!(notified.load(Ordering::Relaxed), "{name}: instruction {at}: no notification");
            let event = send.next_event().map(|event| event.state & libc::POLLIN as u32 != 0);
            assert_eq!(event, Some(true), "{name}: what arrived after instruction {at} was lost");
            assert_eq!(send.recv(socket, &mut [0; 8]), Ok(Some(1)));
        }
    }
    done.store(true, Ordering::Release);
    other.join().unwrap();
}

/// Changes the calling thread's signal mask by the notification signal, or only reads the mask.
/// Returns whether the signal was blocked.
fn change_mask(how: Option<libc::c_int>) -> bool {
    // SAFETY: plain C structures, for which all zero bytes are a valid value; live signal sets.
    unsafe {
        let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = mem::zeroed();
        if let Some(how) = how {
            libc::sigaddset(&mut set, libc::SIGIO);
            libc::pthread_sigmask(how, &set, &mut before);
        } else {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut before);
        }
        libc::sigismember(&before, libc::SIGIO) == 1
    }
}

/// Posts an event after each instruction of the first call of a block that counts its uses. The
/// event blocks the signal, so from then on other code may block it again, which must end.
fn at_each_instruction_of_a_first_use() {
    let mut at = 0;
    loop {
        at += 1;
        let mut send = ControlBlock::define(8).unwrap();
        send.set_handler(Actions::new(), Trigger::Level);
        send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
        let (poster, done) = (send.poster(), AtomicBool::new(false));
        STEPS.store(0, Ordering::Relaxed);
        POSTED.store(false, Ordering::Relaxed);
        ARRIVE_AT.store(at, Ordering::Relaxed);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    if POST.swap(false, Ordering::AcqRel) {
                        poster.post(1).unwrap();
                        POSTED.store(true, Ordering::Release);
                    }
                    hint::spin_loop();
                }
            });
            trap!(on);
            send.set_notify(Group::FIRST.next().into()).unwrap();
            trap!(off);
            done.store(true, Ordering::Release);
        });
        if !POSTED.load(Ordering::Acquire) {
            return;
        }
        assert_eq!(send.counters().masked, 1, "instruction {at}");
        send.set_notify(Groups::ALL).unwrap();
        change_mask(Some(libc::SIG_BLOCK));
        for _ in 0..=64 {
            send.set_notify(Groups::ALL).unwrap();
        }
        assert!(!change_mask(None), "the signal stayed blocked after instruction {at}");
    }
}

/// A single test, as the trap belongs to the process.
#[test]
fn event_after_any_instruction_is_handled() {
    trap_after_each_instruction();
    let instructions = at_each_instruction("no operation", |_| ());
    assert!(instructions > 1);
    at_each_instruction("notify lowered and raised", |send| {
        send.set_notify(Groups::NONE).unwrap();
        send.set_notify(Groups::ALL).unwrap();
    });
    at_each_instruction("deliver raised while notify is lowered", |send| {
        send.set_notify(Groups::NONE).unwrap();
        send.set_deliver(Groups::ALL);
        send.set_deliver(Groups::NONE);
        send.set_notify(Groups::ALL).unwrap();
    });
    at_each_instruction("critical section", |send| send.with_notifications_blocked(|_| ()));
    at_each_instruction("critical section with notify lowered", |send| {
        send.with_notifications_blocked(|_| ());
        send.set_notify(Groups::NONE).unwrap();
        send.with_notifications_blocked(|_| ());
        send.set_notify(Groups::ALL).unwrap();
    });
    let past = Instant::now() - Duration::from_secs(1);
    at_each_instruction("wait that expires at once", move |send| {
        assert!(!send.wait(Groups::NONE, Some(past)).unwrap());
    });
    at_each_instruction_of_a_first_use();
    at_each_instruction_of_a_socket("recv", |send, socket| send.recv(socket, &mut [0; 8]).unwrap());
    at_each_instruction_of_a_socket("notify lowered and raised", |send, _| {
        send.set_notify(Groups::NONE).unwrap();
        send.set_notify(Groups::ALL).unwrap();
        None
    });
    at_each_instruction_of_a_socket("poll_pending", |send, _| {
        send.poll_pending();
        None
    });
    for delivery in [Delivery::Preemptive, Delivery::Ps2, Delivery::Ps1] {
        at_each_instruction_of_a_turn(delivery);
    }
}
