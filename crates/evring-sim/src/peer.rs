//! The other side of the simulated network.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use crate::fault::Fault;
use crate::state::SimState;
use crate::stream::{End, Owner};

/// A client or a server on the other side of the network.
pub trait Peer {
    /// Performs one action, if one is possible.
    fn step(&mut self, net: &mut Net<'_>) -> Next;

    /// Describes what it waits for, for the message about a run that is stuck.
    fn waits_for(&self) -> String;
}

/// The time at which a [`Peer`] runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At any later step.
    Ready,
    /// When one of its connections has changed. A peer that [receives](Net::receive) returns this
    /// after [`ReceiveResult::Nothing`], not after bytes.
    Wait,
    /// When one of its connections has changed, at the latest after this time.
    After(Duration),
    /// Never.
    Done,
}

/// A connection of a peer.
#[derive(Debug, PartialEq, Eq)]
pub struct PeerConn(End);

/// The result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveResult {
    /// Received this number of bytes.
    Bytes(usize),
    /// No bytes yet.
    Nothing,
    /// The other end has finished sending.
    End,
    /// The connection was reset.
    Reset,
}

/// The network as one peer sees it.
pub struct Net<'a> {
    state: &'a mut SimState,
    me: u32,
}

impl<'a> Net<'a> {
    pub(super) fn new(state: &'a mut SimState, me: u32) -> Self {
        Net { state, me }
    }

    /// Returns the time since the start of the run.
    pub fn now(&self) -> Duration {
        self.state.now
    }

    /// Returns a random number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.state.rng.below(n)
    }

    /// Returns true once in `n` calls on average.
    pub fn once_in(&mut self, n: u32) -> bool {
        self.state.rng.once_in(n)
    }

    /// Returns whether the planned number of steps was reached, and peers should finish.
    pub fn is_late(&self) -> bool {
        self.state.is_late()
    }

    /// Returns whether this fault has happened in this run.
    pub fn has_happened(&self, fault: Fault) -> bool {
        self.state.rng.counts()[fault as usize] > 0
    }

    /// Returns whether a [`DiskError`](Fault::DiskError) or [`FileChanges`](Fault::FileChanges) has happened to the file at
    /// this path. All files that do not exist count as one.
    pub fn has_happened_to(&self, fault: Fault, path: &str) -> bool {
        self.state.has_file_fault(fault, path)
    }

    /// Opens a connection. Returns `None` if no socket listens at `to`, or its queue is full.
    pub fn connect(&mut self, to: SocketAddr) -> Option<PeerConn> {
        let from = self.state.client_address();
        let end = self.state.connect(from, to, Owner::Peer(self.me)).ok()?;
        let me = self.me;
        self.state.note(|| format!("peer {me} opens {end:?} from {from}"));
        Some(PeerConn(end))
    }

    /// Accepts a connection, for a peer that listens.
    pub fn accept(&mut self) -> Option<PeerConn> {
        let end = self.state.pop_pending(self.state.listener_of(self.me)?)?;
        self.state.set_owner(end, Owner::Peer(self.me));
        Some(PeerConn(end))
    }

    /// Sends up to the free buffer space and returns the number of bytes; 0 if the buffer is full
    /// or the connection is broken.
    pub fn send(&mut self, conn: &PeerConn, bytes: &[u8]) -> usize {
        let sent = self.state.send(conn.0, bytes).unwrap_or(0);
        let (me, end) = (self.me, conn.0);
        self.state.note(|| format!("peer {me} sends {sent} on {end:?}: {}", show(&bytes[..sent])));
        sent
    }

    /// Receives at most `max` bytes and appends them.
    pub fn receive(&mut self, conn: &PeerConn, max: usize, into: &mut Vec<u8>) -> ReceiveResult {
        let before = into.len();
        let result = match self.state.receive(conn.0, max, |piece| into.extend_from_slice(piece)) {
            Ok(0) => ReceiveResult::End,
            Ok(n) => ReceiveResult::Bytes(n),
            Err(Errno::AGAIN) => return ReceiveResult::Nothing,
            Err(_) => ReceiveResult::Reset,
        };
        let (me, end) = (self.me, conn.0);
        self.state.note(|| {
            format!("peer {me} receives {result:?} on {end:?}: {}", show(&into[before..]))
        });
        result
    }

    /// Shuts down the sending side.
    pub fn finish(&mut self, conn: &PeerConn) {
        self.state.finish(conn.0);
    }

    /// Closes a connection.
    pub fn close(&mut self, conn: PeerConn) {
        self.state.close_end(conn.0, false);
    }

    /// Resets a connection.
    pub fn reset(&mut self, conn: PeerConn) {
        self.state.close_end(conn.0, true);
    }

    /// Stalls for `time`, which may exceed a timeout of the program.
    pub fn stall(&mut self, time: Duration) -> Next {
        self.state.note_stall(self.me, time);
        Next::After(time)
    }

    /// Returns whether a peer of this connection stalled, possibly beyond a timeout of the program.
    pub fn has_stalled(&mut self, conn: &PeerConn) -> bool {
        self.state.connection_of(conn.0).has_stalled
    }

    /// Returns the address of this end.
    pub fn address(&mut self, conn: &PeerConn) -> SocketAddr {
        self.state.connection_of(conn.0).address[usize::from(conn.0.side)]
    }

    /// Returns whether a connection is broken.
    pub fn is_broken(&mut self, conn: &PeerConn) -> bool {
        self.state.connection_of(conn.0).is_broken()
    }

    /// Returns whether a fault or a stall may have ended a connection early.
    pub fn is_disrupted(&mut self, conn: &PeerConn) -> bool {
        let connection = self.state.connection_of(conn.0);
        connection.is_disrupted || connection.has_stalled
    }

    /// Fails the run: the program has misbehaved.
    pub fn fail(&mut self, message: impl Into<String>) {
        let (me, message) = (self.me, message.into());
        self.state.fail(format!("peer {me}: {message}"));
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let me = self.me;
        self.state.note(|| format!("peer {me} {}", line()));
    }
}

/// Formats the start of `bytes` for the trace.
fn show(bytes: &[u8]) -> String {
    const MAX_SHOWN: usize = 48;
    let more = if bytes.len() > MAX_SHOWN { "..." } else { "" };
    format!("\"{}\"{more}", bytes[..bytes.len().min(MAX_SHOWN)].escape_ascii())
}
