//! What load came to, as it stands in a file.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use load_generator::{Failed, Failures, Slice, Stopped, Tally};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// What load came to. Times are in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Observation {
    pub(crate) url: String,
    /// The load in words.
    pub(crate) load: String,
    /// By what the generator talked to the kernel.
    pub(crate) kernel: String,
    pub(crate) machine: Machine,
    /// Why it ended early, if it did; all figures are of the part that was made.
    pub(crate) partial: Option<String>,
    /// Why the figures should not be trusted, if so: what the generator itself did not manage.
    pub(crate) doubts: Vec<String>,
    /// For how long what became due counts.
    pub(crate) seconds: f64,
    /// Requests that were due, those begun before the time was over, and those answered well.
    pub(crate) due: u64,
    pub(crate) begun: u64,
    pub(crate) replies: u64,
    pub(crate) due_per_second: f64,
    pub(crate) replies_per_second: f64,
    pub(crate) body_bytes: u64,
    /// Connections that were made.
    pub(crate) connects: u64,
    /// Requests that failed, by why.
    pub(crate) failed: BTreeMap<String, u64>,
    /// Of those the ones with a bad status other than 503, by it.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Requests of sessions that were given up before.
    pub(crate) skipped: u64,
    /// Idle connections, and how many of them the server ended.
    pub(crate) cold: u64,
    pub(crate) cold_lost: u64,
    /// Connections of slow clients, replies that they got, and connections of theirs that the
    /// server ended without one.
    pub(crate) slow: u64,
    pub(crate) slow_replies: u64,
    pub(crate) slow_lost: u64,
    pub(crate) connect_us: Times,
    pub(crate) response_us: Times,
    pub(crate) lag_us: Times,
    pub(crate) series: Vec<Interval>,
    /// Processor time of the generator for each request that was due.
    pub(crate) generator_us: f64,
}

/// What a histogram says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) count: u64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// How many were at most so long, in ascending order.
    pub(crate) counts: Vec<(f64, u64)>,
}

/// One interval.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Interval {
    /// When it ended, from the beginning of the load on.
    pub(crate) until_s: f64,
    pub(crate) due: u64,
    pub(crate) connects: u64,
    pub(crate) replies: u64,
    pub(crate) body_bytes: u64,
    pub(crate) failed: u64,
    pub(crate) open: u32,
    /// The mean and the longest time of its replies.
    pub(crate) mean_us: f64,
    pub(crate) max_us: f64,
}

/// Microseconds.
fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        let mut sum = 0;
        let counts = histogram.iter_recorded().map(|value| {
            sum += value.count_since_last_iteration();
            (value.value_iterated_to() as f64 / 1e3, sum)
        });
        let counts = counts.collect();
        if histogram.is_empty() {
            return Times::default();
        }
        Times {
            count: histogram.len(),
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1e3,
            counts,
        }
    }
}

impl Interval {
    fn of(slice: &Slice, until_s: f64) -> Self {
        Interval {
            until_s,
            due: slice.due,
            connects: slice.connects,
            replies: slice.replies,
            body_bytes: slice.body_bytes,
            failed: slice.failures.total(),
            open: slice.open,
            mean_us: us(slice.response) / slice.replies.max(1) as f64,
            max_us: us(slice.longest),
        }
    }
}

/// The failures that there were, by their names.
fn named(failures: &Failures) -> BTreeMap<String, u64> {
    let counts = Failed::ALL.map(|why| (why.name().to_owned(), failures.of(why)));
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Why load came to an early end.
pub(super) fn sentence(stopped: Stopped) -> String {
    match stopped {
        Stopped::Asked => "it was interrupted".to_owned(),
        Stopped::Gone => "the server refuses connections".to_owned(),
        Stopped::NotOpened(Failed::Refused) => {
            "the connections to be open beforehand were refused".to_owned()
        }
        Stopped::NotOpened(why) => {
            format!("the connections to be open beforehand can't be opened: {}", why.name())
        }
    }
}

impl Observation {
    pub(super) fn of(
        tally: &Tally,
        (url, load, kernel): (&str, String, &str),
        interval: Duration,
        processor: Duration,
    ) -> Self {
        let slices = tally.series.iter().enumerate();
        let series =
            slices.map(|(i, slice)| Interval::of(slice, (i + 1) as f64 * interval.as_secs_f64()));
        let due: u64 = tally.series.iter().map(|slice| slice.due).sum();
        Observation {
            url: url.to_owned(),
            load,
            kernel: kernel.to_owned(),
            machine: Machine::here(),
            partial: tally.stopped.map(sentence),
            doubts: tally.doubts(),
            seconds: tally.measured.as_secs_f64(),
            due: tally.due,
            begun: tally.begun,
            replies: tally.replies,
            due_per_second: tally.due_rate(),
            replies_per_second: tally.rate(),
            body_bytes: tally.body_bytes,
            connects: tally.connects,
            failed: named(&tally.failures),
            statuses: tally.statuses.clone(),
            skipped: tally.skipped,
            cold: tally.cold,
            cold_lost: tally.cold_lost,
            slow: tally.slow,
            slow_replies: tally.slow_replies,
            slow_lost: tally.slow_lost,
            connect_us: Times::of(&tally.connect),
            response_us: Times::of(&tally.response),
            lag_us: Times::of(&tally.lag),
            series: series.collect(),
            generator_us: us(processor) / due.max(1) as f64,
        }
    }

    /// How many requests failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.values().sum()
    }
}
