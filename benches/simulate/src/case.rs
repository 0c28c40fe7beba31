//! What is simulated, in one line.

use std::fmt;
use std::str::FromStr;

use shared_ring::sim::{Faults, Plan};

macro_rules! names {
    ($(#[$doc:meta])* $type:ident, $what:literal: $($(#[$each:meta])* $name:ident $word:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $($(#[$each])* $name,)* }

        impl $type {
            /// All there are.
            pub const ALL: &[$type] = &[$($type::$name,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                [$($word),*][self as usize]
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|each| each.name() == text);
                found.copied().ok_or_else(|| {
                    let known: Vec<_> = Self::ALL.iter().map(|each| each.name()).collect();
                    format!("there is no {} `{text}`; there are: {}", $what, known.join(", "))
                })
            }
        }
    };
}

names! {
    /// On which mechanism a server runs.
    Mechanism, "mechanism":
    /// io_uring, its work deferred to the wait.
    Uring "uring",
    /// io_uring, its work done at any time.
    Immediate "immediate",
    /// SEND: io_uring, whose completions interrupt; new connections first.
    Send "send",
    /// Readiness, as long as it lasts: epoll, poll and select.
    Level "level",
    /// Readiness, when it begins: epoll with edges.
    Edge "edge",
    /// SEND with batched delivery.
    SendPs1 "send-ps1",
    /// SEND with immediate delivery, and batched notification.
    SendPs2 "send-ps2",
    /// /dev/poll.
    DevPoll "devpoll",
    /// Banga's interface.
    Interest "interest",
    /// Real-time signals.
    RtSig "rtsig",
}

impl Mechanism {
    /// Whether it is a ring, on which several receives may land at a time.
    pub(super) fn rings(self) -> bool {
        use Mechanism::{Immediate, Send, SendPs1, SendPs2, Uring};
        matches!(self, Uring | Immediate | Send | SendPs1 | SendPs2)
    }
}

/// The mechanisms of chance. Those of a kind are chosen by what they have in common; which of them
/// it is follows from the seed.
const CHOSEN: usize = 5;
const SENDS: [Mechanism; 3] = [Mechanism::Send, Mechanism::SendPs1, Mechanism::SendPs2];
const LEVELS: [Mechanism; 2] = [Mechanism::Level, Mechanism::DevPoll];
const EDGES: [Mechanism; 3] = [Mechanism::Interest, Mechanism::Edge, Mechanism::RtSig];

names! {
    /// Which server runs.
    Program, "program":
    /// The echo.
    Echo "echo",
    /// The cache.
    Kv "kv",
    /// The proxy, before a server that echoes.
    Proxy "proxy",
    /// The web server.
    Httpd "httpd",
    /// One that does everything an application can do.
    Wild "wild",
}

/// One run: written as a line, and read from one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Which server.
    pub program: Program,
    /// On which mechanism.
    pub mechanism: Mechanism,
    /// How many clients it has.
    pub clients: usize,
    /// Everything else.
    pub plan: Plan,
}

impl Case {
    /// The case of a seed: which server, which mechanism, how many clients.
    pub fn of(seed: u64, steps: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mechanism = |chosen: usize| match Mechanism::ALL[chosen] {
            Mechanism::Send => SENDS[(seed % 3) as usize],
            Mechanism::Level => LEVELS[(seed % 2) as usize],
            Mechanism::Edge => EDGES[(seed % 3) as usize],
            other => other,
        };
        Case {
            program: Program::ALL[random.usize(..Program::ALL.len())],
            mechanism: mechanism(random.usize(..CHOSEN)),
            clients: [1, 2, 5, 12][random.usize(..4)],
            plan: Plan {
                seed,
                steps,
                descriptors: [8, 30, 1_000, 1_000][random.usize(..4)],
                ..Plan::default()
            },
        }
    }

    /// The most steps of one run.
    pub const MAX_STEPS: u64 = 100_000_000;
    /// The most clients.
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
        let mut words = text.split_whitespace();
        let mut next = || words.next().ok_or("a run begins with a program and a mechanism");
        let (program, mechanism) = (next()?.parse()?, next()?.parse()?);
        let mut case = Case { program, mechanism, clients: 1, plan: Plan::default() };
        for word in words {
            let (name, value) = word.split_once('=').ok_or(format!("`{word}` has no value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("`{word}` is no number"));
            match name {
                "seed" => case.plan.seed = number()?,
                "steps" => case.plan.steps = number()?,
                "clients" => case.clients = number()? as usize,
                "descriptors" => case.plan.descriptors = number()? as usize,
                "faults" => case.plan.faults = value.parse::<Faults>()?,
                "first" => case.plan.max_faults = number()?,
                _ => return Err(format!("`{name}` is not known")),
            }
        }
        case.check()?;
        Ok(case)
    }
}

impl Case {
    /// Whether the numbers make sense.
    ///
    /// # Errors
    /// Says which one does not.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=Self::MAX_STEPS).contains(&self.plan.steps) {
            return Err(format!("steps must lie between 1 and {}", Self::MAX_STEPS));
        }
        if !(1..=Self::MAX_CLIENTS).contains(&self.clients) {
            return Err(format!("clients must lie between 1 and {}", Self::MAX_CLIENTS));
        }
        if !(6..=10_000).contains(&self.plan.descriptors) {
            return Err("descriptors must lie between 6 and 10000".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_ring::sim::Fault;

    #[test]
    fn a_case_is_read_as_it_is_written() {
        for seed in 0..50 {
            let mut case = Case::of(seed, 700);
            assert_eq!(case.to_string().parse(), Ok(case.clone()));
            case.plan.faults = Faults::ALL.without(Fault::Cold).without(Fault::Stall);
            case.plan.max_faults = 17;
            assert_eq!(case.to_string().parse(), Ok(case));
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let refused = |text: &str| text.parse::<Case>().unwrap_err();
        assert!(refused("").contains("begins with a program"));
        assert!(refused("kv").contains("begins with a program"));
        assert!(refused("cache uring").contains("there is no program `cache`; there are: echo"));
        assert!(refused("kv kqueue").contains("there is no mechanism `kqueue`"));
        assert!(refused("kv uring seed").contains("`seed` has no value"));
        assert!(refused("kv uring seed=x").contains("`seed=x` is no number"));
        assert!(refused("kv uring faults=rain").contains("there is no fault `rain`"));
        assert!(refused("kv uring size=2").contains("`size` is not known"));
        assert!(refused("kv uring steps=0").contains("steps must lie"));
        assert!(refused("kv uring clients=0").contains("clients must lie"));
        assert!(refused("kv uring descriptors=2").contains("descriptors must lie"));
    }
}
