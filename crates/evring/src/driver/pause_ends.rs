//! Connections that send nothing for a time, and when they continue.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::ConnId;

/// Maximum time of a pause; a policy that asks for more is asked again.
const MAX_PAUSE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The connections that pause, by the end of the pause. There are at most twice as many as connections: those of
/// closed ones are removed when there are more.
#[derive(Debug, Default)]
pub(crate) struct PauseEnds {
    pub(super) ends: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    epoch: Option<Instant>,
}

impl PauseEnds {
    /// Returns the end of a pause: at most a quarter earlier than requested, together with others.
    pub(super) fn end(&mut self, now: Instant, time: Duration) -> Instant {
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
    pub(super) fn ended(&mut self, now: Instant) -> Option<ConnId> {
        self.next().filter(|at| *at <= now)?;
        self.ends.pop().map(|Reverse((_, slot, generation))| ConnId::new(slot, generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_together_and_never_late() {
        let (mut pauses, start) = (PauseEnds::default(), Instant::now());
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
        let (mut pauses, start) = (PauseEnds::default(), Instant::now());
        for time in [Duration::ZERO, Duration::from_nanos(1), Duration::from_nanos(999)] {
            assert!(pauses.end(start, time) > start, "{time:?}");
        }
        assert!(pauses.end(start, Duration::MAX) > start + MAX_PAUSE / 2);
    }
}
