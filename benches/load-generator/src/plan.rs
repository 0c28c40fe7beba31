//! The plan: description of the load to generate.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::{Arrivals, Request, Session};

/// Description of the load to generate.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Address of the server.
    pub target: SocketAddr,
    /// Sessions, assigned to connections round-robin.
    pub sessions: Vec<Session>,
    /// Open or closed loop, and its rate or number of connections.
    pub model: LoadModel,
    /// Maximum number of requests in flight per connection (pipelining).
    pub pipeline_depth: usize,
    /// Method of closing a connection after its last request.
    pub close_mode: CloseMode,
    /// Request timeout, from when the request was due. On expiry the client resets the connection.
    pub timeout: Duration,
    /// Local source addresses, used round-robin. If empty, the kernel chooses.
    pub sources: Vec<IpAddr>,
    /// Receive buffer of each socket but those of slow readers, in bytes, doubled by the kernel. If `None`, the kernel
    /// adjusts it.
    pub receive_buffer: Option<u32>,
    /// Number of idle connections, opened before the load starts.
    pub idle_connections: u32,
    /// Slow clients in addition to the load.
    pub slow: Option<SlowClients>,
    /// The requests of slow clients, in turn. If empty, each makes the first request of the first session.
    pub slow_requests: Vec<Request>,
    /// Time over which the first requests of slow clients are spread.
    pub slow_spread: Duration,
    /// Length of the warm-up before the measurement period.
    pub warm_up: Duration,
    /// In an open loop, multiplies the rate during the warm-up.
    pub burst: f64,
    /// Length of the measurement period.
    pub duration: Duration,
    /// The load continues until every measured request has ended. Otherwise it ends with the measurement period,
    /// and requests without a reply are not counted.
    pub drain: bool,
    /// Length of an interval of the time series.
    pub interval: Duration,
    /// Maximum number of open connections.
    pub max_open: u32,
    /// Polls without sleeping, so that the server need not wake the generator's core.
    pub busy_poll: bool,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Records each request in [`Stats::log`](crate::Stats::log).
    pub log_requests: bool,
}

/// Slow clients. They are counted separately from the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowClients {
    /// Clients that send a request and receive the reply slowly.
    pub readers: u32,
    /// Clients that send a request one byte at a time.
    pub senders: u32,
    /// Rate of each client, in bytes per second; at least 1.
    pub bytes_per_second: u32,
    /// Receive buffer of each reader's socket, in bytes. A small one makes the server's sends wait soon.
    pub receive_buffer: u32,
}

/// Workload model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadModel {
    /// Closed loop: each client starts its next session, on a new connection, after the last.
    Closed {
        /// Number of clients, each with one connection.
        connections: u32,
    },
    /// Open loop: sessions start at a given rate, each on a new connection.
    OpenSessions {
        /// Sessions per second.
        rate: f64,
        /// Distribution of the intervals between arrivals.
        arrivals: Arrivals,
    },
    /// Open loop: requests become due at a given rate, on persistent connections. If all are busy,
    /// a request waits; the wait is part of its latency.
    OpenRequests {
        /// Requests per second.
        rate: f64,
        /// Distribution of the intervals between arrivals.
        arrivals: Arrivals,
        /// Number of connections.
        connections: u32,
    },
}

/// Method of closing a connection after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseMode {
    /// The server closes, as requested by `Connection: close`.
    Server,
    /// The client closes after the reply. Its port then stays in TIME_WAIT for a minute, unless
    /// `net.ipv4.tcp_tw_reuse` permits reuse.
    Client,
    /// The client resets the connection, which leaves no TIME_WAIT state on either side.
    Reset,
}

impl LoadModel {
    /// Returns the arrivals per second in an open loop.
    pub fn rate(self) -> Option<(f64, Arrivals)> {
        match self {
            LoadModel::Closed { .. } => None,
            LoadModel::OpenSessions { rate, arrivals }
            | LoadModel::OpenRequests { rate, arrivals, .. } => Some((rate, arrivals)),
        }
    }

    /// Returns the number of connections that the model keeps open.
    pub(crate) fn connections(self) -> u32 {
        match self {
            LoadModel::Closed { connections: n }
            | LoadModel::OpenRequests { connections: n, .. } => n,
            LoadModel::OpenSessions { .. } => 0,
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            target: SocketAddr::from(([127, 0, 0, 1], 8080)),
            sessions: Vec::new(),
            model: LoadModel::Closed { connections: 1 },
            pipeline_depth: 1,
            close_mode: CloseMode::Server,
            timeout: Duration::from_secs(5),
            sources: Vec::new(),
            receive_buffer: None,
            idle_connections: 0,
            slow: None,
            slow_requests: Vec::new(),
            slow_spread: Duration::ZERO,
            warm_up: Duration::from_secs(1),
            burst: 1.0,
            duration: Duration::from_secs(10),
            drain: true,
            interval: Duration::from_secs(1),
            max_open: 10_000,
            busy_poll: false,
            seed: 1,
            log_requests: false,
        }
    }
}

/// The error for an invalid plan, with a message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPlan(pub String);

impl fmt::Display for InvalidPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidPlan {}

/// Maximum rate, in arrivals per second.
const MAX_RATE: f64 = 1e6;
/// Minimum rate: one arrival per day.
const MIN_RATE: f64 = 1.0 / (24.0 * 60.0 * 60.0);
/// Maximum receive buffer, in bytes; the kernel takes no larger one.
const MAX_BUFFER: u32 = 1 << 30;
/// Maximum length of any duration.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

impl Plan {
    /// Descriptors reserved for uses other than the load's connections.
    pub const RESERVED_DESCRIPTORS: u32 = 64;

    /// Validates the plan.
    ///
    /// # Errors
    /// Returns the first value that is out of range.
    pub fn validate(&self) -> Result<(), InvalidPlan> {
        let invalid = |message: String| Err(InvalidPlan(message));
        if let Some((rate, _)) = self.model.rate()
            && !(MIN_RATE..=MAX_RATE).contains(&rate)
        {
            return invalid(format!(
                "the rate must be between one per day and {MAX_RATE} per second"
            ));
        }
        if !(1.0..=1000.0).contains(&self.burst) {
            return invalid("the burst must be between 1 and 1000 times the rate".to_owned());
        }
        let slow = self.slow.unwrap_or_default();
        let slow_clients = u64::from(slow.readers) + u64::from(slow.senders);
        let connections =
            u64::from(self.model.connections()) + u64::from(self.idle_connections) + slow_clients;
        if connections > u64::from(self.max_open) {
            return invalid(format!(
                "{connections} connections exceed the maximum of {} open connections",
                self.max_open
            ));
        }
        if !matches!(self.model, LoadModel::OpenSessions { .. }) && self.model.connections() == 0 {
            return invalid("at least one connection is required".to_owned());
        }
        if !(1..=1 << 20).contains(&self.max_open) {
            return invalid(
                "the maximum number of connections must be between 1 and 1048576".to_owned(),
            );
        }
        if self.sessions.iter().all(|session| session.at(0).is_none()) {
            return invalid("the plan has no requests".to_owned());
        }
        if self.sessions.iter().any(|session| session.at(0).is_none()) {
            return invalid("a session has no requests".to_owned());
        }
        if slow_clients > 0 && !(1..=1_000_000).contains(&slow.bytes_per_second) {
            return invalid(
                "the rate of slow clients must be between 1 and 1000000 bytes per second"
                    .to_owned(),
            );
        }
        if self.receive_buffer.is_some_and(|bytes| !(1..=MAX_BUFFER).contains(&bytes)) {
            return invalid(format!("the receive buffer must be between 1 and {MAX_BUFFER} bytes"));
        }
        if !(1..=1024).contains(&self.pipeline_depth) {
            return invalid("the pipeline depth must be between 1 and 1024 requests".into());
        }
        for (name, time) in [("duration", self.duration), ("timeout", self.timeout)] {
            if time.is_zero() || time > MAX_DURATION {
                return invalid(format!("the {name} must be greater than 0 and at most a day"));
            }
        }
        for (name, time) in [("warm-up", self.warm_up), ("spread", self.slow_spread)] {
            if time > MAX_DURATION {
                return invalid(format!("the {name} must be at most a day"));
            }
        }
        if self.interval < Duration::from_millis(1) || self.interval > MAX_DURATION {
            return invalid("the interval must be between a millisecond and a day".to_owned());
        }
        if (self.warm_up + self.duration).as_nanos() / self.interval.as_nanos() > 1_000_000 {
            return invalid(
                "the run has more than a million intervals; choose a longer interval".to_owned(),
            );
        }
        if let Some(other) = self.sources.iter().find(|ip| ip.is_ipv4() != self.target.is_ipv4()) {
            return invalid(format!("cannot connect from {other} to {}", self.target));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;

    fn valid_plan() -> Plan {
        let requests = vec![Request::new("GET", "/", "h", "")];
        Plan { sessions: vec![Session { requests, rounds: 1 }], ..Plan::default() }
    }

    #[test]
    fn invalid_plan_is_rejected() {
        assert_eq!(valid_plan().validate(), Ok(()));
        let rejects = |change: fn(&mut Plan), expected: &str| {
            let mut plan = valid_plan();
            change(&mut plan);
            let message = plan.validate().unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        };
        const FIXED: Arrivals = Arrivals::Fixed;
        rejects(
            |p| p.model = LoadModel::OpenSessions { rate: 0.0, arrivals: FIXED },
            "the rate must be between",
        );
        rejects(
            |p| p.model = LoadModel::OpenSessions { rate: f64::NAN, arrivals: FIXED },
            "the rate must be between",
        );
        rejects(
            |p| p.model = LoadModel::OpenSessions { rate: 1e-20, arrivals: FIXED },
            "one per day",
        );
        rejects(
            |p| p.model = LoadModel::OpenSessions { rate: 1e9, arrivals: FIXED },
            "1000000 per second",
        );
        rejects(|p| p.burst = 0.5, "between 1 and 1000 times");
        rejects(|p| p.burst = f64::NAN, "between 1 and 1000 times");
        rejects(|p| p.model = LoadModel::Closed { connections: 0 }, "at least one connection");
        rejects(
            |p| p.model = LoadModel::Closed { connections: 10_001 },
            "10001 connections exceed",
        );
        rejects(|p| p.idle_connections = u32::MAX, "exceed the maximum of 10000");
        let slow =
            |p: &mut Plan| p.slow = Some(SlowClients { readers: 1, ..SlowClients::default() });
        rejects(slow, "between 1 and 1000000 bytes per second");
        rejects(|p| p.sessions.clear(), "has no requests");
        rejects(
            |p| p.sessions.push(Session { requests: vec![], rounds: 1 }),
            "a session has no requests",
        );
        rejects(|p| p.pipeline_depth = 0, "between 1 and 1024");
        rejects(|p| p.duration = Duration::ZERO, "the duration must be greater than 0");
        rejects(|p| p.timeout = Duration::MAX, "the timeout must");
        rejects(|p| p.warm_up = Duration::MAX, "the warm-up must");
        rejects(|p| p.interval = Duration::ZERO, "the interval must");
        rejects(
            |p| p.sources = vec!["::1".parse().unwrap()],
            "cannot connect from ::1 to 127.0.0.1",
        );
    }
}
