//! The policy of sending: how much of a connection's queue is sent at a time, how, and when.

use std::time::{Duration, Instant};

use shared_ring::files::File;

use crate::ConnId;

/// Decides when the driver sends the front of a connection's queue, how it sends a file, and how much of it at a
/// time.
///
/// A worker has one policy for all its connections. The driver asks it when a connection has something to
/// send and no send in flight, at most four times in a row; then it serves other connections. Closing a connection ends
/// its wait for room; a connection that the application closes still has to meet
/// [`Config::min_rate`](crate::Config::min_rate).
pub trait SendPolicy {
    /// Returns the next step for a connection.
    fn next(&mut self, state: &SendState<'_>) -> SendStep;

    /// Reports the result of a step.
    fn completed(&mut self, _id: ConnId, _result: SendResult) {}

    /// Reports that a connection is closed.
    fn closed(&mut self, _id: ConnId) {}

    /// Returns whether the policy decides when bytes in memory are sent, too. If not, the driver asks it only
    /// while a file is queued, does not report what was sent from memory, and sends the rest at once.
    fn decides_memory(&self) -> bool {
        true
    }

    /// Returns whether the driver holds back what the application has read from a file, until the socket has
    /// taken everything that the application has sent on that connection, but at most
    /// [`Config::max_read_delay`](crate::Config::max_read_delay). Then the application, which transforms the
    /// bytes and sends them, does not run for bytes that would have to wait.
    fn defers_reads(&self) -> bool {
        false
    }
}

/// The state of a connection that has something to send.
pub struct SendState<'a> {
    /// The connection.
    pub id: ConnId,
    /// Number of bytes queued in memory.
    pub queued_bytes: usize,
    /// Number of bytes left of the file at the front of the queue; `None` if bytes in memory are there.
    pub file_bytes: Option<u64>,
    /// The socket took only a part of the last piece of a file, or of the last send from memory if the policy
    /// decides these, too. False after [`SendResult::HasRoom`]. After a pause this is not known, and false.
    pub is_full: bool,
    /// The time at which the turn began.
    pub now: Instant,
    pub(crate) can_read: &'a dyn Fn() -> bool,
    pub(crate) unacked_bytes: &'a dyn Fn() -> u64,
}

impl std::fmt::Debug for SendState<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendState")
            .field("id", &self.id)
            .field("queued_bytes", &self.queued_bytes)
            .field("file_bytes", &self.file_bytes)
            .field("is_full", &self.is_full)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl SendState<'_> {
    /// Returns whether [`SendStep::Read`] is possible: a file is queued, no part of it is being read, and at most 64 KiB
    /// in memory are in front of it; all connections together hold less than half of
    /// [`Config::max_buffered_bytes`](crate::Config::max_buffered_bytes); and a file operation can begin, because fewer
    /// than [`Config::max_file_ops`](crate::Config::max_file_ops) are in flight and none waits to begin. It sums what
    /// the connection has queued.
    pub fn can_read(&self) -> bool {
        (self.can_read)()
    }

    /// Returns the number of bytes sent that the peer has not acknowledged. It is a system call.
    pub fn unacked_bytes(&self) -> u64 {
        (self.unacked_bytes)()
    }
}

/// A step of a connection with something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStep {
    /// Send the bytes in memory at the front of the queue, or a piece of the file that is there. A piece that
    /// is not in the page cache is read first.
    Send {
        /// Maximum number of bytes of the piece, from 1 to 1 MiB ([`File::MAX_PIECE_BYTES`]).
        max_file_bytes: u32,
    },
    /// The same, but the result is [`SendResult::Cold`] if the piece is not in the page cache. It never waits
    /// for the disk.
    SendCached {
        /// Maximum number of bytes of the piece, from 1 to 1 MiB ([`File::MAX_PIECE_BYTES`]).
        max_file_bytes: u32,
    },
    /// Read a piece of the first queued file into memory, and send it from there. A piece that is not in the page cache is
    /// read by the ring or another thread. The driver asks again at once if there are bytes in memory to send, else when
    /// it has read the piece. If it is not [possible](SendState::can_read), the driver sends, as for
    /// [`SendStep::Send`] with 1 MiB.
    Read {
        /// Maximum number of bytes of the piece, from 1 to 64 KiB.
        max_bytes: u32,
    },
    /// Ask again when the socket has room. It may have room now, so a policy asks for that only after a
    /// send.
    WaitForRoom,
    /// Ask again after this time, or up to a quarter earlier: pauses of several connections end at once, so that the
    /// worker wakes up less often.
    Pause(Duration),
    /// Ask again in the next turn.
    Yield,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendResult {
    /// Number of bytes sent from memory.
    Memory(usize),
    /// Number of bytes sent from a file; 0 if the file was truncated, which ends the connection.
    File(u32),
    /// Nothing was sent: the piece of the file is not in the page cache.
    Cold,
    /// A piece of a file was read.
    Read {
        /// Number of its bytes; 0 if the file was truncated, which ends the connection.
        bytes: u32,
        /// The piece was not in the page cache, so that the read waited for the disk. False if that is not known.
        was_cold: bool,
    },
    /// The socket has room, or the connection is broken. If a socket is full, the driver waits for room, too, before it sends
    /// more of a file: so it looks whether the file has changed when it can send. Then it asks again.
    HasRoom,
}

/// Sends at once, and at most 1 MiB of a file at a time, so that progress is visible.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultSendPolicy;

impl DefaultSendPolicy {
    /// Each step.
    pub(crate) const STEP: SendStep =
        SendStep::Send { max_file_bytes: File::MAX_PIECE_BYTES as u32 };
}

impl SendPolicy for DefaultSendPolicy {
    fn next(&mut self, _state: &SendState<'_>) -> SendStep {
        Self::STEP
    }
}
