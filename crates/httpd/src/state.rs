//! The state of a connection.

use std::net::IpAddr;

use crate::Limits;
use crate::head_errors::start_of_line;
use crate::status::Status;
use crate::work::{BodyReceipt, PendingWork};

/// The state that a [`Site`](crate::Site) keeps per connection.
#[derive(Debug, Default)]
pub struct State {
    /// A request that is waiting.
    pub(crate) work: Option<Box<PendingWork>>,
    /// Unsent bytes when the deadline was set; 0 if there were none or they do not matter.
    pub(crate) unsent: u64,
    /// The peer's address, if the access log is enabled.
    pub(crate) peer: Option<Box<IpAddr>>,
    /// Bytes of the last response's body, and its status; 0 once counted.
    pub(crate) last_body_bytes: u64,
    pub(crate) last_status: u16,
    /// Bytes of an incomplete head that were parsed.
    pub(crate) scanned: u32,
    pub(crate) requests: u32,
    /// The send queue is at its high-water mark.
    pub(crate) full: bool,
    /// Receiving is paused because of that.
    pub(crate) paused: bool,
    /// The deadline is that of a request being received.
    pub(crate) read_deadline_armed: bool,
}

impl State {
    /// Records a response, to be counted.
    #[inline]
    pub(crate) fn set_last_response(&mut self, status: Status, bytes: u64) {
        (self.last_status, self.last_body_bytes) = (status.0, bytes);
    }

    /// Returns the request whose body is being received.
    #[inline]
    pub(crate) fn body(&mut self) -> Option<&mut BodyReceipt> {
        match self.work.as_deref_mut() {
            Some(PendingWork::Body(work)) => Some(work),
            _ => None,
        }
    }

    /// Returns whether an incomplete head still is, as no further line has ended. This avoids
    /// parsing the head again for each byte of a slow client.
    pub(crate) fn is_partial(&mut self, bytes: &[u8], limits: &Limits) -> bool {
        let (before, len) = (self.scanned as usize, bytes.len());
        self.scanned = len as u32;
        let passes = |limit: usize| before < limit && limit <= len;
        let new = bytes.get(before..).unwrap_or_default();
        let line = start_of_line(bytes) + limits.max_request_line_bytes;
        !passes(line) && !passes(limits.max_head_bytes) && memchr::memchr(b'\n', new).is_none()
    }
}

pub(crate) enum ReceiveOutcome {
    /// All received bytes were processed.
    Idle,
    /// A request is incomplete.
    More,
    Full,
    /// A request waits for a file operation, or the connection is closed.
    Nothing,
}
