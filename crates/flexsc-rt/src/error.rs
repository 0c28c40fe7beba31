//! Errors of the crate itself. Those of system calls are results.

use std::{fmt, io};

/// An error of the pages, not of a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused something that the pages need: what, and its reason.
    System(&'static str, io::Error),
    /// The signal that interrupts syscall threads has a handler already.
    SignalInUse(i32),
    /// This is a child of fork(2). The pages belong to its parent.
    InChild,
    /// Every green thread waits for another one.
    Deadlock,
    /// The OS thread unwinds from a panic, and green threads do not run meanwhile.
    Unwinding,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::System(what, error) => write!(f, "cannot {what}: {error}"),
            Error::SignalInUse(signal) => write!(
                f,
                "signal {signal} has a handler, but syscall threads are interrupted by it; remove \
                 the handler, or register pages without threads"
            ),
            Error::InChild => {
                write!(f, "the syscall pages belong to the parent process; register new ones")
            }
            Error::Deadlock => {
                write!(f, "every green thread waits for another one; break the circle of joins")
            }
            Error::Unwinding => write!(
                f,
                "green threads do not run while their OS thread unwinds from a panic; run them \
                 before, or drop them"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System(_, error) => Some(error),
            _ => None,
        }
    }
}

/// Every entry that the call may use is busy: take completions, or cancel calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all syscall entries are busy; take completions, or register more entries")
    }
}

impl std::error::Error for Busy {}
