//! The state of a connection, and what its request waits for.

use std::net::SocketAddr;
use std::time::Instant;

use crate::decision::options::{HostIndex, ResponseOptions};
use crate::message::body::BodyDecoder;
use crate::message::request::{KeptHead, RequestHead};
use crate::response::sent::Sent;
use crate::site::body_memory::BodyMemory;
use crate::site::exchange::Exchange;
use crate::site::guard::Guarded;
use crate::site::handler::BodySink;
use crate::site::lookup::FileLookup;
use crate::site::wakers::Task;

/// The state that a [`Site`](crate::Site) keeps per connection.
#[derive(Debug, Default)]
pub struct State {
    /// A request that is waiting.
    pub(crate) work: Option<Box<PendingWork>>,
    /// Unsent bytes when the deadline was set, or [`State::NOT_MEASURED`]; 0 if there were none or they do not matter.
    pub(crate) unsent: u64,
    /// The data for handlers, the log and the metrics.
    pub(crate) observed: Option<Box<Observed>>,
    /// Bytes of the last response's body, and its status; 0 once counted.
    pub(crate) last_body_bytes: u64,
    pub(crate) last_status: u16,
    /// Bytes of an incomplete head that were parsed.
    pub(crate) scanned: u16,
    pub(crate) requests: u32,
    /// Looks at [`State::unsent`] that follow before the client is judged by it, or [`State::LOOK_AFTER_RESPONSE`].
    pub(crate) looks: u8,
    /// The send queue is at its high-water mark.
    pub(crate) full: bool,
    /// Receiving is paused because of that.
    pub(crate) paused: bool,
    /// What has arrived of the request being received.
    pub(crate) arrival: Arrival,
    /// The password of the request that arrives again is wrong.
    #[cfg(feature = "basic-auth")]
    pub(crate) has_wrong_password: bool,
    /// Requests are redirected to https.
    #[cfg(feature = "tls")]
    pub(crate) redirects: bool,
    /// The number of the listener that has accepted the connection.
    #[cfg(feature = "sandbox")]
    pub(crate) listener: u16,
}

/// What has arrived of a request that is not complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Arrival {
    #[default]
    Nothing,
    /// An empty line behind the last request. It was skipped.
    EmptyLine,
    /// A part, perhaps behind such a line. The deadline of the connection is that of the request, which the first one has
    /// from the start.
    Part { after_line: bool },
}

impl Arrival {
    pub(crate) fn is_part(self) -> bool {
        matches!(self, Arrival::Part { .. })
    }

    /// Returns whether an empty line was skipped.
    pub(crate) fn has_line(self) -> bool {
        matches!(self, Arrival::EmptyLine | Arrival::Part { after_line: true })
    }
}

/// The data of a connection for handlers, the log and the metrics.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The client's address.
    pub(crate) peer: Option<SocketAddr>,
    /// The time at which the request in hand had arrived.
    pub(crate) since: Option<Instant>,
    /// The head of a request whose response is being sent, for the log.
    pub(crate) head: Option<KeptHead>,
    /// The waker of the connection's handlers.
    pub(crate) task: Option<Task>,
    /// The details of the connection's TLS.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<evring_tls::TlsInfo>,
}

impl State {
    /// [`State::unsent`] from a response that fills the send queue to the first look at what the client takes.
    pub(crate) const NOT_MEASURED: u64 = u64::MAX;

    /// [`State::looks`] until the first look at what the client takes of a response after which it is idle.
    pub(crate) const LOOK_AFTER_RESPONSE: u8 = u8::MAX;

    /// Watches the client's progress from the first measurement on, which follows.
    pub(crate) fn start_watching(&mut self) {
        (self.unsent, self.looks) = (Self::NOT_MEASURED, 0);
    }

    /// Ends the watch of the client's progress.
    pub(crate) fn stop_watching(&mut self) {
        (self.unsent, self.looks) = (0, 0);
    }

    /// Returns whether no request is being received or answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.work.is_none() && self.scanned == 0 && !self.paused
    }

    /// Records a response, to be counted. Returns whether the next request may be processed.
    #[inline]
    pub(crate) fn record(&mut self, sent: Sent) -> bool {
        self.full = sent.is_full;
        (self.last_status, self.last_body_bytes) = (sent.status, sent.body_bytes);
        sent.stays_open
    }

    /// Returns the host of a response on this connection. One that redirects to https has none: the fields and pages of a
    /// host may be for TLS only (RFC 6797, section 7.2).
    #[inline]
    pub(crate) fn host(&self, named: HostIndex) -> HostIndex {
        #[cfg(feature = "tls")]
        if self.redirects {
            return HostIndex::NONE;
        }
        named
    }

    /// Returns the request whose body is being received.
    #[inline]
    pub(crate) fn body(&mut self) -> Option<&mut BodyReceipt> {
        match self.work.as_deref_mut() {
            Some(PendingWork::Body(work)) => Some(work),
            _ => None,
        }
    }

    /// Returns the exchange with a handler.
    pub(crate) fn exchange(&mut self) -> Option<&mut Exchange> {
        match self.work.as_deref_mut() {
            Some(PendingWork::Exchange(exchange)) => Some(exchange),
            _ => None,
        }
    }
}

/// The event that a request waits for.
#[derive(Debug, Default)]
pub(crate) enum PendingWork {
    /// Nothing: the box is kept for reuse.
    #[default]
    Done,
    File(FileLookup, KeptHead),
    /// A password is being verified. The head has not been taken.
    #[cfg(feature = "basic-auth")]
    Login,
    /// Receives the body.
    Body(BodyReceipt),
    /// Waits for a handler, or sends a streamed response body.
    Exchange(Exchange),
}

/// A request whose body is being received.
#[derive(Debug)]
pub(crate) struct BodyReceipt {
    pub(crate) body: BodyDecoder,
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
    pub(crate) fn request(&self) -> Option<RequestHead<'_>> {
        match self {
            AfterBody::Answer(head) | AfterBody::BodySink(_, Some(head)) => Some(head.request()),
            AfterBody::BodySink(_, None) => None,
        }
    }
}
