//! What happened, in words.

use std::collections::VecDeque;
use std::time::Duration;

/// What happened in a run, line by line, if anybody wants to know.
#[derive(Debug, Default)]
pub(super) struct Trace {
    lines: Option<VecDeque<String>>,
    /// Lines that went before those.
    lost: usize,
}

impl Trace {
    /// The most lines that are kept: the last ones.
    const MAX_LINES: usize = 100_000;

    pub(super) fn new(kept: bool) -> Self {
        Trace { lines: kept.then(VecDeque::new), lost: 0 }
    }

    /// Notes a line, which is put together only if it is kept.
    #[inline]
    pub(super) fn note(&mut self, now: Duration, line: impl FnOnce() -> String) {
        let Some(lines) = &mut self.lines else { return };
        if lines.len() == Self::MAX_LINES {
            lines.pop_front();
            self.lost += 1;
        }
        lines.push_back(format!("{:>12.3} ms  {}", now.as_secs_f64() * 1000.0, line()));
    }

    pub(super) fn take(&mut self) -> Vec<String> {
        let lost = (self.lost > 0).then(|| format!("{} lines went before", self.lost));
        lost.into_iter().chain(self.lines.take().unwrap_or_default()).collect()
    }
}
