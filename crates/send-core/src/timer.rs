//! A thread's interval timer: timer_create(2).
//!
//! A server without batches has no point at which it would check the clock, so time is reported as
//! an event (SEND 4.3). The timer interrupts by the notification signal. The clock determines the
//! elapsed periods, so that none is lost if the signal is coalesced.

use std::io;
use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use shared_ring::author::Process;

use crate::{Error, notification};

/// Maximum period, one year; longer ones are clamped to it.
const MAX_PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);

/// An interval timer that interrupts its thread.
#[derive(Debug)]
pub(crate) struct Timer {
    id: libc::timer_t,
    period: Duration,
    /// End of the next period, while the timer runs.
    due: Option<Instant>,
    /// The owner. A child of fork(2) does not inherit the timer, but may have one of the same id.
    process: Process,
}

impl Timer {
    /// Creates a stopped timer for a thread of this process.
    pub(crate) fn new(thread: i32) -> Result<Self, Error> {
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = notification::NOTIFICATION;
        event.sigev_notify_thread_id = thread;
        let mut id = ptr::null_mut();
        // SAFETY: `event` is read, and `id` written, during the call.
        check(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut id) })?;
        Ok(Timer { id, period: Duration::ZERO, due: None, process: Process::current() })
    }

    /// Starts the timer, or stops it with `None`.
    pub(crate) fn set(&mut self, period: Option<Duration>) -> Result<(), Error> {
        let period = period.unwrap_or(Duration::ZERO).min(MAX_PERIOD);
        let time = libc::timespec {
            tv_sec: period.as_secs().min(i64::MAX as u64) as libc::time_t,
            tv_nsec: period.subsec_nanos().into(),
        };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // Computed before the timer starts: if the signal seemed to be early, its period would be
        // reported one period late.
        let due = Instant::now() + period;
        // SAFETY: the timer exists until `self` is dropped.
        check(unsafe { libc::timer_settime(self.id, 0, &times, ptr::null_mut()) })?;
        self.period = period;
        self.due = (!period.is_zero()).then_some(due);
        Ok(())
    }

    /// Returns the end of the next period.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the periods elapsed since the last call. May be called in a signal handler.
    pub(crate) fn elapsed(&mut self) -> u16 {
        let Some(due) = self.due else { return 0 };
        let Some(late) = Instant::now().checked_duration_since(due) else { return 0 };
        let full_periods = late.as_nanos() / self.period.as_nanos();
        let periods = u32::try_from(full_periods).unwrap_or(u32::MAX - 1) + 1;
        self.due = Some(due + self.period * periods);
        periods.min(u16::MAX.into()) as u16
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: the timer exists, and is not used any more.
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
