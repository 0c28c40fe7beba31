//! A signal when a connection arrives at a listener.
//!
//! The signal is the kernel entry at which a [cooperative](crate::Mode::Cooperative) ring accepts
//! the connection: when the handler runs, or right after, the completion lies in the ring. The
//! handler only records that it ran. SIGIO is a standard signal, so the kernel coalesces it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::OFlags;
use rustix::thread::gettid;

use crate::Fd;
use crate::linux::borrow;

thread_local! {
    /// How many signals this thread has handled. It has no destructor and is never lazily
    /// initialised, so a handler may use it.
    static HANDLED: AtomicU32 = const { AtomicU32::new(0) };
}

extern "C" fn record(_signal: libc::c_int) {
    HANDLED.with(|handled| handled.fetch_add(1, Ordering::Relaxed));
}

fn handled() -> u32 {
    HANDLED.with(|handled| handled.load(Ordering::Relaxed))
}

/// Why the signal can't be used.
#[derive(Debug)]
pub enum SignalError {
    /// Another part of the program handles SIGIO.
    InUse,
    /// The system refused.
    System(io::Error),
}

impl fmt::Display for SignalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SignalError::InUse => f.write_str("another part of the program handles SIGIO"),
            SignalError::System(error) => write!(f, "SIGIO can't be set up: {error}"),
        }
    }
}

impl std::error::Error for SignalError {}

impl From<io::Error> for SignalError {
    fn from(error: io::Error) -> Self {
        SignalError::System(error)
    }
}

/// The listeners' signal, as the calling thread sees it.
#[derive(Debug)]
pub struct ListenerSignal {
    seen: u32,
}

impl ListenerSignal {
    /// Has SIGIO handled, and unblocks it for the calling thread.
    ///
    /// # Errors
    /// When the program handles SIGIO already.
    pub fn new() -> Result<Self, SignalError> {
        let ours = record as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: plain C structures for which all zero bytes are a valid value.
        let (mut old, mut new): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        // SAFETY: asks for the current action only.
        check(unsafe { libc::sigaction(libc::SIGIO, std::ptr::null(), &mut old) })?;
        if ![libc::SIG_DFL, libc::SIG_IGN, ours].contains(&old.sa_sigaction) {
            return Err(SignalError::InUse);
        }
        new.sa_sigaction = ours;
        new.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler only adds to a counter of its own thread, which is safe at any time.
        check(unsafe { libc::sigaction(libc::SIGIO, &new, std::ptr::null_mut()) })?;
        let signal = ListenerSignal { seen: handled() };
        signal.set_blocked(false)?;
        Ok(signal)
    }

    /// Has the kernel signal the calling thread when a connection arrives at `listener`.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn watch(&self, listener: Fd) -> Result<(), SignalError> {
        let owner = Owner { kind: F_OWNER_TID, thread: gettid().as_raw_nonzero().get() };
        // SAFETY: the command reads one `f_owner_ex`, which `Owner` is laid out as.
        check(unsafe { libc::fcntl(listener.raw(), F_SETOWN_EX, &raw const owner) })?;
        let listener = borrow(&listener);
        let flags = rustix::fs::fcntl_getfl(listener).map_err(io::Error::from)?;
        // rustix has no name for O_ASYNC, whose number differs between architectures.
        let async_flag = OFlags::from_bits_retain(libc::O_ASYNC as u32);
        rustix::fs::fcntl_setfl(listener, flags | async_flag).map_err(io::Error::from)?;
        Ok(())
    }

    /// Blocks the signal for the calling thread, or unblocks it. Blocked, connections land at the
    /// kernel entries that the application makes anyway: in batches.
    ///
    /// # Errors
    /// None in practice.
    pub fn set_blocked(&self, blocked: bool) -> Result<(), SignalError> {
        let how = if blocked { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a live signal set, and SIGIO is a signal.
        check(unsafe { libc::sigaddset(&mut set, libc::SIGIO) })?;
        // SAFETY: `set` is a live signal set.
        match unsafe { libc::pthread_sigmask(how, &set, std::ptr::null_mut()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno).into()),
        }
    }

    /// Whether the calling thread has handled the signal since the last call; no system call.
    pub fn take(&mut self) -> bool {
        let handled = handled();
        std::mem::replace(&mut self.seen, handled) != handled
    }
}

const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// `struct f_owner_ex` of fcntl(2).
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    thread: libc::pid_t,
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_owner_is_laid_out_as_the_kernel_has_it() {
        assert_eq!(size_of::<Owner>(), 8);
        assert_eq!(std::mem::offset_of!(Owner, thread), 4);
    }

    #[test]
    fn a_connect_is_recorded_and_a_blocked_signal_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut signal = ListenerSignal::new().unwrap();
        let fd = Fd::from_owned(listener.into());
        signal.watch(fd).unwrap();
        assert!(!signal.take());
        // Over loopback the listener has the connection when connect returns.
        let _one = TcpStream::connect(address).unwrap();
        assert!(signal.take());
        assert!(!signal.take());
        signal.set_blocked(true).unwrap();
        let _two = TcpStream::connect(address).unwrap();
        assert!(!signal.take());
        signal.set_blocked(false).unwrap();
        assert!(signal.take());
        crate::linux::close(fd);
    }
}
