//! Slow clients, in addition to the load.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use shared_ring::calls::{Call, Executor};
use shared_ring::{Kernel, Op, OpKind};

use super::{Generator, RETRY_DELAY, Timer, connection_token};
use crate::connection::{Phase, Role};

/// Maximum number of bytes that a slow reader receives at a time.
const MAX_PIECE_BYTES: u32 = 64 * 1024;

impl<K: Kernel> Generator<'_, K> {
    /// Returns the time that `bytes` take at the configured rate.
    fn slow_duration(&self, bytes: usize) -> Duration {
        let rate = self.plan.slow.map_or(1, |slow| slow.bytes_per_second.max(1));
        Duration::from_secs_f64(bytes as f64 / f64::from(rate))
    }

    fn schedule_slow(&mut self, slot: u32, at: Instant) {
        let generation = self.connections[slot as usize].generation;
        self.timers.push(Reverse((at, Timer::Slow(slot, generation))));
    }

    /// Begins a slow client, when its part of the spread is over.
    pub(super) fn slow_begin(&mut self, slot: u32) {
        let count = self.plan.slow.map_or(1, |slow| slow.readers + slow.senders).max(1);
        let number = (self.stats.slow - 1) as u32 % count;
        self.schedule_slow(slot, self.now + self.plan.slow_spread * number / count);
    }

    /// Continues a slow client: a sender sends its next byte; a reader sends its request, or receives the next piece of
    /// its reply.
    pub(super) fn slow_continue(&mut self, slot: u32, generation: u32) {
        let number = self.connections[slot as usize].session;
        let first = self.plan.sessions[0].requests.first();
        let Some(spec) = self.plan.slow_requests.get(number).or(first) else { return };
        let connection = &mut self.connections[slot as usize];
        if connection.generation != generation || connection.phase != Phase::Open {
            return;
        }
        let Some(fd) = connection.fd() else { return };
        if connection.role == Role::SlowReader && connection.slow_next.is_some() {
            return self.slow_receive(slot);
        }
        let bytes = match connection.role {
            Role::SlowReader => spec.last.clone(),
            _ => match spec.last.get(connection.slow_bytes..=connection.slow_bytes) {
                Some(byte) => spec.last.slice_ref(byte),
                None => return,
            },
        };
        connection.sending = true;
        let mut data = self.spare_lists.pop().unwrap_or_default();
        data.shared(bytes);
        self.post(connection_token(&self.connections, OpKind::Send, slot), Op::Send { fd, data });
    }

    /// Handles a byte sent by a slow sender.
    pub(super) fn slow_sent(&mut self, slot: u32) {
        self.connections[slot as usize].slow_bytes += 1;
        self.schedule_slow(slot, self.now + self.slow_duration(1));
    }

    /// Begins to receive, as a slow reader has sent its request.
    pub(super) fn slow_requested(&mut self, slot: u32) {
        self.connections[slot as usize].slow_next = Some(self.now);
        self.slow_receive(slot);
    }

    /// Receives once. [`Op::Receive`] would go on until it is cancelled, so a busy generator would receive many pieces,
    /// and then pause for seconds.
    fn slow_receive(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        let Some(fd) = connection.fd() else { return };
        let buffer = self.plan.slow.map_or(1, |slow| slow.receive_buffer);
        let call = Call::read(fd, buffer.clamp(1, MAX_PIECE_BYTES) as usize);
        connection.receiving = true;
        let token = connection_token(&self.connections, OpKind::Call, slot);
        self.post(token, Op::Call(Box::new(call), Executor::WhenReadable));
    }

    /// Handles a piece of a reply that a slow reader has received. It receives the next one when its rate permits that.
    pub(super) fn slow_piece(&mut self, slot: u32, piece: &[u8]) {
        if piece.is_empty() {
            return self.received_eof(slot);
        }
        self.note_received(piece.len());
        self.slow_received(slot, piece);
        let next = self.slow_duration(piece.len());
        let connection = &mut self.connections[slot as usize];
        if let (Phase::Open, Some(due)) = (connection.phase, connection.slow_next) {
            // It does not catch up with what it could not receive before.
            let due = (due + next).max(self.now);
            connection.slow_next = Some(due);
            self.schedule_slow(slot, due);
        }
    }

    /// Handles part of a reply.
    pub(super) fn slow_received(&mut self, slot: u32, bytes: &[u8]) {
        let connection = &mut self.connections[slot as usize];
        if connection.phase != Phase::Open {
            return;
        }
        match connection.parser.parse(bytes, false) {
            Ok((_, Some(_))) => {
                self.stats.slow_replies += 1;
                self.close(slot, false);
            }
            Ok((_, None)) => {}
            Err(_) => self.slow_eof(slot),
        }
    }

    /// Handles a connection closed by the server.
    pub(super) fn slow_eof(&mut self, slot: u32) {
        if self.connections[slot as usize].parser.finish().is_some() {
            self.stats.slow_replies += 1;
        } else {
            self.stats.slow_lost += 1;
        }
        self.close(slot, false);
    }

    /// Schedules a new connection of a slow client.
    pub(super) fn schedule_slow_reconnect(&mut self, role: Role) {
        self.timers.push(Reverse((self.now + RETRY_DELAY, Timer::SlowReconnect(role))));
    }

    pub(super) fn slow_reconnect(&mut self, role: Role) {
        if self.connect(role).is_err() {
            self.schedule_slow_reconnect(role);
        }
    }
}
