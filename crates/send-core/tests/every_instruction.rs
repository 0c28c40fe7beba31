//! No notification is lost, wherever it arrives: another thread posts an event between every two
//! instructions of what an application does with its masks and sections. (x86-64 can stop behind
//! each instruction.)

#![cfg(target_arch = "x86_64")]

use std::arch::asm;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{hint, mem, ptr, thread};

use send_core::{Action, Actions, EventType, Evtctl, Group, Groups, Trigger};

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
fn everywhere(name: &str, mut what: impl FnMut(&mut Evtctl)) -> u64 {
    let mut send = Evtctl::define(8).unwrap();
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
    eprintln!("{name}: {at}");
    at
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
        send.set_deliver(Groups::ALL).unwrap();
        send.set_deliver(Groups::NONE).unwrap();
        send.set_notify(Groups::ALL).unwrap();
    });
    everywhere("a critical section", |send| send.critically(|_| ()));
    everywhere("one in which nothing may interrupt", |send| {
        send.critically(|_| ());
        send.set_notify(Groups::NONE).unwrap();
        send.critically(|_| ());
        send.set_notify(Groups::ALL).unwrap();
    });
    let past = Instant::now() - Duration::from_secs(1);
    everywhere("a wait that is over at once, with nothing to be waited for", move |send| {
        assert!(!send.wait(Groups::NONE, Some(past)).unwrap());
    });
}
