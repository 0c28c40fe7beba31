//! The policy of sending: how much of a connection's queue is sent at a time, and when.

use crate::ConnId;

/// Decides when the driver sends the front of a connection's queue, and how much of a file at a time.
///
/// A worker has one policy for all its connections. The driver asks it when a connection has something to
/// send and no send in flight, at most four times per connection and turn. Closing a connection ends its
/// wait for room; a connection that the application closes still has to meet [`Config::min_rate`](crate::Config::min_rate).
pub trait SendPolicy {
    /// Returns the next step for a connection.
    fn next(&mut self, state: &SendState<'_>) -> SendStep;

    /// Reports the result of a step.
    fn completed(&mut self, _id: ConnId, _result: SendResult) {}

    /// Reports that a connection is closed.
    fn closed(&mut self, _id: ConnId) {}
}

/// What a connection has to send.
pub struct SendState<'a> {
    /// The connection.
    pub id: ConnId,
    /// Number of bytes queued in memory.
    pub queued_bytes: usize,
    /// Number of bytes left of the file at the front of the queue; `None` if bytes in memory are there.
    pub file_bytes: Option<u64>,
    pub(crate) unacked_bytes: &'a dyn Fn() -> u64,
}

impl SendState<'_> {
    /// Returns the number of bytes sent that the peer has not acknowledged. It is a system call.
    pub fn unacked_bytes(&self) -> u64 {
        (self.unacked_bytes)()
    }
}

/// A step of a connection with something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStep {
    /// Send the bytes in memory at the front of the queue, or a piece of the file that is there.
    Send {
        /// Maximum number of bytes of the piece, at least 1.
        max_file_bytes: u32,
    },
    /// Ask again when the socket has room. It may have room now, so a policy asks for that only after a
    /// send.
    WaitForRoom,
    /// Ask again in the next turn.
    Yield,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// Number of bytes sent from memory.
    Memory(usize),
    /// Number of bytes sent from a file; 0 if the file was truncated, which ends the connection.
    File(u32),
    /// The socket has room, or the connection is broken.
    HasRoom,
}

/// Sends at once, and at most 256 KiB of a file at a time, so that progress is visible.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultSendPolicy;

impl DefaultSendPolicy {
    /// Each step.
    pub(crate) const STEP: SendStep = SendStep::Send { max_file_bytes: 256 * 1024 };
}

impl SendPolicy for DefaultSendPolicy {
    fn next(&mut self, _state: &SendState<'_>) -> SendStep {
        Self::STEP
    }
}
