//! A simulated machine as the other side.

use std::net::SocketAddr;
use std::path::PathBuf;

use shared_ring::Waker;
use shared_ring::sim::{Fault, Faults, Machine, ManualPeer, PeerConn, Plan, ReceiveResult};

use super::{Far, Stream};

/// A simulated machine; what is left to chance is who goes on and when. With odd seeds there are
/// also the faults that a user of a kernel never sees.
pub(crate) struct There {
    pub(crate) machine: Machine,
    manual_peer: ManualPeer,
}

impl There {
    pub(crate) fn new(seed: u64) -> Self {
        let unseen = [Fault::MultishotEnds, Fault::Interrupted, Fault::Busy, Fault::TakesFew];
        let unseen = unseen.into_iter().fold(Faults::NONE, Faults::with);
        let plan = Plan {
            seed,
            faults: if seed.is_multiple_of(2) { Faults::NONE } else { unseen },
            descriptors: 10_000,
            room: Some(70_000),
            ..Plan::default()
        };
        let machine = Machine::new(&plan);
        let manual_peer = machine.manual_peer();
        There { machine, manual_peer }
    }
}

/// An end of a simulated connection.
pub(crate) struct Wire {
    manual_peer: ManualPeer,
    line: PeerConn,
}

impl Far for There {
    type Stream = Wire;
    type Listener = ManualPeer;

    fn has_links(&self) -> bool {
        false
    }

    fn makes_wait(&self) -> bool {
        false
    }

    fn connect(&self, to: SocketAddr) -> Wire {
        let line = self.manual_peer.with(|net| net.connect(to)).expect("somebody listens");
        Wire { manual_peer: self.manual_peer.clone(), line }
    }

    fn listen(&self) -> (ManualPeer, SocketAddr) {
        let manual_peer = self.machine.manual_peer();
        let address = manual_peer.listen("10.0.0.2:0".parse().unwrap());
        (manual_peer, address)
    }

    fn accept(&self, listener: &ManualPeer) -> Wire {
        let line = listener.with(|net| net.accept()).expect("a connection waits");
        Wire { manual_peer: listener.clone(), line }
    }

    fn nobody(&self) -> SocketAddr {
        "10.0.0.3:9".parse().unwrap()
    }

    fn root(&self) -> PathBuf {
        PathBuf::from("/")
    }

    fn add_file(&self, path: &str, bytes: &[u8]) {
        self.machine.add_file(path, bytes);
    }

    fn wake(&self, waker: Waker) {
        waker.wake();
    }

    fn check(&self) {
        assert_eq!(self.machine.failure(), None);
    }
}

impl Stream for Wire {
    fn address(&self) -> SocketAddr {
        self.manual_peer.with(|net| net.address(&self.line))
    }

    fn write_all(&mut self, bytes: &[u8]) {
        let sent = self.manual_peer.with(|net| net.send(&self.line, bytes));
        assert_eq!(sent, bytes.len(), "a test sends what there is room for");
    }

    fn read_exact(&mut self, into: &mut [u8]) {
        let mut bytes = Vec::new();
        let got = self.manual_peer.with(|net| net.receive(&self.line, into.len(), &mut bytes));
        assert_eq!(got, ReceiveResult::Bytes(into.len()));
        into.copy_from_slice(&bytes);
    }

    fn read_some(&mut self, into: &mut Vec<u8>) -> bool {
        let got = self.manual_peer.with(|net| net.receive(&self.line, usize::MAX, into));
        !matches!(got, ReceiveResult::End | ReceiveResult::Reset)
    }

    fn finish(&mut self) {
        self.manual_peer.with(|net| net.finish(&self.line));
    }
}
