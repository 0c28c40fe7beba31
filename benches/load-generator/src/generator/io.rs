//! Connections: establishes them, receives, sends and closes.

use shared_ring::buffers::{BufferGroup, GatherList, RxBuf};
use shared_ring::sockets::BufferSizes;
use shared_ring::{Completion, Errno, Host, Kernel, Op, OpKind, Outcome, Submitted, Token};

use super::{CLOSE_DEADLINE, Generator, cleared, connection_token, error_of, is_obsolete};
use crate::connection::{Connection, PendingRequest, Phase, Role};
use crate::deadlines::Deadline;
use crate::reply::Reply;
use crate::stats::StopReason;
use crate::{CloseMode, RequestError, RequestRecord};

impl<K: Kernel> Generator<'_, K> {
    /// Starts to establish a connection. Returns its slot.
    pub(super) fn connect(&mut self, role: Role) -> Result<u32, RequestError> {
        if self.open >= self.plan.max_open {
            return Err(RequestError::NoResources);
        }
        let from = match self.plan.sources.len() {
            0 => None,
            n => Some(self.plan.sources[self.next_source % n]),
        };
        self.next_source = self.next_source.wrapping_add(1);
        let to = self.plan.target;
        let receive = match role {
            Role::SlowReader => self.plan.slow.map(|slow| slow.receive_buffer),
            _ => self.plan.receive_buffer,
        };
        let buffers =
            BufferSizes { receive: receive.map(|bytes| bytes as usize), ..BufferSizes::default() };
        let socket = self.kernel.host_mut().socket(to, from, buffers);
        let socket = socket.map_err(|e| error_of(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.connections.push(Connection::default());
            self.connections.len() as u32 - 1
        });
        self.open += 1;
        let connection = &mut self.connections[slot as usize];
        connection.begin(role, socket);
        if role.is_slow() {
            connection.session = self.next_slow;
            self.next_slow = (self.next_slow + 1) % self.plan.slow_requests.len().max(1);
        }
        let Some(fd) = connection.fd() else { unreachable!("it has just begun") };
        connection.connecting = true;
        self.post(
            connection_token(&self.connections, OpKind::Connect, slot),
            Op::Connect { fd, to },
        );
        Ok(slot)
    }

    /// Submits an operation. If it completes at once, it is processed in the current turn.
    pub(super) fn post(&mut self, token: Token, op: Op) {
        let outcome = match self.kernel.submit(token, op) {
            Ok(Submitted::InFlight) => return,
            Ok(Submitted::Done(outcome)) => outcome,
            // Not expected: the kernel has room for `operations` operations.
            Err(refused) => {
                let list = match refused.op {
                    Op::Close { socket } => {
                        self.kernel.host_mut().close_unused(socket);
                        None
                    }
                    Op::Send { data, .. } => Some(data),
                    _ => None,
                };
                Outcome::Failed(Errno::NOBUFS, list)
            }
        };
        self.completions.push_back(Completion::last(token, outcome));
    }

    pub(super) fn connected(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.phase != Phase::Connecting {
            return;
        }
        connection.phase = Phase::Open;
        let (role, generation) = (connection.role, connection.generation);
        if let Some(first) = connection.pending.front_mut() {
            let time = self.now.saturating_duration_since(first.due);
            first.connect = Some(time);
            self.stats.connected(first.measured, time);
        }
        let Some(fd) = connection.fd() else { return };
        self.refused_since = None;
        self.refusals = 0;
        self.has_connected = true;
        if role != Role::SlowReader {
            self.connections[slot as usize].receiving = true;
            let token = connection_token(&self.connections, OpKind::Receive, slot);
            self.post(token, Op::Receive { fd, group: BufferGroup::DEFAULT });
        }
        match role {
            Role::Session => {
                self.continue_session(slot);
                return;
            }
            Role::Persistent => {
                self.idle.extend((0..self.plan.pipeline_depth).map(|_| (slot, generation)))
            }
            Role::Idle => self.stats.idle += 1,
            Role::SlowReader | Role::SlowSender => {
                self.stats.slow += 1;
                match self.setup_pending {
                    0 => self.slow_continue(slot, generation),
                    _ => self.slow_begin(slot),
                }
            }
        }
        if self.setup_pending > 0 {
            self.setup_pending -= 1;
            self.setup_done += 1;
        }
        self.dispatch_queued();
    }

    pub(super) fn note_received(&mut self, bytes: usize) {
        if self.is_measured(self.now) {
            self.stats.received_bytes += bytes as u64;
        }
    }

    pub(super) fn received(&mut self, slot: u32, bytes: &RxBuf) {
        self.note_received(bytes.len());
        if self.connections[slot as usize].role.is_slow() {
            return self.slow_received(slot, bytes);
        }
        let mut remaining = &bytes[..];
        let connection = &self.connections[slot as usize];
        // A reply to a request that has not been sent is malformed.
        let mut awaited = connection.pending.len().saturating_sub(connection.unsent);
        while !remaining.is_empty() {
            let connection = &mut self.connections[slot as usize];
            if connection.role == Role::Idle || connection.phase != Phase::Open {
                return;
            }
            let Some(request) = connection.pending.front().filter(|_| awaited > 0) else {
                return self.fail(slot, RequestError::Malformed);
            };
            let no_body = self.plan.sessions[request.session]
                .at(request.index)
                .is_some_and(|(spec, _)| spec.no_body);
            match connection.parser.parse(remaining, no_body) {
                Ok((used, reply)) => {
                    remaining = &remaining[used..];
                    if let Some(reply) = reply {
                        awaited -= 1;
                        self.replied(slot, reply);
                    }
                }
                Err(_) => return self.fail(slot, RequestError::Malformed),
            }
        }
    }

    /// Handles the end of the stream: the server closed its sending side.
    pub(super) fn received_eof(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        match connection.phase {
            Phase::Open if connection.role.is_slow() => self.slow_eof(slot),
            Phase::Open if connection.pending.is_empty() => self.close(slot, false),
            Phase::Open => {
                if let Some(reply) = connection.parser.finish() {
                    return self.replied(slot, reply);
                }
                let partial = connection.parser.is_partial();
                self.fail(
                    slot,
                    if partial { RequestError::ShortBody } else { RequestError::Closed },
                );
            }
            Phase::AwaitingClose => self.close(slot, false),
            _ => {}
        }
    }

    pub(super) fn replied(&mut self, slot: u32, reply: Reply) {
        let connection = &mut self.connections[slot as usize];
        let Some(request) = connection.pending.pop_front() else { return };
        connection.completed += 1;
        connection.has_reply = true;
        self.refused_since = None;
        self.measured_pending -= u64::from(request.measured);
        let Some((spec, last)) = self.plan.sessions[request.session].at(request.index) else {
            return;
        };
        let time = self.now.saturating_duration_since(request.due);
        let error = match reply.status {
            _ if time > self.plan.timeout => Some(RequestError::ReplyTimeout),
            503 => Some(RequestError::Unavailable),
            400.. => {
                self.stats.bad_status(request.measured, reply.status);
                Some(RequestError::Status)
            }
            _ if spec.expected_len.is_some_and(|size| size != reply.bytes) => {
                Some(RequestError::ShortBody)
            }
            _ => None,
        };
        match error {
            Some(error) => self.stats.failed(request.measured, error),
            None => self.stats.replied(request.measured, time, reply.bytes),
        }
        self.log_request(&request, error);
        if reply.keep_alive && !(last && self.connections[slot as usize].role == Role::Session) {
            return self.continue_session(slot);
        }
        self.fail_pending(slot, RequestError::Closed);
        if self.plan.close_mode != CloseMode::Server {
            return self.close(slot, self.plan.close_mode == CloseMode::Reset);
        }
        let connection = &mut self.connections[slot as usize];
        connection.phase = Phase::AwaitingClose;
        let (at, generation) = (self.now + self.plan.timeout, connection.generation);
        self.close_deadlines.push(Deadline { at, slot, generation, index: CLOSE_DEADLINE });
        if !connection.receiving {
            self.close(slot, false);
        }
    }

    /// Sends the pending requests that are unsent.
    pub(super) fn send(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.unsent == 0 || connection.sending || connection.phase != Phase::Open {
            return;
        }
        let Some(fd) = connection.fd() else { return };
        let mut data = self.spare_lists.pop().unwrap_or_default();
        let first = connection.pending.len() - connection.unsent;
        for request in connection.pending.range(first..) {
            if let Some((spec, last)) = self.plan.sessions[request.session].at(request.index) {
                let last = last
                    && connection.role == Role::Session
                    && self.plan.close_mode == CloseMode::Server;
                data.shared(if last { spec.last.clone() } else { spec.bytes.clone() });
            }
        }
        connection.unsent = 0;
        connection.sending = true;
        self.post(connection_token(&self.connections, OpKind::Send, slot), Op::Send { fd, data });
    }

    pub(super) fn sent(&mut self, slot: u32, data: Box<GatherList>) {
        let connection = &mut self.connections[slot as usize];
        if data.is_empty() || !connection.is_alive() {
            let (role, alive) = (connection.role, connection.is_alive());
            self.spare_lists.push(cleared(data));
            return match role {
                Role::SlowSender if alive => self.slow_sent(slot),
                Role::SlowReader if alive => self.slow_requested(slot),
                Role::Session | Role::Persistent if alive => self.send(slot),
                _ => {}
            };
        }
        let Some(fd) = connection.fd() else { return };
        connection.sending = true;
        self.post(connection_token(&self.connections, OpKind::Send, slot), Op::Send { fd, data });
    }

    /// Fails the requests whose deadlines expired, and resets their connections.
    pub(super) fn expire_requests(&mut self) {
        while let Some(deadline) =
            self.deadlines.take(self.now).or_else(|| self.close_deadlines.take(self.now))
        {
            if is_obsolete(&self.connections, &deadline) {
                continue;
            }
            match self.connections[deadline.slot as usize].phase {
                Phase::AwaitingClose => self.close(deadline.slot, true),
                Phase::Connecting => self.fail(deadline.slot, RequestError::ConnectTimeout),
                _ => self.fail(deadline.slot, RequestError::ReplyTimeout),
            }
            self.close_if_drained(deadline.slot);
        }
        while let Some(due) = self.queued.front().copied()
            && due + self.plan.timeout <= self.now
        {
            self.queued.pop_front();
            let (session, index) = self.advance_request();
            let measured = self.is_measured(due);
            let request = PendingRequest { due, measured, session, index, connect: None };
            self.fail_request(request, RequestError::ReplyTimeout);
        }
    }

    /// Fails a connection and its pending requests.
    pub(super) fn fail(&mut self, slot: u32, error: RequestError) {
        let connection = &mut self.connections[slot as usize];
        if !connection.is_alive() {
            return;
        }
        if connection.role.is_slow() && connection.phase == Phase::Open {
            self.stats.slow_lost += 1;
        }
        if error == RequestError::Refused {
            self.refused_since.get_or_insert(self.now);
            self.refusals += 1;
        }
        if self.setup_pending > 0 && connection.phase == Phase::Connecting {
            self.stats.stop_reason = Some(StopReason::SetupFailed(error));
        }
        self.fail_pending(slot, error);
        self.close(slot, true);
    }

    /// Fails the pending requests of a connection.
    pub(super) fn fail_pending(&mut self, slot: u32, mut error: RequestError) {
        while let Some(request) = self.connections[slot as usize].pending.pop_front() {
            self.connections[slot as usize].completed += 1;
            self.fail_request(request, error);
            // The server did not begin replies to the others.
            if error == RequestError::ShortBody {
                error = RequestError::Closed;
            }
        }
    }

    pub(super) fn fail_request(&mut self, request: PendingRequest, error: RequestError) {
        self.measured_pending -= u64::from(request.measured);
        self.stats.failed(request.measured, error);
        self.log_request(&request, Some(error));
    }

    pub(super) fn log_request(&mut self, request: &PendingRequest, error: Option<RequestError>) {
        if self.plan.log_requests {
            let due = request.due.saturating_duration_since(self.start_time);
            let latency = self.now.saturating_duration_since(request.due);
            self.stats.log.push(RequestRecord { due, connect: request.connect, latency, error });
        }
    }

    /// Closes a connection: cancels the operations in flight, then closes the socket.
    pub(super) fn close(&mut self, slot: u32, reset: bool) {
        let connection = &mut self.connections[slot as usize];
        connection.phase = Phase::Cancelling;
        if connection.role == Role::Session && connection.measured {
            let (session, index) = (connection.session, connection.index);
            self.stats.skipped += self.plan.sessions[session].remaining(index);
        }
        let connection = &mut self.connections[slot as usize];
        if connection.role == Role::Idle {
            self.stats.idle_lost += 1;
        }
        let Some(socket) = &connection.socket else { return };
        let operations = [
            (connection.connecting, OpKind::Connect),
            // One of both; to cancel the other one has no effect.
            (connection.receiving, OpKind::Receive),
            (connection.receiving, OpKind::Call),
            (connection.sending, OpKind::Send),
        ];
        if reset {
            self.kernel.host_mut().reset_on_close(socket);
        }
        for (_, kind) in operations.into_iter().filter(|(in_flight, _)| *in_flight) {
            self.kernel.cancel(connection_token(&self.connections, kind, slot));
        }
        self.close_if_drained(slot);
    }

    pub(super) fn close_if_drained(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.phase != Phase::Cancelling || !connection.has_no_operations() {
            return;
        }
        connection.phase = Phase::Closing;
        let Some(socket) = connection.socket.take() else { return };
        self.post(connection_token(&self.connections, OpKind::Close, slot), Op::Close { socket });
    }

    /// Handles a closed connection. Opens another one if the model requires it.
    pub(super) fn closed(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        connection.phase = Phase::Free;
        connection.generation = (connection.generation + 1) % Token::GENERATIONS;
        let (role, failed) = (connection.role, !connection.has_reply);
        self.free_slots.push(slot);
        self.open -= 1;
        if self.stopping {
            return;
        }
        if role == Role::Idle {
            return;
        }
        if role.is_slow() {
            return self.schedule_slow_reconnect(role);
        }
        if role == Role::Persistent
            && self.idle.len() > 2 * self.connections.len() * self.plan.pipeline_depth
        {
            let connections = &self.connections;
            self.idle
                .retain(|(slot, generation)| connections[*slot as usize].generation == *generation);
        }
        if failed { self.schedule_reconnect() } else { self.reconnect() }
    }
}
