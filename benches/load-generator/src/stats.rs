//! Statistics of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

/// The reason why a request got no successful reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The server refused the connection.
    Refused,
    /// The server reset the connection.
    Reset,
    /// The timeout expired before the connection was established.
    ConnectTimeout,
    /// The timeout expired before the reply was complete.
    ReplyTimeout,
    /// The server closed the connection before it began the reply.
    Closed,
    /// The length of the body differs from the announced or expected one.
    ShortBody,
    /// The bytes received are not an HTTP reply.
    Malformed,
    /// The server is overloaded: status 503.
    Unavailable,
    /// Another status of 400 or more.
    Status,
    /// This machine had no free descriptor or port, or the maximum number of connections was open.
    NoResources,
    /// Another error.
    Other,
}

impl RequestError {
    /// All errors.
    pub const ALL: [RequestError; 11] = [
        RequestError::Refused,
        RequestError::Reset,
        RequestError::ConnectTimeout,
        RequestError::ReplyTimeout,
        RequestError::Closed,
        RequestError::ShortBody,
        RequestError::Malformed,
        RequestError::Unavailable,
        RequestError::Status,
        RequestError::NoResources,
        RequestError::Other,
    ];

    /// Returns the name used in output files.
    pub fn name(self) -> &'static str {
        match self {
            RequestError::Refused => "refused",
            RequestError::Reset => "reset",
            RequestError::ConnectTimeout => "connect_timeout",
            RequestError::ReplyTimeout => "reply_timeout",
            RequestError::Closed => "closed",
            RequestError::ShortBody => "short_body",
            RequestError::Malformed => "malformed",
            RequestError::Unavailable => "status_503",
            RequestError::Status => "status_other",
            RequestError::NoResources => "no_room",
            RequestError::Other => "other",
        }
    }
}

/// Failed requests by error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts([u64; RequestError::ALL.len()]);

impl ErrorCounts {
    /// Returns the number of requests that failed with `error`.
    pub fn of(&self, error: RequestError) -> u64 {
        self.0[error as usize]
    }

    /// Returns the number of failed requests.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn count(&mut self, error: RequestError) {
        self.0[error as usize] += 1;
    }
}

/// The timing and result of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// Due time, from the start of the run.
    pub due: Duration,
    /// Time from due to an established connection: 0 if it was open already, `None` if it failed.
    pub connect: Option<Duration>,
    /// Time from due to the reply or error.
    pub latency: Duration,
    /// The error, if the request failed.
    pub error: Option<RequestError>,
}

/// Statistics of one interval. A request belongs to the interval in which it ended.
#[derive(Clone, Debug, Default)]
pub struct IntervalStats {
    /// Requests that became due.
    pub due: u64,
    /// Connections established.
    pub connects: u64,
    /// Successful replies.
    pub replies: u64,
    /// Body bytes of the successful replies.
    pub body_bytes: u64,
    /// Failed requests.
    pub errors: ErrorCounts,
    /// Open connections at the end of the interval.
    pub open: u32,
    /// Sum of the latencies of successful replies, each from when the request was due.
    pub latency_sum: Duration,
    /// The largest of these latencies.
    pub max_latency: Duration,
}

/// Statistics of a run: of the requests that became due in the measurement period.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Length of the measurement period.
    pub duration: Duration,
    /// Requests that became due.
    pub due: u64,
    /// Requests that were started before the end of the measurement period.
    pub started: u64,
    /// Connections established.
    pub connects: u64,
    /// Successful replies.
    pub replies: u64,
    /// Body bytes of the successful replies.
    pub body_bytes: u64,
    /// Bytes received in the measurement period, by slow clients too, whether or not their replies ended in it.
    pub received_bytes: u64,
    /// Failed requests.
    pub errors: ErrorCounts,
    /// Failed requests by status, for statuses of 400 or more other than 503.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests that were never started because their session failed earlier.
    pub skipped: u64,
    /// Time from when a session was due until its connection was established, in nanoseconds.
    pub connect_ns: Histogram<u64>,
    /// Latency of successful replies, from when the request was due, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// In an open loop, the delay from due to started, in nanoseconds. It is the error that the
    /// generator adds to each latency.
    pub lag_ns: Histogram<u64>,
    /// Time series, including the warm-up.
    pub intervals: Vec<IntervalStats>,
    /// All requests, in the order in which they ended, if the plan enables the log.
    pub log: Vec<RequestRecord>,
    /// Idle connections opened.
    pub idle: u64,
    /// Idle connections closed by the server.
    pub idle_lost: u64,
    /// Connections opened by slow clients.
    pub slow: u64,
    /// Replies received by slow clients.
    pub slow_replies: u64,
    /// Connections of slow clients that the server closed without a reply.
    pub slow_lost: u64,
    /// The reason why the run stopped early.
    pub stop_reason: Option<StopReason>,
}

/// A point in a run at which the callback of [`Generator::run`](crate::Generator::run) is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// The generator woke up, before it processes timers and arrivals.
    Poll,
    /// The measurement period starts.
    MeasurementStart,
    /// The measurement period ends.
    MeasurementEnd,
    /// An interval of the time series ended.
    IntervalEnd,
}

/// The reason why a run stopped early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The callback returned false.
    Interrupted,
    /// The server refused every connection for one second.
    ServerUnavailable,
    /// A connection to open before the run failed.
    SetupFailed(RequestError),
}

/// Maximum latency recorded by a histogram, in nanoseconds: one day.
const MAX_LATENCY_NS: u64 = 24 * 60 * 60 * 1_000_000_000;

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("the bounds are in order")
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(MAX_LATENCY_NS));
}

impl Stats {
    pub(crate) fn new() -> Self {
        Stats {
            duration: Duration::ZERO,
            due: 0,
            started: 0,
            connects: 0,
            replies: 0,
            body_bytes: 0,
            received_bytes: 0,
            errors: ErrorCounts::default(),
            statuses: BTreeMap::new(),
            skipped: 0,
            connect_ns: histogram(),
            latency_ns: histogram(),
            lag_ns: histogram(),
            intervals: Vec::new(),
            log: Vec::new(),
            idle: 0,
            idle_lost: 0,
            slow: 0,
            slow_replies: 0,
            slow_lost: 0,
            stop_reason: None,
        }
    }

    /// Returns the successful replies per second.
    pub fn reply_rate(&self) -> f64 {
        per_second(self.replies, self.duration)
    }

    /// Returns the requests that became due per second.
    pub fn due_rate(&self) -> f64 {
        per_second(self.due, self.duration)
    }

    /// Returns why the results are unreliable: the generator was late or short of resources.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let lag_us = self.lag_ns.value_at_quantile(0.99) as f64 / 1e3;
        if lag_us > 1_000.0 {
            warnings.push(format!(
                "1% of the requests were started {lag_us:.0} us late or later; at most 1,000 us are \
                 acceptable"
            ));
        }
        if (self.started as f64) < 0.99 * self.due as f64 {
            warnings.push(format!(
                "only {} of {} due requests were started in time",
                self.started, self.due
            ));
        }
        let no_resources = self.errors.of(RequestError::NoResources);
        if no_resources > 0 {
            warnings.push(format!(
                "{no_resources} requests found no free descriptor, port or connection on this machine"
            ));
        }
        warnings
    }

    /// Returns the current interval.
    pub(crate) fn interval(&mut self) -> &mut IntervalStats {
        if self.intervals.is_empty() {
            self.intervals.push(IntervalStats::default());
        }
        self.intervals.last_mut().expect("there is one")
    }

    /// Records a reply with a status of 400 or more, other than 503.
    pub(crate) fn bad_status(&mut self, measured: bool, status: u16) {
        if measured {
            *self.statuses.entry(status).or_default() += 1;
        }
    }

    /// Records a request that became due. `measured`: in the measurement period.
    pub(crate) fn due(&mut self, measured: bool) {
        self.interval().due += 1;
        self.due += u64::from(measured);
    }

    /// Records a request that was started.
    pub(crate) fn started(&mut self, measured: bool) {
        self.started += u64::from(measured);
    }

    /// Records the delay from due to started, in an open loop.
    pub(crate) fn lagged(&mut self, measured: bool, lag: Duration) {
        if measured {
            record(&mut self.lag_ns, lag);
        }
    }

    /// Records an established connection.
    pub(crate) fn connected(&mut self, measured: bool, time: Duration) {
        self.interval().connects += 1;
        if measured {
            self.connects += 1;
            record(&mut self.connect_ns, time);
        }
    }

    /// Records a successful reply.
    pub(crate) fn replied(&mut self, measured: bool, time: Duration, bytes: u64) {
        let interval = self.interval();
        interval.replies += 1;
        interval.body_bytes += bytes;
        interval.latency_sum += time;
        interval.max_latency = interval.max_latency.max(time);
        if measured {
            self.replies += 1;
            self.body_bytes += bytes;
            record(&mut self.latency_ns, time);
        }
    }

    /// A request has failed.
    pub(crate) fn failed(&mut self, measured: bool, error: RequestError) {
        self.interval().errors.count(error);
        if measured {
            self.errors.count(error);
        }
    }
}

fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_starts_and_lack_of_resources_give_warnings() {
        let mut stats = Stats::new();
        for i in 0..100 {
            stats.due(true);
            stats.started(true);
            stats.lagged(true, Duration::from_micros(if i < 98 { 10 } else { 5_000 }));
        }
        assert_eq!(stats.warnings().len(), 1);
        stats.due(true);
        stats.due(true);
        stats.failed(true, RequestError::NoResources);
        assert_eq!(stats.warnings().len(), 3);
    }

    #[test]
    fn unmeasured_requests_are_in_the_intervals_only() {
        let mut stats = Stats::new();
        stats.due(false);
        stats.connected(false, Duration::from_millis(1));
        stats.replied(false, Duration::from_millis(2), 10);
        stats.failed(false, RequestError::Reset);
        assert_eq!((stats.due, stats.connects, stats.replies, stats.errors.total()), (0, 0, 0, 0));
        let interval = &stats.intervals[0];
        assert_eq!(
            (interval.due, interval.connects, interval.replies, interval.body_bytes),
            (1, 1, 1, 10)
        );
        assert_eq!(
            (interval.errors.of(RequestError::Reset), interval.latency_sum.as_millis()),
            (1, 2)
        );
    }

    #[test]
    fn errors_have_distinct_names_and_indices() {
        for (i, error) in RequestError::ALL.into_iter().enumerate() {
            assert_eq!(error as usize, i);
            assert!(RequestError::ALL[..i].iter().all(|other| other.name() != error.name()));
        }
    }
}
