//! Signals: how a thread is interrupted, and events in their own right.
//!
//! All signals of this crate come to one handler. `SIGIO` is that of notification: a standard
//! signal, of which the kernel keeps one, however often it is sent.

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::context::Context;
use crate::gate::{self, SIGNALS};
use crate::{Error, EventType};

/// The signal of notification.
pub(crate) const NOTIFICATION: i32 = libc::SIGIO;

/// The threads to which signals are events; 0 for none.
static OWNERS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];

/// What the kernel calls.
extern "C" fn handle(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the place of this thread's error number is always there.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. Calls made here must not change what the interrupted code will read.
    let before = unsafe { *errno };
    // SAFETY: this is the handler that was given the context, and it runs until the end of this.
    gate::interrupted(signal, unsafe { Context::from_raw(context.cast()) });
    // SAFETY: as above.
    unsafe { *errno = before };
}

fn ours() -> libc::sighandler_t {
    handle as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)
        as libc::sighandler_t
}

/// What was done with a signal before.
pub(crate) struct Before(libc::sigaction);

/// Has a signal handled.
fn install(signal: i32) -> Result<Before, Error> {
    // SAFETY: plain C structures, for which all zero bytes are a valid value.
    let (mut old, mut new): (libc::sigaction, libc::sigaction) = unsafe { mem::zeroed() };
    // SAFETY: asks for the current action only.
    check(unsafe { libc::sigaction(signal, ptr::null(), &mut old) })?;
    let taken = ![libc::SIG_DFL, libc::SIG_IGN, ours()].contains(&old.sa_sigaction);
    if taken {
        return Err(Error::SignalInUse(signal));
    }
    new.sa_sigaction = ours();
    new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // One at a time, as the stack is small. Faults can't wait.
    // SAFETY: `sa_mask` is a live signal set.
    unsafe {
        libc::sigfillset(&mut new.sa_mask);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(&mut new.sa_mask, fault);
        }
    }
    // SAFETY: the handler does only what is safe in one.
    check(unsafe { libc::sigaction(signal, &new, ptr::null_mut()) })?;
    Ok(Before(old))
}

fn check(result: libc::c_int) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    Err(Error::system("sigaction")(io::Error::last_os_error()))
}

/// Has the signal of notification handled, for good, and lets the calling thread have it.
pub(crate) fn begin_notification() -> Result<(), Error> {
    install(NOTIFICATION)?;
    unblock_notification();
    Ok(())
}

/// Lets the signal of notification through to the calling thread.
pub(crate) fn unblock_notification() {
    // SAFETY: a plain C structure for which all zero bytes are a valid value.
    let mut set: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: `set` is a live signal set. Neither call fails for a signal that there is.
    unsafe {
        libc::sigaddset(&mut set, NOTIFICATION);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
    }
}

/// Interrupts a thread of this process.
pub(crate) fn notify(thread: i32) {
    send(thread, NOTIFICATION);
}

fn send(thread: i32, signal: i32) {
    // SAFETY: it passes numbers. That the thread has ended meanwhile does no harm: the signal has a
    // handler, wherever it arrives.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
}

/// Makes a signal an event of a thread.
pub(crate) fn claim(kind: EventType, thread: i32) -> Result<Option<Before>, Error> {
    let Some(signal) = kind.as_signal() else { return Ok(None) };
    let owner = &OWNERS[signal as usize];
    if owner.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return Err(Error::SignalInUse(signal));
    }
    install(signal).map(Some).inspect_err(|_| owner.store(0, Ordering::Release))
}

/// Gives a signal back to whoever had it before.
pub(crate) fn give_back(kind: EventType, before: &Before) {
    if let Some(signal) = kind.as_signal() {
        // SAFETY: it was the action before, so what it points to is there still.
        unsafe { libc::sigaction(signal, &before.0, ptr::null_mut()) };
        OWNERS[signal as usize].store(0, Ordering::Release);
    }
}

/// The thread whose event a signal is; 0 for none.
pub(crate) fn owner(signal: i32) -> i32 {
    OWNERS[signal as usize].load(Ordering::Acquire)
}

/// A signal has come to a thread that has no use for it: it goes to the one whose event it is.
pub(crate) fn forward(signal: i32) {
    let owner = owner(signal);
    if owner != 0 {
        send(owner, signal);
    }
}
