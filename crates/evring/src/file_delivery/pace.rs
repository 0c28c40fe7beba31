//! How fast clients take files, and the pauses that follow from it.

use std::mem;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::{ConnId, SendState, SendStep};

/// Number of reads after one that had to wait for the disk, of which each begins while the part before it is being sent. If
/// all of them were cached, the reads of Linux are ahead of the client: it reads up to twice 128 KiB ahead by default.
pub(super) const EARLY_READS: u8 = 4;

/// The pace of each connection that sends a file, by its slot.
#[derive(Default)]
pub(super) struct Paces(Vec<Pace>);

impl Paces {
    pub(super) fn of(&mut self, id: ConnId) -> &mut Pace {
        let slot = id.slot() as usize;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, Pace::default());
        }
        let pace = &mut self.0[slot];
        if pace.generation != id.generation() {
            *pace = Pace { generation: id.generation(), ..Pace::default() };
        }
        pace
    }
}

/// Minimum and maximum time until a connection sends again. For other times it waits for room: a short pause costs more
/// than it saves.
const PAUSES: RangeInclusive<Duration> = Duration::from_micros(500)..=Duration::from_secs(4);

/// Longest step of a pause.
const STEP: Duration = Duration::from_millis(250);

/// How fast a client takes a file.
///
/// The kernel reports that a socket has room when a third of it is free: often, and for each socket alone. If a client
/// takes bytes at a steady rate, it is known when half of what the socket holds will be gone. A connection pauses until
/// then, and many continue at once.
///
/// A client may become faster in a pause. So a long pause has steps, and ends after a step if half of the socket is empty.
/// At the beginning of each step, the socket holds more than that half. Only a client that has become at least twice as fast
/// empties it before the pause ends. It then waits for the rest of a step, less than 250 ms. It waits once, because the send
/// that fills an empty socket is not followed by a pause. A client that becomes slower or stops does not prolong a pause: at
/// its end the connection sends, and waits for room if there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    generation: u32,
    /// Bytes left of the file.
    pub(super) left: u64,
    /// Unsent bytes of reads and in front of them, at most. 0 if the next bytes of the file are at the front of the queue.
    pub(super) unsent: u64,
    /// Bytes of the last read.
    last_read: u32,
    /// Number of reads that begin while the part before is being sent.
    early_reads: u8,
    /// When the socket was full last.
    full_at: Option<Instant>,
    /// Bytes that it has taken since.
    pub(super) taken: u64,
    /// Bytes per second before that; 0 if unknown.
    pub(super) rate: f64,
    /// The pause that has begun.
    pause: Option<Pause>,
}

/// A pause until half of a socket is empty.
#[derive(Clone, Copy, Debug)]
struct Pause {
    end: Instant,
    /// Half of the bytes that the socket held.
    half: u64,
}

impl Pause {
    /// Returns whether it is over after a step: half of the socket is empty, or no more time is left than that by which the
    /// driver may end a step early.
    fn is_over(&self, now: Instant, held_bytes: impl FnOnce() -> u64) -> bool {
        self.end.saturating_duration_since(now) <= STEP / 4 || held_bytes() <= self.half
    }
}

impl Pace {
    /// Follows the file that is sent, of which `left` bytes are left. If these are more than before, it is another one.
    pub(super) fn follow(&mut self, left: u64) {
        if left > self.left {
            let Pace { generation, unsent, .. } = *self;
            *self = Pace { generation, unsent, ..Pace::default() };
        }
        self.left = left;
    }

    /// Returns whether the next part is read while the last one is being sent: it may not be cached. As all before the last one
    /// is sent, at most two parts are in memory.
    pub(super) fn reads_early(&self, queued_bytes: usize) -> bool {
        self.early_reads > 0 && queued_bytes <= self.last_read as usize
    }

    /// Notes that bytes of the file were read.
    pub(super) fn note_read(&mut self, n: u32, was_cold: bool) {
        self.left = self.left.saturating_sub(n.into());
        self.unsent += u64::from(n);
        self.last_read = n;
        self.early_reads = if was_cold { EARLY_READS } else { self.early_reads.saturating_sub(1) };
    }

    /// Notes that bytes of the file were sent.
    pub(super) fn note_sent(&mut self, n: u32) {
        self.taken += u64::from(n);
        self.left = self.left.saturating_sub(n.into());
    }

    /// Returns the pause of a connection whose socket is full, or the next step of the one that it is in.
    pub(super) fn pause(&mut self, state: &SendState<'_>) -> Option<SendStep> {
        let held_bytes = || (state.unacked_bytes)();
        if state.is_full {
            self.pause = self.full(state.now, held_bytes);
        } else if self.pause.is_some_and(|pause| pause.is_over(state.now, held_bytes)) {
            self.pause = None;
        }
        let left = self.pause?.end.saturating_duration_since(state.now);
        Some(SendStep::Pause(left.min(STEP)))
    }

    /// Returns the pause that begins as the socket is full; `None` to wait for room.
    fn full(&mut self, now: Instant, held_bytes: impl FnOnce() -> u64) -> Option<Pause> {
        let Some(full_at) = self.full_at else {
            // The bytes that filled the socket say nothing about the client.
            self.taken = 0;
            self.full_at = Some(now);
            return None;
        };
        let elapsed = now.saturating_duration_since(full_at);
        if elapsed.is_zero() {
            // Another send of this turn, for which the client made room meanwhile.
            return None;
        }
        self.full_at = Some(now);
        let taken = mem::take(&mut self.taken);
        let rate = taken as f64 / elapsed.as_secs_f64();
        let before = mem::replace(&mut self.rate, rate);
        if rate > 2.0 * before || before > 2.0 * rate {
            return None;
        }
        if elapsed > *PAUSES.end() * 3 / 2 {
            // Below, at least 4/3 of what was taken must be held, so that a pause takes at least 2/3 of this time.
            return None;
        }
        let held = held_bytes();
        if held - held / 4 < taken {
            // It was nearly empty, so the client may be faster than that.
            return None;
        }
        let time = Duration::try_from_secs_f64(held as f64 / 2.0 / rate).ok()?;
        PAUSES.contains(&time).then(|| Pause { end: now + time, half: held / 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLIS: Duration = Duration::from_millis(1);

    /// Returns the pauses of a client that takes `taken` bytes each `step`, from a socket of 100,000 bytes.
    fn pauses<const N: usize>(taken: [u64; N], step: Duration) -> [Option<Duration>; N] {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        taken.map(|n| {
            now += step;
            pace.taken = n;
            pace.full(now, || 100_000).map(|pause| pause.end - now)
        })
    }

    #[test]
    fn steady_client_is_left_alone_until_half_of_the_socket_is_empty() {
        let expected = Some(Duration::from_millis(20));
        assert_eq!(
            pauses([9, 25_000, 25_000, 20_000, 25_000], 10 * MILLIS)[..3],
            [None, None, expected]
        );
        assert_eq!(pauses([9, 25_000, 20_000], 10 * MILLIS)[2], Some(25 * MILLIS));
    }

    #[test]
    fn unsteady_client_and_empty_socket_wait_for_room() {
        assert_eq!(
            pauses([9, 20_000, 41_000, 41_000], 10 * MILLIS)[2],
            None,
            "it has become faster"
        );
        assert_eq!(
            pauses([9, 41_000, 20_000, 41_000], 10 * MILLIS)[2],
            None,
            "it has become slower"
        );
        assert_eq!(pauses([9, 76_000, 76_000], 10 * MILLIS)[2], None, "nearly empty");
    }

    #[test]
    fn sends_of_one_turn_count_together() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut full = |at, taken| {
            pace.taken += taken;
            let now = start + at * MILLIS;
            pace.full(now, || 100_000).map(|pause| pause.end - now)
        };
        assert_eq!([full(0, 90_000), full(0, 5_000)], [None, None]);
        assert_eq!([full(10, 20_000), full(10, 5_000)], [None, None]);
        assert_eq!(full(20, 20_000), Some(20 * MILLIS));
    }

    #[test]
    fn pauses_are_neither_short_nor_long() {
        assert_eq!(pauses([9, 70_000, 70_000], Duration::from_micros(100))[2], None);
        assert_eq!(pauses([9, 40_000, 40_000], 3_200 * MILLIS)[2], Some(*PAUSES.end()));
        assert_eq!(pauses([9, 0, 0], 250 * MILLIS)[2], None, "nothing was taken");
    }

    #[test]
    fn socket_of_a_client_that_is_too_slow_to_pause_was_queried() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut queries = 0;
        for (millis, expected) in [(0, 0), (6_001, 0), (12_002, 0), (18_002, 1)] {
            pace.taken = 1_000;
            let held = || {
                queries += 1;
                4_000
            };
            assert!(pace.full(start + millis * MILLIS, held).is_none());
            assert_eq!(queries, expected, "after {millis} ms");
        }
    }

    #[test]
    fn slow_client_was_sent_a_few_bytes_at_a_time() {
        // After the longest pause, the socket would have room for less than it has when the kernel reports room.
        assert_eq!(pauses([9, 39_000, 39_000], 3_200 * MILLIS)[2], None);
        assert_eq!(pauses([9, 1, 1], 250 * MILLIS)[2], None);
    }

    /// Returns the steps of a client of `rate` bytes per second, whose socket has held 131,072 bytes. After each step, it holds
    /// `held`.
    fn steps_of_a_pause<const N: usize>(rate: u32, held: [u64; N]) -> Vec<Option<Duration>> {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let ask = |pace: &mut Pace, now, is_full, held| {
            let step = pace.pause(&SendState {
                id: ConnId::new(0, 0),
                queued_bytes: 0,
                file_bytes: Some(1 << 20),
                is_full,
                now,
                can_read: &|| false,
                unacked_bytes: &|| held,
            });
            match step {
                Some(SendStep::Pause(time)) => Some(time),
                _ => None,
            }
        };
        for _ in 0..2 {
            assert_eq!(ask(&mut pace, now, true, 131_072), None);
            pace.note_sent(48_000);
            now += Duration::from_secs(48_000) / rate;
        }
        let mut steps = vec![ask(&mut pace, now, true, 131_072)];
        for held in held {
            // The driver ends a step early, with others.
            now += steps.last().unwrap().expect("another step") * 9 / 10;
            steps.push(ask(&mut pace, now, false, held));
        }
        steps
    }

    /// Returns the steps of a client of 48,000 bytes per second.
    fn steps_of_a_long_pause<const N: usize>(held: [u64; N]) -> Vec<Option<Duration>> {
        steps_of_a_pause(48_000, held)
    }

    #[test]
    fn clients_that_take_more_than_250_ms_for_half_of_their_sockets_never_paused() {
        let steps = steps_of_a_long_pause([120_000, 109_000, 98_000, 88_000, 77_000, 66_000]);
        let total = Duration::from_secs_f64(65_536.0 / 48_000.0);
        let times: Vec<Duration> = steps.iter().flatten().copied().collect();
        assert_eq!((steps.len(), times.len()), (7, 6), "{steps:?}");
        assert!(times[..5].iter().all(|step| *step == STEP) && times[5] < STEP, "{steps:?}");
        let sum: Duration = times.iter().map(|step| *step * 9 / 10).sum();
        assert!(sum >= total - STEP / 4 && sum < total, "{sum:?} of {total:?}");
    }

    #[test]
    fn client_that_becomes_faster_in_a_long_pause_is_sent_to_after_a_step() {
        assert_eq!(steps_of_a_long_pause([0])[1], None);
        assert_eq!(steps_of_a_long_pause([115_000, 65_536])[2], None);
        assert!(steps_of_a_long_pause([115_000, 65_537])[2].is_some());
    }

    #[test]
    fn pause_of_a_client_that_has_stopped_ends() {
        let steps = steps_of_a_long_pause([131_072; 6]);
        assert_eq!(steps[6], None, "{steps:?}");
    }

    #[test]
    fn no_step_is_longer_than_250_ms_and_a_pause_of_at_most_250_ms_is_one_step() {
        // This client takes 65,536 bytes in 247.3 ms, and the next one in 3.3 s.
        let [Some(step), None] = steps_of_a_pause(265_000, [131_072])[..] else {
            panic!("one step")
        };
        assert!(step > 247 * MILLIS && step < 248 * MILLIS, "{step:?}");
        assert_eq!(steps_of_a_pause(20_000, [131_072; 3]), [Some(250 * MILLIS); 4]);
        // The worker was late.
        let now = Instant::now();
        assert!(Pause { end: now, half: 0 }.is_over(now + MILLIS, || 1));
    }
}
