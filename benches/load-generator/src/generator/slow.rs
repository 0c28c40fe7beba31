//! Slow clients, in addition to the load.

use std::cmp::Reverse;
use std::time::Duration;

use shared_ring::{BufferGroup, Kernel, Op, OpKind, RxBuf};

use super::{Generator, RETRY_DELAY, Timer, connection_token};
use crate::connection::{Phase, Role};

impl<K: Kernel> Generator<'_, K> {
    /// Returns the time that `bytes` take at the configured rate.
    fn slow_duration(&self, bytes: usize) -> Duration {
        let rate = self.plan.slow.map_or(1, |slow| slow.bytes_per_second.max(1));
        Duration::from_secs_f64(bytes as f64 / f64::from(rate))
    }

    fn schedule_slow(&mut self, slot: u32, after: Duration) {
        let generation = self.connections[slot as usize].generation;
        self.timers.push(Reverse((self.now + after, Timer::Slow(slot, generation))));
    }

    /// Begins a slow client, when its part of the spread is over.
    pub(super) fn slow_begin(&mut self, slot: u32) {
        let count = self.plan.slow.map_or(1, |slow| slow.readers + slow.senders).max(1);
        let number = (self.stats.slow - 1) as u32 % count;
        self.schedule_slow(slot, self.plan.slow_spread * number / count);
    }

    /// Continues a slow client: a sender sends its next byte; a reader sends its request or
    /// receives again.
    pub(super) fn slow_continue(&mut self, slot: u32, generation: u32) {
        let number = self.connections[slot as usize].session;
        let first = self.plan.sessions[0].requests.first();
        let Some(spec) = self.plan.slow_requests.get(number).or(first) else { return };
        let connection = &mut self.connections[slot as usize];
        if connection.generation != generation || connection.phase != Phase::Open {
            return;
        }
        let Some(fd) = connection.fd() else { return };
        if connection.role == Role::SlowReader && connection.thinking {
            // More bytes may have arrived before the cancellation, or it is still in flight.
            if connection.slow_bytes > 0 || connection.receiving {
                return self.slow_pause(slot);
            }
            connection.thinking = false;
            connection.receiving = true;
            let token = connection_token(&self.connections, OpKind::Receive, slot);
            return self.post(token, Op::Receive { fd, group: BufferGroup::DEFAULT });
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
        self.schedule_slow(slot, self.slow_duration(1));
    }

    /// Handles part of a reply. A slow reader then pauses according to its rate.
    pub(super) fn slow_received(&mut self, slot: u32, bytes: &RxBuf) {
        let connection = &mut self.connections[slot as usize];
        if connection.phase != Phase::Open {
            return;
        }
        match connection.parser.parse(bytes, false) {
            Ok((_, Some(_))) => {
                self.stats.slow_replies += 1;
                return self.close(slot, false);
            }
            Ok((_, None)) => {}
            Err(_) => return self.slow_eof(slot),
        }
        if connection.role != Role::SlowReader {
            return;
        }
        connection.slow_bytes += bytes.len();
        if !connection.thinking {
            connection.thinking = true;
            if connection.receiving {
                self.kernel.cancel(connection_token(&self.connections, OpKind::Receive, slot));
            }
            self.slow_pause(slot);
        }
    }

    /// Pauses a slow reader for the time that the received bytes take at its rate.
    fn slow_pause(&mut self, slot: u32) {
        let slow_bytes = std::mem::take(&mut self.connections[slot as usize].slow_bytes);
        self.schedule_slow(slot, self.slow_duration(slow_bytes).max(RETRY_DELAY));
    }

    /// Returns whether a receive was cancelled because a slow reader paused.
    pub(super) fn is_paused(&self, slot: u32) -> bool {
        let connection = &self.connections[slot as usize];
        connection.role == Role::SlowReader && connection.phase == Phase::Open
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
