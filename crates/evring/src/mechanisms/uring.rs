//! io_uring: operations are submitted through a ring shared with the kernel, completions are taken from
//! another. One system call per turn submits, waits and reaps; a lone send is one of its own.

use shared_ring::uring::{Mode, UringKernel};

use super::kernels::{uring, uring_available};
use crate::{Config, Family, Mechanism, StartError, Unavailable};

/// io_uring with completion work deferred to the wait.
#[derive(Debug)]
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
