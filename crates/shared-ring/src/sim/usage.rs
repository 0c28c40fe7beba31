//! What a program uses of the machine.

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
}

impl UsageTracker {
    pub(super) fn accepted(&mut self, fd: Fd) {
        self.unreported.push(fd);
    }

    /// A connection is told of, or closed.
    pub(super) fn told(&mut self, fd: Fd) {
        if let Some(at) = self.unreported.iter().position(|unreported| *unreported == fd) {
            self.unreported.swap_remove(at);
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
    /// What the program uses now.
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
