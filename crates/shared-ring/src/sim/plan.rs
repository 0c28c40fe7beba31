//! How a run goes.

use super::fault::Faults;
use crate::Feature;

/// Everything that decides a run, beside the program and its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Decides whatever is left to chance.
    pub seed: u64,
    /// After how many steps nothing fails any more, and the peers come to an end. A step is one
    /// thing that a peer or the network does.
    pub steps: u64,
    /// Which faults may happen.
    pub faults: Faults,
    /// How many of them may happen.
    pub max_faults: u64,
    /// How many descriptors the program can have, 1 at least; most servers need 6 to begin with.
    pub descriptors: usize,
    /// How many bytes each way of a connection holds on both sides, 1 at least; by default chance
    /// decides.
    pub room: Option<usize>,
    /// What the ring's kernel does not have.
    pub unsupported: Option<Unsupported>,
    /// Whether to note what happens, line by line.
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

/// Something that a kernel does not have or does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// io_uring, as in a kernel without it.
    Uring,
    /// io_uring, by a filter of system calls.
    Permission,
    /// Memory for the queues.
    Memory,
    /// `DEFER_TASKRUN` and the like.
    Modes,
    /// Something that every mode needs.
    Without(Feature),
    /// Rings of provided buffers.
    BufferRings,
    /// A bound on worker threads.
    WorkerBound,
    /// An operation, by its code.
    Operation(u8),
    /// Accepts and receives that go on.
    Multishot,
}
