//! Scheduling policies of the threads on the server core, and the load there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::measure::{SERVER_CORE, pin};

/// A policy of sched(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// `SCHED_OTHER`, with the default slice.
    Normal,
    /// `SCHED_BATCH`: wake-ups do not preempt.
    Batch,
    /// `SCHED_OTHER` with a slice of 100 us.
    Slice,
    /// `SCHED_FIFO`, which needs the permission to.
    RealTime,
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

impl Policy {
    /// Sets the policy of this thread.
    pub(super) fn apply(self) -> io::Result<()> {
        let (policy, priority, runtime_ns) = match self {
            Policy::Normal => (libc::SCHED_OTHER, 0, 0),
            Policy::Batch => (libc::SCHED_BATCH, 0, 0),
            Policy::Slice => (libc::SCHED_OTHER, 0, 100_000),
            Policy::RealTime => (libc::SCHED_FIFO, 1, 0),
        };
        let attributes = SchedAttr {
            size: size_of::<SchedAttr>() as u32,
            policy: policy.cast_unsigned(),
            flags: 0,
            nice: 0,
            priority,
            runtime_ns,
            deadline_ns: 0,
            period_ns: 0,
        };
        // SAFETY: the kernel reads as many bytes as the structure says that it has.
        match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Threads that compute on the server core until they are dropped.
pub(super) struct Busy {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Starts a number of threads.
    pub(super) fn start(count: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let spin = |is_over: Arc<AtomicBool>| {
            // On failure, the scheduler spreads the load over the cores, which the figures show.
            let _ = pin(&[SERVER_CORE]);
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let start = |_| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || spin(is_over))
        };
        let threads = (0..count).map(start).collect();
        Busy { is_over, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_need_no_permission_apply() {
        for policy in [Policy::Normal, Policy::Batch, Policy::Slice] {
            thread::spawn(move || policy.apply()).join().unwrap().unwrap();
        }
    }
}
