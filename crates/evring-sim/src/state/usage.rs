//! Figures of the program's use of the machine.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::{Rc, Weak};

use shared_ring::buffers::{BufferPool, GatherList, RxBuf};
use shared_ring::{__private, Fd};

/// The program's use of a machine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineUsage {
    /// Number of open sockets, including listeners.
    pub sockets: usize,
    /// Accepted connections among them that no completion has reported: a later one will, or the
    /// program accepted them itself.
    pub unreported: usize,
    /// Number of open files and directories.
    pub files: usize,
    /// Number of operations in flight.
    pub operations: usize,
    /// File operations among them.
    pub file_operations: usize,
    /// Number of receive buffers of the group of which the program holds most; 0 until the first
    /// receive.
    pub buffers: u16,
    /// Receive buffers of that group that the program holds.
    pub lent: u16,
    /// Maximum memory of one send so far, in bytes.
    pub largest_send: usize,
}

/// Counts that do not follow from the descriptors.
#[derive(Default)]
pub(crate) struct UsageTracker {
    /// Accepted connections that no completion has reported.
    pub(super) unreported: Vec<Fd>,
    pub(crate) operations: usize,
    pub(crate) file_operations: usize,
    /// The groups of receive buffers that were used.
    pub(super) pools: Vec<Weak<BufferPool>>,
    pub(super) largest_send: usize,
    /// Number of accepted connections, except those that a kernel closed when it finished.
    pub(crate) accepted: u64,
    /// Number of submissions that rings have not taken.
    pub(crate) queued: usize,
    /// A kernel is finishing.
    pub(crate) is_finishing: bool,
    /// The client's address of the connection that was closed last.
    pub(crate) last_closed: Option<SocketAddr>,
}

/// Returns the part of an address that identifies a client: an IPv4 address in either form, or the
/// /64 of an IPv6 address.
pub(crate) fn client(address: SocketAddr) -> [u8; 16] {
    let (mut bytes, is_v4) = match address.ip() {
        IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), true),
        IpAddr::V6(v6) => (v6.octets(), v6.to_ipv4_mapped().is_some()),
    };
    if !is_v4 {
        bytes[8..].fill(0);
    }
    bytes
}

/// Returns the part of an address that identifies a network: the /24 of an IPv4 address in either form, or the /64 of an
/// IPv6 address.
pub(crate) fn network(address: SocketAddr) -> [u8; 16] {
    let mut bytes = client(address);
    if Ipv6Addr::from(bytes).to_ipv4_mapped().is_some() {
        bytes[15] = 0;
    }
    bytes
}

impl UsageTracker {
    pub(crate) fn accepted(&mut self, fd: Fd) {
        self.unreported.push(fd);
        self.accepted += 1;
    }

    /// Notes that a completion reported a connection, or that it was closed.
    pub(crate) fn reported(&mut self, fd: Fd) {
        if let Some(at) = self.unreported.iter().position(|unreported| *unreported == fd) {
            self.unreported.swap_remove(at);
            self.accepted -= u64::from(self.is_finishing);
        }
    }

    pub(crate) fn received(&mut self, bytes: &RxBuf) {
        let pool = __private::pool(bytes);
        if !self.pools.iter().any(|known| known.as_ptr() == Rc::as_ptr(pool)) {
            self.pools.push(Rc::downgrade(pool));
        }
    }

    pub(crate) fn note_send(&mut self, data: &GatherList) {
        self.largest_send = self.largest_send.max(__private::held(data));
    }
}
