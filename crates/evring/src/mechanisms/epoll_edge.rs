//! epoll, edge-triggered: each socket is registered once and each change reported once, so the mechanism
//! must remember unused readiness.

use std::net::SocketAddr;

use shared_ring::{Engine, poller};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// epoll(7), edge-triggered (`EPOLLET`).
pub struct EpollEdge(EventLoop<Engine<poller::EpollEdge>>);

impl Multiplexer for EpollEdge {
    const NAME: &'static str = "epoll-edge";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "epoll, edge-triggered";

    fn available() -> Result<(), Unavailable> {
        Ok(())
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        let poller = poller::EpollEdge::new()
            .map_err(|error| StartError::System("cannot set up epoll", error))?;
        EventLoop::over_poller(poller, config).map(EpollEdge)
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
