//! Signals: how a thread is interrupted, and events in their own right.
//!
//! All signals of this crate come to one handler. `SIGIO` is that of notification: a standard
//! signal, of which the kernel keeps one, however often it is sent.
//!
//! The handlers are the process', and a child of fork(2) inherits them. To it the signals are no events: as soon
//! as it exists each does what it did before (pthread_atfork(3)), or, in a child of which the C library does
//! not know, as soon as one comes or the child makes a block.

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use rustix::thread::gettid;
use shared_ring::Process;

use crate::Error;
use crate::context::Context;
use crate::gate::{self, SIGNAL_COUNT};

/// The signal of notification.
pub(crate) const NOTIFICATION: i32 = libc::SIGIO;

/// The signals that are handled here.
static CLAIMS: [Claim; SIGNAL_COUNT] = [const { Claim::new() }; SIGNAL_COUNT];

/// The number of the process whose claims they are; 0 before there are any.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// A signal's owner, and what was done with the signal before: nothing but the default, or to ignore it, so
/// that of a `sigaction` the handler and the flags are all there is.
struct Claim {
    /// The thread to which it is an event; 0 for none, [`CLAIMING`] while one is about to have it.
    owner: AtomicI32,
    handler: AtomicUsize,
    flags: AtomicI32,
}

/// What was done before is not known yet, and not changed either.
const CLAIMING: i32 = -1;

impl Claim {
    const fn new() -> Self {
        let (owner, handler, flags) = (AtomicI32::new(0), AtomicUsize::new(0), AtomicI32::new(0));
        Claim { owner, handler, flags }
    }

    /// Claims it for a thread, if it is nobody's, and has it handled.
    fn claim(&self, signal: i32, thread: i32) -> Result<(), Error> {
        let begun = self.owner.compare_exchange(0, CLAIMING, Ordering::AcqRel, Ordering::Acquire);
        if begun.is_err() {
            return Err(Error::SignalInUse(signal));
        }
        let claimed = former(signal).and_then(|former| {
            self.handler.store(former.sa_sigaction, Ordering::Relaxed);
            self.flags.store(former.sa_flags, Ordering::Relaxed);
            // From here on a child can put back what was done before.
            self.owner.store(thread, Ordering::Release);
            install(signal)
        });
        claimed.inspect_err(|_| self.owner.store(0, Ordering::Release))
    }

    /// Has done with it what was done before. It may be called in a signal handler.
    fn give_back(&self, signal: i32) {
        if self.owner.load(Ordering::Acquire) > 0 {
            // SAFETY: a plain C structure, for which all zero bytes are a valid value.
            let mut before: libc::sigaction = unsafe { mem::zeroed() };
            before.sa_sigaction = self.handler.load(Ordering::Relaxed);
            before.sa_flags = self.flags.load(Ordering::Relaxed);
            // SAFETY: nothing is called by it.
            unsafe { libc::sigaction(signal, &before, ptr::null_mut()) };
        }
        self.owner.store(0, Ordering::Release);
    }
}

/// Whether the claims are those of a process from which this one was forked. It may be called in a signal
/// handler.
fn are_a_parents() -> bool {
    let claimed_in = PROCESS.load(Ordering::Relaxed);
    claimed_in != 0 && claimed_in != Process::current().number()
}

/// Has done with all signals what was done before they were claimed by the process from which this one was
/// forked. It may be called in a signal handler, and between fork(2) and whatever a child does.
pub(crate) fn leave_to_parent() {
    if !are_a_parents() {
        return;
    }
    for (signal, claim) in CLAIMS.iter().enumerate() {
        if claim.owner.load(Ordering::Relaxed) != 0 {
            claim.give_back(signal as i32);
        }
    }
    PROCESS.store(Process::current().number(), Ordering::Relaxed);
}

/// What the kernel calls.
extern "C" fn handle(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the place of this thread's error number is always there.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. Calls made here must not change what the interrupted code will read.
    let before = unsafe { *errno };
    if are_a_parents() {
        leave_to_parent();
        // It waits until this returns, and then does what it did before.
        send_to_this_thread(signal);
    } else {
        // SAFETY: this is the handler that was given the context, and it runs until the end of this.
        gate::interrupted(signal, unsafe { Context::from_raw(context.cast()) });
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

fn ours() -> libc::sighandler_t {
    handle as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)
        as libc::sighandler_t
}

/// What is done with a signal, which is nothing that another part of the program has to do.
fn former(signal: i32) -> Result<libc::sigaction, Error> {
    // SAFETY: a plain C structure, for which all zero bytes are a valid value.
    let mut former: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: asks for the current action only.
    check(unsafe { libc::sigaction(signal, ptr::null(), &mut former) })?;
    if [libc::SIG_DFL, libc::SIG_IGN, ours()].contains(&former.sa_sigaction) {
        return Ok(former);
    }
    Err(Error::SignalInUse(signal))
}

/// Has a signal handled.
fn install(signal: i32) -> Result<(), Error> {
    // SAFETY: a plain C structure, for which all zero bytes are a valid value.
    let mut new: libc::sigaction = unsafe { mem::zeroed() };
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
    check(unsafe { libc::sigaction(signal, &new, ptr::null_mut()) })
}

fn check(result: libc::c_int) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    Err(Error::system("sigaction")(io::Error::last_os_error()))
}

/// Has the signal of notification handled, for good, and lets the calling thread have it.
pub(crate) fn begin_notification(thread: i32) -> Result<(), Error> {
    leave_to_parent();
    PROCESS.store(Process::current().number(), Ordering::Relaxed);
    if CLAIMS[NOTIFICATION as usize].claim(NOTIFICATION, thread).is_err() {
        // Another thread has done so, or is about to. What was done before is known to the first.
        former(NOTIFICATION)?;
        install(NOTIFICATION)?;
    }
    unblock_notification();
    Ok(())
}

/// Lets the signal of notification through to the calling thread; whether it was blocked.
pub(crate) fn unblock_notification() -> bool {
    // SAFETY: plain C structures for which all zero bytes are a valid value.
    let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
    // SAFETY: `set` and `before` are live signal sets. No call fails for a signal that there is.
    unsafe {
        libc::sigaddset(&mut set, NOTIFICATION);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, &mut before);
        libc::sigismember(&before, NOTIFICATION) == 1
    }
}

/// Interrupts a thread of this process.
pub(crate) fn notify(thread: i32) {
    send(thread, NOTIFICATION);
}

/// Has a signal come again, when it is no longer blocked. It may be called in a signal handler.
pub(crate) fn send_to_this_thread(signal: i32) {
    send(gettid().as_raw_nonzero().get(), signal);
}

fn send(thread: i32, signal: i32) {
    // SAFETY: it passes numbers. That the thread has ended meanwhile does no harm: the signal has a
    // handler, wherever it arrives.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
}

/// Makes a signal an event of a thread, which has a block.
pub(crate) fn claim(signal: i32, thread: i32) -> Result<(), Error> {
    CLAIMS[signal as usize].claim(signal, thread)
}

/// Gives a signal back to whoever had it before.
pub(crate) fn give_back(signal: i32) {
    CLAIMS[signal as usize].give_back(signal);
}

/// The thread whose event a signal is; 0 or less for none.
pub(crate) fn owner(signal: i32) -> i32 {
    CLAIMS[signal as usize].owner.load(Ordering::Acquire)
}

/// A signal has come to a thread that has no use for it: it goes to the one whose event it is.
pub(crate) fn forward(signal: i32) {
    let owner = owner(signal);
    if owner > 0 {
        send(owner, signal);
    }
}
