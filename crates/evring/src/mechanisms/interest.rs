//! The interface of Banga, Mogul and Druschel: interest is declared once per connection. A wait returns the
//! next events with the current state of their descriptors (Banga et al., sections 4 and 6).

use std::net::SocketAddr;

use shared_ring::{Engine, poller};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// Declared interests, with epoll's edges as hints. For direct use, see [`shared_ring::interest`].
pub struct Interest(EventLoop<Engine<poller::InterestPoller>>);

impl Multiplexer for Interest {
    const NAME: &'static str = "interest";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "declared interests, events in order with their current state";

    fn available() -> Result<(), Unavailable> {
        Ok(())
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        let poller = poller::InterestPoller::new()
            .map_err(|error| StartError::System("cannot set up epoll", error))?;
        EventLoop::over_poller(poller, config).map(Interest)
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
