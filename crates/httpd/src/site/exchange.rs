//! A request whose handler waits, or whose response is sent in pieces.

use std::fmt;

use crate::decision::options::ResponseOptions;
use crate::limits::Limits;
use crate::message::body::BodyDecoder;
use crate::message::request::KeptHead;
use crate::site::body_memory::BodyMemory;
use crate::site::guard::Guarded;
use crate::site::handler::ResponseFuture;
use crate::site::pipe::Writer;
use crate::site::stream::StreamedBody;
use crate::site::wakers::Task;

/// A request whose handler waits, or whose response is sent in pieces.
pub(crate) struct Exchange {
    pub(crate) stage: Stage,
    pub(crate) options: ResponseOptions,
    /// The waker of the connection; `None` for pieces that are never waited for.
    pub(crate) task: Option<Task>,
    /// The request's body, also after it has arrived.
    pub(crate) incoming: Option<IncomingBody>,
    /// The request's head, for the log.
    pub(crate) head: Option<KeptHead>,
    pub(crate) waits_for: WaitsFor,
    /// The connection does not receive.
    pub(crate) paused: bool,
    /// Number of bytes of the next requests that have arrived.
    pub(crate) next_bytes: usize,
    /// The client has shut down its sending side.
    pub(crate) at_end: bool,
    /// The connection has switched to another protocol.
    pub(crate) is_upgraded: bool,
}

/// The future or body that is polled.
pub(crate) enum Stage {
    /// The handler's future.
    Handler(Guarded<ResponseFuture>),
    /// The pieces of the response's body.
    Body(StreamedBody),
}

/// The event that an exchange waits for, which determines the connection's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// It was not polled yet.
    Nothing,
    /// The handler's response.
    Handler,
    /// More of the request's body.
    Client,
    /// The next piece of the response's body.
    Piece,
    /// The client, which receives the response.
    Room,
}

/// The body of a request, on its way to the handler.
#[derive(Debug)]
pub(crate) struct IncomingBody {
    pub(crate) body: BodyDecoder,
    pub(crate) writer: Writer,
    /// Bytes of content received since the deadline was set.
    pub(crate) received: u64,
    pub(crate) memory: BodyMemory,
    /// The client sends the body after a 100 Continue.
    pub(crate) expects_continue: bool,
}

impl Exchange {
    pub(crate) fn new(stage: Stage, options: ResponseOptions) -> Self {
        Exchange {
            stage,
            options,
            task: None,
            incoming: None,
            head: None,
            waits_for: WaitsFor::Nothing,
            paused: false,
            next_bytes: 0,
            at_end: false,
            is_upgraded: false,
        }
    }

    /// Returns whether the connection receives, although bytes of the next requests wait: else the server would not see
    /// that the client leaves. The driver keeps a bounded number of bytes, and those before an end of a connection that
    /// is paused only.
    pub(crate) fn receives_next(&self) -> bool {
        self.next_bytes == 0 || self.next_bytes < Limits::MAX_HEAD_BYTES && !self.at_end
    }

    /// Returns whether the server would not see that the client leaves.
    pub(crate) fn is_unwatched(&self) -> bool {
        self.paused || self.at_end
    }

    /// Returns the body of the request while it is incomplete.
    pub(crate) fn open_incoming(&mut self) -> Option<&mut IncomingBody> {
        self.incoming.as_mut().filter(|incoming| incoming.body.is_open())
    }

    /// Makes wake-ups have no effect before the next poll.
    pub(crate) fn suppress_wakeups(&self) {
        if let Some(task) = &self.task {
            task.suppress();
        }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match &self.stage {
            Stage::Handler(_) => "handler",
            Stage::Body(_) => "body",
        };
        write!(f, "Exchange({stage}, waits for {:?})", self.waits_for)
    }
}
