//! Errors of this crate, with messages for the user.

use std::fmt;
use std::io;

use crate::limits::{MAX_EVENTS, MAX_SOCKETS};

/// The reason why an operation was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The calling thread has a control block already.
    AlreadyDefined,
    /// The control block belongs to the parent of this process.
    InChild,
    /// The size of an event buffer is not between 1 and 2^24.
    BufferSize(u32),
    /// A group number is not between 0 and 31.
    NoSuchGroup(u8),
    /// All 32 groups are in use by types with actions.
    TooManyTypes,
    /// The number is not a signal, or the signal cannot be an event.
    NoSuchSignal(i32),
    /// The address range of a critical section is empty.
    EmptySection,
    /// The critical section is not in the program's code: start and end address.
    OutsideProgram(usize, usize),
    /// This processor does not support critical sections by address.
    RangesUnsupported,
    /// Notification requires a handler.
    NoHandler,
    /// The number of sockets is not between 1 and 2^20.
    SocketCount(u32),
    /// The number or the size in bytes of the receive buffers is invalid.
    ReceiveBuffers(u16, u32),
    /// The maximum number of sockets is in use.
    TooManySockets,
    /// The socket was released, or the operation does not apply to it.
    NoSuchSocket,
    /// The descriptor is not a socket.
    NotASocket(i32),
    /// The socket is not a listener.
    NotListening(i32),
    /// The socket is not a stream socket.
    NotAStream(i32),
    /// The ring accepts no operation at the moment.
    Busy,
    /// The period of a timer is zero.
    ZeroPeriod,
    /// Another part of the program handles this signal, or it is another thread's event.
    SignalInUse(i32),
    /// A system call failed: the operation, and the errno.
    System(&'static str, i32),
}

impl Error {
    pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> Error {
        move |error| Error::System(doing, error.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::AlreadyDefined => {
                f.write_str("this thread already has an event control block")
            }
            Error::InChild => f.write_str(
                "this control block belongs to the process that called fork(2); define a new one in \
                 the child",
            ),
            Error::BufferSize(events) => {
                write!(f, "an event buffer must hold 1 to {MAX_EVENTS} events, not {events}")
            }
            Error::NoSuchGroup(number) => {
                write!(f, "event group {number} does not exist; groups are numbered 0 to 31")
            }
            Error::TooManyTypes => {
                f.write_str("32 event types already have actions; remove the actions of one first")
            }
            Error::NoSuchSignal(number) => write!(
                f,
                "signal {number} cannot be an event: it does not exist, or is one that cannot be handled (SIGKILL, \
                 SIGSTOP), a fault, which cannot be deferred (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP), SIGIO, which \
                 notifies the thread, or of the C library (32, 33)"
            ),
            Error::EmptySection => {
                f.write_str("the address range of a critical section must not be empty")
            }
            Error::OutsideProgram(from, to) => {
                write!(f, "the critical section {from:#x} to {to:#x} is not in the program's code")
            }
            Error::RangesUnsupported => f.write_str(
                "this processor does not support critical sections by address; use the flag",
            ),
            Error::NoHandler => f.write_str("notification requires a handler; set one first"),
            Error::SocketCount(count) => {
                write!(f, "the number of sockets must be between 1 and {MAX_SOCKETS}, not {count}")
            }
            Error::ReceiveBuffers(count, size) => write!(
                f,
                "receive buffers must be a power of two in number, of at least 1 byte each and at most \
                 1 GiB in total, not {count} of {size} bytes"
            ),
            Error::TooManySockets => {
                f.write_str("too many sockets; raise `sockets`, or release some")
            }
            Error::NoSuchSocket => {
                f.write_str("the socket was released, or does not support this operation")
            }
            Error::NotASocket(fd) => write!(f, "descriptor {fd} is not a socket"),
            Error::NotListening(fd) => write!(f, "descriptor {fd} is not a listening socket"),
            Error::NotAStream(fd) => write!(f, "descriptor {fd} is not a stream socket"),
            Error::Busy => f.write_str("the ring accepts no operation at the moment; try again"),
            Error::ZeroPeriod => f.write_str("the period of a timer must be greater than zero"),
            Error::SignalInUse(number) => {
                write!(f, "signal {number} is already handled elsewhere in the program")
            }
            Error::System(doing, errno) => {
                write!(f, "{doing}: {}", io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl std::error::Error for Error {}

/// An event that was not posted, with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError {
    /// The maximum number of posted events is queued.
    Full(u64),
    /// The block was dropped, its thread has ended, or the block belongs to the parent process.
    Closed(u64),
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PostError::Full(_) => "the queue of posted events is full",
            PostError::Closed(_) => "the control block was dropped, or its thread has ended",
        })
    }
}

impl std::error::Error for PostError {}
