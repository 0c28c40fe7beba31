//! The driver: converts completions into callbacks and commands into operations.
//!
//! All mechanisms share it. The driver executes the commands of a callback after the callback returns, so
//! no command calls back.

/// Invokes a callback of the application for a connection.
macro_rules! call {
    ($driver:ident, $slot:expr, $callback:ident $(, $argument:expr)*) => {{
        let id = $driver.io.conn($slot);
        let (state, others) = $driver.states.split($slot);
        $driver.app.$callback(Cx { io: &mut $driver.io, id, state, others } $(, $argument)*)
    }};
}

mod close;
mod close_socket;
mod connection;
mod defer;
mod deferred_reads;
mod io;
mod listener;
mod memory;
mod pause;
mod pause_ends;
mod quiesce;
mod receive;
mod run;
mod send;
mod shares;
mod timers;

use io::file_requests::FileRequest;
pub(crate) use io::file_requests::MAX_FILE_OPS;
pub use io::usage::Usage;
pub(crate) use io::{Io, operations};
pub(crate) use listener::ListenerState;
pub(crate) use run::{drive, open_listeners, open_roots};

use std::time::Duration;

use shared_ring::files::{Contents, FileOutcome};
use shared_ring::{Completion, Errno, Host, KernelError, OpKind, Outcome, Socket, Submit, Token};

use crate::others::States;
use crate::{Application, CloseReason, Cx, Lateness, Listener, RemoteHandle, SendResult};
use connection::{ConnFlags, Connection, Phase};
use shares::{Rejected, Source};
use timers::Expired;

/// Maximum time that a stop waits for file operations after the end of the drain, and a server that retires after its last
/// connection: on a hung file system they never complete.
const FILE_OP_GRACE: Duration = Duration::from_secs(1);

/// A server: the application, the states of its connections, and the remaining state.
pub(crate) struct Driver<K: Submit, A: Application> {
    app: A,
    states: States<A::State>,
    pub(crate) io: Io<K>,
    remote: RemoteHandle,
}

impl<K: Submit, A: Application> Driver<K, A> {
    pub(crate) fn new(app: A, io: Io<K>, remote: RemoteHandle) -> Self {
        Driver { app, states: States::default(), io, remote }
    }

    /// Processes one completion.
    pub(crate) fn complete(&mut self, completion: Completion) {
        let Completion { token, outcome, is_last, was_cold } = completion;
        match token.kind() {
            OpKind::Accept => self.accept(token.slot() as usize, outcome, is_last),
            OpKind::File => self.file_done(token, outcome, was_cold),
            OpKind::Wake => self.wake(),
            kind => self.connection_completed(kind, token, outcome, is_last),
        }
        self.flush();
    }

    /// Processes a completion of an operation on a connection.
    fn connection_completed(
        &mut self,
        kind: OpKind,
        token: Token,
        outcome: Outcome,
        is_last: bool,
    ) {
        let slot = token.slot();
        let is_current = |connection: &&mut Connection| {
            connection.phase != Phase::Vacant
                && connection.generation % Token::GENERATIONS == token.generation()
        };
        let Some(connection) = self.io.connections.get_mut(slot as usize).filter(is_current) else {
            self.io.stats.stale_completions += 1;
            return;
        };
        if is_last {
            connection.flags -= match kind {
                OpKind::Receive => ConnFlags::RECEIVING | ConnFlags::CANCELLED,
                OpKind::Send => ConnFlags::SENDING,
                _ => ConnFlags::CONNECTING_OR_CLOSING,
            };
            if !matches!(outcome, Outcome::Sent(..)) {
                connection.mark_dirty(slot, &mut self.io.dirty);
            }
        }
        match outcome {
            Outcome::Received(bytes) => self.received(slot, bytes),
            Outcome::Eof => self.eof(slot),
            Outcome::Sent(list, n) => {
                self.sent(slot, list, n);
                self.send_ended(slot);
            }
            Outcome::SentFile { bytes, is_full } => self.sent_file(slot, bytes, is_full),
            Outcome::Cold => self.note_send(slot, SendResult::Cold),
            Outcome::Writable => self.has_room(slot),
            Outcome::Connected => self.connected(slot),
            Outcome::Closed => self.closed(slot),
            Outcome::Failed(errno, list) => self.failed(slot, kind, errno, list),
            _ => self.io.stats.stale_completions += 1,
        }
    }

    fn accept(&mut self, listener: usize, outcome: Outcome, is_last: bool) {
        let now = self.io.kernel.now();
        if is_last {
            self.io.listeners[listener].ended();
        }
        match outcome {
            Outcome::Accepted(socket) => self.accepted(Listener(listener as u16), socket),
            Outcome::Failed(Errno::CANCELED, _) => {}
            Outcome::Closed => self.io.listeners[listener].closed(),
            _ => {
                self.io.stats.accept_pauses += 1;
                self.io.listeners[listener].pause_until_retry(now);
            }
        }
    }

    /// Admits a connection or defers it. Resets it if its address or network has reached the maximum.
    fn accepted(&mut self, listener: Listener, socket: Socket) {
        let from = match self.io.take_share(&socket) {
            Ok(from) => from,
            Err(rejected) => {
                match rejected {
                    Rejected::Address => self.io.stats.rejected_addresses += 1,
                    Rejected::Network => self.io.stats.rejected_networks += 1,
                }
                return self.reset(socket, None);
            }
        };
        self.io.deferred.push_back((listener, socket, from));
        if self.io.load.admit_per_turn().is_none() {
            return self.admit_deferred(1);
        }
        while self.io.deferred.len() > self.io.load.deferred()
            && let Some((_, socket, from)) = self.io.deferred.pop_front()
        {
            self.reject(socket, from);
        }
    }

    /// Admits deferred connections while there is room.
    fn admit_deferred(&mut self, max: usize) {
        for _ in 0..max {
            if !self.io.has_room() {
                return;
            }
            let newest = self.io.load.admit_per_turn().is_some();
            let deferred = &mut self.io.deferred;
            let next = if newest { deferred.pop_back() } else { deferred.pop_front() };
            let Some((listener, socket, from)) = next else { return };
            let Io { load, kernel, .. } = &self.io;
            if load.is_overloaded()
                && load.lateness(kernel.host().idle_time(&socket)) == Lateness::Abandoned
            {
                self.reject(socket, from);
            } else {
                self.admit(listener, socket, from);
            }
        }
    }

    /// Resets an abandoned connection.
    fn reject(&mut self, socket: Socket, from: Option<Source>) {
        self.io.stats.abandoned += 1;
        self.reset(socket, from);
    }

    /// Resets an accepted connection that has not been admitted.
    fn reset(&mut self, socket: Socket, from: Option<Source>) {
        self.io.give_back_share(from);
        self.io.kernel.host_mut().reset_on_close(&socket);
        self.io.kernel.host_mut().close_unused(socket);
    }

    fn admit(&mut self, listener: Listener, socket: Socket, from: Option<Source>) {
        let group = self.io.listeners[usize::from(listener.0)].group;
        let slot = self.io.allocate_slot(Phase::Open);
        let connection = self.io.connection(slot);
        connection.socket = Some(socket);
        connection.from = from;
        connection.group = group;
        connection.flags |= ConnFlags::UNSERVED;
        self.io.load.admitted();
        self.io.stats.accepted += 1;
        self.io.mark_dirty(slot);
        call!(self, slot, accepted, listener);
        if self.io.stopping {
            self.quiesce(slot);
        }
    }

    fn connected(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        if connection.phase != Phase::Connecting {
            return;
        }
        connection.phase = Phase::Open;
        let resumed = connection.has(ConnFlags::RESUMED);
        if connection.app_reads() {
            call!(self, slot, connected, Ok(()));
        }
        if resumed {
            self.io.schedule_revisit(slot);
        }
    }

    fn file_done(&mut self, token: Token, outcome: Outcome, was_cold: bool) {
        if let Some(work) = self.io.finish_file_op(token) {
            self.deliver_file(work, outcome, was_cold);
        }
        self.io.start_deferred_file_ops();
    }

    /// Passes the result of a file operation to the application or to the send queue.
    fn deliver_file(&mut self, work: FileRequest, mut outcome: Outcome, was_cold: bool) {
        if let Outcome::File(FileOutcome::Opened(opened)) = &outcome
            && work.opens_to_read
        {
            opened.0.note_metadata(&opened.1);
        }
        if work.read_ahead_bytes > 0 {
            if self.read_ahead_done(work.on.slot(), outcome, was_cold) {
                self.io.mark_dirty(work.on.slot());
            }
            return;
        }
        if let (Some((file, range)), Outcome::File(FileOutcome::Read(bytes))) =
            (&work.reads, &outcome)
        {
            let slot = work.on.slot();
            match self.io.contents_for_application(slot, file, range.start, bytes) {
                Contents::Same => {}
                Contents::Written if !work.is_repeated && self.io.can_look_again() => {
                    return self.io.look_again(work);
                }
                _ => outcome = Outcome::Failed(Errno::STALE, None),
            }
        }
        let Some((work, outcome)) = self.io.defer_read(work, outcome) else { return };
        let slot = work.on.slot();
        let (tag, done) = work.done(outcome);
        call!(self, slot, file, tag, done);
    }

    /// Services every connection that has commands.
    #[inline]
    fn flush(&mut self) {
        if !self.io.dirty.is_empty() {
            self.service_all();
        }
    }

    fn service_all(&mut self) {
        let mut at = 0;
        while let Some(&slot) = self.io.dirty.get(at) {
            at += 1;
            self.service(slot);
        }
        self.io.dirty.clear();
    }

    /// Executes the commands of a connection and continues its operations.
    #[inline]
    fn service(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        connection.flags -= ConnFlags::DIRTY;
        let mut phase = connection.phase;
        if connection.close.is_some()
            || connection.flags.intersects(ConnFlags::QUIESCING | ConnFlags::OVERRUN)
        {
            self.continue_ending(slot);
            phase = self.io.connection(slot).phase;
        }
        match phase {
            Phase::Vacant | Phase::Connecting => {}
            Phase::Ending => self.finish(slot),
            Phase::Open | Phase::Flushing | Phase::Lingering => {
                self.send(slot);
                self.receive(slot);
            }
        }
        if self.io.account(slot) {
            self.overrun(slot);
        }
    }

    /// Continues to end a connection.
    fn continue_ending(&mut self, slot: u32) {
        if self.io.connection(slot).has(ConnFlags::QUIESCING) {
            self.continue_quiescing(slot);
        }
        if self.io.connection(slot).close.is_some() {
            self.begin_close(slot);
        }
        let connection = self.io.connection(slot);
        if connection.has(ConnFlags::OVERRUN) && connection.phase != Phase::Ending {
            self.overrun(slot);
        }
    }

    /// Ends a connection that exceeds its memory limit.
    #[cold]
    fn overrun(&mut self, slot: u32) {
        self.io.stats.overruns += 1;
        self.end(slot, CloseReason::Overrun);
    }

    /// Ends a turn after a batch of completions: processes deadlines, file results, revisits, deferred
    /// connections and listeners.
    pub(crate) fn end_turn(&mut self) {
        let now = self.io.kernel.now();
        // Bounded, as an application may set deadlines that have passed again and again.
        for _ in 0..self.io.connections.len() + self.io.config.max_timers as usize {
            match self.io.wheel.expired(now) {
                Some(Expired::Connection(slot)) => self.expired(slot),
                Some(Expired::Own(timer)) => self.app.timer(&mut self.io, self.states.all(), timer),
                None => break,
            }
            self.flush();
        }
        self.end_pauses();
        self.io.read_again(now);
        for _ in 0..self.io.file_ops.finished.len() {
            let Some((work, outcome)) = self.io.file_ops.finished.pop_front() else { break };
            if let Some(work) = self.io.wanted(work) {
                self.deliver_file(work, outcome, false);
                self.flush();
            }
            self.io.start_deferred_file_ops();
        }
        self.deliver_deferred_reads();
        for _ in 0..self.io.revisits.len() {
            let Some(id) = self.io.revisits.pop_front() else { break };
            if self.io.conn(id.slot()) == id {
                self.revisit(id.slot());
                self.flush();
            }
        }
        if !self.io.deferred.is_empty() {
            let max = self.io.load.admit_per_turn().unwrap_or(self.io.deferred.len());
            self.admit_deferred(max);
            self.flush();
        }
        self.close_idle_for_waiting();
        self.io.update_admission();
        self.service_listeners();
    }

    /// Does the work that was deferred until the end of the batch.
    fn revisit(&mut self, slot: u32) {
        self.io.mark_dirty(slot);
        let connection = self.io.connection(slot);
        connection.flags -= ConnFlags::REVISIT | ConnFlags::HAS_SENT_FILES;
        if connection.phase == Phase::Connecting {
            match connection.reason.take() {
                Some(reason) => self.connect_failed(slot, reason),
                // The connect may still be in flight; the revisit has another reason.
                None if !connection.has(ConnFlags::CONNECTING_OR_CLOSING) => self.connected(slot),
                None => {}
            }
            return;
        }
        if connection.has_drained() {
            connection.flags -= ConnFlags::ABOVE_HIGH_WATER;
            // A hook may hold what arrives until then, also after a half-close.
            if connection.app_reads() {
                call!(self, slot, drained);
            }
        }
        let connection = self.io.connection(slot);
        if connection.has(ConnFlags::RESUMED) {
            connection.flags -= ConnFlags::RESUMED;
            if connection.app_reads() && !connection.is_paused() {
                self.offer_tail(slot);
            }
        }
    }

    fn expired(&mut self, slot: u32) {
        match self.io.connection(slot).phase {
            Phase::Flushing => self.check_flush_progress(slot),
            Phase::Lingering => self.end(slot, CloseReason::Closed),
            Phase::Connecting | Phase::Open => {
                call!(self, slot, expired);
            }
            Phase::Vacant | Phase::Ending => {}
        }
    }

    /// Accepts if there is room; otherwise cancels the accepts.
    pub(crate) fn service_listeners(&mut self) {
        if self.io.is_ending() {
            return self.close_listeners();
        }
        let (now, full) = (self.io.kernel.now(), !self.io.accepts());
        let (room, listeners) = (self.io.room(), self.io.listeners.len() as u32);
        for listener in &mut self.io.listeners {
            listener.fit_room(room, listeners, &mut self.io.kernel);
            if !full {
                listener.resume(&mut self.io.kernel, now);
            } else {
                // The listener now waits for a connection to close.
                listener.clear_retry();
                self.io.stats.accept_pauses +=
                    u64::from(listener.cancel_accept(&mut self.io.kernel));
            }
        }
    }

    /// Handles a wake-up by another thread.
    fn wake(&mut self) {
        for _ in 0..RemoteHandle::MAX_TAGS {
            let Some(tag) = self.remote.next_tag() else { break };
            self.app.woken(&mut self.io, self.states.all(), tag);
            self.flush();
        }
        if self.remote.retired() && !self.io.is_ending() {
            self.retire();
        }
        if self.remote.stopped() && !self.io.stopping {
            self.stop();
        }
    }

    /// Resets all remaining connections.
    pub(crate) fn stop_now(&mut self) {
        while let Some((_, socket, from)) = self.io.deferred.pop_front() {
            self.io.stats.reset_at_stop += 1;
            self.reset(socket, from);
        }
        for slot in 0..self.io.connections.len() as u32 {
            let connection = self.io.connection(slot);
            if !matches!(connection.phase, Phase::Vacant | Phase::Ending) {
                // A lingering one has sent all bytes.
                self.io.stats.cut_at_stop += u64::from(connection.phase != Phase::Lingering);
                self.io.reset_on_close(slot);
                self.end(slot, CloseReason::Stopped);
                self.flush();
            }
        }
    }

    /// Notifies the application that the remaining connections are closed, after a kernel failure or when
    /// they cannot end.
    pub(crate) fn abandon(&mut self, fault: Option<&KernelError>) {
        for slot in 0..self.io.connections.len() as u32 {
            let connection = self.io.connection(slot);
            if connection.phase == Phase::Vacant {
                continue;
            }
            let reason = connection.reason.take().unwrap_or_else(|| match fault {
                Some(fault) => CloseReason::Failed(fault.error.kind().into()),
                None => CloseReason::Stopped,
            });
            // `Io::drop` closes its socket; commands for it have no effect.
            connection.phase = Phase::Ending;
            call!(self, slot, closed, reason);
            self.io.stats.closed += 1;
        }
    }

    /// Returns whether a server that stops or retires is done, or out of time.
    pub(crate) fn is_done(&self) -> bool {
        let io = &self.io;
        let ended = if io.stopping { io.drain_deadline } else { io.empty_since };
        if ended.is_some_and(|at| io.kernel.now() >= at + FILE_OP_GRACE) {
            return true;
        }
        self.io.is_ending() && self.io.is_empty() && self.io.file_ops.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use shared_ring::buffers::GatherList;

    use super::*;
    use crate::{Config, Tail};

    #[test]
    fn spare_memory_is_that_of_a_list_and_a_tail_for_each_connection_up_to_a_bound() {
        let spare =
            |max_connections| io::spare_memory(&Config { max_connections, ..Config::default() });
        let each = size_of::<GatherList>() + GatherList::MAX_KEPT_BYTES + Tail::MAX_KEPT_BYTES;
        assert_eq!([1, 128, 129].map(spare), [128 * each, 128 * each, 129 * each]);
        assert_eq!([1_024, 100_000].map(spare), [1_024 * each; 2]);
    }

    #[test]
    fn idle_connection_is_small() {
        // With a list in the queue, an entry in the table of operations, a timer and a small state, an idle
        // connection takes less than 512 bytes.
        assert!(size_of::<Connection>() <= 208, "{}", size_of::<Connection>());
    }
}
