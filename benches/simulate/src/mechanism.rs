//! The mechanisms that a simulated server can run on, each with its kernel.

use std::fmt::Display;
use std::str::FromStr;

use evring::mechanisms::Unavailable;
use evring::{Config, KernelError, StartError, Stats};
use evring_sim::{CheckedKernel, Machine, PollerKind, SimKernel, SimRing};
use send_core::kernel::{Capacity, Delivery, SendKernel};
use shared_ring::Kernel;
use shared_ring::uring::{Mode, UringKernel};

use super::choices::Choices;
use super::contract::ApplicationPanic;

/// The mechanism that a server runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// io_uring with deferred task work.
    Uring,
    /// io_uring with task work at any time.
    Immediate,
    /// SEND: io_uring with completions that interrupt; new connections first.
    Send,
    /// SEND with batched delivery.
    SendPs1,
    /// SEND with immediate delivery and batched notification.
    SendPs2,
    /// FlexSC: posted system calls.
    FlexSc,
    /// The engine over a poller.
    Polling(PollerKind),
}

impl Mechanism {
    /// Every mechanism.
    pub const ALL: [Mechanism; 6 + PollerKind::ALL.len()] = {
        use Mechanism::{FlexSc, Immediate, Send, SendPs1, SendPs2, Uring};
        let kernels = [Uring, Immediate, Send, SendPs1, SendPs2, FlexSc];
        let mut all = [Uring; 6 + PollerKind::ALL.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = if at < kernels.len() {
                kernels[at]
            } else {
                Mechanism::Polling(PollerKind::ALL[at - kernels.len()])
            };
            at += 1;
        }
        all
    };

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Uring => "uring",
            Mechanism::Immediate => "immediate",
            Mechanism::Send => "send",
            Mechanism::SendPs1 => "send-ps1",
            Mechanism::SendPs2 => "send-ps2",
            Mechanism::FlexSc => "flexsc",
            Mechanism::Polling(poller) => poller.name(),
        }
    }

    /// Returns the counters that stay 0 on it, because they belong to features that it lacks.
    pub fn unused_counters(self) -> Vec<&'static str> {
        match self {
            Mechanism::Send => vec![],
            Mechanism::FlexSc => vec!["rearmed", "overflows", "interruptions"],
            Mechanism::Polling(poller) if poller.has_queue() => {
                vec!["buffer_shortages", "rearmed", "interruptions"]
            }
            Mechanism::Polling(_) => {
                vec!["buffer_shortages", "rearmed", "overflows", "interruptions"]
            }
            _ => vec!["interruptions"],
        }
    }
}

impl FromStr for Mechanism {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(&Mechanism::ALL, Mechanism::name, "mechanism", text)
    }
}

/// Returns the value of a name.
pub(super) fn named<T: Copy>(
    all: &[T],
    name: impl Fn(T) -> &'static str,
    what: &str,
    text: &str,
) -> Result<T, String> {
    let found = all.iter().find(|each| name(**each) == text);
    found.copied().ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|each| name(*each)).collect();
        format!("unknown {what} `{text}`; known: {}", known.join(", "))
    })
}

/// A server that runs on the kernel of any mechanism.
pub(super) trait Server {
    fn run<K: Kernel>(self, kernel: K) -> Result<Stats, RunError>;
}

/// The reason why a server ended early.
pub(super) enum RunError {
    KernelError(KernelError),
    Start(StartError),
    /// The application has panicked, as planned.
    Panicked(ApplicationPanic),
}

impl Mechanism {
    /// Chooses a mechanism; each kind equally often.
    pub(super) fn choose(random: &mut fastrand::Rng) -> Self {
        let kind = random.usize(..6);
        let mut one_of = |some: &[Mechanism]| some[random.usize(..some.len())];
        let mut poller = |edges| {
            let pollers = PollerKind::ALL.iter().filter(|each| each.is_edge_triggered() == edges);
            one_of(&pollers.map(|each| Mechanism::Polling(*each)).collect::<Vec<_>>())
        };
        match kind {
            0 => Mechanism::Uring,
            1 => Mechanism::Immediate,
            2 => poller(false),
            3 => poller(true),
            4 => Mechanism::FlexSc,
            _ => one_of(&[Mechanism::Send, Mechanism::SendPs1, Mechanism::SendPs2]),
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
        choices: &Choices,
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
        match self {
            Mechanism::Uring => server.run(ring(Mode::Deferred)?),
            Mechanism::Immediate => server.run(ring(Mode::Immediate)?),
            Mechanism::Send => server.run(sends(Delivery::Preemptive)?),
            Mechanism::SendPs1 => server.run(sends(Delivery::Ps1)?),
            Mechanism::SendPs2 => server.run(sends(Delivery::Ps2)?),
            Mechanism::FlexSc => {
                let kernel = flexsc_sim::kernel(machine, &engine, choices.waits_in_ring);
                server.run(kernel.map_err(system)?)
            }
            Mechanism::Polling(poller) => {
                let poller = poller.open(machine, choices.queue_len);
                server.run(CheckedKernel::polling(machine, poller, &engine).map_err(system)?)
            }
        }
    }
}
