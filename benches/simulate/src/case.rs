//! The description of a run, which fits on a line.

use std::fmt;
use std::str::FromStr;

use evring_sim::{Faults, Plan};

use super::mechanism::{Mechanism, named};

/// The server to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The echo server.
    Echo,
    /// The cache.
    Kv,
    /// The proxy in front of an echo server.
    Proxy,
    /// The web server.
    Httpd,
    /// A server that uses everything in the interface of applications.
    Wild,
}

impl Program {
    /// Every program.
    pub const ALL: &[Program] =
        &[Program::Echo, Program::Kv, Program::Proxy, Program::Httpd, Program::Wild];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        ["echo", "kv", "proxy", "httpd", "wild"][self as usize]
    }

    /// Returns whether it sends files.
    pub(super) fn sends_files(self) -> bool {
        matches!(self, Program::Httpd | Program::Wild)
    }
}

impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(Program::ALL, Program::name, "program", text)
    }
}

/// A run, which can be formatted as a line and parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The server.
    pub program: Program,
    /// The mechanism.
    pub mechanism: Mechanism,
    /// Number of clients.
    pub clients: usize,
    /// All other parameters.
    pub plan: Plan,
}

impl Case {
    /// Returns the case of a seed: server, mechanism and number of clients follow from it.
    pub fn of(seed: u64, steps: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Case {
            program: Program::ALL[random.usize(..Program::ALL.len())],
            mechanism: Mechanism::choose(&mut random),
            clients: [1, 2, 5, 12][random.usize(..4)],
            plan: Plan::default().with(|p| {
                p.seed = seed;
                p.steps = steps;
                p.descriptors = [8, 30, 1_000, 1_000][random.usize(..4)];
            }),
        }
    }

    /// Maximum number of steps of one run.
    pub const MAX_STEPS: u64 = 100_000_000;
    /// Maximum number of clients.
    pub const MAX_CLIENTS: usize = 1_000;
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { program, mechanism, clients, plan } = self;
        write!(
            f,
            "{} {} seed={} steps={} clients={clients} descriptors={} faults={}",
            program.name(),
            mechanism.name(),
            plan.seed,
            plan.steps,
            plan.descriptors,
            plan.faults,
        )?;
        if plan.max_faults < u64::MAX {
            write!(f, " first={}", plan.max_faults)?;
        }
        Ok(())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = text.split_whitespace();
        let mut next = || fields.next().ok_or("a case begins with a program and a mechanism");
        let (program, mechanism) = (next()?.parse()?, next()?.parse()?);
        let mut case = Case { program, mechanism, clients: 1, plan: Plan::default() };
        for field in fields {
            let (name, value) = field.split_once('=').ok_or(format!("`{field}` has no value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("`{field}` is not a number"));
            match name {
                "seed" => case.plan.seed = number()?,
                "steps" => case.plan.steps = number()?,
                "clients" => case.clients = number()? as usize,
                "descriptors" => case.plan.descriptors = number()? as usize,
                "faults" => case.plan.faults = value.parse::<Faults>()?,
                "first" => case.plan.max_faults = number()?,
                _ => return Err(format!("unknown parameter `{name}`")),
            }
        }
        case.check()?;
        Ok(case)
    }
}

impl Case {
    /// Checks the ranges of the numbers.
    ///
    /// # Errors
    /// The range that is violated.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=Self::MAX_STEPS).contains(&self.plan.steps) {
            return Err(format!("steps must be between 1 and {}", Self::MAX_STEPS));
        }
        if !(1..=Self::MAX_CLIENTS).contains(&self.clients) {
            return Err(format!("clients must be between 1 and {}", Self::MAX_CLIENTS));
        }
        if !(6..=10_000).contains(&self.plan.descriptors) {
            return Err("descriptors must be between 6 and 10000".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evring_sim::Fault;

    #[test]
    fn case_round_trips_through_text() {
        for seed in 0..50 {
            let mut case = Case::of(seed, 700);
            assert_eq!(case.to_string().parse(), Ok(case.clone()));
            case.plan.faults = Faults::ALL.without(Fault::Cold).without(Fault::Stall);
            case.plan.max_faults = 17;
            assert_eq!(case.to_string().parse(), Ok(case));
        }
    }

    #[test]
    fn invalid_case_text_is_rejected() {
        let refused = |text: &str| text.parse::<Case>().unwrap_err();
        assert!(refused("").contains("begins with a program"));
        assert!(refused("kv").contains("begins with a program"));
        assert!(refused("cache uring").contains("unknown program `cache`; known: echo"));
        assert!(refused("kv kqueue").contains("unknown mechanism `kqueue`"));
        assert!(refused("kv uring seed").contains("`seed` has no value"));
        assert!(refused("kv uring seed=x").contains("`seed=x` is not a number"));
        assert!(refused("kv uring faults=rain").contains("unknown fault `rain`"));
        assert!(refused("kv uring size=2").contains("unknown parameter `size`"));
        assert!(refused("kv uring steps=0").contains("steps must be"));
        assert!(refused("kv uring clients=0").contains("clients must be"));
        assert!(refused("kv uring descriptors=2").contains("descriptors must be"));
    }
}
