//! /dev/poll as measured on Linux: the kernel keeps the interest set, and each wait scans all of it for
//! hints (SEND 2.3.1).

use std::net::SocketAddr;

use shared_ring::{Engine, poller};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// /dev/poll by Provos and Lever, with epoll's edges as hints.
pub struct Devpoll(EventLoop<Engine<poller::DevPoll>>);

impl Multiplexer for Devpoll {
    const NAME: &'static str = "devpoll";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "/dev/poll, an interest set scanned for hints";

    fn available() -> Result<(), Unavailable> {
        Ok(())
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        let poller = poller::DevPoll::new()
            .map_err(|error| StartError::System("cannot set up epoll", error))?;
        EventLoop::over_poller(poller, config).map(Devpoll)
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
