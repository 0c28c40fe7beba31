//! The error of a call.

use std::fmt;
use std::io;

/// The error of a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The array for events is empty.
    EmptyArray,
    /// Exceptions can't be delivered to only one thread.
    ExceptWithWakeOne,
    /// A system call failed.
    System(&'static str, io::Error),
}

impl Error {
    pub(super) fn of(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Error::System(call, errno.into())
    }

    pub(super) fn in_call(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Error::System(call, error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::EmptyArray => f.write_str("the array for events is empty"),
            Error::ExceptWithWakeOne => f.write_str(
                "the kernel cannot wake only one thread for an exception (EPOLLEXCLUSIVE); declare \
                 it in each thread, without WAKE_ONE",
            ),
            Error::System(call, error) => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System(_, error) => Some(error),
            Error::EmptyArray | Error::ExceptWithWakeOne => None,
        }
    }
}
