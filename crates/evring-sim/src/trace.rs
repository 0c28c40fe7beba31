//! A log of a run.

use std::collections::VecDeque;
use std::time::Duration;

/// The events of a run, one line each, if enabled.
#[derive(Debug, Default)]
pub(super) struct Trace {
    lines: Option<VecDeque<String>>,
    /// Number of dropped lines.
    dropped: usize,
}

impl Trace {
    /// Maximum number of lines; the oldest ones are dropped.
    const MAX_LINES: usize = 100_000;

    pub(super) fn new(enabled: bool) -> Self {
        Trace { lines: enabled.then(VecDeque::new), dropped: 0 }
    }

    /// Adds a line. `line` is called only if tracing is enabled.
    #[inline]
    pub(super) fn note(&mut self, now: Duration, line: impl FnOnce() -> String) {
        let Some(lines) = &mut self.lines else { return };
        if lines.len() == Self::MAX_LINES {
            lines.pop_front();
            self.dropped += 1;
        }
        lines.push_back(format!("{:>12.3} ms  {}", now.as_secs_f64() * 1000.0, line()));
    }

    pub(super) fn take(&mut self) -> Vec<String> {
        let dropped =
            (self.dropped > 0).then(|| format!("{} earlier lines were dropped", self.dropped));
        dropped.into_iter().chain(self.lines.take().unwrap_or_default()).collect()
    }
}
