//! The handler's stack: sigaltstack(2).
//!
//! A thread has one alternate stack, whoever wants one. The standard library has made a small one,
//! and wasmtime makes one of 64 KiB where there is none so large. So a stack that is large enough is
//! used as it is, and otherwise one is made that is large enough for all of them.

use std::io;
use std::mem;
use std::process;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::param::page_size;
use shared_ring::Process;

use crate::per_thread::PerThread;
use crate::{Error, code, gate, signals};

/// How large a stack has to be: what wasmtime asks for, and far more than a handler needs.
const MIN_STACK_BYTES: usize = 64 * 1024;

/// The page below each thread's stack for handlers: its lowest byte.
static GUARD: PerThread = PerThread::new();

/// What was done with faults before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Whether that was a handler for one fault only, which has come (`SA_RESETHAND`).
static IS_SPENT: AtomicBool = AtomicBool::new(false);

/// Tells a stack that has overflowed into its guard from other faults, which go to whoever handled
/// them before, such as the standard library.
fn watch_guards() -> Result<(), Error> {
    // SAFETY: plain C structures, for which all zero bytes are a valid value.
    let (mut old, mut new): (libc::sigaction, libc::sigaction) = unsafe { mem::zeroed() };
    // SAFETY: asks for the current action only.
    check(unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &mut old) })?;
    if BEFORE.set(old).is_err() {
        return Ok(());
    }
    // The former handler finds blocked what it had blocked; SIGSEGV too, unless it wanted it.
    (new.sa_mask, new.sa_flags) =
        (old.sa_mask, old.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART));
    new.sa_sigaction = faulted
        as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)
        as libc::sighandler_t;
    new.sa_flags |= libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler ends the process, or does what was done before.
    check(unsafe { libc::sigaction(libc::SIGSEGV, &new, ptr::null_mut()) })
}

extern "C" fn faulted(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let guard = GUARD.get::<u8>() as usize;
    // SAFETY: the kernel's structure is there while the handler runs.
    let (at, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // Otherwise a program has sent the signal, and no instruction faults again.
    let is_a_fault = code > 0;
    if is_a_fault && guard != 0 && (guard..guard + page_size()).contains(&at) {
        gate::abort_on_violation("a handler must not use more than its stack");
    }
    let Some(before) = BEFORE.get() else { process::abort() };
    let mut handler = before.sa_sigaction;
    if before.sa_flags & libc::SA_RESETHAND != 0 && IS_SPENT.swap(true, Ordering::Relaxed) {
        handler = libc::SIG_DFL;
    }
    if handler == libc::SIG_IGN && !is_a_fault {
        return;
    }
    if [libc::SIG_DFL, libc::SIG_IGN].contains(&handler) {
        // SAFETY: a plain C structure, for which all zero bytes are a valid value: the default.
        let default: libc::sigaction = unsafe { mem::zeroed() };
        // The instruction faults again, or the signal comes again when this returns, and then it is done.
        // SAFETY: nothing is called by it.
        unsafe { libc::sigaction(signal, &default, ptr::null_mut()) };
        if !is_a_fault {
            signals::send_to_this_thread(signal);
        }
    } else if before.sa_flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: the flag says that it is such a function.
        let handler = unsafe { mem::transmute::<libc::sighandler_t, Handler>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without the flag it is such a function.
        let handler: extern "C" fn(libc::c_int) = unsafe { mem::transmute(handler) };
        handler(signal);
    }
}

/// The alternate stack of the calling thread.
#[derive(Debug)]
pub(crate) struct Stack {
    top: NonNull<u8>,
    /// The one made here, below which lies a page that can't be touched; and the one before it.
    made: Option<Made>,
}

#[derive(Debug)]
struct Made {
    memory: NonNull<libc::c_void>,
    length: usize,
    before: libc::stack_t,
    /// The process whose memory it is.
    process: Process,
}

impl Stack {
    /// Makes one, unless the thread has one.
    pub(crate) fn new() -> Result<Self, Error> {
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut before: libc::stack_t = unsafe { mem::zeroed() };
        // SAFETY: asks for the current stack only.
        check(unsafe { libc::sigaltstack(ptr::null(), &mut before) })?;
        let usable = before.ss_flags & libc::SS_DISABLE == 0 && before.ss_size >= MIN_STACK_BYTES;
        if let Some(base) = NonNull::new(before.ss_sp.cast::<u8>()).filter(|_| usable) {
            // SAFETY: the top of a stack is one past its end.
            let top = unsafe { base.add(before.ss_size) };
            return Ok(Stack { top, made: None });
        }
        let guard = page_size();
        let length = guard + MIN_STACK_BYTES;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the system chooses.
        let memory =
            unsafe { mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE) };
        let memory = memory.map_err(|e| Error::System("a stack for handlers", e.raw_os_error()))?;
        let memory = NonNull::new(memory).expect("a mapping is nowhere near null");
        let mut stack = Stack {
            // SAFETY: one past the end of the mapping.
            top: unsafe { memory.cast::<u8>().add(length) },
            made: Some(Made { memory, length, before, process: Process::current() }),
        };
        // SAFETY: the page is the lowest of the mapping, which nobody uses yet.
        let guarded = unsafe { mprotect(memory.as_ptr(), guard, MprotectFlags::empty()) };
        guarded.map_err(|e| Error::System("a guard below a stack", e.raw_os_error()))?;
        let new = libc::stack_t {
            // SAFETY: the mapping is longer than its first page.
            ss_sp: unsafe { memory.byte_add(guard) }.as_ptr(),
            ss_flags: 0,
            ss_size: MIN_STACK_BYTES,
        };
        // SAFETY: the memory stays until this is dropped, which puts the former stack back.
        let set = check(unsafe { libc::sigaltstack(&new, ptr::null_mut()) });
        if set.is_err() {
            stack.put_back();
            return set.map(|()| stack);
        }
        GUARD.set(memory.as_ptr())?;
        watch_guards()?;
        Ok(stack)
    }

    /// One past its highest byte.
    pub(crate) fn top(&self) -> *mut () {
        self.top.as_ptr().cast()
    }

    fn put_back(&mut self) {
        let Some(Made { memory, length, before, process }) = self.made.take() else { return };
        // In a child of fork(2) its own block may have found the stack, and uses it.
        if process.is_current() {
            // There is a place for it, so it can't fail.
            let _ = GUARD.set(ptr::null::<u8>());
            let former = before.ss_sp as usize..before.ss_sp as usize + before.ss_size;
            let there = code::is_mapped(&former).unwrap_or(false);
            let none = libc::stack_t { ss_flags: libc::SS_DISABLE, ..before };
            // SAFETY: the former stack is there still, unless its owner has given it up, as the
            // standard library does at the end of a thread; the mapping is not used any more once
            // another is in its place.
            unsafe {
                libc::sigaltstack(if there { &before } else { &none }, ptr::null_mut());
                let _ = munmap(memory.as_ptr(), length);
            }
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.put_back();
    }
}

fn check(result: libc::c_int) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    Err(Error::system("sigaltstack")(io::Error::last_os_error()))
}
