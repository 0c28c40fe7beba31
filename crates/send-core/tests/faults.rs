//! A fault that is none of the stack for handlers is for the handler that was there before, as it was
//! installed. Each case runs in a process of its own: this program again, told by an argument which. (A
//! program's own handler of SIGSEGV is the process', and this is how the crate's stands in front of it.)

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, mem, ptr};

use send_core::ControlBlock;

/// What the former handler has seen: how often it was called, and which signals were blocked then.
static CALLS: AtomicU32 = AtomicU32::new(0);
static SEGV_BLOCKED: AtomicU32 = AtomicU32::new(2);
static USR1_BLOCKED: AtomicU32 = AtomicU32::new(2);
static HAD_ADDRESS: AtomicU32 = AtomicU32::new(2);

/// Where a fault is made.
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

extern "C" fn informed(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    note_mask();
    // SAFETY: the kernel's structure is there as long as the handler runs.
    let sender = unsafe { (*info).si_pid() };
    // SAFETY: asks for a number.
    HAD_ADDRESS.store(u32::from(sender == unsafe { libc::getpid() }), Ordering::Relaxed);
}

/// Installs a handler that blocks SIGUSR1, and then this crate's.
fn install(handler: libc::sighandler_t, flags: libc::c_int) -> ControlBlock {
    // SAFETY: plain C structures. The handlers change atomic numbers.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()), 0);
        // The standard library's stack is large enough on some machines, and then nothing is guarded.
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
    assert_ne!(now.sa_sigaction, handler, "the crate's handler is in front");
    send
}

fn send_segv() {
    // SAFETY: passes a number.
    unsafe { libc::raise(libc::SIGSEGV) };
}

fn saw() -> [u32; 3] {
    [&CALLS, &SEGV_BLOCKED, &USR1_BLOCKED].map(|of| of.load(Ordering::Relaxed))
}

fn plain_handler() -> libc::sighandler_t {
    plain as extern "C" fn(libc::c_int) as libc::sighandler_t
}

fn informed_handler() -> libc::sighandler_t {
    informed as extern "C" fn(_, *mut libc::siginfo_t, *mut libc::c_void) as libc::sighandler_t
}

/// Touches a page that can't be touched.
fn fault() {
    // SAFETY: a new mapping; to read from it is the fault that is wanted.
    unsafe {
        let (none, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page: *mut u8 = libc::mmap(ptr::null_mut(), 4096, none, flags, -1, 0).cast();
        PAGE.store(page.read_volatile().into(), Ordering::Relaxed);
    }
}

fn the_former_handlers_mask_was_dropped() {
    let _send = install(plain_handler(), 0);
    send_segv();
    assert_eq!(saw(), [1, 1, 1]);
}

fn the_former_handler_wanted_to_be_interrupted_by_faults() {
    let _send = install(informed_handler(), libc::SA_NODEFER | libc::SA_SIGINFO);
    send_segv();
    assert_eq!(saw(), [1, 0, 1]);
    assert_eq!(HAD_ADDRESS.load(Ordering::Relaxed), 1, "it is told who has sent it");
}

fn the_former_handler_was_for_one_fault() {
    let _send = install(plain_handler(), libc::SA_RESETHAND);
    send_segv();
    assert_eq!(saw(), [1, 1, 1]);
    send_segv();
    println!("goes on");
}

fn a_fault_that_was_sent_was_swallowed() {
    let _send = install(libc::SIG_DFL, 0);
    send_segv();
    println!("goes on");
}

fn a_fault_that_was_ignored_when_sent() {
    let _send = install(libc::SIG_IGN, 0);
    send_segv();
    send_segv();
    // One that is made can't be ignored.
    fault();
    println!("goes on");
}

fn a_fault_by_default() {
    let _send = install(libc::SIG_DFL, 0);
    fault();
    println!("goes on");
}

fn ends_well(status: ExitStatus) -> bool {
    status.success()
}

fn ends_by_segv(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGSEGV)
}

type Case = (&'static str, fn(), fn(ExitStatus) -> bool);

const ALL: [Case; 6] = [
    ("the_former_handlers_mask_was_dropped", the_former_handlers_mask_was_dropped, ends_well),
    (
        "the_former_handler_wanted_to_be_interrupted_by_faults",
        the_former_handler_wanted_to_be_interrupted_by_faults,
        ends_well,
    ),
    ("the_former_handler_was_for_one_fault", the_former_handler_was_for_one_fault, ends_by_segv),
    ("a_fault_that_was_sent_was_swallowed", a_fault_that_was_sent_was_swallowed, ends_by_segv),
    ("a_fault_that_was_ignored_when_sent", a_fault_that_was_ignored_when_sent, ends_by_segv),
    ("a_fault_by_default", a_fault_by_default, ends_by_segv),
];

fn main() {
    let which = env::args().nth(1);
    if let Some((_, case, _)) = ALL.iter().find(|(name, ..)| which.as_deref() == Some(name)) {
        return case();
    }
    for (name, _, ends_as_it_should) in ALL {
        let output = Command::new(env::current_exe().unwrap()).arg(name).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(ends_as_it_should(output.status), "{name}: {}: {said}", output.status);
        assert!(output.stdout.is_empty(), "{name} went on");
        println!("{name}: ok");
    }
}
