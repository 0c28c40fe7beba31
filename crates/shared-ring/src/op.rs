//! Operations and their outcomes.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use rustix::io::Errno;

use crate::{
    BufferGroup, Call, Datagram, Executor, Fd, File, FileOp, FileOutcome, GatherList, JobOutcome,
    RxBuf, Socket, Token, Transmit,
};

/// An operation. It owns all memory that the kernel will access.
#[derive(Debug)]
pub enum Op {
    /// Accepts connections, at most `per_turn` in one turn, until it is cancelled or fails.
    Accept {
        /// A listening socket.
        listener: Fd,
        /// Maximum number of connections in one turn; `None` for no limit.
        per_turn: Option<NonZeroU16>,
    },
    /// Receives bytes until the end of the stream, an error, or a cancellation.
    Receive {
        /// A connected socket.
        fd: Fd,
        /// The group of the receive buffers.
        group: BufferGroup,
    },
    /// Receives datagrams until an error or a cancellation. Its token is of [`OpKind::Receive`](crate::OpKind::Receive).
    /// A datagram that is longer than a buffer has room for is [truncated](Datagram::is_truncated). A kernel without
    /// datagrams fails it with `EOPNOTSUPP`, as FlexSC's does.
    ReceiveFrom {
        /// A socket for datagrams of the internet protocols.
        fd: Fd,
        /// The group of the receive buffers, each of them longer than [`Datagram::HEADER_BYTES`].
        group: BufferGroup,
    },
    /// Sends a datagram, whole. Its token is of [`OpKind::Send`](crate::OpKind::Send).
    SendTo {
        /// A socket for datagrams. Over a poller, one datagram of a socket waits for room; others that find none fail
        /// with `EAGAIN`.
        fd: Fd,
        /// The datagram.
        message: Box<Transmit>,
    },
    /// Sends at most the first [`GatherList::MAX_BYTES`] bytes of `data`.
    Send {
        /// A connected socket.
        fd: Fd,
        /// Bytes to send.
        data: Box<GatherList>,
    },
    /// Sends at most `len` bytes of a file, as soon as the socket has room. If it has to wait, it sends none beyond the
    /// [block](File::BLOCK_BYTES) in which they begin.
    SendFile {
        /// A connected socket.
        fd: Fd,
        /// A regular file.
        file: File,
        /// Offset of the first byte.
        offset: u64,
        /// Maximum number of bytes.
        len: u32,
        /// No other part of the file follows, so nothing has to be read ahead of this one.
        is_last: bool,
        /// The handling of that part if it is not cached.
        when_cold: WhenCold,
    },
    /// Waits until a send makes progress or fails: the socket has room, or the connection is broken.
    /// It takes the place of a send, so its token is of [`OpKind::Send`](crate::OpKind::Send).
    Writable {
        /// A connected socket.
        fd: Fd,
    },
    /// Connects a socket.
    Connect {
        /// A socket that is not connected yet.
        fd: Fd,
        /// The peer.
        to: SocketAddr,
    },
    /// Closes a socket.
    Close {
        /// The socket; no other operation for it is in flight.
        socket: Socket,
    },
    /// Operates on a file.
    File(FileOp),
    /// Makes a system call. A descriptor that it opens belongs to the submitter, so it stays open if its
    /// completion is discarded.
    Call(Box<Call>, Executor),
}

/// The handling of a send whose part of a file is not in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenCold {
    /// The kernel reads the part first, without blocking the event loop, then sends it.
    Read,
    /// The operation ends with [`Outcome::Cold`].
    Report,
}

impl Op {
    /// Returns the socket of the operation, or the descriptor of its system call. `None` for file operations and closes.
    #[must_use]
    pub fn fd(&self) -> Option<Fd> {
        match self {
            Op::Accept { listener: fd, .. }
            | Op::Receive { fd, .. }
            | Op::ReceiveFrom { fd, .. }
            | Op::Send { fd, .. }
            | Op::SendTo { fd, .. }
            | Op::SendFile { fd, .. }
            | Op::Writable { fd }
            | Op::Connect { fd, .. } => Some(*fd),
            Op::Call(call, _) => call.fd(),
            Op::File(_) | Op::Close { .. } => None,
        }
    }

    /// Returns the outcome of the operation, which has failed. It returns the operation's memory.
    #[must_use]
    pub fn fail(self, errno: Errno) -> Outcome {
        match self {
            Op::Send { data, .. } => Outcome::Failed(errno, Some(data)),
            Op::SendTo { message, .. } => Outcome::SentTo(message, Err(errno)),
            Op::Call(call, _) => Outcome::Called(call, Err(errno)),
            _ => Outcome::Failed(errno, None),
        }
    }

    /// Returns the outcome of an operation whose [`Job`](crate::author::Job) was executed.
    #[must_use]
    pub fn executed(self, result: Result<JobOutcome, Errno>) -> Outcome {
        match (self, result) {
            (Op::Call(call, _), Ok(JobOutcome::Call(value))) => Outcome::Called(call, Ok(value)),
            (_, Ok(JobOutcome::File(done))) => Outcome::File(done),
            (op, result) => op.fail(result.err().unwrap_or(Errno::IO)),
        }
    }
}

/// Result of an operation.
#[derive(Debug)]
pub enum Outcome {
    /// A connection was accepted.
    Accepted(Socket),
    /// At least one byte was received.
    Received(RxBuf),
    /// The peer has shut down its sending side; or the receiving side of a socket for datagrams is shut down.
    Eof,
    /// A datagram was received. It may be empty.
    Datagram(Datagram),
    /// A datagram was sent, or the error that prevented it.
    SentTo(Box<Transmit>, Result<(), Errno>),
    /// Number of bytes sent, which were removed from the front of the returned list.
    Sent(Box<GatherList>, usize),
    /// A part of the file was sent.
    SentFile {
        /// Number of bytes; 0 if the file ends before `offset`.
        bytes: u32,
        /// The socket, or the file, had fewer than the kernel tried to send. It tries fewer than the operation has if
        /// the others are not cached.
        is_full: bool,
    },
    /// Nothing was sent, because that part of the file is not in the page cache.
    Cold,
    /// The socket has room, or the connection is broken, which the next send reports.
    Writable,
    /// The connection is open.
    Connected,
    /// The socket is closed.
    Closed,
    /// The file operation is done.
    File(FileOutcome),
    /// The system call has returned this value or error; `ECANCELED` if it was cancelled.
    Called(Box<Call>, Result<usize, Errno>),
    /// Another thread called [`Waker::wake`](crate::Waker::wake).
    Woken,
    /// The operation failed, or was cancelled (`ECANCELED`). Returns the unsent list of a send.
    Failed(Errno, Option<Box<GatherList>>),
}

impl<T: Into<FileOutcome>> From<Result<T, Errno>> for Outcome {
    fn from(result: Result<T, Errno>) -> Self {
        result.map_or_else(|errno| Outcome::Failed(errno, None), |done| Outcome::File(done.into()))
    }
}

/// A completion of an operation.
#[derive(Debug)]
pub struct Completion {
    /// Identifies the operation.
    pub token: Token,
    /// Its result.
    pub outcome: Outcome,
    /// The operation has ended. `Accept`, `Receive` and `ReceiveFrom` have many completions.
    pub is_last: bool,
    /// The operation has read a part of a file that was not in the page cache. False if that is not known: not all file
    /// systems can read without blocking.
    pub was_cold: bool,
}

impl Completion {
    /// Creates the last completion of an operation.
    pub fn last(token: Token, outcome: Outcome) -> Self {
        Completion { token, outcome, is_last: true, was_cold: false }
    }

    /// Creates a completion that others follow.
    pub fn more(token: Token, outcome: Outcome) -> Self {
        Completion { token, outcome, is_last: false, was_cold: false }
    }

    /// Creates the completion of a wake-up.
    pub fn woken() -> Self {
        Completion::more(Token::WAKE, Outcome::Woken)
    }

    /// Creates the last completion of an operation that a thread has executed, perhaps as it found a part of a file that was
    /// not in the page cache.
    pub fn by_thread(token: Token, outcome: Outcome, was_cold: bool) -> Self {
        let is_read = matches!(outcome, Outcome::File(FileOutcome::Read(_)));
        Completion { was_cold: was_cold && is_read, ..Completion::last(token, outcome) }
    }
}

/// Result of posting an operation.
#[derive(Debug)]
pub enum Submitted {
    /// The operation is in flight; completions follow.
    InFlight,
    /// The operation was done at once; no completion follows.
    Done(Outcome),
}

/// A rejected operation, handed back with the reason.
#[derive(Debug)]
#[non_exhaustive]
pub struct SubmitError {
    /// The operation.
    pub op: Op,
    /// The reason for the rejection.
    pub kind: SubmitErrorKind,
}

impl SubmitError {
    /// Hands an operation back.
    pub fn new(op: Op, kind: SubmitErrorKind) -> Self {
        SubmitError { op, kind }
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the operation was rejected: {}", self.kind)
    }
}

impl std::error::Error for SubmitError {}

/// The reason why an operation was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitErrorKind {
    /// The configured maximum number of operations is in flight.
    Full,
    /// An operation of the same kind is in flight for this slot.
    TokenInUse,
    /// A receive names a buffer group that the kernel does not have.
    UnknownGroup,
}

impl fmt::Display for SubmitErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitErrorKind::Full => {
                "the configured maximum number of operations is in flight; raise `operations`"
            }
            SubmitErrorKind::TokenInUse => {
                "an operation of the same kind is in flight for this slot"
            }
            SubmitErrorKind::UnknownGroup => {
                "the kernel has no such buffer group; add its buffers first"
            }
        })
    }
}

impl std::error::Error for SubmitErrorKind {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_completions_are_small() {
        assert!(size_of::<Completion>() <= 56, "{} bytes", size_of::<Completion>());
        assert!(size_of::<Op>() <= 40, "{} bytes", size_of::<Op>());
        assert!(size_of::<Submitted>() <= 40, "{} bytes", size_of::<Submitted>());
    }
}
