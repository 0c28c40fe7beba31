//! io_uring: operations are submitted through a ring shared with the kernel, completions are taken from
//! another. One system call per turn submits, waits and reaps.

use std::net::SocketAddr;

use shared_ring::{Mode, UringKernel};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// io_uring with completion work deferred to the wait.
pub struct Uring(EventLoop<UringKernel>);

impl Multiplexer for Uring {
    const NAME: &'static str = "uring";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "io_uring, completions in batches";

    fn available() -> Result<(), Unavailable> {
        UringKernel::probe(Mode::Deferred).map_err(|error| Unavailable(error.to_string()))
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        EventLoop::over_uring(Mode::Deferred, config).map(Uring)
    }

    fn addresses(&self) -> &[SocketAddr] {
        self.0.addresses()
    }

    fn remote(&self) -> RemoteHandle {
        self.0.remote()
    }

    fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError> {
        self.0.run(app)
    }
}
