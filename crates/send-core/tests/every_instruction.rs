//! No notification is lost, wherever it arrives: another thread posts an event between every two
//! instructions of what an application does with its masks, sections and sockets. (x86-64 can stop behind
//! each instruction.)

#![cfg(target_arch = "x86_64")]

use std::arch::asm;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{hint, mem, ptr, thread};

use send_core::{
    Action, Actions, ControlBlock, Delivery, EventType, Group, Groups, SendKernel, SetFlag,
    SocketConfig, SocketId, Sockets, Trigger,
};
use shared_ring::{Host, Kernel, ListenOptions, Op, OpKind, Outcome, Submit, Token, UringConfig};

/// Behind how many instructions the event is to arrive, and how many have been.
static ARRIVES: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU64 = AtomicU64::new(0);
/// The other thread is to post; it has.
static POST: AtomicBool = AtomicBool::new(false);
static POSTED: AtomicBool = AtomicBool::new(false);

/// Runs behind every instruction.
extern "C" fn step(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if STEPS.fetch_add(1, Ordering::Relaxed) + 1 == ARRIVES.load(Ordering::Relaxed) {
        POST.store(true, Ordering::Release);
        while !POSTED.load(Ordering::Acquire) {
            hint::spin_loop();
        }
        // The signal waits now, and arrives when this returns. Enough was stopped.
        let context: *mut libc::ucontext_t = context.cast();
        // SAFETY: the kernel's structure is there as long as the handler runs.
        unsafe { (*context).uc_mcontext.gregs[libc::REG_EFL as usize] &= !0x100 };
    }
}

fn stop_behind_each_instruction() {
    // SAFETY: plain C structures for which all zero bytes are a valid value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let step: extern "C" fn(_, *mut libc::siginfo_t, *mut libc::c_void) = step;
    let _: extern "C" fn(libc::c_int, _, _) = step;
    action.sa_sigaction = step as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler changes atomic numbers; while it runs notification waits.
    unsafe {
        libc::sigaddset(&mut action.sa_mask, libc::SIGIO);
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
    }
}

/// Sets or clears the trap flag, by which each instruction is followed by SIGTRAP.
macro_rules! trap {
    (on) => {
        // SAFETY: the handler is in place. The flags are put where they come from.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") }
    };
    (off) => {
        // SAFETY: as above.
        unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") }
    };
}

/// Has an event arrive behind each instruction of `what`, and sees that each was handled once when
/// `what` is over, or as soon as it has come if that is later.
fn everywhere(name: &str, mut what: impl FnMut(&mut ControlBlock)) -> u64 {
    let mut send = ControlBlock::define(8).unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let handler = Actions::new().on(EventType::USER, Action::Count(seen.clone()));
    send.set_handler(handler, Trigger::Level);
    send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    let poster = send.poster();
    let over = Arc::new(AtomicBool::new(false));
    let other = thread::spawn({
        let over = over.clone();
        move || {
            while !over.load(Ordering::Acquire) {
                if POST.swap(false, Ordering::AcqRel) {
                    poster.post(1).unwrap();
                    POSTED.store(true, Ordering::Release);
                }
                hint::spin_loop();
            }
        }
    });
    let mut at = 0;
    loop {
        at += 1;
        send.set_notify(Groups::ALL).unwrap();
        seen.store(0, Ordering::Relaxed);
        STEPS.store(0, Ordering::Relaxed);
        POSTED.store(false, Ordering::Relaxed);
        ARRIVES.store(at, Ordering::Relaxed);
        trap!(on);
        what(&mut send);
        trap!(off);
        if !POSTED.load(Ordering::Acquire) {
            break;
        }
        let taken = seen.load(Ordering::Relaxed);
        assert_eq!(taken, 1, "{name}: the event that came behind instruction {at} was lost");
    }
    over.store(true, Ordering::Release);
    other.join().unwrap();
    at
}

/// The same with a connection that arrives behind each instruction of a turn of a ring's loop, which is
/// then to find it, and not to sleep.
fn everywhere_in_a_turn(delivery: Delivery) {
    let config = UringConfig { mode: delivery.mode(), operations: 16, buffers: 1, buffer_size: 16 };
    let Ok(mut kernel) = SendKernel::new(&config, delivery) else { return };
    let options = ListenOptions { backlog: 8, reuse_port: false, buffers: Default::default() };
    let at = "127.0.0.1:0".parse().unwrap();
    let (listener, address) = kernel.host_mut().listen(at, &options).unwrap();
    let token = Token::new(OpKind::Accept, 0, 0);
    // SAFETY: the listener is closed at the end, and its number is not used after that.
    let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
    kernel.submit(token, accept).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let other = thread::spawn({
        let over = over.clone();
        move || {
            while !over.load(Ordering::Acquire) {
                if POST.swap(false, Ordering::AcqRel) {
                    drop(TcpStream::connect(address).unwrap());
                    POSTED.store(true, Ordering::Release);
                }
                hint::spin_loop();
            }
        }
    });
    let past = Some(Instant::now());
    // A turn has thousands of instructions in a build that is not optimised: some hundreds of them.
    ARRIVES.store(u64::MAX, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    trap!(on);
    kernel.turn(past).unwrap();
    let none = kernel.next();
    trap!(off);
    assert!(none.is_none());
    let apart = (STEPS.load(Ordering::Relaxed) / 150).max(1);
    let mut at = 0;
    loop {
        at += apart;
        STEPS.store(0, Ordering::Relaxed);
        POSTED.store(false, Ordering::Relaxed);
        ARRIVES.store(at, Ordering::Relaxed);
        trap!(on);
        kernel.turn(past).unwrap();
        let first = kernel.next();
        trap!(off);
        if !POSTED.load(Ordering::Acquire) {
            break;
        }
        let (begin, most) = (Instant::now(), Duration::from_secs(5));
        let accepted = first.or_else(|| {
            kernel.turn(Some(begin + most)).unwrap();
            kernel.next()
        });
        assert!(begin.elapsed() < most, "{delivery:?}: a turn slept, by instruction {at}");
        match accepted.map(|completion| completion.outcome) {
            Some(Outcome::Accepted(socket)) => kernel.host_mut().close_unused(socket),
            other => panic!("{delivery:?}, by instruction {at}: {other:?}"),
        }
    }
    over.store(true, Ordering::Release);
    other.join().unwrap();
    kernel.host_mut().close_unused(listener);
}

/// The same with a byte that arrives at a socket behind each instruction of `what`, which returns how many it
/// has received: what it has not is told.
fn everywhere_at_a_socket(
    name: &str,
    mut what: impl FnMut(&mut ControlBlock<Sockets>, SocketId) -> Option<usize>,
) {
    let Ok(sockets) = Sockets::new(&SocketConfig { sockets: 1, buffers: 1, buffer_size: 16 })
    else {
        return;
    };
    let mut send = ControlBlock::with_source(8, sockets).unwrap();
    let come = Arc::new(AtomicBool::new(false));
    send.set_handler(SetFlag(come.clone()), Trigger::Edge);
    send.set_notify(Groups::ALL).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nodelay(true).unwrap();
    let socket = send.watch(listener.accept().unwrap().0, Group::FIRST).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let other = thread::spawn({
        let over = over.clone();
        move || {
            while !over.load(Ordering::Acquire) {
                if POST.swap(false, Ordering::AcqRel) {
                    client.write_all(b"x").unwrap();
                    POSTED.store(true, Ordering::Release);
                }
                hint::spin_loop();
            }
        }
    });
    // Some hundreds of its instructions, if there are more.
    ARRIVES.store(u64::MAX, Ordering::Relaxed);
    STEPS.store(0, Ordering::Relaxed);
    trap!(on);
    what(&mut send, socket);
    trap!(off);
    let apart = (STEPS.load(Ordering::Relaxed) / 300).max(1);
    let mut at = 0;
    loop {
        at += apart;
        while send.next_event().is_some() {}
        come.store(false, Ordering::Relaxed);
        STEPS.store(0, Ordering::Relaxed);
        POSTED.store(false, Ordering::Relaxed);
        ARRIVES.store(at, Ordering::Relaxed);
        trap!(on);
        let taken = what(&mut send, socket);
        trap!(off);
        if !POSTED.load(Ordering::Acquire) {
            assert_eq!(taken, None);
            break;
        }
        if taken.is_none() {
            assert!(come.load(Ordering::Relaxed), "{name}: instruction {at}: nobody was told");
            let event = send.next_event().map(|event| event.state & libc::POLLIN as u32 != 0);
            assert_eq!(event, Some(true), "{name}: what came behind instruction {at} was lost");
            assert_eq!(send.recv(socket, &mut [0; 8]), Ok(Some(1)));
        }
    }
    over.store(true, Ordering::Release);
    other.join().unwrap();
}

/// One test, as the trap belongs to the process.
#[test]
fn an_event_may_arrive_behind_any_instruction() {
    stop_behind_each_instruction();
    let instructions = everywhere("nothing", |_| ());
    assert!(instructions > 1);
    everywhere("a mask is lowered and raised", |send| {
        send.set_notify(Groups::NONE).unwrap();
        send.set_notify(Groups::ALL).unwrap();
    });
    everywhere("delivery too", |send| {
        send.set_notify(Groups::NONE).unwrap();
        send.set_deliver(Groups::ALL);
        send.set_deliver(Groups::NONE);
        send.set_notify(Groups::ALL).unwrap();
    });
    everywhere("a critical section", |send| send.with_notifications_blocked(|_| ()));
    everywhere("one in which nothing may interrupt", |send| {
        send.with_notifications_blocked(|_| ());
        send.set_notify(Groups::NONE).unwrap();
        send.with_notifications_blocked(|_| ());
        send.set_notify(Groups::ALL).unwrap();
    });
    let past = Instant::now() - Duration::from_secs(1);
    everywhere("a wait that is over at once, with nothing to be waited for", move |send| {
        assert!(!send.wait(Groups::NONE, Some(past)).unwrap());
    });
    everywhere_at_a_socket("it is read", |send, socket| send.recv(socket, &mut [0; 8]).unwrap());
    everywhere_at_a_socket("a mask is lowered and raised", |send, _| {
        send.set_notify(Groups::NONE).unwrap();
        send.set_notify(Groups::ALL).unwrap();
        None
    });
    everywhere_at_a_socket("one looks", |send, _| {
        send.poll_pending();
        None
    });
    for delivery in [Delivery::Preemptive, Delivery::Ps2, Delivery::Ps1] {
        everywhere_in_a_turn(delivery);
    }
}
