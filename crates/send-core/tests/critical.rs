//! Nothing interrupts code set as a critical section by address (SEND 3.4) until it is left. (The
//! code is in x86-64 assembly, so that its addresses are known.)

#![cfg(target_arch = "x86_64")]

use std::arch::global_asm;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use send_core::control_block::{Actions, ControlBlock, Group, Groups, Trigger};
use send_core::{Action, EventType};

// Calls tgkill(2), on whose return the signal is pending, and then returns the count.
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
    /// Sends a signal to a thread and reads a number. The call overwrites the fourth argument.
    fn send_core_test_leaf(
        process: i32,
        thread: i32,
        signal: i32,
        lost: u64,
        count: *const AtomicU64,
    ) -> u64;
    fn send_core_test_leaf_end();
}

#[test]
fn event_is_deferred_to_the_end_of_a_critical_section() {
    let mut send = ControlBlock::define(8).unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let signal = EventType::signal(libc::SIGUSR1).unwrap();
    send.set_handler(Actions::new().on(signal, Action::Count(count.clone())), Trigger::Level);
    send.set_group(signal, Some(Group::FIRST)).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    let raise = || {
        // SAFETY: the code follows the calling convention, changes no memory, and reads a valid
        // number. The signal is handled.
        unsafe {
            let (process, thread) = (libc::getpid(), libc::gettid());
            send_core_test_leaf(process, thread, libc::SIGUSR1, 0, Arc::as_ptr(&count))
        }
    };
    // Not a critical section yet.
    assert_eq!((raise(), send.counters().deferred), (1, 0));
    let (begin, end) =
        (send_core_test_leaf as *const () as usize, send_core_test_leaf_end as *const () as usize);
    send.set_critical_section(begin..end).unwrap();
    assert_eq!((raise(), send.counters().deferred), (1, 1));
    assert_eq!(count.load(Ordering::Relaxed), 1);
    // The code that left it polls.
    send.poll_pending();
    assert_eq!(count.load(Ordering::Relaxed), 2);
    // Any other operation that opens the gate polls too.
    assert_eq!(raise(), 2);
    send.with_notifications_blocked(|_| ());
    assert_eq!((count.load(Ordering::Relaxed), send.counters().deferred), (3, 2));
}
