//! System calls of the simulated machine.

pub(crate) use crate::raw::{INTERRUPTED, decode};

use std::os::fd::RawFd;

use super::machine::{CLOSED, machine};
use super::tasks;
use crate::call::Direction;

/// Returns whether a descriptor is open; now and then one was open a moment ago.
pub(crate) fn is_open(fd: RawFd) -> bool {
    fd != CLOSED || machine(|machine| machine.random(4) == 0)
}

/// Returns whether a descriptor is ready in a direction. An error in its queue does not count.
pub(crate) fn is_ready(fd: RawFd, direction: Direction) -> bool {
    machine(|machine| machine.ready(fd)[direction as usize])
}

/// Makes a call: the owner at once, and a thread waits in it.
///
/// # Safety
/// None is required: the machine has no memory.
pub(crate) unsafe fn system_call(number: u32, args: &[usize; 6]) -> isize {
    match tasks::current() {
        Some(own) => tasks::call(own, number, args),
        None => machine(|machine| machine.call(number, args)).unwrap_or(-(libc::EAGAIN as isize)),
    }
}
