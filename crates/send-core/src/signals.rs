//! Signals: interruption of threads, and signals as events.
//!
//! One handler receives all signals of this crate.
//!
//! A child of fork(2) inherits the process' handlers, but the signals are not events of the child.
//! Their former actions are restored at once (pthread_atfork(3)). In a child unknown to the C
//! library this happens when a signal arrives or the child defines a block.

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use shared_ring::author::Process;

use crate::Error;
use crate::context::Context;
use crate::gate::{self, SIGNAL_COUNT};
use crate::notification::{NOTIFICATION, send, send_to_this_thread, unblock};

/// Claims of the signals that this crate handles.
static CLAIMS: [Claim; SIGNAL_COUNT] = [const { Claim::new() }; SIGNAL_COUNT];

/// The process that owns the claims, or 0 before the first claim.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// A signal's owner and its former action. That was the default or to ignore the signal, so the
/// handler and flags of its `sigaction` are sufficient.
struct Claim {
    /// The thread whose event the signal is, or 0.
    owner: AtomicI32,
    /// The handler of the former action, or [`UNRECORDED`].
    handler: AtomicUsize,
    flags: AtomicI32,
}

/// No former action is recorded.
const UNRECORDED: usize = libc::SIG_ERR;

impl Claim {
    const fn new() -> Self {
        let owner = AtomicI32::new(0);
        let (handler, flags) = (AtomicUsize::new(UNRECORDED), AtomicI32::new(0));
        Claim { owner, handler, flags }
    }

    /// Claims the signal for a thread, if it is not claimed, and installs the handler.
    fn claim(&self, signal: i32, thread: i32) -> Result<(), Error> {
        let begun = self.owner.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire);
        if begun.is_err() {
            return Err(Error::SignalInUse(signal));
        }
        self.install(signal).inspect_err(|_| self.owner.store(0, Ordering::Release))
    }

    /// Records the former action, and installs the handler. Several threads may do so at once: the
    /// first records before it installs, and the others see the same action, or the handler.
    fn install(&self, signal: i32) -> Result<(), Error> {
        self.record(former(signal)?);
        // From here on, a child can restore the former action.
        install(signal)
    }

    /// Records an action that is not the handler.
    fn record(&self, former: libc::sigaction) {
        if former.sa_sigaction != handler_address() {
            self.flags.store(former.sa_flags, Ordering::Relaxed);
            self.handler.store(former.sa_sigaction, Ordering::Release);
        }
    }

    /// Restores the former action. May be called in a signal handler.
    fn restore(&self, signal: i32) {
        let handler = self.handler.load(Ordering::Acquire);
        if handler != UNRECORDED {
            // SAFETY: a plain C structure, for which all zero bytes are a valid value.
            let mut before: libc::sigaction = unsafe { mem::zeroed() };
            before.sa_sigaction = handler;
            before.sa_flags = self.flags.load(Ordering::Relaxed);
            // SAFETY: it only installs the former action.
            unsafe { libc::sigaction(signal, &before, ptr::null_mut()) };
            self.handler.store(UNRECORDED, Ordering::Relaxed);
        }
        self.owner.store(0, Ordering::Release);
    }
}

/// Returns whether the claims belong to a parent process. May be called in a signal handler.
fn belong_to_parent() -> bool {
    let owner = PROCESS.load(Ordering::Relaxed);
    owner != 0 && owner != Process::current().number()
}

/// In a child process, restores the former actions of all signals that the parent claimed. May be
/// called in a signal handler, and right after fork(2) in a child.
pub(crate) fn restore_in_child() {
    if !belong_to_parent() {
        return;
    }
    for (signal, claim) in CLAIMS.iter().enumerate() {
        // That of SIGIO may have no owner.
        claim.restore(signal as i32);
    }
    PROCESS.store(Process::current().number(), Ordering::Relaxed);
}

/// The signal handler.
extern "C" fn handle(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the location of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. Calls made here must not change the errno of the interrupted code.
    let before = unsafe { *errno };
    if belong_to_parent() {
        restore_in_child();
        // It stays pending until this returns, and then has its former action.
        send_to_this_thread(signal);
    } else {
        // SAFETY: this is the handler that got the context, and it runs until the end of this call.
        gate::interrupted(signal, unsafe { Context::from_raw(context.cast()) });
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

fn handler_address() -> libc::sighandler_t {
    handle as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)
        as libc::sighandler_t
}

/// Returns a signal's action. May be called in a signal handler.
fn action(signal: i32) -> Result<libc::sigaction, Error> {
    // SAFETY: a plain C structure, for which all zero bytes are a valid value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: only queries the current action.
    check(unsafe { libc::sigaction(signal, ptr::null(), &mut action) })?;
    Ok(action)
}

/// Returns a signal's action. Fails if another part of the program handles it.
fn former(signal: i32) -> Result<libc::sigaction, Error> {
    let former = action(signal)?;
    if [libc::SIG_DFL, libc::SIG_IGN, handler_address()].contains(&former.sa_sigaction) {
        return Ok(former);
    }
    Err(Error::SignalInUse(signal))
}

/// Installs the handler for a signal.
fn install(signal: i32) -> Result<(), Error> {
    // SAFETY: a plain C structure, for which all zero bytes are a valid value.
    let mut new: libc::sigaction = unsafe { mem::zeroed() };
    new.sa_sigaction = handler_address();
    new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // One signal at a time, as the stack is small. Faults cannot be deferred.
    // SAFETY: `sa_mask` is a live signal set.
    unsafe {
        libc::sigfillset(&mut new.sa_mask);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(&mut new.sa_mask, fault);
        }
    }
    // SAFETY: the handler only makes async-signal-safe calls.
    check(unsafe { libc::sigaction(signal, &new, ptr::null_mut()) })
}

fn check(result: libc::c_int) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    Err(Error::system("sigaction")(io::Error::last_os_error()))
}

/// Permanently handles the notification signal, and unblocks it in the calling thread.
pub(crate) fn begin_notification(thread: i32) -> Result<(), Error> {
    restore_in_child();
    PROCESS.store(Process::current().number(), Ordering::Relaxed);
    let claim = &CLAIMS[NOTIFICATION as usize];
    if claim.claim(NOTIFICATION, thread).is_err() {
        // Another thread has claimed it, or is claiming it.
        claim.install(NOTIFICATION)?;
    }
    unblock();
    Ok(())
}

/// Makes a signal the event of a thread that has a block.
pub(crate) fn claim(signal: i32, thread: i32) -> Result<(), Error> {
    CLAIMS[signal as usize].claim(signal, thread)
}

/// Restores a signal's former action.
pub(crate) fn restore(signal: i32) {
    CLAIMS[signal as usize].restore(signal);
}

/// Returns the thread whose event a signal is, or 0.
pub(crate) fn owner(signal: i32) -> i32 {
    CLAIMS[signal as usize].owner.load(Ordering::Acquire)
}

/// Forwards a signal that arrived at another thread to the one whose event it is.
pub(crate) fn forward(signal: i32) {
    let mut owner = owner(signal);
    if owner == 0 {
        if !is_handled(signal) {
            // Released since it arrived. It stays pending until the handler returns, and then has its
            // former action.
            return send_to_this_thread(signal);
        }
        // A thread has claimed it again, or other code has restored the handler.
        owner = self::owner(signal);
    }
    if owner > 0 {
        send(owner, signal);
    }
}

/// Returns whether a signal's action is the handler. May be called in a signal handler.
fn is_handled(signal: i32) -> bool {
    action(signal).is_ok_and(|action| action.sa_sigaction == handler_address())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler_of(signal: i32) -> libc::sighandler_t {
        former(signal).unwrap().sa_sigaction
    }

    #[test]
    fn second_thread_installed_the_handler_while_the_first_recorded_the_former_action() {
        // The second thread installs before the first has read the action, or after that.
        for second_is_first in [true, false] {
            let (claim, signal) = (Claim::new(), libc::SIGXFSZ);
            let read_early = former(signal).unwrap();
            claim.install(signal).unwrap();
            assert_eq!(handler_of(signal), handler_address());
            let read = if second_is_first { former(signal).unwrap() } else { read_early };
            claim.record(read);
            install(signal).unwrap();

            claim.restore(signal);
            assert_eq!(handler_of(signal), libc::SIG_DFL);
        }
    }

    #[test]
    fn signal_that_its_owner_had_released_was_lost() {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        extern "C" fn count(_: libc::c_int) {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        let count = count as extern "C" fn(libc::c_int);
        // SAFETY: the handler adds to an atomic number.
        let before = unsafe { libc::signal(libc::SIGUSR1, count as libc::sighandler_t) };
        forward(libc::SIGUSR1);
        assert_eq!(COUNT.load(Ordering::Relaxed), 1);
        // SAFETY: the action of before.
        unsafe { libc::signal(libc::SIGUSR1, before) };
    }

    #[test]
    fn signal_without_owner_whose_handler_other_code_restored_is_ignored() {
        install(libc::SIGUSR2).unwrap();
        forward(libc::SIGUSR2);
        // SAFETY: the default action.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_DFL) };
    }

    #[test]
    fn claim_can_be_repeated_after_it_was_restored() {
        let (claim, signal) = (Claim::new(), libc::SIGXCPU);
        for _ in 0..2 {
            claim.claim(signal, 1).unwrap();
            assert!(matches!(claim.claim(signal, 2), Err(Error::SignalInUse(_))));
            assert_eq!(handler_of(signal), handler_address());
            claim.restore(signal);
            assert_eq!(handler_of(signal), libc::SIG_DFL);
        }
    }
}
