//! What can be asked of a kernel, and what it answers.

use std::ffi::CStr;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use rustix::io::Errno;

use crate::{Fd, File, GatherList, Listing, Metadata, RxBuf, Socket, SymlinkPolicy, Token};

/// One thing for the kernel to do. An operation owns all memory that the kernel will touch.
#[derive(Debug)]
pub enum Op {
    /// Accept every connection that arrives, at most `per_turn` in one turn; goes on until
    /// cancelled or failed.
    Accept {
        /// A listening socket.
        listener: Fd,
        /// Most connections in one turn; `None` takes all that are there.
        per_turn: Option<NonZeroU16>,
    },
    /// Receive whatever arrives; goes on until the end of the stream, an error, or a cancel.
    Receive {
        /// A connected socket.
        fd: Fd,
    },
    /// Send the first [`GatherList::MAX_BYTES`] bytes of `data`, or fewer.
    Send {
        /// A connected socket.
        fd: Fd,
        /// What to send.
        data: Box<GatherList>,
    },
    /// Send `len` bytes of a file, or fewer.
    SendFile {
        /// A connected socket.
        fd: Fd,
        /// A regular file.
        file: File,
        /// Where in the file to begin.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
    /// Connect a socket.
    Connect {
        /// A socket that is not connected yet.
        fd: Fd,
        /// The peer.
        to: SocketAddr,
    },
    /// Close a socket.
    Close {
        /// The socket; no other operation for it is in flight.
        socket: Socket,
    },
    /// Open a file for reading.
    Open {
        /// A directory.
        root: File,
        /// A relative path.
        path: Arc<CStr>,
        /// Where its links may lead.
        symlinks: SymlinkPolicy,
    },
    /// Ask what a path leads to.
    Stat {
        /// A directory.
        root: File,
        /// A relative path.
        path: Arc<CStr>,
        /// Where its links may lead.
        symlinks: SymlinkPolicy,
    },
    /// Ask what is in a directory.
    List {
        /// A directory.
        root: File,
        /// A relative path.
        path: Arc<CStr>,
        /// Where its links, and those in the directory, may lead.
        symlinks: SymlinkPolicy,
    },
    /// Read `len` bytes of a file, or fewer at its end.
    Read {
        /// A regular file.
        file: File,
        /// Where in the file to begin.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
}

/// What became of an operation.
#[derive(Debug)]
pub enum Outcome {
    /// A connection was accepted.
    Accepted(Socket),
    /// At least one byte was received.
    Received(RxBuf),
    /// The peer will send no more.
    Eof,
    /// So many bytes were sent and removed from the front of the list, which comes back.
    Sent(Box<GatherList>, usize),
    /// So many bytes of the file were sent; 0 when the file ends before `offset`.
    SentFile(u32),
    /// The connection is open.
    Connected,
    /// The socket is closed.
    Closed,
    /// The file is open. (Boxed, as the frequent outcomes are smaller.)
    Opened(Box<(File, Metadata)>),
    /// This is what the path leads to.
    Stat(Metadata),
    /// This is in the directory.
    Listed(Listing),
    /// These bytes were read; none at the end of the file.
    Read(RxBuf),
    /// Another thread called [`Waker::wake`](crate::Waker::wake).
    Woken,
    /// It failed, or was cancelled (`ECANCELED`). What was to be sent comes back.
    Failed(Errno, Option<Box<GatherList>>),
}

/// The answer to an operation.
#[derive(Debug)]
pub struct Completion {
    /// Which operation.
    pub token: Token,
    /// What became of it.
    pub outcome: Outcome,
    /// Whether the operation has ended; `Accept` and `Receive` answer many times.
    pub last: bool,
}

impl Completion {
    pub(crate) fn last(token: Token, outcome: Outcome) -> Self {
        Completion { token, outcome, last: true }
    }

    pub(crate) fn more(token: Token, outcome: Outcome) -> Self {
        Completion { token, outcome, last: false }
    }
}

/// What came of posting an operation.
#[derive(Debug)]
pub enum Submitted {
    /// It is in flight; completions will follow.
    InFlight,
    /// It was done at once; no completion follows.
    Done(Outcome),
}

/// An operation that was not taken, handed back with the reason.
#[derive(Debug)]
pub struct SubmitError {
    /// The operation.
    pub op: Op,
    /// Why it was not taken.
    pub kind: SubmitErrorKind,
}

/// Why an operation was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitErrorKind {
    /// As many operations are in flight as the kernel was configured for.
    Full,
    /// An operation of this name is in flight already.
    TokenInUse,
}

impl fmt::Display for SubmitErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitErrorKind::Full => {
                "as many operations are in flight as were configured; raise `operations`"
            }
            SubmitErrorKind::TokenInUse => {
                "an operation of the same kind is in flight for this slot"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_small() {
        assert!(size_of::<Completion>() <= 56, "{} bytes", size_of::<Completion>());
        assert!(size_of::<Op>() <= 48, "{} bytes", size_of::<Op>());
    }
}
