//! What happened, in words.

use std::time::Duration;

/// What happened in a run, line by line, if anybody wants to know.
#[derive(Debug, Default)]
pub(super) struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    /// The most lines that are kept.
    const MOST: usize = 100_000;

    pub(super) fn new(kept: bool) -> Self {
        Trace { lines: kept.then(Vec::new) }
    }

    /// Notes a line, which is put together only if it is kept.
    #[inline]
    pub(super) fn note(&mut self, now: Duration, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines
            && lines.len() < Self::MOST
        {
            lines.push(format!("{:>12.3} ms  {}", now.as_secs_f64() * 1000.0, line()));
        }
    }

    pub(super) fn take(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}
