//! Bounds by a clock (section 4.1.2). A thread ticks by the wall clock; a handler ends at a tick only if its own thread has
//! run for half a tick since the first.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use shared_ring::author::Process;
use wasmtime::{EngineWeak, UpdateDeadline};

/// Shortest time between two ticks.
const MIN_TICK: Duration = Duration::from_micros(100);

/// The ticks that bound handlers by epochs. They stop when it is dropped, so each handler has one.
pub(crate) struct Clock {
    tick: Duration,
    /// The process that has the thread.
    process: Process,
    /// The thread that ticks ends with it.
    _alive: Sender<Infallible>,
}

impl Clock {
    /// Starts the thread that ticks.
    pub(crate) fn start(tick: Duration, engine: EngineWeak) -> io::Result<Self> {
        let tick = tick.max(MIN_TICK);
        let (alive, ends) = mpsc::channel();
        let ticks = move || {
            run_above_others();
            while let Err(RecvTimeoutError::Timeout) = ends.recv_timeout(tick) {
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
            }
        };
        thread::Builder::new().name("ash-clock".into()).spawn(ticks)?;
        Ok(Clock { tick, process: Process::current(), _alive: alive })
    }

    /// Returns the time between two ticks.
    pub(crate) fn tick(&self) -> Duration {
        self.tick
    }

    /// Returns whether it ticks in this process: a child of fork(2) has no copy of the thread.
    pub(crate) fn ticks_here(&self) -> bool {
        self.process.is_current()
    }

    /// Returns the [maximum nanoseconds](max_ns) that an invocation is charged for.
    pub(crate) fn max_ns(&self) -> u64 {
        max_ns(self.tick)
    }
}

/// Returns the maximum nanoseconds that an invocation is charged for with this time between ticks, if no tick is late: one
/// tick until the first tick; less than half a tick of its own thread until a later one, which does not interrupt it; one tick
/// until it is interrupted.
pub(crate) fn max_ns(tick: Duration) -> u64 {
    let tick = tick.max(MIN_TICK);
    u64::try_from((tick.saturating_mul(5) / 2).as_nanos()).unwrap_or(u64::MAX)
}

/// Lets this thread run on all cores that the process may use, before real-time threads of a priority below the highest that is
/// permitted: a handler that runs for too long in such a thread would stop the ticks that end it. Threads inherit both from
/// their creator.
fn run_above_others() {
    let mut cores = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| cores.set(core));
    let _ = sched_setaffinity(None, &cores);
    // SAFETY: it returns a number.
    let highest = unsafe { libc::sched_get_priority_max(libc::SCHED_FIFO) };
    if set_priority(highest) {
        return;
    }
    // Without CAP_SYS_NICE, the kernel permits priorities up to the limit. An inherited one may be above it.
    let limit = getrlimit(Resource::Rtprio).current;
    let limit =
        limit.and_then(|limit| i32::try_from(limit).ok()).map_or(highest, |l| l.min(highest));
    if limit > priority() {
        set_priority(limit);
    }
}

/// Makes this thread real-time with a priority. Returns whether that is permitted.
fn set_priority(priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters are read during the call; 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}

/// Returns the real-time priority of this thread, or 0.
fn priority() -> i32 {
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are written during the call; 0 is this thread.
    let _ = unsafe { libc::sched_getparam(0, &raw mut parameters) };
    parameters.sched_priority
}

/// The time of a handler's own thread in an invocation, without that of other threads. It is read when a tick has passed,
/// so that shorter invocations need no system call.
#[derive(Debug, Default)]
pub(crate) struct OwnTime {
    /// The CPU time of the thread at the first tick of the invocation.
    at_first_tick: Option<Duration>,
}

impl OwnTime {
    /// Decides at a tick: the handler ends if its thread has run for half a tick since the first.
    pub(crate) fn at_tick(&mut self, tick: Duration) -> UpdateDeadline {
        self.at_tick_of(tick, of_this_thread())
    }

    fn at_tick_of(&mut self, tick: Duration, now: Duration) -> UpdateDeadline {
        let first = *self.at_first_tick.get_or_insert(now);
        if now.saturating_sub(first) >= tick / 2 {
            UpdateDeadline::Interrupt
        } else {
            UpdateDeadline::Continue(1)
        }
    }

    /// Returns the time of an invocation that took this long by the wall clock: a tick at most until the first tick, and
    /// what its own thread used since then.
    pub(crate) fn of(&self, elapsed: Duration, tick: Duration) -> Duration {
        let since = self.at_first_tick.map(|first| of_this_thread().saturating_sub(first));
        elapsed.min(tick + since.unwrap_or_default())
    }
}

/// Returns the CPU time that this thread has used.
fn of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_other_threads_ended_a_handler() {
        let (mut time, tick) = (OwnTime::default(), Duration::from_millis(1));
        let mut ends = |now| match time.at_tick_of(tick, Duration::from_micros(now)) {
            UpdateDeadline::Interrupt => true,
            UpdateDeadline::Continue(ticks) => ticks != 1,
            _ => panic!("it yields"),
        };
        // The thread runs for a little of each tick.
        for now in [7_000, 7_100, 7_200, 7_300, 7_499] {
            assert!(!ends(now), "at {now}");
        }
        assert!(ends(7_500));
    }
}
