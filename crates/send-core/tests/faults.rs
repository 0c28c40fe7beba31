//! Faults outside a handler's stack go to the former SIGSEGV handler, as it was installed. Each
//! case runs in its own process, because SIGSEGV's action belongs to the process: this program with
//! the case as an argument.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, mem, ptr};

use send_core::control_block::ControlBlock;

/// Calls of the former handler, and the signals blocked during the last one.
static CALLS: AtomicU32 = AtomicU32::new(0);
static SEGV_BLOCKED: AtomicU32 = AtomicU32::new(2);
static USR1_BLOCKED: AtomicU32 = AtomicU32::new(2);
static SENDER_IS_SELF: AtomicU32 = AtomicU32::new(2);

/// The byte read to cause a fault.
static PAGE: AtomicU32 = AtomicU32::new(0);

fn note_mask() {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a plain C structure, which the call fills in.
    unsafe {
        let mut mask: libc::sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
        SEGV_BLOCKED.store(libc::sigismember(&mask, libc::SIGSEGV) as u32, Ordering::Relaxed);
        USR1_BLOCKED.store(libc::sigismember(&mask, libc::SIGUSR1) as u32, Ordering::Relaxed);
    }
}

extern "C" fn plain(_: libc::c_int) {
    note_mask();
}

extern "C" fn with_info(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    note_mask();
    // SAFETY: the kernel's structure exists while the handler runs.
    let sender = unsafe { (*info).si_pid() };
    // SAFETY: only queries a number.
    SENDER_IS_SELF.store(u32::from(sender == unsafe { libc::getpid() }), Ordering::Relaxed);
}

/// Installs a handler that blocks SIGUSR1, and then this crate's handler.
fn install(handler: libc::sighandler_t, flags: libc::c_int) -> ControlBlock {
    // SAFETY: plain C structures. The handlers change atomic numbers.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()), 0);
        // The standard library's stack is large enough on some machines; then no guard is needed.
        let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        assert_eq!(libc::sigaltstack(&none, ptr::null_mut()), 0);
    }
    let send = ControlBlock::define(4).unwrap();
    // SAFETY: a plain C structure, which the call fills in.
    let now = unsafe {
        let mut now: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGSEGV, ptr::null(), &mut now);
        now
    };
    assert_ne!(now.sa_sigaction, handler, "the handler was replaced");
    send
}

fn send_segv() {
    // SAFETY: passes a number.
    unsafe { libc::raise(libc::SIGSEGV) };
}

fn observed() -> [u32; 3] {
    [&CALLS, &SEGV_BLOCKED, &USR1_BLOCKED].map(|of| of.load(Ordering::Relaxed))
}

fn plain_handler() -> libc::sighandler_t {
    plain as extern "C" fn(libc::c_int) as libc::sighandler_t
}

fn info_handler() -> libc::sighandler_t {
    with_info as extern "C" fn(_, *mut libc::siginfo_t, *mut libc::c_void) as libc::sighandler_t
}

/// Reads an inaccessible page.
fn fault() {
    // SAFETY: a new mapping; reading it causes the intended fault.
    unsafe {
        let (none, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page: *mut u8 = libc::mmap(ptr::null_mut(), 4096, none, flags, -1, 0).cast();
        PAGE.store(page.read_volatile().into(), Ordering::Relaxed);
    }
}

fn former_handler_lost_its_mask() {
    let _send = install(plain_handler(), 0);
    send_segv();
    assert_eq!(observed(), [1, 1, 1]);
}

fn former_handler_with_nodefer_was_blocked() {
    let _send = install(info_handler(), libc::SA_NODEFER | libc::SA_SIGINFO);
    send_segv();
    assert_eq!(observed(), [1, 0, 1]);
    assert_eq!(SENDER_IS_SELF.load(Ordering::Relaxed), 1, "siginfo has the sender");
}

fn former_handler_with_resethand_was_called_twice() {
    let _send = install(plain_handler(), libc::SA_RESETHAND);
    send_segv();
    assert_eq!(observed(), [1, 1, 1]);
    send_segv();
    println!("resumed");
}

fn sent_sigsegv_was_swallowed() {
    let _send = install(libc::SIG_DFL, 0);
    send_segv();
    println!("resumed");
}

fn fault_with_ignored_sigsegv_terminates() {
    let _send = install(libc::SIG_IGN, 0);
    send_segv();
    send_segv();
    // A real fault cannot be ignored.
    fault();
    println!("resumed");
}

fn fault_with_default_action_terminates() {
    let _send = install(libc::SIG_DFL, 0);
    fault();
    println!("resumed");
}

fn succeeds(status: ExitStatus) -> bool {
    status.success()
}

fn ends_by_segv(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGSEGV)
}

type Case = (&'static str, fn(), fn(ExitStatus) -> bool);

const ALL: [Case; 6] = [
    ("former_handler_lost_its_mask", former_handler_lost_its_mask, succeeds),
    ("former_handler_with_nodefer_was_blocked", former_handler_with_nodefer_was_blocked, succeeds),
    (
        "former_handler_with_resethand_was_called_twice",
        former_handler_with_resethand_was_called_twice,
        ends_by_segv,
    ),
    ("sent_sigsegv_was_swallowed", sent_sigsegv_was_swallowed, ends_by_segv),
    ("fault_with_ignored_sigsegv_terminates", fault_with_ignored_sigsegv_terminates, ends_by_segv),
    ("fault_with_default_action_terminates", fault_with_default_action_terminates, ends_by_segv),
];

fn main() {
    let selected = env::args().nth(1);
    if let Some((_, case, _)) = ALL.iter().find(|(name, ..)| selected.as_deref() == Some(name)) {
        return case();
    }
    for (name, _, is_expected) in ALL {
        let output = Command::new(env::current_exe().unwrap()).arg(name).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(is_expected(output.status), "{name}: {}: {stderr}", output.status);
        assert!(output.stdout.is_empty(), "{name} resumed");
        println!("{name}: ok");
    }
}
