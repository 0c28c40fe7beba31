//! io_uring: operations are posted into a ring shared with the kernel, and their completions are
//! taken from another. One system call a turn submits, waits and reaps.

use shared_ring::{Mode, UringKernel};

use super::{uring, uring_available};
use crate::{Config, Family, Mechanism, StartError, Unavailable};

/// io_uring with its work deferred to the wait.
pub struct Uring;

impl Mechanism for Uring {
    const NAME: &'static str = "uring";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "io_uring, completions in batches";
    type Kernel = UringKernel;

    fn available() -> Result<(), Unavailable> {
        uring_available(Mode::Deferred)
    }

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        uring(Mode::Deferred, config)
    }
}
