//! A connection to the server under load.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use shared_ring::{Fd, OpKind, Socket, Token};

use crate::reply::ReplyParser;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Makes the requests of one session.
    #[default]
    Session,
    /// Stays open and sends requests as they become due.
    Persistent,
    /// Stays idle.
    Idle,
    /// Sends a request and receives the reply at a limited rate.
    SlowReader,
    /// Sends a request one byte at a time.
    SlowSender,
}

impl Role {
    /// Returns whether the connection belongs to a slow client, which is not part of the load.
    pub(crate) fn is_slow(self) -> bool {
        matches!(self, Role::SlowReader | Role::SlowSender)
    }
}

/// State of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is unused.
    #[default]
    Free,
    Connecting,
    Open,
    /// Waits for the server to close the connection.
    AwaitingClose,
    /// Operations in flight are being cancelled. Then the socket is closed.
    Cancelling,
    /// The close operation is in flight.
    Closing,
}

/// A request that awaits its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRequest {
    /// Due time.
    pub(crate) due: Instant,
    /// The request became due in the measurement period.
    pub(crate) measured: bool,
    /// Index of the session, and of the request in it.
    pub(crate) session: usize,
    pub(crate) index: u64,
    /// Time from when the request was due until the connection was established.
    pub(crate) connect: Option<Duration>,
}

/// State of one connection slot.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) generation: u32,
    pub(crate) phase: Phase,
    pub(crate) role: Role,
    pub(crate) socket: Option<Socket>,
    /// Operations in flight.
    pub(crate) connecting: bool,
    pub(crate) receiving: bool,
    pub(crate) sending: bool,
    /// Index of the session, and of its next request. For a slow client, the index of its request.
    pub(crate) session: usize,
    pub(crate) index: u64,
    /// The client's think time before the next request is running.
    pub(crate) thinking: bool,
    /// Requests that await replies, in order. The last `unsent` of them have not been submitted.
    pub(crate) pending: VecDeque<PendingRequest>,
    pub(crate) unsent: usize,
    /// The session started in the measurement period.
    pub(crate) measured: bool,
    /// A reply has been received.
    pub(crate) has_reply: bool,
    /// Number of requests that were answered or failed.
    pub(crate) completed: u64,
    pub(crate) parser: ReplyParser,
    /// Number of bytes of the request that a slow sender has sent.
    pub(crate) slow_bytes: usize,
    /// When a slow reader receives next, once it has sent its request.
    pub(crate) slow_next: Option<Instant>,
}

impl Connection {
    /// Initializes the slot for a new connection. The generation is kept.
    pub(crate) fn begin(&mut self, role: Role, socket: Socket) {
        self.phase = Phase::Connecting;
        self.role = role;
        self.socket = Some(socket);
        self.thinking = false;
        self.pending.clear();
        self.unsent = 0;
        self.completed = 0;
        self.measured = false;
        self.has_reply = false;
        self.parser.reset();
        self.slow_bytes = 0;
        self.slow_next = None;
    }

    /// Returns the socket's descriptor.
    pub(crate) fn fd(&self) -> Option<Fd> {
        // SAFETY: only `Generator::close_if_drained` closes the socket, when none of its operations
        // is in flight. No caller keeps the descriptor beyond the operation it is requested for.
        self.socket.as_ref().map(|socket| unsafe { socket.fd() })
    }

    /// Returns the token for an operation on this connection.
    pub(crate) fn token(&self, kind: OpKind, slot: u32) -> Token {
        Token::new(kind, slot, self.generation)
    }

    /// Returns whether no operation is in flight.
    pub(crate) fn has_no_operations(&self) -> bool {
        !self.connecting && !self.receiving && !self.sending
    }

    /// Returns whether the connection is being established or is established.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Open | Phase::AwaitingClose)
    }
}
