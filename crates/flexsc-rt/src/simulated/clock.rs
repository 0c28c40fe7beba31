//! The clock of a simulated machine.

use std::ops::Add;
use std::time::{self, Duration};

use super::machine;

/// A time of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(time::Instant);

impl Instant {
    pub(crate) fn now() -> Self {
        Instant(machine::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        Instant::now().saturating_duration_since(self)
    }

    pub(crate) fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Instant)
    }

    pub(crate) fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}
