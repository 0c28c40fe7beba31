//! poll: the application keeps the interest set and passes all of it to each wait.

use std::net::SocketAddr;

use shared_ring::{Engine, poller};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// poll(2).
pub struct Poll(EventLoop<Engine<poller::Poll>>);

impl Multiplexer for Poll {
    const NAME: &'static str = "poll";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "poll, all descriptors passed to each wait";

    fn available() -> Result<(), Unavailable> {
        Ok(())
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        EventLoop::over_poller(poller::Poll::default(), config).map(Poll)
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
