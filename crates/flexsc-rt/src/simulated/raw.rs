//! System calls of the simulated machine.

pub(crate) use crate::raw::{INTERRUPTED, decode};

use std::os::fd::RawFd;

use super::machine::{DESCRIPTORS, machine};

/// Returns whether the machine has a descriptor.
pub(crate) fn is_open(fd: RawFd) -> bool {
    (0..DESCRIPTORS).contains(&(fd as usize))
}

/// Makes a call at once.
///
/// # Safety
/// None is required: the machine has no memory.
pub(crate) unsafe fn system_call(number: u32, args: &[usize; 6]) -> isize {
    machine(|machine| machine.call(number, args)).unwrap_or(-(libc::EAGAIN as isize))
}
