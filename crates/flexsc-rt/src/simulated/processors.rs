//! The cores of the simulated machine, of which the owner has the first, and how many threads could run.

use std::cell::{Cell, RefCell};

use rustix::thread::CpuSet;

use super::machine::machine;

thread_local! {
    static CORES: Cell<usize> = const { Cell::new(3) };
    /// How many other threads could run; none if that changes with time.
    static RUNNABLE: Cell<Option<usize>> = const { Cell::new(None) };
    /// The cores to which a thread was moved last.
    static ALLOWED: RefCell<Option<CpuSet>> = const { RefCell::new(None) };
    /// How often the owner has submitted calls to threads: it asks for its core then.
    static SUBMITTED: Cell<u64> = const { Cell::new(0) };
}

/// Begins a run.
pub(super) fn reset() {
    CORES.set(3);
    RUNNABLE.set(None);
    ALLOWED.set(None);
    SUBMITTED.set(0);
}

/// Returns how often the owner has submitted calls to threads.
pub(super) fn submitted() -> u64 {
    SUBMITTED.get()
}

/// Sets the number of cores, and how many threads could run beside one that looks.
pub(super) fn set(cores: usize, runnable: usize) {
    CORES.set(cores);
    RUNNABLE.set(Some(runnable));
}

pub(crate) fn allowed() -> Option<CpuSet> {
    let mut all = CpuSet::new();
    (0..CORES.get()).for_each(|core| all.set(core));
    Some(ALLOWED.with_borrow(|allowed| allowed.unwrap_or(all)))
}

pub(crate) fn current() -> u32 {
    SUBMITTED.set(SUBMITTED.get() + 1);
    0
}

pub(crate) fn move_to(cores: &CpuSet) {
    ALLOWED.set(Some(*cores));
}

pub(crate) fn runnable() -> Option<usize> {
    Some(RUNNABLE.get().unwrap_or_else(|| machine(|machine| machine.now_ns / 500_000 % 5) as usize))
}
