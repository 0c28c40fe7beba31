//! System calls of the simulated machine.

pub(crate) use crate::raw::{INTERRUPTED, decode};

use super::machine::machine;

/// Makes a call at once.
///
/// # Safety
/// None is required: the machine has no memory.
pub(crate) unsafe fn system_call(number: u32, args: &[usize; 6]) -> isize {
    machine(|machine| machine.call(number, args)).unwrap_or(-(libc::EAGAIN as isize))
}
