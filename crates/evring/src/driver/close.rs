//! Closing of connections, by the application or the peer.

use std::mem;
use std::time::Duration;

use shared_ring::buffers::GatherList;
use shared_ring::{Errno, OpKind, Submit};

use super::Driver;
use super::close_socket::close;
use super::connection::{ConnFlags, Phase};
use crate::{Application, Close, CloseReason, Cx};

/// Maximum delay of the first progress check. Most connections close earlier.
const FIRST_PROGRESS_CHECK: Duration = Duration::from_millis(100);

/// Returns how many bytes fewer are unsent than before. The lower bits of both numbers suffice.
fn progress(before: u64, unsent: u64) -> u128 {
    before.wrapping_sub(unsent).cast_signed().max(0) as u128
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Starts the requested close.
    pub(super) fn begin_close(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        match (connection.phase, connection.close) {
            (
                Phase::Connecting | Phase::Open | Phase::Flushing | Phase::Lingering,
                Some(Close::Reset),
            ) => {
                self.io.reset_on_close(slot);
                self.end(slot, CloseReason::Closed);
            }
            (Phase::Connecting, Some(Close::Flush | Close::Linger))
                if connection.queue.is_empty() =>
            {
                self.end(slot, CloseReason::Closed);
            }
            (Phase::Open, Some(Close::Flush | Close::Linger)) => {
                connection.phase = Phase::Flushing;
                let tail = mem::take(&mut connection.tail);
                self.io.recycle_tail(tail);
                self.io.set_timer(slot, FIRST_PROGRESS_CHECK.min(self.io.config.progress_interval));
            }
            _ => {}
        }
    }

    pub(super) fn failed(
        &mut self,
        slot: u32,
        kind: OpKind,
        errno: Errno,
        list: Option<Box<GatherList>>,
    ) {
        if let Some(list) = list {
            // Its bytes stay counted, as those of a queue that is dropped.
            self.io.connection(slot).note_sent(0);
            self.io.recycle(list);
        }
        let connection = self.io.connection(slot);
        match kind {
            _ if connection.phase == Phase::Ending => {}
            // A cancelled receive, by a pause or a quiesce.
            OpKind::Receive if errno == Errno::CANCELED => {}
            OpKind::Receive if connection.phase == Phase::Lingering => {
                self.end(slot, CloseReason::Closed)
            }
            _ => self.fail_connection(slot, errno),
        }
    }

    /// Ends a connection that broke or could not be established.
    pub(super) fn fail_connection(&mut self, slot: u32, errno: Errno) {
        if self.io.connection(slot).phase == Phase::Connecting {
            self.io.connection(slot).reason = Some(CloseReason::Failed(errno.into()));
            self.io.schedule_revisit(slot);
        } else {
            self.end(slot, CloseReason::Failed(errno.into()));
        }
    }

    /// Notifies the application of a failed connect.
    pub(super) fn connect_failed(&mut self, slot: u32, reason: CloseReason) {
        let errno = match &reason {
            CloseReason::Failed(error) => error.raw_os_error().unwrap_or(0),
            _ => 0,
        };
        if matches!(self.io.connection(slot).close, None | Some(Close::Half)) {
            call!(self, slot, connected, Err(std::io::Error::from_raw_os_error(errno)));
        }
        self.end(slot, reason);
    }

    /// Resets a connection whose peer acknowledges data too slowly. The first call only records the unsent
    /// bytes.
    pub(super) fn check_flush_progress(&mut self, slot: u32) {
        let unsent = self.io.unacknowledged(self.io.conn(slot)) as u64;
        let before = self.io.connection(slot).unsent.replace(unsent);
        let min = self.io.config.min_progress();
        if before.is_some_and(|before| progress(before, unsent) < min) {
            return self.reset_stalled(slot);
        }
        self.io.set_timer(slot, self.io.config.progress_interval);
    }

    /// Resets a connection whose peer is too slow, so that the peer does not take the data for complete.
    fn reset_stalled(&mut self, slot: u32) {
        self.io.reset_on_close(slot);
        self.end(slot, CloseReason::Failed(Errno::TIMEDOUT.into()));
    }

    /// Starts to end a connection: drops its send queue and cancels operations in flight.
    pub(super) fn end(&mut self, slot: u32, reason: CloseReason) {
        let connection = self.io.connection(slot);
        if matches!(connection.phase, Phase::Ending | Phase::Vacant) {
            return;
        }
        connection.phase = Phase::Ending;
        connection.reason = Some(reason);
        connection.queued = usize::try_from(connection.queued_bytes()).unwrap_or(usize::MAX);
        let has_file_ops = connection.files > 0;
        let tail = mem::take(&mut connection.tail);
        self.io.recycle_tail(tail);
        if has_file_ops {
            self.io.file_ops.note_end();
        }
        self.io.drop_queue(slot);
        self.io.drop_reads(slot);
        self.io.wheel.clear(slot);
        self.cancel_receive(slot);
        for (flag, kind) in [
            (ConnFlags::SENDING, OpKind::Send),
            (ConnFlags::CONNECTING_OR_CLOSING, OpKind::Connect),
        ] {
            if self.io.connection(slot).has(flag) {
                let token = self.io.token(kind, slot);
                self.io.kernel.cancel(token);
            }
        }
        self.io.mark_dirty(slot);
    }

    /// Closes the socket of an ending connection once no operation is in flight.
    pub(super) fn finish(&mut self, slot: u32) {
        let token = self.io.token(OpKind::Close, slot);
        let connection = self.io.connection(slot);
        if connection.is_busy() {
            return;
        }
        let Some(socket) = connection.socket.take() else { return self.closed(slot) };
        if close(&mut self.io.kernel, token, socket) {
            self.closed(slot);
        } else {
            self.io.connection(slot).flags |= ConnFlags::CONNECTING_OR_CLOSING;
        }
    }

    pub(super) fn closed(&mut self, slot: u32) {
        if self.io.connection(slot).has(ConnFlags::UNSERVED) {
            // It has sent nothing, so it counts as served now.
            self.io.note_first_service(slot);
        }
        let reason = self.io.connection(slot).reason.take().unwrap_or(CloseReason::Closed);
        call!(self, slot, closed, reason);
        *self.states.at(slot) = A::State::default();
        self.io.free_slot(slot);
        self.io.stats.closed += 1;
        for listener in &mut self.io.listeners {
            listener.clear_retry();
        }
        if self.io.load.admit_per_turn().is_none() {
            self.admit_deferred(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::progress;

    #[test]
    fn progress_was_none_with_more_unsent_bytes_than_64_bits_have() {
        let unsent = |bytes: u128| bytes as u64;
        let two_files = 2 * u128::from(u64::MAX);
        assert_eq!(progress(unsent(two_files), unsent(two_files - 1000)), 1000);
        assert_eq!(progress(unsent(1 << 64), unsent((1 << 64) - 7)), 7);
        assert_eq!(progress(10, 20), 0);
        assert_eq!(progress(u64::MAX, u64::MAX), 0);
    }
}
