//! Who the simulated machine talks to.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use super::fault::Fault;
use super::state::SimState;
use super::stream::{End, Owner};

/// A client or a server on the other side of the network, which follows a model.
pub trait Peer {
    /// Does one thing, if there is one to do.
    fn step(&mut self, net: &mut Net<'_>) -> Next;

    /// What it waits for, for the message about a run that has got stuck.
    fn waits_for(&self) -> String;
}

/// When a [`Peer`] goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Whenever its turn comes.
    Ready,
    /// When something has changed about one of its connections since it last looked; whoever
    /// [receives](Net::receive) says this after [`ReceiveResult::Nothing`], not after bytes.
    Wait,
    /// The same, or when this time is over.
    After(Duration),
    /// Never again.
    Done,
}

/// One of a peer's connections.
#[derive(Debug, PartialEq, Eq)]
pub struct PeerConn(End);

/// What came of a try to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveResult {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The other end will send no more.
    End,
    /// The connection is broken.
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

    /// The time since the start.
    pub fn now(&self) -> Duration {
        self.state.now
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.state.rng.below(n)
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u32) -> bool {
        self.state.rng.once_in(n)
    }

    /// Whether the run has been long enough, and peers should come to an end.
    pub fn is_late(&self) -> bool {
        self.state.is_late()
    }

    /// Whether this kind of fault has happened in this run.
    pub fn has_happened(&self, fault: Fault) -> bool {
        self.state.rng.counts()[fault as usize] > 0
    }

    /// Opens a connection; none if nobody listens, or the queue is full.
    pub fn connect(&mut self, to: SocketAddr) -> Option<PeerConn> {
        let from = self.state.source();
        let end = self.state.connect(from, to, Owner::Peer(self.me)).ok()?;
        let me = self.me;
        self.state.note(|| format!("peer {me} opens {end:?} from {from}"));
        Some(PeerConn(end))
    }

    /// Accepts a connection, for a peer that serves.
    pub fn accept(&mut self) -> Option<PeerConn> {
        let end = self.state.next_waiting(self.state.listener_of(self.me)?)?;
        self.state.own(end, Owner::Peer(self.me));
        Some(PeerConn(end))
    }

    /// Sends what there is room for; 0 if there is none, or the connection is broken.
    pub fn send(&mut self, line: &PeerConn, bytes: &[u8]) -> usize {
        let sent = self.state.send(line.0, bytes).unwrap_or(0);
        let (me, end) = (self.me, line.0);
        self.state.note(|| format!("peer {me} sends {sent} on {end:?}: {}", show(&bytes[..sent])));
        sent
    }

    /// Receives up to `max` bytes and appends them.
    pub fn receive(&mut self, line: &PeerConn, max: usize, into: &mut Vec<u8>) -> ReceiveResult {
        let before = into.len();
        let got = match self.state.receive(line.0, max, |piece| into.extend_from_slice(piece)) {
            Ok(0) => ReceiveResult::End,
            Ok(n) => ReceiveResult::Bytes(n),
            Err(Errno::AGAIN) => return ReceiveResult::Nothing,
            Err(_) => ReceiveResult::Reset,
        };
        let (me, end) = (self.me, line.0);
        self.state.note(|| format!("peer {me} gets {got:?} on {end:?}: {}", show(&into[before..])));
        got
    }

    /// Tells the other end that no more will be sent.
    pub fn finish(&mut self, line: &PeerConn) {
        self.state.finish(line.0);
    }

    /// Lets go of a connection.
    pub fn close(&mut self, line: PeerConn) {
        self.state.close_end(line.0, false);
    }

    /// Resets a connection.
    pub fn reset(&mut self, line: PeerConn) {
        self.state.close_end(line.0, true);
    }

    /// Does nothing for a while, for which the program may lose its patience.
    pub fn stall(&mut self, time: Duration) -> Next {
        self.state.note_stall(self.me, time);
        Next::After(time)
    }

    /// Whether one of the peers was so slow that the program may have lost its patience.
    pub fn has_stalled(&mut self, line: &PeerConn) -> bool {
        self.state.of(line.0).has_stalled
    }

    /// The address of this end.
    pub fn address(&mut self, line: &PeerConn) -> SocketAddr {
        self.state.of(line.0).address[usize::from(line.0.side)]
    }

    /// Whether a connection is broken.
    pub fn is_broken(&mut self, line: &PeerConn) -> bool {
        self.state.of(line.0).is_broken()
    }

    /// Whether something went wrong on purpose that may have ended a connection early.
    pub fn is_disrupted(&mut self, line: &PeerConn) -> bool {
        let connection = self.state.of(line.0);
        connection.is_disrupted || connection.has_stalled
    }

    /// The program has not done what it should.
    pub fn fail(&mut self, what: impl Into<String>) {
        let (me, what) = (self.me, what.into());
        self.state.fail(format!("peer {me}: {what}"));
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let me = self.me;
        self.state.note(|| format!("peer {me} {}", line()));
    }
}

/// The beginning of some bytes, to be read by a person.
fn show(bytes: &[u8]) -> String {
    const MAX_SHOWN: usize = 48;
    let more = if bytes.len() > MAX_SHOWN { "..." } else { "" };
    format!("\"{}\"{more}", bytes[..bytes.len().min(MAX_SHOWN)].escape_ascii())
}
