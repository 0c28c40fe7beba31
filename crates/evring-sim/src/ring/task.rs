//! The operations of a simulated ring.

use std::net::SocketAddr;

use shared_ring::Fd;
use shared_ring::files::{Access, WriteAt};
use shared_ring::nonblocking::FileRange;

use crate::memory::MemoryHold;

/// The work of an operation, with the memory that the kernel uses.
#[derive(Debug)]
pub(super) enum Task {
    Accept {
        multishot: bool,
    },
    Receive {
        multishot: bool,
        group: u16,
    },
    /// A receive of datagrams.
    ReceiveFrom {
        group: u16,
    },
    /// The bytes to send in pieces, the structures that describe them, and the destination of a datagram.
    Send {
        pieces: Vec<MemoryHold>,
        header: Vec<MemoryHold>,
        to: Option<SocketAddr>,
        /// It waits for room; without, it ends with `EAGAIN`.
        waits: bool,
    },
    Connect {
        address: MemoryHold,
    },
    Poll {
        events: u32,
        /// Events of the present state that a multishot poll has reported.
        reported: Option<u32>,
    },
    Counter {
        into: MemoryHold,
    },
    /// An open, completed by a timed event.
    Open {
        path: MemoryHold,
        access: Access,
    },
    /// A read of a file, completed by a timed event.
    Read {
        into: MemoryHold,
        part: FileRange,
    },
    /// A write to a file, completed by a timed event.
    Write {
        from: MemoryHold,
        at: WriteAt,
    },
}

impl Task {
    /// Returns whether a worker performs it and a timed event completes it.
    pub(super) fn is_timed(&self) -> bool {
        matches!(self, Task::Open { .. } | Task::Read { .. } | Task::Write { .. })
    }

    /// Returns whether only the kernel has written to its memory.
    pub(super) fn is_untouched(&self) -> bool {
        match self {
            Task::Accept { .. }
            | Task::Receive { .. }
            | Task::ReceiveFrom { .. }
            | Task::Poll { .. } => true,
            Task::Send { pieces, header, .. } => {
                pieces.iter().chain(header).all(MemoryHold::is_untouched)
            }
            Task::Connect { address: hold } | Task::Counter { into: hold } => hold.is_untouched(),
            Task::Open { path: hold, .. }
            | Task::Read { into: hold, .. }
            | Task::Write { from: hold, .. } => hold.is_untouched(),
        }
    }
}

/// An operation, and its submission.
#[derive(Debug)]
pub(super) struct RingOp {
    /// Unique; never reused.
    pub(super) serial: u64,
    pub(super) user_data: u64,
    pub(super) fd: Fd,
    /// Distinguishes its descriptor from a later one with the same number.
    pub(super) opening: Option<u32>,
    pub(super) task: Task,
    /// A worker has started it.
    pub(super) started: bool,
}
