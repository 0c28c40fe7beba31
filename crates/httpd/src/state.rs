//! What is kept for a connection.

use std::net::IpAddr;

use crate::Limits;
use crate::head_errors::start_of_line;
use crate::status::Status;
use crate::work::{BodyReceipt, PendingWork};

/// What a [`Site`](crate::Site) keeps for a connection.
#[derive(Debug, Default)]
pub struct State {
    /// A request that waits for something.
    pub(crate) work: Option<Box<PendingWork>>,
    /// What was unsent when the deadline was set; 0 if nothing was or nobody asked.
    pub(crate) unsent: u64,
    /// Whose connection it is, if that is logged.
    pub(crate) peer: Option<Box<IpAddr>>,
    /// Bytes of the last reply's body, and its status; 0 once that was counted.
    pub(crate) last_body_bytes: u64,
    pub(crate) last_status: u16,
    /// How much of an incomplete head was looked at.
    pub(crate) scanned: u32,
    /// Requests so far.
    pub(crate) requests: u32,
    /// The queue to send is full, as it is with a large file in it.
    pub(crate) full: bool,
    /// Not receiving, because of that.
    pub(crate) paused: bool,
    /// The deadline is that of a request on its way in.
    pub(crate) read_deadline_armed: bool,
}

impl State {
    /// Notes a reply, to be counted.
    #[inline]
    pub(crate) fn set_last_response(&mut self, status: Status, bytes: u64) {
        (self.last_status, self.last_body_bytes) = (status.0, bytes);
    }

    /// The request whose body is on its way in.
    #[inline]
    pub(crate) fn body(&mut self) -> Option<&mut BodyReceipt> {
        match self.work.as_deref_mut() {
            Some(PendingWork::Body(work)) => Some(work),
            _ => None,
        }
    }

    /// Whether a head that was incomplete still is, as no line has ended since. This keeps a
    /// client that sends single bytes from having its head parsed at each.
    pub(crate) fn is_partial(&mut self, bytes: &[u8], limits: &Limits) -> bool {
        let (before, len) = (self.scanned as usize, bytes.len());
        self.scanned = len as u32;
        let passes = |bound: usize| before < bound && bound <= len;
        let new = bytes.get(before..).unwrap_or_default();
        let line = start_of_line(bytes) + limits.max_request_line_bytes;
        !passes(line) && !passes(limits.max_head_bytes) && memchr::memchr(b'\n', new).is_none()
    }
}

/// How a callback for received bytes ends.
pub(crate) enum ReceiveOutcome {
    /// All that came is answered.
    Idle,
    /// More of a request has to come.
    More,
    /// The queue to send is full.
    Full,
    /// A request waits for file work, or the connection is closed.
    Nothing,
}
