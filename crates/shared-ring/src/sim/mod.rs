//! A simulated machine, on which a whole server runs in one thread, decided by one seed.
//!
//! What stands above the system calls is the real thing: [`UringKernel`] with its tables, queues
//! and buffers over a simulated [`Ring`](crate::Ring), and [`Engine`] over a simulated
//! [`Poller`]. Below them a [`Machine`] has descriptors, bounded streams,
//! files in memory and virtual time, and [`Peer`]s on the other side of the network. Whenever the
//! program enters the kernel, chance decides who goes on, in what order, and what goes wrong; a
//! run can be had again by its [`Plan`].
//!
//! The machine checks as it goes: memory that an operation was given is neither written nor freed
//! before its end, descriptors are closed once and not while in use, names are not used twice at
//! a time, a program does not wait for ever, and at the end nothing is left. [`CheckedKernel`] does the
//! same at the upper face of a kernel.

mod check;
mod disk;
mod fault;
mod hang;
mod machine;
mod memory;
mod peer;
mod plan;
mod poller;
mod provided;
mod ring;
mod rng;
mod signals;
mod state;
mod stream;
mod submission;
mod trace;
mod usage;
mod work;

pub use check::CheckedKernel;
pub use disk::is_of_file;
pub use fault::{Fault, Faults};
pub use machine::{Machine, ManualPeer, RunReport};
pub use memory::WatchingAllocator;
pub use peer::{Net, Next, Peer, PeerConn, ReceiveResult};
pub use plan::{Plan, Unsupported};
pub use poller::{SimDevPoll, SimInterest, SimPoller};
pub use ring::SimRing;
pub use signals::{SimRtSig, SimSignals};
pub use usage::MachineUsage;

use crate::poller::Poller;
use crate::{Engine, EngineConfig, SetupError, UringConfig, UringKernel};

/// The ring's kernel, on a simulated machine.
pub type SimKernel = CheckedKernel<UringKernel<SimRing>>;

/// The engine over a simulated poller, on a simulated machine.
pub type SimEngine<const EDGE: bool> = CheckedKernel<Engine<SimPoller<EDGE>, Machine>>;

impl SimKernel {
    /// Sets up a ring on a machine.
    ///
    /// # Errors
    /// Says what the machine lacks.
    pub fn new(machine: &Machine, config: &UringConfig) -> Result<Self, SetupError> {
        UringKernel::simulated(machine, config).map(|kernel| CheckedKernel::over(kernel, machine))
    }
}

impl UringKernel<SimRing> {
    /// Sets up a ring on a machine, to be used by what is [`CheckedKernel`] above it.
    ///
    /// # Errors
    /// Says what the machine lacks.
    pub fn simulated(machine: &Machine, config: &UringConfig) -> Result<Self, SetupError> {
        UringKernel::on(machine.clone(), config)
    }
}

impl<const EDGE: bool> SimEngine<EDGE> {
    /// Sets up an engine on a machine.
    ///
    /// # Errors
    /// When there is no descriptor for the waker.
    pub fn new(machine: &Machine, config: &EngineConfig) -> std::io::Result<Self> {
        Self::polling(machine, SimPoller::new(machine), config)
    }
}

impl<P: Poller> CheckedKernel<Engine<P, Machine>> {
    /// Sets up an engine on a machine, over a poller of this machine's.
    ///
    /// # Errors
    /// When there is no descriptor for the waker.
    pub fn polling(machine: &Machine, poller: P, config: &EngineConfig) -> std::io::Result<Self> {
        let engine = Engine::on(machine.clone(), poller, config)?;
        Ok(CheckedKernel::over(engine, machine))
    }
}
