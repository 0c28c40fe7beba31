//! A proxy that connects each client with an upstream server.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use evring::{
    Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, HIGH_WATER, Listener, Rx,
};

/// Timeouts of a [`Proxy`].
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time until the upstream server must be connected.
    pub connect: Duration,
    /// Time without any bytes after which a pair of connections is closed.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { connect: Duration::from_secs(5), idle: Duration::from_secs(300) }
    }
}

/// Connects each client with the upstream server and passes bytes both ways without a copy.
///
/// If one side reads slowly, the proxy receives less from the other. A half-close is passed on. If one side
/// fails, the other is reset.
#[derive(Debug)]
pub struct Proxy {
    upstream: SocketAddr,
    timeouts: Timeouts,
    /// Connect to the upstream server only when the client has sent bytes.
    connect_late: bool,
    /// Both connections of each pair. They cannot be connection states, since a callback can access only
    /// its own. A `BTreeMap`, because a hash table would take its seed from outside the mechanism.
    sides: BTreeMap<(u32, u32), ProxyHalf>,
}

/// One connection of a pair.
#[derive(Clone, Copy, Debug)]
struct ProxyHalf {
    other: ConnId,
    client: ConnId,
    /// The peer has shut down its sending side.
    ended: bool,
}

fn key(id: ConnId) -> (u32, u32) {
    (id.slot(), id.generation())
}

impl Proxy {
    /// Creates a proxy for the server at `upstream`.
    pub fn new(upstream: SocketAddr, timeouts: Timeouts) -> Self {
        Proxy { upstream, timeouts, connect_late: false, sides: BTreeMap::new() }
    }

    /// Connects to the upstream server only when a client has sent bytes, so silent clients cost it
    /// nothing. Does not suit protocols in which the server speaks first.
    #[must_use]
    pub fn connecting_late(self) -> Self {
        Proxy { connect_late: true, ..self }
    }

    /// Opens the other connection of a pair.
    fn pair(&mut self, io: &mut impl Commands, client: ConnId) {
        let server = io.connect(self.upstream);
        io.set_deadline(server, Some(io.now() + self.timeouts.connect));
        for (id, other) in [(client, server), (server, client)] {
            self.sides.insert(key(id), ProxyHalf { other, client, ended: false });
        }
    }

    fn side(&self, id: ConnId) -> Option<ProxyHalf> {
        self.sides.get(&key(id)).copied()
    }

    /// Extends the idle deadline of a pair, which is set on the client's connection.
    fn extend_idle_deadline(&self, io: &mut impl Commands, side: ProxyHalf) {
        io.set_deadline(side.client, Some(io.now() + self.timeouts.idle));
    }

    /// Handles the end of a stream: passes it on, and closes both connections when both have ended.
    fn ended(&mut self, io: &mut impl Commands, id: ConnId, other: ConnId) {
        io.close(other, Close::Half);
        if let Some(side) = self.sides.get_mut(&key(id)) {
            side.ended = true;
        }
        if self.side(other).is_some_and(|side| side.ended) {
            self.forget(id, other);
            io.close(id, Close::Flush);
            io.close(other, Close::Flush);
        }
    }

    fn forget(&mut self, id: ConnId, other: ConnId) {
        self.sides.remove(&key(id));
        self.sides.remove(&key(other));
    }
}

impl Application for Proxy {
    /// True for a client without an upstream connection.
    type State = bool;
    const MAX_UNCONSUMED: usize = 1; // consumes everything

    fn accepted(&mut self, x: Cx<'_, impl Commands, bool>, _: Listener) {
        *x.state = self.connect_late;
        if self.connect_late {
            x.io.set_deadline(x.id, Some(x.io.now() + self.timeouts.idle));
        } else {
            self.pair(x.io, x.id);
        }
    }

    fn connected(&mut self, x: Cx<'_, impl Commands, bool>, result: io::Result<()>) {
        x.io.set_deadline(x.id, None);
        if let (Ok(()), Some(side)) = (result, self.side(x.id)) {
            self.extend_idle_deadline(x.io, side);
        }
    }

    fn received(&mut self, x: Cx<'_, impl Commands, bool>, rx: &mut Rx<'_>) {
        if !rx.bytes().is_empty() && std::mem::take(x.state) {
            self.pair(x.io, x.id);
        }
        let Some(side) = self.side(x.id) else {
            if rx.eof() {
                x.io.close(x.id, Close::Flush);
            }
            return rx.consume(rx.bytes().len());
        };
        let eof = rx.eof();
        if !rx.bytes().is_empty() {
            self.extend_idle_deadline(x.io, side);
            if x.io.send(side.other, Chunk::Received(rx.take())) >= HIGH_WATER {
                x.io.set_receiving(x.id, false);
            }
        }
        if eof && !side.ended {
            self.ended(x.io, x.id, side.other);
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, bool>) {
        if let Some(side) = self.side(x.id) {
            self.extend_idle_deadline(x.io, side);
            x.io.set_receiving(side.other, true);
        }
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, bool>) {
        x.io.close(x.id, Close::Reset);
    }

    /// Ignored: pairs may continue while the server drains.
    fn stopping(&mut self, _: Cx<'_, impl Commands, bool>) {}

    fn closed(&mut self, x: Cx<'_, impl Commands, bool>, _: CloseReason) {
        // Both connections of a pair that ended in order are removed before they close.
        if let Some(side) = self.side(x.id) {
            self.forget(x.id, side.other);
            x.io.close(side.other, Close::Reset);
        }
    }
}
