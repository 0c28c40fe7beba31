//! Starts sessions and requests when they are due.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use shared_ring::Kernel;

use super::{Generator, MAX_EXPIRED_PER_TURN, MAX_STARTS_PER_TURN, RETRY_DELAY, Timer};
use crate::connection::{PendingRequest, Phase, Role};
use crate::deadlines::Deadline;
use crate::{LoadModel, RequestError};

impl<K: Kernel> Generator<'_, K> {
    /// Fires the timers that expired and starts due sessions and requests, at most
    /// [`MAX_STARTS_PER_TURN`], so that completions are processed in time.
    pub(super) fn start_due(&mut self) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied()
            && at <= self.now
        {
            self.timers.pop();
            match timer {
                Timer::Think(slot, generation) => self.think_time_elapsed(slot, generation),
                Timer::Reconnect => self.reconnect(),
                Timer::Slow(slot, generation) => self.slow_continue(slot, generation),
                Timer::SlowReconnect(role) => self.slow_reconnect(role),
            }
        }
        for _ in 0..self.sessions_to_start.min(MAX_STARTS_PER_TURN) {
            self.sessions_to_start -= 1;
            self.start_session(self.now);
        }
        let (mut started, mut expired) = (0, 0);
        while started < MAX_STARTS_PER_TURN && expired < MAX_EXPIRED_PER_TURN {
            let Some(arrivals) = &mut self.arrivals else { break };
            let due = self.start_time + arrivals.next();
            if due > self.now {
                break;
            }
            arrivals.advance();
            if due + self.plan.timeout <= self.now {
                self.expire_unstarted(due);
                expired += 1;
                continue;
            }
            match self.plan.model {
                LoadModel::OpenRequests { .. } => self.queue_request(due),
                _ => self.start_session(due),
            }
            started += 1;
        }
    }

    /// Fails a request whose timeout expired before the generator could start it.
    fn expire_unstarted(&mut self, due: Instant) {
        let measured = self.record_due(due);
        self.record_started(due);
        let (session, index) = match self.plan.model {
            LoadModel::OpenRequests { .. } => self.advance_request(),
            _ => (self.advance_session(), 0),
        };
        if measured && matches!(self.plan.model, LoadModel::OpenSessions { .. }) {
            self.stats.skipped += self.plan.sessions[session].remaining(1);
        }
        self.fail_request(
            PendingRequest { due, measured, session, index, connect: None },
            RequestError::ReplyTimeout,
        );
    }

    fn advance_session(&mut self) -> usize {
        let session = self.next_session;
        self.next_session = (session + 1) % self.plan.sessions.len();
        session
    }

    pub(super) fn start_session(&mut self, due: Instant) {
        let measured = self.record_due(due);
        let session = self.advance_session();
        match self.connect(Role::Session) {
            Ok(slot) => {
                self.record_started(due);
                let connection = &mut self.connections[slot as usize];
                connection.session = session;
                connection.measured = measured;
                connection.index = 1;
                self.enqueue(slot, due, session, 0);
            }
            Err(error) => {
                self.fail_request(
                    PendingRequest { due, measured, session, index: 0, connect: None },
                    error,
                );
                if measured {
                    self.stats.skipped += self.plan.sessions[session].remaining(1);
                }
                self.schedule_reconnect();
            }
        }
    }

    /// Records a due request. Returns whether it is measured.
    pub(super) fn record_due(&mut self, due: Instant) -> bool {
        let measured = self.is_measured(due);
        self.stats.due(measured);
        self.measured_pending += u64::from(measured);
        measured
    }

    /// Records that a due session or request was started.
    pub(super) fn record_started(&mut self, due: Instant) {
        let measured = self.is_measured(due);
        match self.plan.model {
            LoadModel::Closed { .. } => self.stats.started(measured),
            _ => self.started.push((due, measured)),
        }
    }

    /// Schedules a connection in place of a failed one, for models with a fixed number of them.
    pub(super) fn schedule_reconnect(&mut self) {
        if !matches!(self.plan.model, LoadModel::OpenSessions { .. }) {
            self.timers.push(Reverse((self.now + RETRY_DELAY, Timer::Reconnect)));
        }
    }

    pub(super) fn reconnect(&mut self) {
        match self.plan.model {
            LoadModel::Closed { .. } => self.sessions_to_start += 1,
            LoadModel::OpenSessions { .. } => {}
            LoadModel::OpenRequests { .. } => {
                if self.connect(Role::Persistent).is_err() {
                    self.schedule_reconnect();
                }
            }
        }
    }

    pub(super) fn queue_request(&mut self, due: Instant) {
        self.record_due(due);
        self.record_started(due);
        self.queued.push_back(due);
        self.dispatch_queued();
    }

    /// Assigns queued requests to idle connections.
    pub(super) fn dispatch_queued(&mut self) {
        while !self.queued.is_empty() {
            let Some((slot, generation)) = self.idle.pop_front() else { return };
            let connection = &self.connections[slot as usize];
            if connection.generation != generation || connection.phase != Phase::Open {
                continue;
            }
            let Some(due) = self.queued.pop_front() else { return };
            let (session, index) = self.advance_request();
            self.enqueue(slot, due, session, index);
            self.send(slot);
        }
    }

    /// Returns the session and index of the next request, over all sessions in turn.
    pub(super) fn advance_request(&mut self) -> (usize, u64) {
        let next = (self.next_session, self.next_index);
        self.next_index += 1;
        if self.next_index >= self.plan.sessions[self.next_session].requests.len() as u64 {
            self.next_index = 0;
            self.next_session = (self.next_session + 1) % self.plan.sessions.len();
        }
        next
    }

    /// Enqueues a request on a connection.
    pub(super) fn enqueue(&mut self, slot: u32, due: Instant, session: usize, index: u64) {
        let measured = self.is_measured(due);
        let connection = &mut self.connections[slot as usize];
        let number = connection.completed + connection.pending.len() as u64;
        let at = due + self.plan.timeout;
        let generation = connection.generation;
        self.deadlines.push(Deadline { at, slot, generation, index: number });
        let connect = (connection.phase == Phase::Open).then_some(Duration::ZERO);
        connection.pending.push_back(PendingRequest { due, measured, session, index, connect });
        connection.unsent += 1;
    }

    /// Continues a connection that is new or has received a reply.
    pub(super) fn continue_session(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.role == Role::Persistent {
            let generation = connection.generation;
            self.idle.push_back((slot, generation));
            return self.dispatch_queued();
        }
        while let connection = &mut self.connections[slot as usize]
            && connection.pending.len() < self.plan.pipeline_depth
            && !connection.thinking
        {
            let (session, index) = (connection.session, connection.index);
            let Some((spec, _)) = self.plan.sessions[session].at(index) else { break };
            if !spec.think_time.is_zero() && !connection.pending.is_empty() {
                break;
            }
            if !spec.think_time.is_zero() {
                connection.thinking = true;
                let timer = Timer::Think(slot, connection.generation);
                self.timers.push(Reverse((self.now + spec.think_time, timer)));
                break;
            }
            self.enqueue_next(slot);
        }
        self.send(slot);
    }

    /// Handles the end of a client's think time.
    pub(super) fn think_time_elapsed(&mut self, slot: u32, generation: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.generation != generation || connection.phase != Phase::Open {
            return;
        }
        connection.thinking = false;
        self.enqueue_next(slot);
        self.continue_session(slot);
    }

    pub(super) fn enqueue_next(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        let (session, index) = (connection.session, connection.index);
        connection.index += 1;
        let measured = self.record_due(self.now);
        self.stats.started(measured);
        self.enqueue(slot, self.now, session, index);
    }
}
