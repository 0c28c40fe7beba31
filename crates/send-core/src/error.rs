//! What can be wrong with what is asked, each with a sentence to act on.

use std::fmt;
use std::io;

/// Why something was refused. The process goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The calling thread has a control block already.
    AlreadyDefined,
    /// The control block is that of the process from which this one was forked.
    InChild,
    /// A buffer for no events, or for more than 2^24.
    BufferSize(u32),
    /// Groups are numbered 0 to 31.
    NoSuchGroup(u8),
    /// Each type of events that has actions needs a group, of which there are 32.
    TooManyTypes,
    /// The number is no signal, or one that can't be an event.
    NoSuchSignal(i32),
    /// A critical section has to hold at least one byte.
    EmptySection,
    /// A critical section has to lie in the program's code.
    OutsideProgram(usize, usize),
    /// The interrupted instruction can't be known on this processor.
    NoRanges,
    /// Notification was to begin with no handler set.
    NoHandler,
    /// A table for no sockets, or for more than 2^20.
    SocketCount(u32),
    /// Receive buffers, so many of such a size, that there can't be.
    ReceiveBuffers(u16, u32),
    /// As many sockets as there is room for tell of themselves.
    TooManySockets,
    /// There is no socket of this name, or it is none that is used so.
    NoSuchSocket,
    /// The descriptor is no socket.
    NotASocket(i32),
    /// The socket does not listen.
    NotListening(i32),
    /// The socket is no stream.
    NotAStream(i32),
    /// The kernel takes nothing at the moment.
    Busy,
    /// A timer whose period is zero.
    NoPeriod,
    /// Another part of the program handles this signal.
    SignalInUse(i32),
    /// The system refused.
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
                f.write_str("this thread has an event control block already; a thread has one")
            }
            Error::InChild => f.write_str(
                "this is the control block of the process that has called fork(2); a child defines \
                 one of its own",
            ),
            Error::BufferSize(events) => {
                write!(f, "an event buffer holds 1 to {} events, not {events}", crate::MAX_EVENTS)
            }
            Error::NoSuchGroup(number) => {
                write!(f, "there is no event group {number}; groups are numbered 0 to 31")
            }
            Error::TooManyTypes => {
                f.write_str("32 types of events have actions already; forget those of one first")
            }
            Error::NoSuchSignal(number) => {
                write!(f, "signal {number} can't be an event: it is none, or can't be handled so")
            }
            Error::EmptySection => {
                f.write_str("a critical section of length zero protects nothing")
            }
            Error::OutsideProgram(from, to) => {
                write!(f, "the critical section {from:#x} to {to:#x} is not in the program's code")
            }
            Error::NoRanges => f.write_str(
                "on this processor critical sections by address are not known; use the flag",
            ),
            Error::NoHandler => f.write_str("set a handler before notification begins"),
            Error::SocketCount(count) => {
                write!(
                    f,
                    "a table of sockets holds 1 to {} of them, not {count}",
                    crate::MAX_SOCKETS
                )
            }
            Error::ReceiveBuffers(count, size) => write!(
                f,
                "receive buffers have to be a power of two, at least a byte each and 1 GiB in all, \
                 not {count} of {size} bytes"
            ),
            Error::TooManySockets => {
                f.write_str("there is room for no more sockets; raise `sockets`, or release some")
            }
            Error::NoSuchSocket => {
                f.write_str("there is no such socket any more, or it is not used so")
            }
            Error::NotASocket(fd) => write!(f, "descriptor {fd} is no socket"),
            Error::NotListening(fd) => write!(f, "descriptor {fd} does not listen"),
            Error::NotAStream(fd) => write!(f, "descriptor {fd} is no stream socket"),
            Error::Busy => f.write_str("the kernel takes nothing at the moment; try it again"),
            Error::NoPeriod => f.write_str("a timer needs a period above zero"),
            Error::SignalInUse(number) => {
                write!(f, "another part of the program handles signal {number}")
            }
            Error::System(doing, errno) => {
                write!(f, "{doing}: {}", io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl std::error::Error for Error {}

/// An event that was not posted, handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// As many posted events as there is room for have not been used.
    Full(u64),
    /// The thread has given its block up, or has ended.
    Ended(u64),
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PostError::Full(_) => "as many events as there is room for wait already",
            PostError::Ended(_) => "the block that the event was posted to is gone, or its thread",
        })
    }
}

impl std::error::Error for PostError {}
