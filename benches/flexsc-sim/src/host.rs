//! The machine of the present run, of this thread.

use std::cell::RefCell;

pub(crate) use evring_sim::Machine;

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Sets the machine of a run. It remains until the next one, for files.
pub(crate) fn set(machine: &Machine) {
    MACHINE.set(Some(machine.clone()));
}

/// Returns the machine.
pub(crate) fn machine() -> Machine {
    MACHINE.with_borrow(|machine| machine.clone().expect("a run has begun"))
}
