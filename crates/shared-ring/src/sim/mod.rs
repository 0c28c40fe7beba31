//! A simulated machine: it runs a whole server in one thread, and one seed decides every event.
//!
//! The code above the system calls is the real one: [`UringKernel`] with its tables, queues and
//! buffers over a simulated [`Ring`](crate::Ring), and [`Engine`] over a simulated [`Poller`]. The
//! [`Machine`] below has descriptors, bounded streams, files in memory and virtual time. [`Peer`]s
//! are the other side of the network. Each system call of the program runs peers and the network in
//! random order and injects faults. The same [`Plan`] repeats a run exactly.
//!
//! The machine checks these rules during a run:
//! - The program neither writes nor frees the memory of an operation before the operation ends.
//! - It closes each descriptor once, and not while an operation uses it.
//! - Tokens are unique among operations in flight.
//! - The program does not wait forever, and releases everything at its end.
//!
//! [`CheckedKernel`] does the same at the interface of a kernel.

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

/// The io_uring kernel on a simulated machine.
pub type SimKernel = CheckedKernel<UringKernel<SimRing>>;

/// The engine over a simulated poller, on a simulated machine.
pub type SimEngine<const EDGE: bool> = CheckedKernel<Engine<SimPoller<EDGE>, Machine>>;

impl SimKernel {
    /// Sets up a ring on a machine.
    ///
    /// # Errors
    /// The first feature that the machine does not support.
    pub fn new(machine: &Machine, config: &UringConfig) -> Result<Self, SetupError> {
        UringKernel::simulated(machine, config).map(|kernel| CheckedKernel::over(kernel, machine))
    }
}

impl UringKernel<SimRing> {
    /// Sets up a ring on a machine, for a caller that adds the [`CheckedKernel`] itself.
    ///
    /// # Errors
    /// The first feature that the machine does not support.
    pub fn simulated(machine: &Machine, config: &UringConfig) -> Result<Self, SetupError> {
        UringKernel::on(machine.clone(), config)
    }
}

impl<const EDGE: bool> SimEngine<EDGE> {
    /// Sets up an engine on a machine.
    ///
    /// # Errors
    /// If no descriptor is free for the waker.
    pub fn new(machine: &Machine, config: &EngineConfig) -> std::io::Result<Self> {
        Self::polling(machine, SimPoller::new(machine), config)
    }
}

impl<P: Poller> CheckedKernel<Engine<P, Machine>> {
    /// Sets up an engine on a machine over one of its pollers.
    ///
    /// # Errors
    /// If no descriptor is free for the waker.
    pub fn polling(machine: &Machine, poller: P, config: &EngineConfig) -> std::io::Result<Self> {
        let engine = Engine::on(machine.clone(), poller, config)?;
        Ok(CheckedKernel::over(engine, machine))
    }
}
