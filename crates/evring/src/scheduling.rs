//! Scheduling policies of a thread that handles messages.

use std::fmt;
use std::io;
use std::time::Duration;

/// A thread's scheduling among others on its core: sched(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheduling {
    /// As its creator.
    #[default]
    Inherited,
    /// `SCHED_OTHER` with the default slice. Beside threads that compute, it may wait for a slice of each.
    Normal,
    /// `SCHED_OTHER` with the shortest slice, [`Scheduling::SHORT_SLICE`]: it runs sooner when it wakes, and for no
    /// greater share of the core. It needs Linux 6.12; before, it is as [`Normal`](Self::Normal).
    ShortSlice,
    /// `SCHED_FIFO` with the lowest priority: it runs before all threads that are not real-time, as long as it has work.
    /// Threads that it creates are not real-time. It needs CAP_SYS_NICE, or a limit of real-time priority (`ulimit -r`): 1, or
    /// 2 with handlers that are bounded by a clock, whose thread then runs before it.
    RealTime,
}

/// A policy that the kernel rejects.
#[derive(Debug)]
#[non_exhaustive]
pub struct SchedulingError {
    /// The policy.
    pub scheduling: Scheduling,
    /// The error of sched_setattr(2).
    pub source: io::Error,
}

impl fmt::Display for SchedulingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SchedulingError { scheduling, source } = self;
        write!(f, "cannot schedule the thread as {scheduling:?}: {source}")?;
        match scheduling {
            Scheduling::RealTime => f.write_str(
                "; grant CAP_SYS_NICE or a limit of real-time priority (ulimit -r 2), or use Scheduling::ShortSlice",
            ),
            _ => f.write_str("; use Scheduling::Inherited"),
        }
    }
}

impl std::error::Error for SchedulingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// `struct sched_attr` of sched_setattr(2), in its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Threads that the thread creates do not inherit its policy.
const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

impl Scheduling {
    /// The shortest slice that the kernel grants.
    pub const SHORT_SLICE: Duration = Duration::from_micros(100);

    /// Sets the policy of the calling thread.
    ///
    /// # Errors
    /// If the thread is not permitted to have it.
    pub fn apply(self) -> Result<(), SchedulingError> {
        let (policy, priority, slice) = match self {
            Scheduling::Inherited => return Ok(()),
            Scheduling::Normal => (libc::SCHED_OTHER, 0, Duration::ZERO),
            Scheduling::ShortSlice => (libc::SCHED_OTHER, 0, Self::SHORT_SLICE),
            Scheduling::RealTime => (libc::SCHED_FIFO, 1, Duration::ZERO),
        };
        let flags = if self == Scheduling::RealTime { SCHED_FLAG_RESET_ON_FORK } else { 0 };
        // SAFETY: it returns a number; 0 is this thread, for which it cannot fail.
        let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let attributes = SchedAttr {
            size: size_of::<SchedAttr>() as u32,
            policy: policy.cast_unsigned(),
            flags,
            nice,
            priority,
            runtime_ns: slice.as_nanos() as u64,
            deadline_ns: 0,
            period_ns: 0,
        };
        // SAFETY: the kernel reads as many bytes as the structure says that it has; 0 is this thread.
        match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
            0 => Ok(()),
            _ => Err(SchedulingError { scheduling: self, source: io::Error::last_os_error() }),
        }
    }
}

/// A real-time policy of a thread, for a thread that it creates to do a part of its work.
#[cfg(feature = "sandbox")]
#[derive(Clone, Copy)]
pub(crate) struct RealTimePolicy {
    policy: i32,
    parameters: libc::sched_param,
}

#[cfg(feature = "sandbox")]
impl RealTimePolicy {
    /// Returns the policy of the calling thread, if it is real-time.
    pub(crate) fn of_this_thread() -> Option<Self> {
        let mut parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: it returns a number; 0 is this thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        // SAFETY: it writes to the parameters; 0 is this thread.
        let result = unsafe { libc::sched_getparam(0, &raw mut parameters) };
        let is_real_time =
            matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR);
        (result == 0 && is_real_time).then_some(RealTimePolicy { policy, parameters })
    }

    /// Sets the policy of the calling thread, which keeps its own if it is not permitted.
    pub(crate) fn apply(self) {
        let policy = self.policy | libc::SCHED_RESET_ON_FORK;
        // SAFETY: it reads the parameters; 0 is this thread.
        unsafe { libc::sched_setscheduler(0, policy, &raw const self.parameters) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the policy and the priority of this thread.
    fn current() -> (i32, i32) {
        let mut parameters = libc::sched_param { sched_priority: -1 };
        // SAFETY: it writes to the parameters; 0 is this thread.
        assert_eq!(unsafe { libc::sched_getparam(0, &raw mut parameters) }, 0);
        // SAFETY: it returns a number.
        let policy = unsafe { libc::sched_getscheduler(0) };
        (policy & !libc::SCHED_RESET_ON_FORK, parameters.sched_priority)
    }

    /// Lowers the priority of this thread by one.
    fn lower() {
        // SAFETY: it returns a number; 0 is this thread.
        assert_ne!(unsafe { libc::nice(1) }, -1);
    }

    fn nice() -> i32 {
        // SAFETY: as above.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn policy_replaced_the_nice_value_of_the_thread() {
        let thread = std::thread::spawn(|| {
            lower();
            let before = nice();
            Scheduling::ShortSlice.apply().unwrap();
            assert_eq!(nice(), before);
        });
        thread.join().unwrap();
    }

    #[test]
    fn threads_of_a_real_time_thread_are_not_real_time() {
        let thread = std::thread::spawn(|| {
            if Scheduling::RealTime.apply().is_err() {
                return println!("not tested: real-time threads are not permitted");
            }
            let child = std::thread::spawn(current).join().unwrap();
            assert_eq!(child, (libc::SCHED_OTHER, 0));
        });
        thread.join().unwrap();
    }

    #[test]
    fn policy_is_that_of_the_thread() {
        for (scheduling, expected) in [
            (Scheduling::Inherited, current()),
            (Scheduling::Normal, (libc::SCHED_OTHER, 0)),
            (Scheduling::ShortSlice, (libc::SCHED_OTHER, 0)),
            (Scheduling::RealTime, (libc::SCHED_FIFO, 1)),
        ] {
            let set = move || scheduling.apply().map(|()| current());
            match std::thread::spawn(set).join().unwrap() {
                Ok(current) => assert_eq!(current, expected, "{scheduling:?}"),
                Err(error) => {
                    assert_eq!(scheduling, Scheduling::RealTime, "{error}");
                    assert_eq!(error.source.kind(), io::ErrorKind::PermissionDenied);
                    assert!(error.to_string().contains("grant CAP_SYS_NICE"), "{error}");
                }
            }
        }
    }
}
