//! The notification signal, and sending signals to threads.
//!
//! `SIGIO` is a standard signal, of which the kernel queues one, however often it is sent.

use std::io;
use std::mem;

use rustix::thread::gettid;

/// The notification signal.
pub(crate) const NOTIFICATION: i32 = libc::SIGIO;

/// Unblocks the notification signal in the calling thread. Returns whether it was blocked.
pub(crate) fn unblock() -> bool {
    // SAFETY: plain C structures for which all zero bytes are a valid value.
    let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
    // SAFETY: `set` and `before` are live signal sets. No call fails for an existing signal.
    unsafe {
        libc::sigaddset(&mut set, NOTIFICATION);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, &mut before);
        libc::sigismember(&before, NOTIFICATION) == 1
    }
}

/// Interrupts a thread of this process. Returns false if it has ended.
pub(crate) fn notify(thread: i32) -> bool {
    send(thread, NOTIFICATION)
}

/// Sends a signal to the calling thread. May be called in a signal handler.
pub(crate) fn send_to_this_thread(signal: i32) {
    send(gettid().as_raw_nonzero().get(), signal);
}

/// Sends a signal to a thread of this process. Returns false if it has ended. May be called in a
/// signal handler.
pub(crate) fn send(thread: i32, signal: i32) -> bool {
    // SAFETY: passes numbers. If another thread has the number meanwhile, there is no harm: the
    // signal has a handler in all threads.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}
