//! The parameters of a run.

use shared_ring::uring::Feature;

use crate::fault::Faults;

/// The parameters of a run, apart from the program and its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Number of steps after which no fault happens and peers finish. A step is one action of a
    /// peer or of the network. At least 1.
    pub steps: u64,
    /// Faults that may happen.
    pub faults: Faults,
    /// Maximum number of faults.
    pub max_faults: u64,
    /// Maximum number of descriptors of the program, at least 1. Most servers need 6 to start.
    pub descriptors: usize,
    /// Size of the send and receive buffers of each connection in bytes, at least 1; random by
    /// default.
    pub room: Option<usize>,
    /// A feature that io_uring lacks.
    pub unsupported: Option<Unsupported>,
    /// If set, records a trace.
    pub trace_steps: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            seed: 0,
            steps: 2_000,
            faults: Faults::ALL,
            max_faults: u64::MAX,
            descriptors: 1_000,
            room: None,
            unsupported: None,
            trace_steps: false,
        }
    }
}

impl Plan {
    /// Returns the plan with changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// A feature that a kernel lacks or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// io_uring (ENOSYS).
    Uring,
    /// io_uring, denied by a filter of system calls (EPERM).
    Permission,
    /// Memory for the queues (ENOMEM).
    Memory,
    /// `DEFER_TASKRUN` and similar setup flags (EINVAL).
    Modes,
    /// A feature that every mode needs.
    Without(Feature),
    /// Rings of provided buffers.
    BufferRings,
    /// A limit on worker threads.
    WorkerBound,
    /// An operation, by its code.
    Operation(u8),
    /// Multishot accepts and receives.
    Multishot,
    /// A non-blocking mode of the disk. Linux 6.1 to 6.4 refuses all reads of files and writes to them by io_uring (EAGAIN).
    NonblockingDisk,
}
