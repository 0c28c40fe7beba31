//! A connection of the load.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use shared_ring::{Fd, OpKind, Socket, Token};

use crate::reply::Reader;

/// What a connection is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// It makes the requests of one session.
    #[default]
    Session,
    /// It is kept, and takes whatever request is due.
    Kept,
    /// It stays idle.
    Cold,
    /// It asks, and takes the reply a little at a time.
    SlowReader,
    /// It asks a byte at a time.
    SlowSender,
}

impl Role {
    /// Whether it is there to be a nuisance, and what it does is no part of the load.
    pub(crate) fn is_slow(self) -> bool {
        matches!(self, Role::SlowReader | Role::SlowSender)
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is none.
    #[default]
    Free,
    Connecting,
    Open,
    /// The server is to end it.
    Farewell,
    /// What is in flight ends, then its descriptor is closed.
    Ending,
    Closing,
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// When it was due.
    pub(crate) due: Instant,
    /// Whether it counts.
    pub(crate) counts: bool,
    /// Which one of which session it is.
    pub(crate) session: usize,
    pub(crate) place: u64,
    /// How long it waited for the connection.
    pub(crate) connect: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) generation: u32,
    pub(crate) phase: Phase,
    pub(crate) role: Role,
    pub(crate) socket: Option<Socket>,
    /// Operations in flight.
    pub(crate) connects: bool,
    pub(crate) receives: bool,
    pub(crate) sends: bool,
    /// Its session, and the place in it of what comes next.
    pub(crate) session: usize,
    pub(crate) place: u64,
    /// It will ask again when the client has thought.
    pub(crate) thinks: bool,
    /// Requests under way, in order; the last `unsent` of them have not been handed to the kernel.
    pub(crate) asked: VecDeque<Asked>,
    pub(crate) unsent: usize,
    /// Whether its session counts.
    pub(crate) counts: bool,
    /// Whether it has got a reply.
    pub(crate) answered: bool,
    /// Requests that are over.
    pub(crate) over: u64,
    pub(crate) reader: Reader,
    /// Of one who sends slowly: how much of the request has gone. Of one who reads slowly: how
    /// much has come since it rested.
    pub(crate) little: usize,
}

impl Connection {
    /// Makes it one again that has just begun. The generation stays.
    pub(crate) fn begin(&mut self, role: Role, socket: Socket) {
        self.phase = Phase::Connecting;
        self.role = role;
        self.socket = Some(socket);
        self.thinks = false;
        self.asked.clear();
        self.unsent = 0;
        self.over = 0;
        self.counts = false;
        self.answered = false;
        self.reader.begin();
        self.little = 0;
    }

    /// The number of its socket, to name it in operations.
    pub(crate) fn fd(&self) -> Option<Fd> {
        // SAFETY: `Generator::close_if_quiet` closes the socket, when none of its operations is in flight, and
        // nothing else does. Nothing keeps the number beyond the operation that it was asked for.
        self.socket.as_ref().map(|socket| unsafe { socket.fd() })
    }

    /// The name of an operation of it.
    pub(crate) fn token(&self, kind: OpKind, slot: u32) -> Token {
        Token::new(kind, slot, self.generation)
    }

    /// Whether nothing of it is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.connects && !self.receives && !self.sends
    }

    /// Whether it lives.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Open | Phase::Farewell)
    }
}
