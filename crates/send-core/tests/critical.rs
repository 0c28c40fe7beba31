//! Nothing interrupts code that was set as a critical section by its addresses (SEND 3.4), until it is
//! left. (The code is given as instructions of x86-64, so that its addresses are known.)

#![cfg(target_arch = "x86_64")]

use std::arch::global_asm;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use send_core::{Action, Actions, ControlBlock, EventType, Group, Groups, Trigger};

// tgkill(2), on whose return the signal is there, and then what `seen` is.
global_asm!(
    ".globl send_core_test_leaf",
    ".globl send_core_test_leaf_end",
    "send_core_test_leaf:",
    "mov eax, 234",
    "syscall",
    "mov rax, qword ptr [r8]",
    "ret",
    "send_core_test_leaf_end:",
);

unsafe extern "C" {
    /// Sends a signal to a thread and reads a number; the fourth argument is lost in the call.
    fn send_core_test_leaf(
        process: i32,
        thread: i32,
        signal: i32,
        lost: u64,
        seen: *const AtomicU64,
    ) -> u64;
    fn send_core_test_leaf_end();
}

#[test]
fn an_event_waits_until_a_critical_section_is_left() {
    let mut send = ControlBlock::define(8).unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let signal = EventType::signal(libc::SIGUSR1).unwrap();
    send.set_handler(Actions::new().on(signal, Action::Count(seen.clone())), Trigger::Level);
    send.set_group(signal, Some(Group::FIRST)).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    let raise = || {
        // SAFETY: the code keeps to the calling convention, changes no memory, and reads a number that is
        // there. The signal is handled.
        unsafe {
            let (process, thread) = (libc::getpid(), libc::gettid());
            send_core_test_leaf(process, thread, libc::SIGUSR1, 0, Arc::as_ptr(&seen))
        }
    };
    // It is no section yet.
    assert_eq!((raise(), send.counts().deferred), (1, 0));
    let (begin, end) =
        (send_core_test_leaf as *const () as usize, send_core_test_leaf_end as *const () as usize);
    send.set_critical_section(begin..end).unwrap();
    assert_eq!((raise(), send.counts().deferred), (1, 1));
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    // Whoever has left it looks.
    send.poll_pending();
    assert_eq!(seen.load(Ordering::Relaxed), 2);
    // Any other thing that opens the gate does, too.
    assert_eq!(raise(), 2);
    send.with_notifications_blocked(|_| ());
    assert_eq!((seen.load(Ordering::Relaxed), send.counts().deferred), (3, 2));
}
