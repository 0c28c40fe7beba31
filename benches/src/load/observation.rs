//! Result of `lab load`, as written to the JSON file.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use load_generator::{ErrorCounts, IntervalStats, RequestError, Stats, StopReason};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// Result of `lab load`. Times are in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Observation {
    pub(crate) url: String,
    /// Description of the load.
    pub(crate) load: String,
    /// Mechanism of the generator: `io_uring` or `epoll`.
    pub(crate) kernel: String,
    pub(crate) machine: Machine,
    /// Reason why the run stopped early. All figures are then for the part that was run.
    pub(crate) partial: Option<String>,
    /// Reasons why the results are unreliable: shortcomings of the generator itself.
    pub(crate) doubts: Vec<String>,
    /// Length of the measurement period.
    pub(crate) seconds: f64,
    /// Requests that became due, requests started in time, and successful replies.
    pub(crate) due: u64,
    pub(crate) begun: u64,
    pub(crate) replies: u64,
    pub(crate) due_per_second: f64,
    pub(crate) replies_per_second: f64,
    pub(crate) body_bytes: u64,
    /// Bytes received in the measurement period.
    #[serde(default)]
    pub(crate) received_bytes: u64,
    /// Connections established.
    pub(crate) connects: u64,
    /// Failed requests by error.
    pub(crate) failed: BTreeMap<String, u64>,
    /// Failed requests by status, for statuses of 400 or more other than 503.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Requests that were never started because their session failed earlier.
    pub(crate) skipped: u64,
    /// Idle connections, and the number of them closed by the server.
    pub(crate) idle: u64,
    pub(crate) idle_lost: u64,
    /// Connections of slow clients, the replies they received, and the connections that the server
    /// closed without a reply.
    pub(crate) slow: u64,
    pub(crate) slow_replies: u64,
    pub(crate) slow_lost: u64,
    pub(crate) connect_us: Times,
    pub(crate) response_us: Times,
    pub(crate) lag_us: Times,
    pub(crate) series: Vec<Interval>,
    /// CPU time of the generator per due request.
    pub(crate) generator_us: f64,
}

/// Summary of a histogram.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) count: u64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// Cumulative distribution: each value, and the number of samples up to it.
    pub(crate) counts: Vec<(f64, u64)>,
}

/// One interval of the time series.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Interval {
    /// End of the interval, from the start of the run.
    pub(crate) until_s: f64,
    pub(crate) due: u64,
    pub(crate) connects: u64,
    pub(crate) replies: u64,
    pub(crate) body_bytes: u64,
    pub(crate) failed: u64,
    pub(crate) open: u32,
    /// Mean and maximum latency of the successful replies.
    pub(crate) mean_us: f64,
    pub(crate) max_us: f64,
}

/// Converts a duration to microseconds.
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
    fn of(interval: &IntervalStats, until_s: f64) -> Self {
        Interval {
            until_s,
            due: interval.due,
            connects: interval.connects,
            replies: interval.replies,
            body_bytes: interval.body_bytes,
            failed: interval.errors.total(),
            open: interval.open,
            mean_us: us(interval.latency_sum) / interval.replies.max(1) as f64,
            max_us: us(interval.max_latency),
        }
    }
}

/// Returns the errors that occurred, by name.
fn errors_by_name(errors: &ErrorCounts) -> BTreeMap<String, u64> {
    let counts = RequestError::ALL.map(|error| (error.name().to_owned(), errors.of(error)));
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Returns the reason why a run stopped early, as a message for the user.
pub(super) fn stop_message(reason: StopReason) -> String {
    match reason {
        StopReason::Interrupted => "the run was interrupted".to_owned(),
        StopReason::ServerUnavailable => "the server refuses connections".to_owned(),
        StopReason::SetupFailed(RequestError::Refused) => {
            "the server refused the connections to open before the run".to_owned()
        }
        StopReason::SetupFailed(error) => {
            format!("cannot open the connections required before the run: {}", error.name())
        }
    }
}

impl Observation {
    pub(super) fn of(
        stats: &Stats,
        (url, load, kernel): (&str, String, &str),
        interval_length: Duration,
        cpu_time: Duration,
    ) -> Self {
        let seconds = interval_length.as_secs_f64();
        let intervals = stats.intervals.iter().enumerate();
        let series =
            intervals.map(|(i, interval)| Interval::of(interval, (i + 1) as f64 * seconds));
        let due: u64 = stats.intervals.iter().map(|interval| interval.due).sum();
        Observation {
            url: url.to_owned(),
            load,
            kernel: kernel.to_owned(),
            machine: Machine::here(),
            partial: stats.stop_reason.map(stop_message),
            doubts: stats.warnings(),
            seconds: stats.duration.as_secs_f64(),
            due: stats.due,
            begun: stats.started,
            replies: stats.replies,
            due_per_second: stats.due_rate(),
            replies_per_second: stats.reply_rate(),
            body_bytes: stats.body_bytes,
            received_bytes: stats.received_bytes,
            connects: stats.connects,
            failed: errors_by_name(&stats.errors),
            statuses: stats.statuses.clone(),
            skipped: stats.skipped,
            idle: stats.idle,
            idle_lost: stats.idle_lost,
            slow: stats.slow,
            slow_replies: stats.slow_replies,
            slow_lost: stats.slow_lost,
            connect_us: Times::of(&stats.connect_ns),
            response_us: Times::of(&stats.latency_ns),
            lag_us: Times::of(&stats.lag_ns),
            series: series.collect(),
            generator_us: us(cpu_time) / due.max(1) as f64,
        }
    }

    /// Returns the number of failed requests.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.values().sum()
    }
}
