//! The cores of this machine, and how busy they are.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Returns the cores that the calling thread may use.
pub(crate) fn allowed() -> Option<CpuSet> {
    sched_getaffinity(None).ok()
}

/// Returns the core on which the calling thread runs.
pub(crate) fn current() -> u32 {
    sched_getcpu() as u32
}

/// Moves the calling thread to some cores. If they are not permitted any more, it stays where it is.
pub(crate) fn move_to(cores: &CpuSet) {
    let _ = sched_setaffinity(None, cores);
}

/// Returns how many other threads of the machine run or could.
pub(crate) fn runnable() -> Option<usize> {
    others(&fs::read_to_string("/proc/loadavg").ok()?)
}

/// Returns it from the fourth field of /proc/loadavg, which counts the thread that reads it, too.
fn others(load: &str) -> Option<usize> {
    let runnable = load.split(' ').nth(3)?.split('/').next()?;
    Some(runnable.parse::<usize>().ok()?.saturating_sub(1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn thread_that_looks_counted_itself_as_runnable() {
        assert_eq!(others("0.20 0.18 0.12 3/80 11206\n"), Some(2));
        // Of a container that does not count it.
        assert_eq!(others("0.00 0.00 0.00 0/8 120\n"), Some(0));
        assert_eq!(others("0.00 0.00"), None);
        assert!(runnable().is_some());
    }
}
