//! What a program uses of the machine.

use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};

use super::machine::Machine;
use super::state::{DescriptorKind, SimState};
use crate::{BufferPool, Fd, GatherList, RxBuf};

/// What a program uses of a machine, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineUsage {
    /// Sockets that are open, listeners among them.
    pub sockets: usize,
    /// Of these, connections that were accepted and of which no completion has told: it will,
    /// or the program has accepted them itself.
    pub unreported: usize,
    /// Files and directories that are open.
    pub files: usize,
    /// Operations in flight.
    pub operations: usize,
    /// Of these, work on files.
    pub file_operations: usize,
    /// Receive buffers there are, once one was seen.
    pub buffers: u16,
    /// Of these, those that the program holds.
    pub lent: u16,
    /// Most memory that one send has ever held.
    pub largest_send: usize,
}

/// What the machine notes, beside its descriptors.
#[derive(Default)]
pub(super) struct UsageTracker {
    /// Connections that were accepted, and of which no completion has told.
    unreported: Vec<Fd>,
    pub(super) operations: usize,
    pub(super) file_operations: usize,
    pool: Weak<BufferPool>,
    largest_send: usize,
    /// Connections that were accepted, without those that a kernel has closed at its end.
    accepted: u64,
    /// A kernel is at its end.
    pub(super) ending: bool,
    /// Where the connection came from that was closed last.
    pub(super) last_closed: Option<SocketAddr>,
}

/// What of an address counts together: all of an IPv4 address, in whatever form, and half of another.
fn client(address: SocketAddr) -> [u8; 16] {
    let (mut bytes, is_v4) = match address.ip() {
        IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), true),
        IpAddr::V6(v6) => (v6.octets(), v6.to_ipv4_mapped().is_some()),
    };
    if !is_v4 {
        bytes[8..].fill(0);
    }
    bytes
}

impl UsageTracker {
    pub(super) fn accepted(&mut self, fd: Fd) {
        self.unreported.push(fd);
        self.accepted += 1;
    }

    /// A connection is told of, or closed.
    pub(super) fn told(&mut self, fd: Fd) {
        if let Some(at) = self.unreported.iter().position(|unreported| *unreported == fd) {
            self.unreported.swap_remove(at);
            self.accepted -= u64::from(self.ending);
        }
    }

    pub(super) fn received(&mut self, bytes: &RxBuf) {
        if self.pool.strong_count() == 0 {
            self.pool = Rc::downgrade(bytes.pool());
        }
    }

    pub(super) fn sends(&mut self, data: &GatherList) {
        self.largest_send = self.largest_send.max(data.held());
    }
}

impl Machine {
    /// Connections that the program was given, since the start.
    pub fn accepted(&self) -> u64 {
        self.state().usage.accepted
    }

    /// Of the client that has most, how many connections the program knows of and has open; and of the
    /// one that it has closed a connection of last.
    pub fn connections_of_clients(&self) -> [usize; 2] {
        self.state().connections_of_clients()
    }

    /// What the program uses now.
    pub fn in_use(&self) -> MachineUsage {
        self.state().in_use()
    }
}

impl SimState {
    fn connections_of_clients(&mut self) -> [usize; 2] {
        let is_told = |fd: &Fd| !self.usage.unreported.contains(fd);
        let open: Vec<_> = self.accepted().filter(|(fd, _)| is_told(fd)).collect();
        let mut clients: Vec<_> =
            open.into_iter().map(|(_, end)| client(self.of(end).address[0])).collect();
        clients.sort_unstable();
        let largest = clients.chunk_by(|a, b| a == b).map(<[_]>::len).max();
        let last = self.usage.last_closed.map(client);
        let of_last = clients.iter().filter(|client| Some(**client) == last).count();
        [largest.unwrap_or(0), of_last]
    }

    fn in_use(&self) -> MachineUsage {
        let usage = &self.usage;
        let (lent, buffers) = usage.pool.upgrade().map_or((0, 0), |p| (p.lent(), p.count()));
        let mut used = MachineUsage {
            unreported: usage.unreported.len(),
            operations: usage.operations,
            file_operations: usage.file_operations,
            buffers,
            lent,
            largest_send: usage.largest_send,
            ..MachineUsage::default()
        };
        for what in self.all_open() {
            match what {
                DescriptorKind::File(_) => used.files += 1,
                DescriptorKind::Event(_) => {}
                _ => used.sockets += 1,
            }
        }
        used
    }
}
