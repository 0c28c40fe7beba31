//! The result of queueing a response.

use evring::{Commands, ConnId, HIGH_WATER};

use crate::decision::options::ResponseOptions;
use crate::message::status::Status;

/// A response that was queued.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Sent {
    pub(crate) status: u16,
    /// Bytes of its body.
    pub(crate) body_bytes: u64,
    /// Whether the send queue is at its high-water mark.
    pub(crate) is_full: bool,
    /// Whether the connection stays open, for the next request.
    pub(crate) stays_open: bool,
}

impl Sent {
    /// A response after which `queued` bytes wait to be sent; the connection stays open.
    #[inline]
    pub(crate) fn new(status: Status, body_bytes: u64, queued: usize) -> Self {
        Sent { status: status.0, body_bytes, is_full: queued >= HIGH_WATER, stays_open: true }
    }

    /// Closes the connection if the options require it.
    pub(crate) fn close(
        self,
        io: &mut impl Commands,
        to: ConnId,
        options: ResponseOptions,
    ) -> Self {
        Sent { stays_open: finish(io, to, options), ..self }
    }
}

/// Closes the connection if the options require it. Returns whether it stays open.
pub(crate) fn finish(io: &mut impl Commands, to: ConnId, options: ResponseOptions) -> bool {
    if !options.stays_open() {
        io.close(to, options.close);
    }
    options.stays_open()
}
