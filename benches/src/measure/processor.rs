//! Processors: who runs where, and for how long.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::thread::available_parallelism;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Where servers under test run.
pub(crate) const SERVER_CORE: usize = 0;
/// Where the load comes from.
pub(crate) const CLIENT_CORE: usize = 1;

/// Keeps this thread, and those it will start, on one core; on the first where there is but one.
pub(crate) fn pin(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core % available_parallelism()?);
    Ok(sched_setaffinity(None, &set)?)
}

/// The processor time of each thread of a process in nanoseconds, kernel workers included.
///
/// From schedstat(5), which is exact for a thread that sleeps; measure while the server is idle.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuTime(BTreeMap<u32, u64>);

impl CpuTime {
    /// Reads it for the process `id`.
    pub(crate) fn of(id: u32) -> io::Result<Self> {
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{id}/task"))? {
            let entry = entry?;
            let thread = entry.file_name().to_string_lossy().parse().ok();
            // A thread may end between the two reads.
            let text = fs::read_to_string(entry.path().join("schedstat")).ok();
            if let Some((thread, time)) = thread.zip(text.as_deref().and_then(first_field)) {
                threads.insert(thread, time);
            }
        }
        Ok(CpuTime(threads))
    }

    /// How much was spent since `before`. What threads spent that have ended is lost.
    pub(crate) fn since(&self, before: &CpuTime) -> u64 {
        let spent = |(thread, now): (&u32, &u64)| {
            now.saturating_sub(before.0.get(thread).copied().unwrap_or(0))
        };
        self.0.iter().map(spent).sum()
    }
}

fn first_field(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_summed_over_threads_old_and_new() {
        let before = CpuTime([(1, 100), (2, 50)].into());
        let after = CpuTime([(1, 175), (3, 20)].into());
        assert_eq!(after.since(&before), 95);
    }

    #[test]
    fn work_takes_time() {
        let before = CpuTime::of(std::process::id()).unwrap();
        let mut x = 1u64;
        for i in 1..40_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(i | 1));
        }
        assert!(CpuTime::of(std::process::id()).unwrap().since(&before) > 1_000_000, "{x}");
    }
}
