//! What load is to be made.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::{Arrivals, Session};

/// What load is to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whom to ask.
    pub to: SocketAddr,
    /// What for; connections take one session after the other in turn.
    pub sessions: Vec<Session>,
    /// How work arrives.
    pub pace: Pace,
    /// Most requests of one connection under way at a time (pipelining).
    pub depth: usize,
    /// Who ends a connection after its last request.
    pub ending: Ending,
    /// How long after a request was due the client gives up and resets the connection.
    pub deadline: Duration,
    /// Addresses of this machine to connect from, in turn; any if there is none.
    pub sources: Vec<IpAddr>,
    /// Connections that stay idle; they are open before anything else begins.
    pub cold: u32,
    /// Clients that are slow, beside the load.
    pub slow: Option<Slow>,
    /// For how long load is made before anything counts.
    pub warm_up: Duration,
    /// How many times as much arrives in that time, in an open loop; 1 is no more than later.
    pub burst: f64,
    /// For how long what becomes due counts. The load goes on until all of that has its end.
    pub duration: Duration,
    /// Length of a slice of the time series.
    pub interval: Duration,
    /// Most connections at a time.
    pub max_open: u32,
    /// Whether the generator never sleeps, so that a server need not wake its core.
    pub busy: bool,
    /// Decides whatever is left to chance.
    pub seed: u64,
    /// Whether each request is to be noted.
    pub keep_log: bool,
}

/// Clients that are slow: what they do is counted, but is no part of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// How many ask for the first request of the first session, and take the reply slowly.
    pub readers: u32,
    /// How many ask for it slowly, a byte at a time.
    pub senders: u32,
    /// Bytes per second of each; 1 at least.
    pub rate: u32,
}

/// How work arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: so many clients, each of which begins its next session, on a new connection,
    /// when it has ended the last.
    Closed {
        /// How many clients.
        clients: u32,
    },
    /// Open loop: so many sessions per second begin, each on a new connection.
    Sessions {
        /// Sessions per second.
        rate: f64,
        /// How far apart.
        arrivals: Arrivals,
    },
    /// Open loop: so many requests per second are due, on connections that are kept. One that
    /// finds all of them busy waits, and the clock runs.
    Requests {
        /// Requests per second.
        rate: f64,
        /// How far apart.
        arrivals: Arrivals,
        /// How many connections.
        connections: u32,
    },
}

/// Who ends a connection after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The server, which is asked to (`Connection: close`).
    Server,
    /// The client, when it has the reply; its ports stay used for a minute, unless
    /// `net.ipv4.tcp_tw_reuse` lets it have them again.
    Client,
    /// The client, by a reset, which leaves nothing behind on either side.
    Reset,
}

impl Pace {
    /// What is begun per second, in an open loop.
    pub fn rate(self) -> Option<(f64, Arrivals)> {
        match self {
            Pace::Closed { .. } => None,
            Pace::Sessions { rate, arrivals } | Pace::Requests { rate, arrivals, .. } => {
                Some((rate, arrivals))
            }
        }
    }

    /// How many connections are held on purpose.
    pub(crate) fn held(self) -> u32 {
        match self {
            Pace::Closed { clients: n } | Pace::Requests { connections: n, .. } => n,
            Pace::Sessions { .. } => 0,
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            to: SocketAddr::from(([127, 0, 0, 1], 8080)),
            sessions: Vec::new(),
            pace: Pace::Closed { clients: 1 },
            depth: 1,
            ending: Ending::Server,
            deadline: Duration::from_secs(5),
            sources: Vec::new(),
            cold: 0,
            slow: None,
            warm_up: Duration::from_secs(1),
            burst: 1.0,
            duration: Duration::from_secs(10),
            interval: Duration::from_secs(1),
            max_open: 10_000,
            busy: false,
            seed: 1,
            keep_log: false,
        }
    }
}

/// A plan that makes no sense; a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPlan(pub String);

impl fmt::Display for InvalidPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidPlan {}

/// The highest rate of arrivals per second: one in a microsecond.
const MAX_RATE: f64 = 1e6;
/// The lowest: one in a day.
const MIN_RATE: f64 = 1.0 / (24.0 * 60.0 * 60.0);
/// The longest time of anything.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

impl Plan {
    /// Descriptors that the load needs beside those of its connections.
    pub const SPARE: u32 = 64;

    /// Whether the numbers make sense.
    ///
    /// # Errors
    /// Says which one does not.
    pub fn check(&self) -> Result<(), InvalidPlan> {
        let wrong = |what: String| Err(InvalidPlan(what));
        if let Some((rate, _)) = self.pace.rate()
            && !(MIN_RATE..=MAX_RATE).contains(&rate)
        {
            return wrong(format!(
                "a rate must lie between one in a day and {MAX_RATE} per second"
            ));
        }
        if !(1.0..=1000.0).contains(&self.burst) {
            return wrong("a burst must be between 1 and 1000 times the rate".to_owned());
        }
        let slow = self.slow.unwrap_or_default();
        let slow_ones = u64::from(slow.readers) + u64::from(slow.senders);
        let held = u64::from(self.pace.held()) + u64::from(self.cold) + slow_ones;
        if held > u64::from(self.max_open) {
            return wrong(format!(
                "{held} connections were asked for, but there may be {} at a time",
                self.max_open
            ));
        }
        if !matches!(self.pace, Pace::Sessions { .. }) && self.pace.held() == 0 {
            return wrong("there must be at least one connection".to_owned());
        }
        if !(1..=1 << 20).contains(&self.max_open) {
            return wrong("the connections at a time must lie between 1 and 1048576".to_owned());
        }
        if self.sessions.iter().all(|session| session.at(0).is_none()) {
            return wrong("there is nothing to ask for".to_owned());
        }
        if self.sessions.iter().any(|session| session.at(0).is_none()) {
            return wrong("there is a session without a request".to_owned());
        }
        if slow_ones > 0 && !(1..=1_000_000).contains(&slow.rate) {
            return wrong("who is slow takes between 1 and 1000000 bytes per second".to_owned());
        }
        if !(1..=1024).contains(&self.depth) {
            return wrong("between 1 and 1024 requests can be under way on one connection".into());
        }
        for (name, time) in [("duration", self.duration), ("deadline", self.deadline)] {
            if time.is_zero() || time > LONGEST {
                return wrong(format!("the {name} must lie above 0 and be a day at most"));
            }
        }
        if self.warm_up > LONGEST {
            return wrong("the warm-up must be a day at most".to_owned());
        }
        if self.interval < Duration::from_millis(1) || self.interval > LONGEST {
            return wrong("an interval must lie between a millisecond and a day".to_owned());
        }
        if (self.warm_up + self.duration).as_nanos() / self.interval.as_nanos() > 1_000_000 {
            return wrong("that makes more than a million intervals".to_owned());
        }
        if let Some(other) = self.sources.iter().find(|ip| ip.is_ipv4() != self.to.is_ipv4()) {
            return wrong(format!("{other} can't connect to {}", self.to));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ask;

    fn sane() -> Plan {
        let requests = vec![Ask::new("GET", "/", "h", "")];
        Plan { sessions: vec![Session { requests, rounds: 1 }], ..Plan::default() }
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        assert_eq!(sane().check(), Ok(()));
        let refused = |change: fn(&mut Plan), what: &str| {
            let mut plan = sane();
            change(&mut plan);
            let said = plan.check().unwrap_err().to_string();
            assert!(said.contains(what), "{said}");
        };
        const FIXED: Arrivals = Arrivals::Fixed;
        refused(
            |p| p.pace = Pace::Sessions { rate: 0.0, arrivals: FIXED },
            "a rate must lie between",
        );
        refused(
            |p| p.pace = Pace::Sessions { rate: f64::NAN, arrivals: FIXED },
            "a rate must lie between",
        );
        refused(|p| p.pace = Pace::Sessions { rate: 1e-20, arrivals: FIXED }, "one in a day");
        refused(|p| p.pace = Pace::Sessions { rate: 1e9, arrivals: FIXED }, "1000000 per second");
        refused(|p| p.burst = 0.5, "between 1 and 1000 times");
        refused(|p| p.burst = f64::NAN, "between 1 and 1000 times");
        refused(|p| p.pace = Pace::Closed { clients: 0 }, "at least one connection");
        refused(|p| p.pace = Pace::Closed { clients: 10_001 }, "10001 connections were asked for");
        refused(|p| p.cold = u32::MAX, "connections were asked for, but there may be 10000");
        let slow = |p: &mut Plan| p.slow = Some(Slow { readers: 1, senders: 0, rate: 0 });
        refused(slow, "between 1 and 1000000 bytes per second");
        refused(|p| p.sessions.clear(), "nothing to ask for");
        refused(|p| p.sessions.push(Session { requests: vec![], rounds: 1 }), "without a request");
        refused(|p| p.depth = 0, "between 1 and 1024");
        refused(|p| p.duration = Duration::ZERO, "the duration must lie above 0");
        refused(|p| p.deadline = Duration::MAX, "the deadline must");
        refused(|p| p.warm_up = Duration::MAX, "the warm-up must");
        refused(|p| p.interval = Duration::ZERO, "an interval must");
        refused(|p| p.sources = vec!["::1".parse().unwrap()], "::1 can't connect to 127.0.0.1");
    }
}
