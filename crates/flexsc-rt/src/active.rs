//! How many syscall threads of the process are active, of all pages: at most one per core (section 3.2.1).
//!
//! A thread is counted when it takes a page of calls, and not for each call, until it has executed them or is found
//! blocked. The first active thread of some pages is counted, but never refused: else pages that wait would depend on
//! others. So with more registrations than cores, one of each may be active.
//!
//! The threads are not divided among registrations in fair shares. A thread that has executed its page is counted anew for
//! the next one at once, while a registration whose further thread was refused tries again at its heartbeats. So while
//! one registration is busy, others may have one active thread each throughout.

use std::sync::atomic::{AtomicU64, Ordering};

use shared_ring::author::Process;

/// The number of the process in the upper half, and of its active threads in the lower. A child of fork(2) has none.
static ACTIVE: AtomicU64 = AtomicU64::new(0);

/// Returns the number of active threads.
pub(crate) fn count() -> usize {
    of_this_process(ACTIVE.load(Ordering::Relaxed)) as usize
}

/// Counts a thread as active, if fewer than `limit` are. Returns whether it was counted.
pub(crate) fn begin(limit: usize) -> bool {
    let add = |active| {
        let count = of_this_process(active);
        ((count as usize) < limit).then(|| with_process(count + 1))
    };
    ACTIVE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

/// Ends the activity of so many threads, each of which was counted in this process.
pub(crate) fn end(threads: usize) {
    let former = ACTIVE.fetch_sub(threads as u64, Ordering::Relaxed);
    debug_assert!(of_this_process(former) as usize >= threads, "a thread was not counted");
}

fn of_this_process(active: u64) -> u32 {
    if (active >> 32) as u32 == Process::current().number() { active as u32 } else { 0 }
}

fn with_process(count: u32) -> u64 {
    u64::from(Process::current().number()) << 32 | u64::from(count)
}
