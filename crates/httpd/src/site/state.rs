//! The state of a connection, and what its request waits for.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

use crate::decision::options::ResponseOptions;
use crate::message::body::Body;
use crate::message::request::{KeptHead, Request};
use crate::response::sent::Sent;
use crate::site::guard::Guarded;
use crate::site::handler::BodySink;
use crate::site::lookup::FileLookup;
use crate::site::stream::StreamedBody;

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
    /// Records a response, to be counted. Returns whether the next request may be processed.
    #[inline]
    pub(crate) fn record(&mut self, sent: Sent) -> bool {
        self.full = sent.is_full;
        (self.last_status, self.last_body_bytes) = (sent.status, sent.body_bytes);
        sent.stays_open
    }

    /// Returns the request whose body is being received.
    #[inline]
    pub(crate) fn body(&mut self) -> Option<&mut BodyReceipt> {
        match self.work.as_deref_mut() {
            Some(PendingWork::Body(work)) => Some(work),
            _ => None,
        }
    }
}

/// What a request waits for.
#[derive(Debug, Default)]
pub(crate) enum PendingWork {
    /// Nothing: the box is kept for reuse.
    #[default]
    Done,
    File(FileLookup, KeptHead),
    /// Receives the body.
    Body(BodyReceipt),
    /// Sends a streamed response body.
    StreamedBody(StreamedBody),
}

/// A request whose body is being received.
#[derive(Debug)]
pub(crate) struct BodyReceipt {
    pub(crate) body: Body,
    /// Bytes of content received since the deadline was set.
    pub(crate) received: u64,
    pub(crate) options: ResponseOptions,
    pub(crate) held: BodyMemory,
    pub(crate) then: AfterBody,
}

/// The use of a body.
#[derive(Debug)]
pub(crate) enum AfterBody {
    /// Discarded; the request is answered at its end, by its head.
    Answer(KeptHead),
    /// Passed to a sink. The head is kept for the log.
    BodySink(Guarded<Box<dyn BodySink>>, Option<KeptHead>),
}

impl AfterBody {
    /// Returns the request, if its head was kept.
    pub(crate) fn request(&self) -> Option<Request<'_>> {
        match self {
            AfterBody::Answer(head) | AfterBody::BodySink(_, Some(head)) => Some(head.request()),
            AfterBody::BodySink(_, None) => None,
        }
    }
}

/// Memory held for one request body, included in the total of all bodies.
#[derive(Debug, Default)]
pub(crate) struct BodyMemory {
    total: Rc<Cell<usize>>,
    bytes: usize,
}

impl BodyMemory {
    /// Holds no bytes yet; `total` is the sum over all bodies.
    pub(crate) fn new(total: &Rc<Cell<usize>>) -> Self {
        BodyMemory { total: Rc::clone(total), bytes: 0 }
    }

    /// Sets the bytes held for this body. Returns the total of all bodies.
    pub(crate) fn set(&mut self, bytes: usize) -> usize {
        // A handler may report any number; more than 1 TiB is implausible.
        let bytes = bytes.min(1 << 40);
        self.total.set(self.total.get() - self.bytes + bytes);
        self.bytes = bytes;
        self.total.get()
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_memory_total_is_the_sum_of_current_bodies() {
        let total = Rc::default();
        let (mut one, mut other) = (BodyMemory::new(&total), BodyMemory::new(&total));
        assert_eq!([one.set(5), other.set(7), one.set(2), one.set(4)], [5, 12, 9, 11]);
        drop(one);
        assert_eq!(total.get(), 7);
        // A number reported by a handler is capped.
        let mut excessive = BodyMemory::new(&total);
        assert_eq!(excessive.set(usize::MAX), (1 << 40) + 7);
        assert_eq!(other.set(usize::MAX), 2 << 40);
        drop((excessive, other));
        assert_eq!(total.get(), 0);
    }
}
