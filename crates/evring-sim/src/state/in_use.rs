//! The resources of the machine that the program uses at a moment.

use std::net::SocketAddr;
use std::rc::Weak;

use shared_ring::Fd;

use super::{DescriptorKind, MachineUsage, SimState};

impl SimState {
    /// Returns the number of open connections of the source with most of them, and of the source whose connection was closed
    /// last.
    pub(crate) fn connections_of(&mut self, source: fn(SocketAddr) -> [u8; 16]) -> [usize; 2] {
        let is_reported = |fd: &Fd| !self.usage.unreported.contains(fd);
        let open: Vec<_> = self.accepted().filter(|(fd, _)| is_reported(fd)).collect();
        let mut sources: Vec<_> =
            open.into_iter().map(|(_, end)| source(self.connection_of(end).address[0])).collect();
        sources.sort_unstable();
        let largest = sources.chunk_by(|a, b| a == b).map(<[_]>::len).max();
        let last = self.usage.last_closed.map(source);
        let of_last = sources.iter().filter(|source| Some(**source) == last).count();
        [largest.unwrap_or(0), of_last]
    }

    pub(crate) fn in_use(&self) -> MachineUsage {
        let usage = &self.usage;
        let pools = usage.pools.iter().filter_map(Weak::upgrade);
        let (lent, buffers) =
            pools.map(|pool| (pool.lent(), pool.count())).max().unwrap_or_default();
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
