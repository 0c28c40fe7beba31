//! What a program uses of the machine.

use std::rc::{Rc, Weak};

use super::machine::Machine;
use super::world::{What, World};
use crate::{Fd, Gather, Pool, RxBuf};

/// What a program uses of a machine, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Sockets that are open, listeners among them.
    pub sockets: usize,
    /// Of these, connections that were accepted and of which no completion has told: it will,
    /// or the program has accepted them itself.
    pub untold: usize,
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
pub(super) struct Noted {
    /// Connections that were accepted, and of which no completion has told.
    untold: Vec<Fd>,
    pub(super) operations: usize,
    pub(super) file_operations: usize,
    pool: Weak<Pool>,
    largest_send: usize,
}

impl Noted {
    pub(super) fn accepted(&mut self, fd: Fd) {
        self.untold.push(fd);
    }

    /// A connection is told of, or closed.
    pub(super) fn told(&mut self, fd: Fd) {
        if let Some(at) = self.untold.iter().position(|untold| *untold == fd) {
            self.untold.swap_remove(at);
        }
    }

    pub(super) fn received(&mut self, bytes: &RxBuf) {
        if self.pool.strong_count() == 0 {
            self.pool = Rc::downgrade(bytes.pool());
        }
    }

    pub(super) fn sends(&mut self, data: &Gather) {
        self.largest_send = self.largest_send.max(data.held());
    }
}

impl Machine {
    /// What the program uses now.
    pub fn in_use(&self) -> InUse {
        self.world().in_use()
    }
}

impl World {
    fn in_use(&self) -> InUse {
        let noted = &self.noted;
        let (lent, buffers) = noted.pool.upgrade().map_or((0, 0), |p| (p.lent(), p.count()));
        let mut used = InUse {
            untold: noted.untold.len(),
            operations: noted.operations,
            file_operations: noted.file_operations,
            buffers,
            lent,
            largest_send: noted.largest_send,
            ..InUse::default()
        };
        for what in self.all_open() {
            match what {
                What::File(_) => used.files += 1,
                What::Event(_) => {}
                _ => used.sockets += 1,
            }
        }
        used
    }
}
