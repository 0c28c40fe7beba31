//! How many syscall threads of the simulated machine are active.

use std::cell::Cell;

thread_local! {
    static ACTIVE: Cell<usize> = const { Cell::new(0) };
}

/// Begins a run.
pub(super) fn reset() {
    ACTIVE.set(0);
}

pub(crate) fn count() -> usize {
    ACTIVE.get()
}

pub(crate) fn begin(limit: usize) -> bool {
    let may_begin = ACTIVE.get() < limit;
    ACTIVE.set(ACTIVE.get() + usize::from(may_begin));
    may_begin
}

pub(crate) fn end(threads: usize) {
    ACTIVE.set(ACTIVE.get() - threads);
}
