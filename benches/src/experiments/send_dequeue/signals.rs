//! POSIX real-time signals that a thread queues to itself, received by a handler, sigtimedwait(2) or
//! signalfd(2).

use std::hint;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{FromRawFd, OwnedFd};

use super::method::Method;

/// One signal number per method, above those commonly used by libraries.
const HANDLED: i32 = 9;
const WAITED_FOR: i32 = 10;
const READ: i32 = 11;

/// Number of signals handled.
static COUNT: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A real-time signal, blocked in the thread that created it.
struct RtSignals {
    signal: i32,
    set: libc::sigset_t,
}

impl RtSignals {
    fn new(number: i32) -> io::Result<Self> {
        let signal = libc::SIGRTMIN() + number;
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut set: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: `set` is a live signal set.
        check(unsafe { libc::sigaddset(&mut set, signal) })?;
        let queue = RtSignals { signal, set };
        queue.mask(libc::SIG_BLOCK)?;
        Ok(queue)
    }

    fn mask(&self, operation: i32) -> io::Result<()> {
        // SAFETY: the set is live.
        match unsafe { libc::pthread_sigmask(operation, &self.set, ptr::null_mut()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Queues `events` signals, each with its number as the value.
    fn queue(&self, events: u32) -> io::Result<()> {
        for value in 0..events as usize {
            let value = libc::sigval { sival_ptr: ptr::without_provenance_mut(value) };
            // SAFETY: the thread is this one; it passes numbers.
            match unsafe { libc::pthread_sigqueue(libc::pthread_self(), self.signal, value) } {
                0 => {}
                libc::EAGAIN => {
                    let message = "the signal queue is full; raise the limit (ulimit -i)";
                    return Err(io::Error::other(message));
                }
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
        Ok(())
    }
}

/// Signals delivered to a handler.
pub(super) struct Handler(RtSignals);

impl Handler {
    pub(super) fn new() -> io::Result<Self> {
        let queue = RtSignals::new(HANDLED)?;
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        let count: extern "C" fn(_, *mut libc::siginfo_t, *mut libc::c_void) = count;
        action.sa_sigaction = count as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: the handler changes an atomic number.
        check(unsafe { libc::sigaction(queue.signal, &action, ptr::null_mut()) })?;
        Ok(Handler(queue))
    }
}

impl Method for Handler {
    fn name(&self) -> &'static str {
        "signals, handler"
    }

    fn hold(&mut self) -> io::Result<()> {
        self.0.mask(libc::SIG_BLOCK)
    }

    fn queue(&mut self, events: u32) -> io::Result<()> {
        self.0.queue(events)
    }

    fn handle(&mut self, events: u32) -> io::Result<()> {
        let until = self.handled() + u64::from(events);
        self.0.mask(libc::SIG_UNBLOCK)?;
        while self.handled() < until {
            hint::spin_loop();
        }
        Ok(())
    }

    fn handled(&self) -> u64 {
        COUNT.load(Ordering::Relaxed)
    }
}

/// Signals accepted one at a time by sigtimedwait(2).
pub(super) struct Waiting {
    queue: RtSignals,
    handled: AtomicU64,
}

impl Waiting {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Waiting { queue: RtSignals::new(WAITED_FOR)?, handled: AtomicU64::new(0) })
    }
}

impl Method for Waiting {
    fn name(&self) -> &'static str {
        "sigtimedwait"
    }

    fn queue(&mut self, events: u32) -> io::Result<()> {
        self.queue.queue(events)
    }

    fn handle(&mut self, events: u32) -> io::Result<()> {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        for _ in 0..events {
            // SAFETY: a plain C structure for which all zero bytes are a valid value.
            let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
            // SAFETY: the set and the time are read, and `info` written, during the call.
            if unsafe { libc::sigtimedwait(&self.queue.set, &mut info, &now) } < 0 {
                return Err(io::Error::last_os_error());
            }
            self.handled.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }
}

/// Signals read in batches from a signalfd(2).
pub(super) struct Reading {
    queue: RtSignals,
    fd: OwnedFd,
    buffer: Vec<u8>,
    handled: AtomicU64,
}

impl Reading {
    /// Creates a signalfd and a buffer for `max_events` signals.
    pub(super) fn new(max_events: u32) -> io::Result<Self> {
        let queue = RtSignals::new(READ)?;
        // SAFETY: the set is read during the call.
        let fd = unsafe { libc::signalfd(-1, &queue.set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        check(fd.min(0))?;
        // SAFETY: the descriptor was just created, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let buffer = vec![0; max_events as usize * size_of::<libc::signalfd_siginfo>()];
        Ok(Reading { queue, fd, buffer, handled: AtomicU64::new(0) })
    }
}

impl Method for Reading {
    fn name(&self) -> &'static str {
        "signalfd"
    }

    fn queue(&mut self, events: u32) -> io::Result<()> {
        self.queue.queue(events)
    }

    fn handle(&mut self, events: u32) -> io::Result<()> {
        if events > 0 {
            let bytes = rustix::io::read(&self.fd, &mut self.buffer)?;
            for _ in self.buffer[..bytes].chunks_exact(size_of::<libc::signalfd_siginfo>()) {
                self.handled.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }
}
