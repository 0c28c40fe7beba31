//! A proxy that connects each client with an upstream server.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ecem::{Event, EventKind, PairTable, Readiness};
use evring::{
    Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, HIGH_WATER, Listener, Rx,
};

/// Timeouts of a [`Proxy`], at most [`Proxy::MAX_TIMEOUT`].
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time until the upstream server must be connected.
    pub connect: Duration,
    /// Time without any bytes, received or taken by a peer, after which a pair of connections is closed; up to twice that if
    /// the last bytes were received, and the other peer takes none of them.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { connect: Duration::from_secs(5), idle: Duration::from_secs(300) }
    }
}

/// Connects each client with the upstream server and passes bytes both ways without a copy.
///
/// Data that arrives at one connection is sent on the other: an event pair of two sockets (ECEM). While the
/// second event waits, because that side reads slowly, the proxy does not receive from the first. A half-close
/// is passed on. If one side fails, the other is reset.
#[derive(Debug)]
pub struct Proxy {
    upstream: SocketAddr,
    timeouts: Timeouts,
    /// Connect to the upstream server only when the client has sent bytes.
    connect_late: bool,
    /// Arrival of data at a connection => write request of the other.
    pairs: PairTable<ConnId>,
}

fn arrival(id: ConnId) -> Event<ConnId> {
    Event::new(id, EventKind::ArrivalOfData)
}

fn write(id: ConnId) -> Event<ConnId> {
    Event::new(id, EventKind::NetworkWriteRequest)
}

/// State of a connection of a [`Proxy`].
#[derive(Clone, Copy, Debug, Default)]
pub enum ProxyState {
    /// Not part of a pair: it closes.
    #[default]
    Single,
    /// A client without an upstream connection.
    Waiting,
    /// One connection of a pair.
    Paired(ProxyHalf),
}

/// One connection of a pair.
#[derive(Clone, Copy, Debug)]
pub struct ProxyHalf {
    other: ConnId,
    client: ConnId,
    /// The peer has shut down its sending side.
    ended: bool,
    /// For the client: unsent bytes of the pair at the last idle deadline.
    unsent: u64,
}

impl ProxyHalf {
    fn new(other: ConnId, client: ConnId) -> Self {
        ProxyHalf { other, client, ended: false, unsent: 0 }
    }
}

impl ProxyState {
    fn half(self) -> Option<ProxyHalf> {
        match self {
            ProxyState::Paired(half) => Some(half),
            ProxyState::Single | ProxyState::Waiting => None,
        }
    }
}

impl Proxy {
    /// Maximum number of connections in pairs; a client beyond it is reset.
    pub const MAX_PAIRED: usize = 1 << 15;

    /// Maximum of each of the [`Timeouts`], a year, which can be added to any time of the clock.
    pub const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    /// Creates a proxy for the server at `upstream`.
    pub fn new(upstream: SocketAddr, Timeouts { connect, idle }: Timeouts) -> Self {
        let timeouts =
            Timeouts { connect: connect.min(Self::MAX_TIMEOUT), idle: idle.min(Self::MAX_TIMEOUT) };
        let pairs = PairTable::new(Self::MAX_PAIRED);
        Proxy { upstream, timeouts, connect_late: false, pairs }
    }

    /// Connects to the upstream server only when a client has sent bytes, so silent clients cost it
    /// nothing. Does not suit protocols in which the server speaks first.
    #[must_use]
    pub fn connecting_late(self) -> Self {
        Proxy { connect_late: true, ..self }
    }

    /// Limits the number of connections in pairs to less than [`MAX_PAIRED`](Self::MAX_PAIRED).
    #[must_use]
    pub fn with_max_paired(self, max: usize) -> Self {
        Proxy { pairs: PairTable::new(max.min(Self::MAX_PAIRED)), ..self }
    }

    /// Opens the other connection of a pair.
    fn pair(&mut self, x: &mut Cx<'_, impl Commands, ProxyState>) {
        if self.pairs.len() + 2 > self.pairs.max() {
            return x.io.close(x.id, Close::Reset);
        }
        let (client, server) = (x.id, x.io.connect(self.upstream));
        for (from, to) in [(client, server), (server, client)] {
            if let Ok(pair) = self.pairs.add(arrival(from), write(to)) {
                self.pairs.set_post(pair, Readiness::Ready);
            }
        }
        x.io.set_deadline(server, Some(x.io.now() + self.timeouts.connect));
        *x.state = ProxyState::Paired(ProxyHalf::new(server, client));
        if let Some(state) = x.others.get(x.io, server) {
            *state = ProxyState::Paired(ProxyHalf::new(client, client));
        }
    }

    /// Notes whether a connection takes more bytes. The other connection of the pair receives only then.
    fn set_writable(&mut self, io: &mut impl Commands, id: ConnId, is: Readiness) {
        let mut from = None;
        self.pairs.set(write(id), is, |pair, _, _| from = Some(pair));
        if let Some((arrival, _)) = from.and_then(|pair| self.pairs.events(pair)) {
            io.set_receiving(arrival.object, is == Readiness::Ready);
        }
    }

    /// Extends the idle deadline of a pair, which is set on the client's connection.
    fn extend_idle_deadline(&self, io: &mut impl Commands, half: ProxyHalf) {
        io.set_deadline(half.client, Some(io.now() + self.timeouts.idle));
    }
}

/// Handles the end of a stream: passes it on, and closes both connections when both have ended.
fn ended(x: &mut Cx<'_, impl Commands, ProxyState>, half: ProxyHalf) {
    x.io.close(half.other, Close::Half);
    *x.state = ProxyState::Paired(ProxyHalf { ended: true, ..half });
    let Some(other) = x.others.get(x.io, half.other) else { return };
    if other.half().is_some_and(|other| other.ended) {
        *other = ProxyState::Single;
        *x.state = ProxyState::Single;
        x.io.close(x.id, Close::Flush);
        x.io.close(half.other, Close::Flush);
    }
}

impl Application for Proxy {
    type State = ProxyState;
    const MAX_UNCONSUMED: usize = 1; // consumes everything

    fn accepted(&mut self, mut x: Cx<'_, impl Commands, ProxyState>, _: Listener) {
        if self.connect_late {
            *x.state = ProxyState::Waiting;
            x.io.set_deadline(x.id, Some(x.io.now() + self.timeouts.idle));
        } else {
            self.pair(&mut x);
        }
    }

    fn connected(&mut self, x: Cx<'_, impl Commands, ProxyState>, result: io::Result<()>) {
        x.io.set_deadline(x.id, None);
        if let (Ok(()), Some(half)) = (result, x.state.half()) {
            self.extend_idle_deadline(x.io, half);
        }
    }

    fn received(&mut self, mut x: Cx<'_, impl Commands, ProxyState>, rx: &mut Rx<'_>) {
        if !rx.bytes().is_empty() && matches!(x.state, ProxyState::Waiting) {
            self.pair(&mut x);
        }
        let Some(half) = x.state.half() else {
            if rx.eof() {
                x.io.close(x.id, Close::Flush);
            }
            return rx.consume(rx.bytes().len());
        };
        let eof = rx.eof();
        if !rx.bytes().is_empty() {
            self.extend_idle_deadline(x.io, half);
            if x.io.send(half.other, Chunk::Received(rx.take())) >= HIGH_WATER {
                self.set_writable(x.io, half.other, Readiness::Wait);
            }
        }
        if eof && !half.ended {
            ended(&mut x, half);
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, ProxyState>) {
        if let Some(half) = x.state.half() {
            self.extend_idle_deadline(x.io, half);
            self.set_writable(x.io, x.id, Readiness::Ready);
        }
    }

    /// Resets the connection, unless it is the client of a pair of which bytes are on their way: what leaves a queue or the
    /// kernel has no other callback.
    fn expired(&mut self, x: Cx<'_, impl Commands, ProxyState>) {
        if let Some(half) = x.state.half().filter(|half| half.client == x.id) {
            let unsent = x.io.unsent_bytes(x.id).saturating_add(x.io.unsent_bytes(half.other));
            if unsent != half.unsent {
                *x.state = ProxyState::Paired(ProxyHalf { unsent, ..half });
                return self.extend_idle_deadline(x.io, half);
            }
        }
        x.io.close(x.id, Close::Reset);
    }

    /// Closes clients that have sent nothing. Pairs may continue while the server drains.
    fn stopping(&mut self, x: Cx<'_, impl Commands, ProxyState>) {
        if matches!(x.state, ProxyState::Waiting) {
            x.io.close(x.id, Close::Flush);
        }
    }

    /// Returns true for clients that have sent nothing, and so have no connection upstream.
    fn is_idle(&self, _: ConnId, state: &ProxyState) -> bool {
        matches!(state, ProxyState::Waiting)
    }

    fn closed(&mut self, mut x: Cx<'_, impl Commands, ProxyState>, _: CloseReason) {
        while self.pairs.remove_object(x.id).is_some() {}
        // Both connections of a pair that ended in order are single before they close.
        if let Some(half) = x.state.half() {
            if let Some(other) = x.others.get(x.io, half.other) {
                *other = ProxyState::Single;
            }
            x.io.close(half.other, Close::Reset);
        }
    }
}
