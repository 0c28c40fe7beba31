//! Pauses of sends, for which a policy asked.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use shared_ring::Submit;

use super::connection::ConnFlags;
use super::{Driver, Io};
use crate::{Application, ConnId};

/// Maximum time of a pause; a policy that asks for more is asked again.
const MAX_PAUSE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The connections that pause, by the end of the pause. There are at most twice as many as connections: those of
/// closed ones are removed when there are more.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    ends: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    epoch: Option<Instant>,
}

impl Pauses {
    /// Returns the end of a pause: at most a quarter earlier than requested, together with others.
    fn end(&mut self, now: Instant, time: Duration) -> Instant {
        // Later than now, as the policy is asked once for each pause, and within what an `Instant` holds.
        let time = time.clamp(Duration::from_micros(1), MAX_PAUSE);
        let epoch = *self.epoch.get_or_insert(now);
        let quarter_us = u64::try_from(time.as_micros() / 4).unwrap_or(u64::MAX).max(1);
        let unit_us = 1 << quarter_us.ilog2();
        let end_us = (now.saturating_duration_since(epoch) + time).as_micros() as u64;
        epoch + Duration::from_micros(end_us / unit_us * unit_us)
    }

    /// Returns when the first pause ends.
    pub(super) fn next(&self) -> Option<Instant> {
        self.ends.peek().map(|Reverse((at, ..))| *at)
    }

    /// Returns a connection whose pause has ended.
    fn ended(&mut self, now: Instant) -> Option<ConnId> {
        self.next().filter(|at| *at <= now)?;
        self.ends.pop().map(|Reverse((_, slot, generation))| ConnId::new(slot, generation))
    }
}

impl<K: Submit> Io<K> {
    /// Has a connection send nothing for a time.
    pub(super) fn pause_send(&mut self, slot: u32, time: Duration) {
        let (id, now) = (self.conn(slot), self.kernel.now());
        self.connection(slot).flags |= ConnFlags::SEND_PAUSED;
        let end = self.pauses.end(now, time);
        self.pauses.ends.push(Reverse((end, id.slot(), id.generation())));
        if self.pauses.ends.len() > 2 * self.connections.len() {
            let connections = &self.connections;
            self.pauses.ends.retain(|Reverse((_, slot, generation))| {
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
        while let Some(id) = self.io.pauses.ended(now) {
            let slot = id.slot();
            if self.io.conn(slot) == id {
                self.io.connection(slot).flags -= ConnFlags::SEND_PAUSED | ConnFlags::SOCKET_FULL;
                self.io.mark_dirty(slot);
                self.flush();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_together_and_never_late() {
        let (mut pauses, start) = (Pauses::default(), Instant::now());
        let at = |us| start + Duration::from_micros(us);
        assert_eq!(pauses.end(at(0), Duration::from_micros(4_000)), at(3_584));
        // A quarter is 1,000 us, so ends are multiples of 512 us.
        for us in 0..3_000 {
            let time = Duration::from_micros(4_000);
            let (end, requested) = (pauses.end(at(us), time), at(us) + time);
            assert!(end <= requested && requested - end < time / 4, "{us}");
            assert_eq!((end - start).as_micros() % 512, 0);
        }
    }

    #[test]
    fn pause_of_no_time_ends_later_and_the_longest_does_not_overflow() {
        let (mut pauses, start) = (Pauses::default(), Instant::now());
        for time in [Duration::ZERO, Duration::from_nanos(1), Duration::from_nanos(999)] {
            assert!(pauses.end(start, time) > start, "{time:?}");
        }
        assert!(pauses.end(start, Duration::MAX) > start + MAX_PAUSE / 2);
    }
}
