//! The clock of the simulated machine.

use std::ops::Add;
use std::time::Duration;

use super::machine::machine;

/// A time of the machine, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(u64);

impl Instant {
    pub(crate) fn now() -> Self {
        machine(|machine| {
            machine.readings += 1;
            Instant(machine.now_ns)
        })
    }

    pub(crate) fn elapsed(self) -> Duration {
        Instant::now().saturating_duration_since(self)
    }

    pub(crate) fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(u64::try_from(time.as_nanos()).ok()?).map(Instant)
    }

    pub(crate) fn saturating_duration_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time.as_nanos() as u64)
    }
}
