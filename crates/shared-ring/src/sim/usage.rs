//! The program's use of the machine.

use std::rc::{Rc, Weak};

use super::machine::Machine;
use super::state::{DescriptorKind, SimState};
use crate::{BufferPool, Fd, GatherList, RxBuf};

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
    /// Number of receive buffers; 0 until the first receive.
    pub buffers: u16,
    /// Receive buffers held by the program.
    pub lent: u16,
    /// Maximum memory of one send so far, in bytes.
    pub largest_send: usize,
}

/// Counts that do not follow from the descriptors.
#[derive(Default)]
pub(super) struct UsageTracker {
    /// Accepted connections that no completion has reported.
    unreported: Vec<Fd>,
    pub(super) operations: usize,
    pub(super) file_operations: usize,
    pool: Weak<BufferPool>,
    largest_send: usize,
}

impl UsageTracker {
    pub(super) fn accepted(&mut self, fd: Fd) {
        self.unreported.push(fd);
    }

    /// Notes that a completion reported a connection, or that it was closed.
    pub(super) fn reported(&mut self, fd: Fd) {
        if let Some(at) = self.unreported.iter().position(|unreported| *unreported == fd) {
            self.unreported.swap_remove(at);
        }
    }

    pub(super) fn received(&mut self, bytes: &RxBuf) {
        if self.pool.strong_count() == 0 {
            self.pool = Rc::downgrade(bytes.pool());
        }
    }

    pub(super) fn note_send(&mut self, data: &GatherList) {
        self.largest_send = self.largest_send.max(data.held());
    }
}

impl Machine {
    /// Returns the program's current use.
    pub fn in_use(&self) -> MachineUsage {
        self.state().in_use()
    }
}

impl SimState {
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
        for kind in self.all_open() {
            match kind {
                DescriptorKind::File(..) => used.files += 1,
                DescriptorKind::Event(_) => {}
                _ => used.sockets += 1,
            }
        }
        used
    }
}
