//! Pauses of sends, for which a policy asked, or because a file is being written to.

use std::cmp::Reverse;
use std::time::Duration;

use shared_ring::Submit;

use super::connection::ConnFlags;
use super::{Driver, Io};
use crate::Application;

/// Maximum number of connections whose pauses end in a turn. Further ones follow in the next turn, which does not wait, so
/// that what has arrived meanwhile comes between them.
const MAX_ENDS_PER_TURN: usize = 8;

impl<K: Submit> Io<K> {
    /// Has a connection send nothing for a time.
    pub(super) fn pause_send(&mut self, slot: u32, time: Duration) {
        if self.connection(slot).has(ConnFlags::SEND_PAUSED) {
            return;
        }
        self.connection(slot).flags |= ConnFlags::SEND_PAUSED;
        let (id, now) = (self.conn(slot), self.kernel.now());
        let end = self.pause_ends.end(now, time);
        self.pause_ends.ends.push(Reverse((end, id.slot(), id.generation())));
        if self.pause_ends.ends.len() > 2 * self.connections.len() {
            let connections = &self.connections;
            self.pause_ends.ends.retain(|Reverse((_, slot, generation))| {
                let connection = &connections[*slot as usize];
                connection.generation == *generation && connection.has(ConnFlags::SEND_PAUSED)
            });
        }
    }
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Continues the sends whose pauses have ended.
    pub(super) fn end_pauses(&mut self) {
        let now = self.io.kernel.now();
        for _ in 0..MAX_ENDS_PER_TURN {
            let Some(id) = self.io.pause_ends.ended(now) else { return };
            let slot = id.slot();
            if self.io.conn(slot) == id {
                let connection = self.io.connection(slot);
                if connection.has(ConnFlags::SOCKET_FULL) {
                    connection.flags |= ConnFlags::MAY_BE_FULL;
                }
                connection.flags -= ConnFlags::SEND_PAUSED | ConnFlags::SOCKET_FULL;
                self.io.mark_dirty(slot);
                self.flush();
            }
        }
    }
}
