//! A thread's interval timer: timer_create(2).
//!
//! A server without a batch has no moment at which it would look at the clock, so time comes to it as
//! an event (SEND 4.3). The timer interrupts by the signal of notification; which of its periods
//! have passed the clock tells, so that none is lost when the signal is coalesced with another.

use std::io;
use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use shared_ring::Process;

use crate::{Error, signals};

/// Longer periods are taken for this one, a year.
const MAX_PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);

/// An interval timer that interrupts its thread.
#[derive(Debug)]
pub(crate) struct Timer {
    id: libc::timer_t,
    every: Duration,
    /// When the next period ends, while it runs.
    due: Option<Instant>,
    /// The process that has it. A child of fork(2) does not, and may have another of its number.
    process: Process,
}

impl Timer {
    /// Makes one for a thread of this process; it does not run yet.
    pub(crate) fn new(thread: i32) -> Result<Self, Error> {
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signals::NOTIFICATION;
        event.sigev_notify_thread_id = thread;
        let mut id = ptr::null_mut();
        // SAFETY: `event` is read, and `id` written, during the call.
        check(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut id) })?;
        Ok(Timer { id, every: Duration::ZERO, due: None, process: Process::current() })
    }

    /// Has it run, or stops it with `None`.
    pub(crate) fn set(&mut self, every: Option<Duration>) -> Result<(), Error> {
        let every = every.unwrap_or(Duration::ZERO).min(MAX_PERIOD);
        let time = libc::timespec {
            tv_sec: every.as_secs().min(i64::MAX as u64) as libc::time_t,
            tv_nsec: every.subsec_nanos().into(),
        };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // Before it runs: what seems to come early would be told of a whole period later.
        let due = Instant::now() + every;
        // SAFETY: the timer is there until `self` is dropped.
        check(unsafe { libc::timer_settime(self.id, 0, &times, ptr::null_mut()) })?;
        self.every = every;
        self.due = (!every.is_zero()).then_some(due);
        Ok(())
    }

    /// When the next period ends.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// How many periods have ended since this was asked last. It may be called in a signal handler.
    pub(crate) fn passed(&mut self) -> u16 {
        let Some(due) = self.due else { return 0 };
        let Some(late) = Instant::now().checked_duration_since(due) else { return 0 };
        let whole = late.as_nanos() / self.every.as_nanos();
        let periods = u32::try_from(whole).unwrap_or(u32::MAX - 1) + 1;
        self.due = Some(due + self.every * periods);
        periods.min(u16::MAX.into()) as u16
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: the timer is there, and not used any more.
            unsafe { libc::timer_delete(self.id) };
        }
    }
}

fn check(result: libc::c_int) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    Err(Error::system("an interval timer")(io::Error::last_os_error()))
}
