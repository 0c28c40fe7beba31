//! The mechanisms that a simulated server can run on, each with its kernel.

use std::fmt::Display;
use std::str::FromStr;

use evring::mechanisms::Unavailable;
use evring::{Config, KernelError, StartError, Stats};
use evring_sim::{CheckedKernel, Machine, SimEngine, SimKernel, SimRing};
use send_core::kernel::{Capacity, Delivery, SendKernel};
use shared_ring::Kernel;
use shared_ring::uring::{Mode, UringKernel};

/// Enumerations whose values have names.
macro_rules! names {
    ($(#[$doc:meta])* $type:ident, $what:literal: $($(#[$each:meta])* $name:ident $word:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $($(#[$each])* $name,)* }

        impl $type {
            /// All values.
            pub const ALL: &[$type] = &[$($type::$name,)*];

            /// Returns its name.
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
                    format!("unknown {} `{text}`; known: {}", $what, known.join(", "))
                })
            }
        }
    };
}
pub(super) use names;

names! {
    /// The mechanism that a server runs on.
    Mechanism, "mechanism":
    /// io_uring with deferred task work.
    Uring "uring",
    /// io_uring with task work at any time.
    Immediate "immediate",
    /// SEND: io_uring with completions that interrupt; new connections first.
    Send "send",
    /// Level-triggered readiness: epoll, poll and select.
    Level "level",
    /// Edge-triggered readiness: epoll with EPOLLET.
    Edge "edge",
    /// SEND with batched delivery.
    SendPs1 "send-ps1",
    /// SEND with immediate delivery and batched notification.
    SendPs2 "send-ps2",
    /// /dev/poll.
    DevPoll "devpoll",
    /// Declared interests (Banga).
    Interest "interest",
    /// Real-time signals.
    RtSig "rtsig",
    /// FlexSC: posted system calls.
    FlexSc "flexsc",
}

/// What runs on the kernel of a mechanism.
pub(super) trait Server {
    fn run<K: Kernel>(self, kernel: K) -> Result<Stats, RunError>;
}

/// The reason why a server ended early.
pub(super) enum RunError {
    KernelError(KernelError),
    Start(StartError),
}

const SENDS: [Mechanism; 3] = [Mechanism::Send, Mechanism::SendPs1, Mechanism::SendPs2];
const LEVELS: [Mechanism; 2] = [Mechanism::Level, Mechanism::DevPoll];
const EDGES: [Mechanism; 3] = [Mechanism::Interest, Mechanism::Edge, Mechanism::RtSig];

/// Lengths of the queues of hints or signals.
const QUEUE_LENGTHS: [usize; 4] = [1, 4, 20, 1_000];

impl Mechanism {
    /// Number of kinds of mechanisms to choose from.
    pub(super) const KINDS: usize = 5;

    /// Returns the mechanism of a kind that the seed selects.
    pub(super) fn choose(kind: usize, seed: u64) -> Self {
        match Mechanism::ALL[kind] {
            _ if seed % 7 == 5 => Mechanism::FlexSc,
            Mechanism::Send => SENDS[(seed % 3) as usize],
            Mechanism::Level => LEVELS[(seed % 2) as usize],
            Mechanism::Edge => EDGES[(seed % 3) as usize],
            other => other,
        }
    }

    /// Returns whether it uses io_uring, on which several receives may land at a time.
    pub(super) fn is_uring(self) -> bool {
        use Mechanism::{FlexSc, Immediate, Send, SendPs1, SendPs2, Uring};
        matches!(self, Uring | Immediate | Send | SendPs1 | SendPs2 | FlexSc)
    }

    /// Sets up the kernel on a machine, and runs a server on it.
    pub(super) fn run(
        self,
        machine: &Machine,
        config: &Config,
        seed: u64,
        server: impl Server,
    ) -> Result<Stats, RunError> {
        let start = RunError::Start;
        let system =
            |error| RunError::Start(StartError::System("cannot set up the event loop", error));
        let unavailable =
            |reason: &dyn Display| RunError::Start(Unavailable(reason.to_string()).into());
        let ring = |mode| {
            let config = config.uring_config(mode).map_err(start)?;
            SimKernel::new(machine, &config).map_err(|e| unavailable(&e))
        };
        let engine = config.engine_config().map_err(start)?;
        let sends = |delivery: Delivery| {
            let config = config.uring_config(delivery.mode()).map_err(start)?;
            let ring = UringKernel::<SimRing>::on(machine.clone(), &config)
                .map_err(|e| unavailable(&e))?;
            let sizes = Capacity::new(3, 5);
            SendKernel::with_kernel(ring, delivery, sizes)
                .map(|kernel| CheckedKernel::over(kernel, machine))
                .map_err(|e| unavailable(&e))
        };
        let queue_len = QUEUE_LENGTHS[(seed / 3 % 4) as usize];
        match self {
            Mechanism::Uring => server.run(ring(Mode::Deferred)?),
            Mechanism::Immediate => server.run(ring(Mode::Immediate)?),
            Mechanism::Send => server.run(sends(Delivery::Preemptive)?),
            Mechanism::SendPs1 => server.run(sends(Delivery::Ps1)?),
            Mechanism::SendPs2 => server.run(sends(Delivery::Ps2)?),
            Mechanism::Level => {
                server.run(SimEngine::<false>::new(machine, &engine).map_err(system)?)
            }
            Mechanism::Edge => {
                server.run(SimEngine::<true>::new(machine, &engine).map_err(system)?)
            }
            Mechanism::Interest => {
                let poller = machine.interests(queue_len);
                server.run(CheckedKernel::polling(machine, poller, &engine).map_err(system)?)
            }
            Mechanism::RtSig => {
                let poller = machine.rt_sig(queue_len);
                server.run(CheckedKernel::polling(machine, poller, &engine).map_err(system)?)
            }
            Mechanism::FlexSc => {
                let with_ring = !seed.is_multiple_of(3);
                server.run(flexsc_sim::kernel(machine, &engine, with_ring).map_err(system)?)
            }
            Mechanism::DevPoll => {
                let poller = machine.dev_poll();
                server.run(CheckedKernel::polling(machine, poller, &engine).map_err(system)?)
            }
        }
    }
}
