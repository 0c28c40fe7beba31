//! A simulated machine as the environment.

use std::net::SocketAddr;
use std::path::PathBuf;

use evring_sim::{Fault, Faults, Machine, ManualPeer, PeerConn, Plan, ReceiveResult, Unsupported};
use shared_ring::{Fd, Socket, Waker};

use super::{DatagramPeer, Far, Stream};
use crate::number::number;

/// A simulated machine with random scheduling. Odd seeds add faults that a kernel hides from its
/// user. With every second even seed, the ring refuses to use files.
pub(crate) struct SimulatedMachine {
    pub(crate) machine: Machine,
    manual_peer: ManualPeer,
}

impl SimulatedMachine {
    pub(crate) fn new(seed: u64) -> Self {
        let hidden = [Fault::MultishotEnds, Fault::Interrupted, Fault::Busy, Fault::TakesFew];
        let hidden = hidden.into_iter().fold(Faults::NONE, Faults::with);
        let mut plan = Plan::default();
        plan.seed = seed;
        plan.faults = if seed.is_multiple_of(2) { Faults::NONE } else { hidden };
        plan.unsupported = (seed % 4 == 2).then_some(Unsupported::NonblockingDisk);
        plan.descriptors = 10_000;
        plan.room = Some(70_000);
        let machine = Machine::new(&plan);
        let manual_peer = machine.manual_peer();
        SimulatedMachine { machine, manual_peer }
    }
}

/// An end of a simulated connection.
pub(crate) struct SimulatedStream {
    manual_peer: ManualPeer,
    conn: PeerConn,
}

impl Far for SimulatedMachine {
    type Stream = SimulatedStream;
    type Listener = ManualPeer;
    type DatagramPeer = SimulatedPeer;

    fn has_symlinks(&self) -> bool {
        false
    }

    fn connect_waits_for_backlog(&self) -> bool {
        false
    }

    fn connect(&self, to: SocketAddr) -> SimulatedStream {
        let conn = self.manual_peer.with(|net| net.connect(to)).expect("there is a listener");
        SimulatedStream { manual_peer: self.manual_peer.clone(), conn }
    }

    fn listen(&self) -> (ManualPeer, SocketAddr) {
        let manual_peer = self.machine.manual_peer();
        let address = manual_peer.listen("10.0.0.2:0".parse().unwrap());
        (manual_peer, address)
    }

    fn accept(&self, listener: &ManualPeer) -> SimulatedStream {
        let conn = listener.with(|net| net.accept()).expect("a connection is queued");
        SimulatedStream { manual_peer: listener.clone(), conn }
    }

    fn datagrams(&self) -> (Socket, SimulatedPeer) {
        let socket = self.machine.datagram_socket().unwrap();
        let fd = number(&socket);
        (socket, SimulatedPeer { machine: self.machine.clone(), fd })
    }

    fn closed_address(&self) -> SocketAddr {
        "10.0.0.3:9".parse().unwrap()
    }

    fn root(&self) -> PathBuf {
        PathBuf::from("/")
    }

    fn add_file(&self, path: &str, bytes: &[u8]) {
        self.machine.add_file(path, bytes);
    }

    fn event(&self, _blocks: bool) -> (Socket, Box<dyn Fn()>) {
        let (event, add) = self.machine.event().unwrap();
        (event, Box::new(move || add(1)))
    }

    fn wake(&self, waker: Waker) {
        waker.wake();
    }

    fn check(&self) {
        assert_eq!(self.machine.failure(), None);
    }
}

/// A peer of a simulated socket for datagrams.
pub(crate) struct SimulatedPeer {
    machine: Machine,
    fd: Fd,
}

impl DatagramPeer for SimulatedPeer {
    fn address(&self) -> SocketAddr {
        "10.0.0.4:53".parse().unwrap()
    }

    fn send(&self, bytes: &[u8]) {
        assert!(self.machine.deliver_datagram(self.fd, self.address(), bytes));
    }

    fn receive(&self) -> Vec<u8> {
        let mut sent = self.machine.take_sent_datagrams(self.fd);
        assert_eq!(sent.len(), 1, "one datagram at a time");
        let (to, bytes) = sent.remove(0);
        assert_eq!(to, self.address());
        bytes
    }
}

impl Stream for SimulatedStream {
    fn address(&self) -> SocketAddr {
        self.manual_peer.with(|net| net.address(&self.conn))
    }

    fn write_all(&mut self, bytes: &[u8]) {
        let sent = self.manual_peer.with(|net| net.send(&self.conn, bytes));
        assert_eq!(sent, bytes.len(), "the connection has room");
    }

    fn read_exact(&mut self, into: &mut [u8]) {
        let mut bytes = Vec::new();
        let received = self.manual_peer.with(|net| net.receive(&self.conn, into.len(), &mut bytes));
        assert_eq!(received, ReceiveResult::Bytes(into.len()));
        into.copy_from_slice(&bytes);
    }

    fn read_some(&mut self, into: &mut Vec<u8>) -> bool {
        let received = self.manual_peer.with(|net| net.receive(&self.conn, usize::MAX, into));
        !matches!(received, ReceiveResult::End | ReceiveResult::Reset)
    }

    fn finish(&mut self) {
        self.manual_peer.with(|net| net.finish(&self.conn));
    }
}
