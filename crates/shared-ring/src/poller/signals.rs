//! A thread's queue of real-time signals.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::time::Duration;

use super::{Readiness, timespec};
use crate::linux::{borrow, signal_to_this_thread, signals_to_this_thread};
use crate::{Fd, Process};

/// A bounded queue of signals that tell what happens to descriptors.
pub trait SignalSource {
    /// How many marks signals can have.
    const MAX_MARKS: u8;

    /// The most that are taken at a time while others are being served: a bound for when peers make them
    /// as fast as they are taken.
    const MAX_BATCH: usize;

    /// Has what happens to a descriptor from now on signalled, with a mark.
    ///
    /// # Errors
    /// When the descriptor can't signal.
    fn watch(&mut self, fd: Fd, mark: u8) -> io::Result<()>;

    /// Ends that, unless the descriptor was closed and its number is another's. What is queued stays so.
    fn ignore(&mut self, fd: Fd);

    /// The same for a descriptor that is about to be closed, which ends it by itself.
    fn forget(&mut self, fd: Fd);

    /// Takes the next signal; waits for it, for ever with `None`. There is none when the time is over,
    /// or when another signal was handled. A call that does not wait finds none only if the queue is
    /// empty.
    ///
    /// # Errors
    /// Those of sigtimedwait(2).
    fn take(&mut self, timeout: Option<Duration>) -> io::Result<Option<Signal>>;

    /// System calls made so far.
    fn system_calls(&self) -> u64;
}

/// What a signal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A descriptor that had this number and this mark when it was sent has become ready.
    Ready(Fd, u8, Readiness),
    /// There was no room for a signal.
    Overflow,
}

/// Those of the calling thread, which are blocked in it as long as this lives. In a child of fork(2) there
/// are none, as they are sent to the parent.
pub struct SignalQueue {
    signals: libc::sigset_t,
    /// Those that it has blocked.
    blocked: libc::sigset_t,
    /// The number that stands for the first mark.
    first: libc::c_int,
    system_calls: u64,
    /// The process whose signals they are.
    process: Process,
    /// Stays in its thread, to which signals are sent.
    here: PhantomData<*const ()>,
}

thread_local! {
    /// The process in which this thread has a queue; a child of fork(2) may make one of its own.
    static IN_USE: Cell<Option<Process>> = const { Cell::new(None) };
}

const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;

/// `siginfo_t` of a signal that tells of a descriptor (sigaction(2), `si_band` and `si_fd`).
#[repr(C)]
struct SigInfo {
    signal: libc::c_int,
    _errno: libc::c_int,
    code: libc::c_int,
    of: SigPoll,
}

#[repr(C)]
struct SigPoll {
    band: libc::c_long,
    fd: libc::c_int,
}

impl SignalQueue {
    /// Blocks the signals that are used, in the calling thread.
    ///
    /// # Errors
    /// When the thread has such a queue already.
    pub(crate) fn new() -> io::Result<Self> {
        let process = Process::current();
        if IN_USE.get() == Some(process) {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "this thread takes its real-time signals elsewhere already",
            ));
        }
        let first = libc::SIGRTMIN() + 1;
        // SAFETY: plain C structures, for which all zero bytes are a valid value.
        let (mut signals, mut blocked): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut before: libc::sigset_t = unsafe { mem::zeroed() };
        let numbers = (first..first + libc::c_int::from(Self::MAX_MARKS)).chain([libc::SIGIO]);
        // SAFETY: all three are live signal sets, and the numbers are those of signals.
        unsafe {
            libc::sigemptyset(&mut signals);
            libc::sigemptyset(&mut blocked);
            for number in numbers.clone() {
                libc::sigaddset(&mut signals, number);
            }
            check(libc::pthread_sigmask(libc::SIG_BLOCK, &signals, &mut before))?;
            for number in numbers.filter(|number| libc::sigismember(&before, *number) == 0) {
                libc::sigaddset(&mut blocked, number);
            }
        }
        IN_USE.set(Some(process));
        Ok(SignalQueue { signals, blocked, first, system_calls: 0, process, here: PhantomData })
    }

    /// Whether what happens to a descriptor is told to this queue: the number may be a stranger's now.
    fn is_watched(&self, fd: Fd) -> bool {
        // SAFETY: asks for a number.
        let signal = unsafe { libc::fcntl(fd.raw(), F_GETSIG) };
        let marks = self.first..self.first + libc::c_int::from(Self::MAX_MARKS);
        marks.contains(&signal) && signals_to_this_thread(borrow(&fd)) == Ok(true)
    }

    fn set_async(&mut self, fd: Fd, on: bool) -> io::Result<()> {
        let on = libc::c_int::from(on);
        self.system_calls += 1;
        // SAFETY: the request reads one integer, from where this one is (ioctl(2), FIOASYNC).
        let result = unsafe { libc::ioctl(fd.raw(), libc::FIOASYNC, &raw const on) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

fn check(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

impl SignalSource for SignalQueue {
    const MAX_MARKS: u8 = 4;
    const MAX_BATCH: usize = 1 << 14;

    fn watch(&mut self, fd: Fd, mark: u8) -> io::Result<()> {
        let number = self.first + libc::c_int::from(mark);
        self.system_calls += 2;
        // SAFETY: passes numbers.
        if unsafe { libc::fcntl(fd.raw(), F_SETSIG, number) } < 0 {
            return Err(io::Error::last_os_error());
        }
        signal_to_this_thread(borrow(&fd))?;
        self.set_async(fd, true)
    }

    fn ignore(&mut self, fd: Fd) {
        if self.is_watched(fd) {
            // What was watched can be left alone.
            let _ = self.set_async(fd, false);
        }
    }

    fn forget(&mut self, _fd: Fd) {}

    fn take(&mut self, timeout: Option<Duration>) -> io::Result<Option<Signal>> {
        let timeout = timeout.map(timespec);
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: a plain C structure, for which all zero bytes are a valid value.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        loop {
            self.system_calls += 1;
            // SAFETY: the set and `info` are live, `timeout` is null or points to a live value.
            let signal = unsafe { libc::sigtimedwait(&self.signals, &mut info, timeout) };
            if signal == -1 {
                let error = io::Error::last_os_error();
                let over = [Some(libc::EAGAIN), Some(libc::EINTR)].contains(&error.raw_os_error());
                return if over { Ok(None) } else { Err(error) };
            }
            if signal == libc::SIGIO {
                return Ok(Some(Signal::Overflow));
            }
            // SAFETY: `SigInfo` is the beginning of every `siginfo_t`, laid out as the kernel does for
            // signals of descriptors; of others, the fields are numbers that mean something else.
            let info: &SigInfo = unsafe { &*ptr::from_ref(&info).cast() };
            // What a program sends has no such code (sigaction(2), `si_code`).
            if (POLL_IN..=POLL_HUP).contains(&info.code) {
                let mark = (info.signal - self.first) as u8;
                let ready = Readiness::from_poll(info.of.band as i16);
                return Ok(Some(Signal::Ready(Fd::from_raw(info.of.fd), mark, ready)));
            }
        }
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}

const POLL_IN: libc::c_int = 1;
const POLL_HUP: libc::c_int = 6;

impl Drop for SignalQueue {
    /// What is left goes, as it would end the process once it is no longer blocked.
    fn drop(&mut self) {
        if IN_USE.get() != Some(self.process) {
            // The child of fork(2) in which this is a copy has made a queue of its own.
            return;
        }
        while let Ok(Some(_)) = self.take(Some(Duration::ZERO)) {}
        // SAFETY: a live signal set, that of signals which this thread did not block before.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &self.blocked, ptr::null_mut()) };
        IN_USE.set(None);
    }
}
