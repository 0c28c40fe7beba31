//! What was seen.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Why a request got no good reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The server takes no connections.
    Refused,
    /// The server reset the connection.
    Reset,
    /// The deadline passed before there was a connection.
    ConnectTimeout,
    /// The deadline passed before the reply was there.
    ReplyTimeout,
    /// The server ended the connection before it began the reply.
    Closed,
    /// The body was shorter than announced or expected, or longer.
    ShortBody,
    /// What came was no reply.
    Malformed,
    /// The server said that it is overloaded (503).
    Unavailable,
    /// The server said that something else is wrong (another status of 400 or more).
    Status,
    /// This machine had no descriptor or port left, or as many connections as there may be were
    /// open.
    NoRoom,
    /// Something else.
    Other,
}

impl Failed {
    /// All there are.
    pub const ALL: [Failed; 11] = [
        Failed::Refused,
        Failed::Reset,
        Failed::ConnectTimeout,
        Failed::ReplyTimeout,
        Failed::Closed,
        Failed::ShortBody,
        Failed::Malformed,
        Failed::Unavailable,
        Failed::Status,
        Failed::NoRoom,
        Failed::Other,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Failed::Refused => "refused",
            Failed::Reset => "reset",
            Failed::ConnectTimeout => "connect_timeout",
            Failed::ReplyTimeout => "reply_timeout",
            Failed::Closed => "closed",
            Failed::ShortBody => "short_body",
            Failed::Malformed => "malformed",
            Failed::Unavailable => "status_503",
            Failed::Status => "status_other",
            Failed::NoRoom => "no_room",
            Failed::Other => "other",
        }
    }
}

/// Requests that failed, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures([u64; Failed::ALL.len()]);

impl Failures {
    /// How many failed so.
    pub fn of(&self, failure: Failed) -> u64 {
        self.0[failure as usize]
    }

    /// How many failed.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn count(&mut self, failure: Failed) {
        self.0[failure as usize] += 1;
    }
}

/// One request, from when it was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// When it was due, counted from the beginning.
    pub due: Duration,
    /// Until there was a connection; 0 if there was one before, none if there never was.
    pub connect: Option<Duration>,
    /// Until its end.
    pub end: Duration,
    /// Why it failed, if it did.
    pub failed: Option<Failed>,
}

/// What was seen in one interval. A time belongs to the interval in which it ended.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// Requests that were due.
    pub due: u64,
    /// Connections that were made.
    pub connects: u64,
    /// Good replies.
    pub replies: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
    /// Requests that failed.
    pub failures: Failures,
    /// Connections that were open at its end.
    pub open: u32,
    /// The sum of all times from when a request was due to its good reply.
    pub response: Duration,
    /// The longest of them.
    pub longest: Duration,
}

/// Everything that was seen. What a request came to counts if it was due after the warm-up and
/// before the end, however late it ended.
#[derive(Clone, Debug)]
pub struct Tally {
    /// For how long requests were due that count.
    pub measured: Duration,
    /// Requests that were due.
    pub due: u64,
    /// Those of them that were begun before the time was over.
    pub begun: u64,
    /// Connections that were made.
    pub connects: u64,
    /// Good replies.
    pub replies: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
    /// Requests that failed.
    pub failures: Failures,
    /// Of those the ones with a bad status other than 503, by it.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests of sessions that were given up before they came to them.
    pub skipped: u64,
    /// From when a session was due until it had its connection, in nanoseconds.
    pub connect: Histogram<u64>,
    /// From when a request was due to the end of its good reply, in nanoseconds.
    pub response: Histogram<u64>,
    /// In an open loop, from when something was due until it was begun, in nanoseconds: what this
    /// program adds to the times by being late.
    pub lag: Histogram<u64>,
    /// One after the other, the warm-up included.
    pub series: Vec<Slice>,
    /// Every request, in the order of their ends, if the plan asks for it.
    pub log: Vec<Log>,
    /// Idle connections that were asked for and opened.
    pub cold: u64,
    /// Idle connections that the server ended.
    pub cold_lost: u64,
    /// Connections that slow clients made.
    pub slow: u64,
    /// Replies that they got.
    pub slow_replies: u64,
    /// Connections of theirs that the server ended without a reply.
    pub slow_lost: u64,
    /// Why it came to an early end, if it did.
    pub stopped: Option<Stopped>,
}

/// What whoever watches is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The generator looks for what has come: after every wait.
    Turn,
    /// What becomes due counts from now on.
    Counts,
    /// What becomes due counts no more.
    CountsNoMore,
    /// A slice of the time series has ended.
    Slice,
}

/// Why load came to an early end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Whoever watched said so.
    Asked,
    /// For some time every connection was refused.
    Gone,
    /// The idle connections, or those to be kept, can't be opened.
    NotOpened(Failed),
}

/// The longest time that a histogram can hold: a day.
const LONGEST: u64 = 24 * 60 * 60 * 1_000_000_000;

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are in order")
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST));
}

impl Tally {
    pub(crate) fn new() -> Self {
        Tally {
            measured: Duration::ZERO,
            due: 0,
            begun: 0,
            connects: 0,
            replies: 0,
            body_bytes: 0,
            failures: Failures::default(),
            statuses: BTreeMap::new(),
            skipped: 0,
            connect: histogram(),
            response: histogram(),
            lag: histogram(),
            series: Vec::new(),
            log: Vec::new(),
            cold: 0,
            cold_lost: 0,
            slow: 0,
            slow_replies: 0,
            slow_lost: 0,
            stopped: None,
        }
    }

    /// Good replies per second.
    pub fn rate(&self) -> f64 {
        per_second(self.replies, self.measured)
    }

    /// Requests due per second.
    pub fn due_rate(&self) -> f64 {
        per_second(self.due, self.measured)
    }

    /// Why the figures should not be trusted: this program was late, or ran out of room.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let lag_us = self.lag.value_at_quantile(0.99) as f64 / 1e3;
        if lag_us > 1_000.0 {
            doubts.push(format!(
                "one request in a hundred was begun {lag_us:.0} us late or later; up to 1,000 us \
                 are tolerable"
            ));
        }
        if (self.begun as f64) < 0.99 * self.due as f64 {
            doubts.push(format!(
                "of {} requests that were due only {} were begun in time",
                self.due, self.begun
            ));
        }
        let no_room = self.failures.of(Failed::NoRoom);
        if no_room > 0 {
            doubts.push(format!(
                "{no_room} requests found no descriptor, port or connection free on this machine"
            ));
        }
        doubts
    }

    pub(crate) fn slice(&mut self) -> &mut Slice {
        if self.series.is_empty() {
            self.series.push(Slice::default());
        }
        self.series.last_mut().expect("there is one")
    }

    /// A reply had a bad status.
    pub(crate) fn bad_status(&mut self, counts: bool, status: u16) {
        if counts {
            *self.statuses.entry(status).or_default() += 1;
        }
    }

    /// A request is due; `counts` if so after the warm-up and before the end.
    pub(crate) fn due(&mut self, counts: bool) {
        self.slice().due += 1;
        self.due += u64::from(counts);
    }

    /// It is begun.
    pub(crate) fn begun(&mut self, counts: bool) {
        self.begun += u64::from(counts);
    }

    /// In an open loop it was begun so long after it was due.
    pub(crate) fn lagged(&mut self, counts: bool, lag: Duration) {
        if counts {
            record(&mut self.lag, lag);
        }
    }

    /// A connection was made.
    pub(crate) fn connected(&mut self, counts: bool, time: Duration) {
        self.slice().connects += 1;
        if counts {
            self.connects += 1;
            record(&mut self.connect, time);
        }
    }

    /// A good reply has come.
    pub(crate) fn replied(&mut self, counts: bool, time: Duration, bytes: u64) {
        let slice = self.slice();
        slice.replies += 1;
        slice.body_bytes += bytes;
        slice.response += time;
        slice.longest = slice.longest.max(time);
        if counts {
            self.replies += 1;
            self.body_bytes += bytes;
            record(&mut self.response, time);
        }
    }

    /// A request has failed.
    pub(crate) fn failed(&mut self, counts: bool, failure: Failed) {
        self.slice().failures.count(failure);
        if counts {
            self.failures.count(failure);
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
    fn a_generator_that_was_late_is_not_trusted() {
        let mut tally = Tally::new();
        for i in 0..100 {
            tally.due(true);
            tally.begun(true);
            tally.lagged(true, Duration::from_micros(if i < 98 { 10 } else { 5_000 }));
        }
        assert_eq!(tally.doubts().len(), 1);
        tally.due(true);
        tally.due(true);
        tally.failed(true, Failed::NoRoom);
        assert_eq!(tally.doubts().len(), 3);
    }

    #[test]
    fn what_does_not_count_is_in_the_series_only() {
        let mut tally = Tally::new();
        tally.due(false);
        tally.connected(false, Duration::from_millis(1));
        tally.replied(false, Duration::from_millis(2), 10);
        tally.failed(false, Failed::Reset);
        assert_eq!(
            (tally.due, tally.connects, tally.replies, tally.failures.total()),
            (0, 0, 0, 0)
        );
        let slice = &tally.series[0];
        assert_eq!((slice.due, slice.connects, slice.replies, slice.body_bytes), (1, 1, 1, 10));
        assert_eq!((slice.failures.of(Failed::Reset), slice.response.as_millis()), (1, 2));
    }

    #[test]
    fn every_failure_has_its_name_and_place() {
        for (i, failure) in Failed::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, i);
            assert!(Failed::ALL[..i].iter().all(|other| other.name() != failure.name()));
        }
    }
}
