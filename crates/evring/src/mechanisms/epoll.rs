//! epoll, level-triggered: the kernel keeps the interest set and reports a descriptor as long as it is
//! ready.

use std::net::SocketAddr;

use shared_ring::{Engine, poller};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// epoll(7), level-triggered.
pub struct Epoll(EventLoop<Engine<poller::Epoll>>);

impl Multiplexer for Epoll {
    const NAME: &'static str = "epoll";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "epoll, level-triggered";

    fn available() -> Result<(), Unavailable> {
        Ok(())
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        let poller = poller::Epoll::new()
            .map_err(|error| StartError::System("cannot set up epoll", error))?;
        EventLoop::over_poller(poller, config).map(Epoll)
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
