//! Time of a store.

use std::time::Duration;

/// Source of time. Nothing else in this crate reads a clock.
pub trait Clock {
    /// Returns the time since the server's start.
    fn elapsed(&self) -> Duration;

    /// Returns the time since the Unix epoch.
    fn unix(&self) -> Duration;
}

/// Expiry times up to this many seconds are relative, larger ones are Unix times.
const MAX_RELATIVE: i32 = 30 * 24 * 60 * 60;

/// An expiry time in the past.
const PAST: u32 = 1;

/// Returns the number of the current second; the first is 1.
pub(super) fn second(elapsed: Duration) -> u32 {
    u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX - 1).saturating_add(1)
}

/// Returns when a second begins.
pub(super) fn start_of(second: u32) -> Duration {
    Duration::from_secs(u64::from(second.saturating_sub(1)))
}

/// Returns the number of the second that begins at or after a time.
fn next_second(elapsed: Duration) -> u32 {
    second(elapsed.saturating_add(Duration::from_nanos(999_999_999)))
}

/// Returns the second in which a client's expiry time takes effect; 0 for never. The value lives as long as
/// requested, and less than one second longer.
pub(super) fn expiry(exptime: i32, clock: &impl Clock) -> u32 {
    let elapsed = clock.elapsed();
    match exptime {
        0 => 0,
        ..0 => PAST,
        1..=MAX_RELATIVE => next_second(elapsed + Duration::from_secs(exptime as u64)),
        _ => match Duration::from_secs(exptime as u64).checked_sub(clock.unix()) {
            Some(remaining) if !remaining.is_zero() => next_second(elapsed + remaining),
            _ => PAST,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FixedClock(f64);

    /// Start of the server.
    const START: u64 = 1_700_000_000;

    impl Clock for FixedClock {
        fn elapsed(&self) -> Duration {
            Duration::from_secs_f64(self.0)
        }

        fn unix(&self) -> Duration {
            Duration::from_secs(START) + self.elapsed()
        }
    }

    /// Returns how long a value with an expiry time lives when stored at `at`, in seconds.
    fn life(at: f64, exptime: i32) -> f64 {
        let expires = expiry(exptime, &FixedClock(at));
        // It is stale from the beginning of this second.
        f64::from(expires) - 1.0 - at
    }

    #[test]
    fn value_lives_at_most_a_second_longer_than_requested() {
        for at in [0.0, 0.001, 0.5, 0.999, 1.0, 7.25] {
            for exptime in [1, 2, 100, MAX_RELATIVE] {
                let over = life(at, exptime) - f64::from(exptime);
                assert!((-1e-6..1.0).contains(&over), "{at} {exptime}: {over}");
            }
            let over = life(at, (START + 100) as i32) - (100.0 - at);
            assert!((-1e-6..1.0).contains(&over), "{at}: {over}");
        }
    }

    #[test]
    fn negative_and_past_times_expire_at_once_and_zero_never() {
        let dead = |exptime| expiry(exptime, &FixedClock(5.0)) <= second(Duration::ZERO);
        for exptime in [-1, i32::MIN, MAX_RELATIVE + 1, START as i32, (START + 5) as i32] {
            assert!(dead(exptime), "{exptime}");
        }
        assert!(!dead((START + 6) as i32));
        assert_eq!(expiry(0, &FixedClock(5.0)), 0);
    }
}
