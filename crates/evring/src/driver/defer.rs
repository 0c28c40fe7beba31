//! Deferred delivery of what the application reads from files (ECEM, section 3.2).

use ecem::{Delivery, Readiness};
use shared_ring::files::FileOutcome;
use shared_ring::{Outcome, Submit};

use super::deferred_reads::{MAX_DEFERRED_READS, Object, pair_of};
use super::io::file_requests::FileRequest;
use super::{Driver, Io};
use crate::{Application, Cx};

impl<K: Submit> Io<K> {
    /// Holds back a read of the application if its connection has unsent bytes. Returns the result to deliver
    /// now.
    pub(super) fn defer_read(
        &mut self,
        work: FileRequest,
        outcome: Outcome,
    ) -> Option<(FileRequest, Outcome)> {
        let slot = work.on.slot();
        let connection = &mut self.connections[slot as usize];
        let waits = connection.defers_reads || connection.has_unsent();
        let is_read = matches!(outcome, Outcome::File(FileOutcome::Read(_)));
        let Some(reads) = self.deferred_reads.as_mut().filter(|_| waits && is_read) else {
            return Some((work, outcome));
        };
        let (read, write) = pair_of(work.on);
        let known = reads.table().find(read, write);
        let pair = known.or_else(|| reads.add(read, write, Readiness::Wait).ok());
        let Some(pair) = pair else { return Some((work, outcome)) };
        connection.defers_reads = true;
        match reads.deliver(pair, (work, outcome), self.kernel.now()) {
            Delivery::Now(next) => {
                self.update_pair(slot);
                Some(next)
            }
            Delivery::Deferred => None,
        }
    }

    /// Has the deferred reads delivered of a connection that has nothing left to send.
    #[cold]
    pub(super) fn release_reads(&mut self, slot: u32) {
        let (_, write) = pair_of(self.conn(slot));
        if let Some(reads) = &mut self.deferred_reads {
            reads.set(write, Readiness::Ready);
        }
        self.schedule_revisit(slot);
    }

    /// Drops the reads of a connection that ends.
    pub(super) fn drop_reads(&mut self, slot: u32) {
        let id = self.conn(slot);
        if std::mem::take(&mut self.connections[slot as usize].defers_reads)
            && let Some(reads) = &mut self.deferred_reads
        {
            reads.remove_object(Object::Socket(id), |_, _| {});
        }
    }

    /// Removes the pair of a connection if no read is held back; else sets the state of its socket.
    fn update_pair(&mut self, slot: u32) {
        let (read, write) = pair_of(self.conn(slot));
        let connection = &mut self.connections[slot as usize];
        let Some(reads) = &mut self.deferred_reads else { return };
        let Some(pair) = reads.table().find(read, write) else { return };
        if reads.table().state(pair).is_none_or(|state| state.pre() == Readiness::Wait) {
            reads.remove(pair, drop);
            connection.defers_reads = false;
        } else if connection.has_unsent() {
            reads.set_post(pair, Readiness::Wait);
        }
    }
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Delivers the reads whose sockets have taken everything, and those held back for the maximum time.
    pub(super) fn deliver_deferred_reads(&mut self) {
        let now = self.io.kernel.now();
        for _ in 0..MAX_DEFERRED_READS {
            let next = self.io.deferred_reads.as_mut().and_then(|reads| reads.next(now));
            let Some((_, (work, outcome))) = next else { return };
            let slot = work.on.slot();
            if self.io.connection(slot).app_gets_files() {
                let (tag, done) = work.done(outcome);
                call!(self, slot, file, tag, done);
            }
            self.io.update_pair(slot);
            self.flush();
        }
    }
}
