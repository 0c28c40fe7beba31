//! select: bit maps of all descriptors, of any length, copied in and out at each wait.

use std::net::SocketAddr;

use shared_ring::{Engine, poller};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// select(2), by pselect6(2).
pub struct Select(EventLoop<Engine<poller::Select>>);

impl Multiplexer for Select {
    const NAME: &'static str = "select";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "select, bit maps of any length";

    fn available() -> Result<(), Unavailable> {
        Ok(())
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        EventLoop::over_poller(poller::Select::default(), config).map(Select)
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
