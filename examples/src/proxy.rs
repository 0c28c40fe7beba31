//! Couples each client with a connection to another server.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use evring::{
    Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, HIGH_WATER, Listener, Rx,
};

/// How long a [`Proxy`] is patient.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// With the upstream server, until it has taken the connection.
    pub connect: Duration,
    /// With a pair of connections on which no bytes move.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { connect: Duration::from_secs(5), idle: Duration::from_secs(300) }
    }
}

/// Couples each client with a connection to the upstream server and passes bytes both ways,
/// from the buffers in which they arrived.
///
/// A side that reads slowly slows the other down; a side that ends its half ends the half behind
/// it; a side that fails takes the other with it.
#[derive(Debug)]
pub struct Proxy {
    upstream: SocketAddr,
    timeouts: Timeouts,
    /// The upstream server is called when the client has said something.
    late: bool,
    /// Both connections of each pair. The state of a connection can't hold this, since a callback
    /// sees only the state of its own connection. A tree, for a hash table would take its seed
    /// from elsewhere than the mechanism.
    sides: BTreeMap<(u32, u32), ProxyHalf>,
}

/// One connection of a pair.
#[derive(Clone, Copy, Debug)]
struct ProxyHalf {
    other: ConnId,
    client: ConnId,
    /// It has sent its last byte.
    ended: bool,
}

fn key(id: ConnId) -> (u32, u32) {
    (id.slot(), id.generation())
}

impl Proxy {
    /// A proxy in front of the server at `upstream`.
    pub fn new(upstream: SocketAddr, timeouts: Timeouts) -> Self {
        Proxy { upstream, timeouts, late: false, sides: BTreeMap::new() }
    }

    /// The same, which connects to the upstream server only when a client has sent something, so
    /// that clients that just connect cost it nothing. A server that speaks first is not heard then.
    #[must_use]
    pub fn connecting_late(self) -> Self {
        Proxy { late: true, ..self }
    }

    /// Makes the other half of a pair.
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

    /// The pair has shown life; the client's deadline stands for both.
    fn moved(&self, io: &mut impl Commands, side: ProxyHalf) {
        io.set_deadline(side.client, Some(io.now() + self.timeouts.idle));
    }

    /// `id` will send no more: tells the other side, and lets go of both when both are done.
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
    /// Whether it is a client for which the upstream server is yet to be called.
    type State = bool;
    const MAX_UNCONSUMED: usize = 1; // it leaves none

    fn accepted(&mut self, x: Cx<'_, impl Commands, bool>, _: Listener) {
        *x.state = self.late;
        if self.late {
            x.io.set_deadline(x.id, Some(x.io.now() + self.timeouts.idle));
        } else {
            self.pair(x.io, x.id);
        }
    }

    fn connected(&mut self, x: Cx<'_, impl Commands, bool>, result: io::Result<()>) {
        x.io.set_deadline(x.id, None);
        if let (Ok(()), Some(side)) = (result, self.side(x.id)) {
            self.moved(x.io, side);
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
            self.moved(x.io, side);
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
            self.moved(x.io, side);
            x.io.set_receiving(side.other, true);
        }
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, bool>) {
        x.io.close(x.id, Close::Reset);
    }

    /// What passes through is somebody else's work: it may go on while the server drains.
    fn stopping(&mut self, _: Cx<'_, impl Commands, bool>) {}

    fn closed(&mut self, x: Cx<'_, impl Commands, bool>, _: CloseReason) {
        // Both sides of a pair that ended well are forgotten before they close.
        if let Some(side) = self.side(x.id) {
            self.forget(x.id, side.other);
            x.io.close(side.other, Close::Reset);
        }
    }
}
