//! What all readiness mechanisms share: the driver over the non-blocking engine over a poller.

use std::net::SocketAddr;

use shared_ring::poller::Poller;
use shared_ring::{Engine, EngineConfig, Fault, Submit};

use crate::driver::{Io, Never, drive, gates, operations, roots};
use crate::{Application, Config, Remote, StartError, Stats};

/// A readiness mechanism that is set up.
pub(crate) struct Readiness<P: Poller> {
    io: Io<Engine<P>>,
    addresses: Vec<SocketAddr>,
    remote: Remote,
}

impl<P: Poller> Readiness<P> {
    pub(crate) fn new(poller: P, config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let engine = EngineConfig {
            operations: operations(config),
            buffers: config.buffers,
            buffer_size: config.buffer_size,
        };
        let mut kernel = Engine::new(poller, &engine)
            .map_err(|error| StartError::System("the event loop can't be set up", error))?;
        let roots = roots(kernel.host_mut(), config)?;
        let (gates, addresses) = gates(kernel.host_mut(), config)?;
        let remote = Remote::new(kernel.waker());
        Ok(Readiness { io: Io::new(kernel, config, roots, gates), addresses, remote })
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(crate) fn remote(&self) -> Remote {
        self.remote.clone()
    }

    pub(crate) fn run<A: Application>(self, app: A) -> Result<Stats, Fault> {
        drive(self.io, self.remote, app, &mut Never)
    }
}
