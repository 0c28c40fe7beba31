//! Clients that are slow, beside the load.

use std::cmp::Reverse;
use std::time::Duration;

use shared_ring::{Kernel, Op, OpKind, RxBuf};

use super::{Generator, RETRY, Wakes, connection_token};
use crate::connection::{Phase, Role};

impl<K: Kernel> Generator<'_, K> {
    /// Time for so many bytes.
    fn slow_time(&self, bytes: usize) -> Duration {
        let rate = self.plan.slow.map_or(1, |slow| slow.rate.max(1));
        Duration::from_secs_f64(bytes as f64 / f64::from(rate))
    }

    fn slow_wakes(&mut self, slot: u32, after: Duration) {
        let generation = self.connections[slot as usize].generation;
        self.waking.push(Reverse((self.now + after, Wakes::Slow(slot, generation))));
    }

    /// One who sends slowly sends its next byte; one who reads slowly reads again, or asks if it
    /// has not.
    pub(super) fn slow_goes_on(&mut self, slot: u32, generation: u32) {
        let Some((ask, _)) = self.plan.sessions[0].at(0) else { return };
        let connection = &mut self.connections[slot as usize];
        if connection.generation != generation || connection.phase != Phase::Open {
            return;
        }
        let Some(fd) = connection.fd() else { return };
        if connection.role == Role::SlowReader && connection.thinks {
            // More may have come before the receive ended, and that may not have ended yet.
            if connection.little > 0 || connection.receives {
                return self.slow_rests(slot);
            }
            connection.thinks = false;
            connection.receives = true;
            let token = connection_token(&self.connections, OpKind::Receive, slot);
            return self.post(token, Op::Receive { fd });
        }
        let bytes = match connection.role {
            Role::SlowReader => ask.last.clone(),
            _ => match ask.last.get(connection.little..=connection.little) {
                Some(byte) => ask.last.slice_ref(byte),
                None => return,
            },
        };
        connection.sends = true;
        let mut data = self.spare.pop().unwrap_or_default();
        data.shared(bytes);
        self.post(connection_token(&self.connections, OpKind::Send, slot), Op::Send { fd, data });
    }

    /// A byte has gone.
    pub(super) fn slow_sent(&mut self, slot: u32) {
        self.connections[slot as usize].little += 1;
        self.slow_wakes(slot, self.slow_time(1));
    }

    /// Takes part of a reply. One who reads slowly then rests for as long as it takes.
    pub(super) fn slow_received(&mut self, slot: u32, bytes: &RxBuf) {
        let connection = &mut self.connections[slot as usize];
        if connection.phase != Phase::Open {
            return;
        }
        match connection.reader.take(bytes, false) {
            Ok((_, Some(_))) => {
                self.tally.slow_replies += 1;
                return self.end(slot, false);
            }
            Ok((_, None)) => {}
            Err(_) => return self.slow_ended(slot),
        }
        if connection.role != Role::SlowReader {
            return;
        }
        connection.little += bytes.len();
        if !connection.thinks {
            connection.thinks = true;
            if connection.receives {
                self.kernel.cancel(connection_token(&self.connections, OpKind::Receive, slot));
            }
            self.slow_rests(slot);
        }
    }

    /// One who reads slowly takes its time for what has come.
    fn slow_rests(&mut self, slot: u32) {
        let little = std::mem::take(&mut self.connections[slot as usize].little);
        self.slow_wakes(slot, self.slow_time(little).max(RETRY));
    }

    /// Whether a cancelled receive is the rest of one who reads slowly.
    pub(super) fn is_resting(&self, slot: u32) -> bool {
        let connection = &self.connections[slot as usize];
        connection.role == Role::SlowReader && connection.phase == Phase::Open
    }

    /// The server has ended the connection before there was a reply.
    pub(super) fn slow_ended(&mut self, slot: u32) {
        if self.connections[slot as usize].reader.end().is_some() {
            self.tally.slow_replies += 1;
        } else {
            self.tally.slow_lost += 1;
        }
        self.end(slot, false);
    }

    /// One whose connection is gone makes another a little later.
    pub(super) fn slow_later(&mut self, role: Role) {
        self.waking.push(Reverse((self.now + RETRY, Wakes::SlowAgain(role))));
    }

    pub(super) fn slow_again(&mut self, role: Role) {
        if self.connect(role).is_err() {
            self.slow_later(role);
        }
    }
}
