//! The handler's stack: sigaltstack(2).
//!
//! A thread has one alternate stack for all its signal handlers. The standard library creates a
//! small one, and wasmtime one of 256 KiB if there is none as large. So a stack that is large enough
//! is used, and otherwise one is created that is large enough for all of them.

use std::io;
use std::mem;
use std::process;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::param::page_size;
use shared_ring::author::Process;

use crate::context::Context;
use crate::per_thread::PerThread;
use crate::{Error, code, gate, notification};

/// Minimum stack size in bytes: wasmtime's requirement, far more than a handler needs. With less, wasmtime replaces the
/// stack by its own, and an overflow of that is reported by neither. Pages that are never written to take no memory.
const MIN_STACK_BYTES: usize = 256 * 1024;

/// Each thread's guard page below its stack for handlers: its lowest byte. Owners of other stacks, such as wasmtime
/// and the standard library, have a guard page there, too.
static GUARD: PerThread = PerThread::new();

/// The former action of SIGSEGV.
static FORMER_ACTION: OnceLock<libc::sigaction> = OnceLock::new();

/// A former handler with `SA_RESETHAND` was called.
static RESETHAND_CALLED: AtomicBool = AtomicBool::new(false);

/// Installs a SIGSEGV handler that reports overflows of a stack into its guard page. Other faults
/// go to the former handler, such as that of the standard library.
fn handle_guard_faults() -> Result<(), Error> {
    // SAFETY: plain C structures, for which all zero bytes are a valid value.
    let (mut old, mut new): (libc::sigaction, libc::sigaction) = unsafe { mem::zeroed() };
    // SAFETY: only queries the current action.
    check(unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &mut old) })?;
    if FORMER_ACTION.set(old).is_err() {
        return Ok(());
    }
    // The former handler keeps its mask: SIGSEGV is blocked too, unless it has `SA_NODEFER`.
    (new.sa_mask, new.sa_flags) =
        (old.sa_mask, old.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART));
    new.sa_sigaction = on_segv
        as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)
        as libc::sighandler_t;
    new.sa_flags |= libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler aborts the process or performs the former action.
    check(unsafe { libc::sigaction(libc::SIGSEGV, &new, ptr::null_mut()) })
}

extern "C" fn on_segv(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let guard = GUARD.get::<u8>() as usize;
    // SAFETY: the kernel's structure exists while the handler runs.
    let (at, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // Otherwise the signal was sent, and no instruction faults again.
    let is_fault = code > 0;
    let is_in_guard = guard != 0 && (guard..guard + page_size()).contains(&at);
    // Below a stack of others there might be something else, where code on another stack faults.
    // SAFETY: the context is not used after this handler.
    let stack_pointer = unsafe { Context::from_raw(context.cast()) }.stack_pointer();
    let around = guard.saturating_sub(page_size())..guard.saturating_add(2 * page_size());
    if is_fault && is_in_guard && stack_pointer.is_none_or(|sp| around.contains(&sp)) {
        gate::abort_on_violation("a handler must not use more than its stack");
    }
    let Some(before) = FORMER_ACTION.get() else { process::abort() };
    let mut handler = before.sa_sigaction;
    if before.sa_flags & libc::SA_RESETHAND != 0 && RESETHAND_CALLED.swap(true, Ordering::Relaxed) {
        handler = libc::SIG_DFL;
    }
    if handler == libc::SIG_IGN && !is_fault {
        return;
    }
    if [libc::SIG_DFL, libc::SIG_IGN].contains(&handler) {
        // SAFETY: a plain C structure, for which all zero bytes are a valid value: the default.
        let default: libc::sigaction = unsafe { mem::zeroed() };
        // Then the instruction faults again, or the signal arrives again when this returns.
        // SAFETY: it only installs the default action.
        unsafe { libc::sigaction(signal, &default, ptr::null_mut()) };
        if !is_fault {
            notification::send_to_this_thread(signal);
        }
    } else if before.sa_flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: the flag guarantees that it is such a function.
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
    /// The mapping created here, if any. Its lowest page is inaccessible.
    mapping: Option<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    memory: NonNull<libc::c_void>,
    length: usize,
    before: libc::stack_t,
    /// The process whose memory it is.
    process: Process,
}

impl Stack {
    /// Uses the thread's alternate stack or, if it is too small, creates one.
    pub(crate) fn new() -> Result<Self, Error> {
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut before: libc::stack_t = unsafe { mem::zeroed() };
        // SAFETY: only queries the current stack.
        check(unsafe { libc::sigaltstack(ptr::null(), &mut before) })?;
        let usable = before.ss_flags & libc::SS_DISABLE == 0 && before.ss_size >= MIN_STACK_BYTES;
        if let Some(base) = NonNull::new(before.ss_sp.cast::<u8>()).filter(|_| usable) {
            // SAFETY: the top of a stack is one past its end.
            let top = unsafe { base.add(before.ss_size) };
            GUARD.set(base.as_ptr().wrapping_sub(page_size()))?;
            handle_guard_faults()?;
            return Ok(Stack { top, mapping: None });
        }
        let guard = page_size();
        let length = guard + MIN_STACK_BYTES;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: creates a mapping, at an address that the kernel chooses.
        let memory =
            unsafe { mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE) };
        let memory = memory.map_err(|e| Error::System("a stack for handlers", e.raw_os_error()))?;
        let memory = NonNull::new(memory).expect("a mapping is nowhere near null");
        let mut stack = Stack {
            // SAFETY: one past the end of the mapping.
            top: unsafe { memory.cast::<u8>().add(length) },
            mapping: Some(Mapping { memory, length, before, process: Process::current() }),
        };
        // SAFETY: the page is the lowest of the mapping, which is not in use yet.
        let guarded = unsafe { mprotect(memory.as_ptr(), guard, MprotectFlags::empty()) };
        guarded.map_err(|e| Error::System("a guard below a stack", e.raw_os_error()))?;
        let new = libc::stack_t {
            // SAFETY: the mapping is longer than its first page.
            ss_sp: unsafe { memory.byte_add(guard) }.as_ptr(),
            ss_flags: 0,
            ss_size: MIN_STACK_BYTES,
        };
        // SAFETY: the memory stays mapped until this is dropped, which restores the former stack.
        let set = check(unsafe { libc::sigaltstack(&new, ptr::null_mut()) });
        if set.is_err() {
            stack.restore();
            return set.map(|()| stack);
        }
        GUARD.set(memory.as_ptr())?;
        handle_guard_faults()?;
        Ok(stack)
    }

    /// Returns the address after the stack's highest byte.
    pub(crate) fn top(&self) -> *mut () {
        self.top.as_ptr().cast()
    }

    fn restore(&mut self) {
        let Some(Mapping { memory, length, before, process }) = self.mapping.take() else {
            // The key exists, so this cannot fail.
            let _ = GUARD.set(ptr::null::<u8>());
            return;
        };
        // In a child of fork(2), its own block may be using the stack.
        if process.is_current() {
            // The key exists, so this cannot fail.
            let _ = GUARD.set(ptr::null::<u8>());
            let former = before.ss_sp as usize..before.ss_sp as usize + before.ss_size;
            let is_mapped = code::is_mapped(&former).unwrap_or(false);
            let none = libc::stack_t { ss_flags: libc::SS_DISABLE, ..before };
            // SAFETY: the former stack exists, unless its owner has freed it, as the standard library
            // does at the end of a thread. The mapping is unused once another stack replaces it.
            unsafe {
                libc::sigaltstack(if is_mapped { &before } else { &none }, ptr::null_mut());
                let _ = munmap(memory.as_ptr(), length);
            }
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.restore();
    }
}

fn check(result: libc::c_int) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    Err(Error::system("sigaltstack")(io::Error::last_os_error()))
}
