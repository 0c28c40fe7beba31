//! The loop over a kernel, of which the mechanisms are made.

use std::net::SocketAddr;

#[cfg(any(feature = "send", feature = "send-ps1", feature = "send-ps2"))]
use send_core::{Delivery, SendKernel};
use shared_ring::poller::Poller;
use shared_ring::{Engine, EngineConfig, Fault, Kernel, Mode, UringConfig, UringKernel};

use crate::driver::{Io, drive, gates, operations, roots};
use crate::{Application, Config, Remote, StartError, Stats, Unavailable};

/// A server over any [`Kernel`], set up and about to run: what a mechanism is made of.
///
/// [`Config::engine`] and [`Config::ring`] say how large the kernel should be.
pub struct Loop<K: Kernel> {
    io: Io<K>,
    addresses: Vec<SocketAddr>,
    remote: Remote,
}

impl<K: Kernel> Loop<K> {
    /// Opens the listeners and roots.
    ///
    /// # Errors
    /// Says what is in the way.
    pub fn new(mut kernel: K, config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let roots = roots(kernel.host_mut(), config)?;
        let (gates, addresses) = gates(kernel.host_mut(), config)?;
        let remote = Remote::new(kernel.waker());
        Ok(Loop { io: Io::new(kernel, config, roots, gates), addresses, remote })
    }

    /// See [`Multiplexer::addresses`](crate::Multiplexer::addresses).
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// See [`Multiplexer::remote`](crate::Multiplexer::remote).
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }

    /// Has somebody look at what the server uses, after each completion and each turn.
    #[cfg(feature = "sim")]
    pub fn inspect(&mut self, inspector: impl FnMut(&crate::Usage) + 'static) {
        self.io.inspector = Some(Box::new(inspector));
    }

    /// See [`Multiplexer::run`](crate::Multiplexer::run).
    ///
    /// # Errors
    /// When the kernel can't be used any more.
    pub fn run<A: Application>(self, app: A) -> Result<Stats, Fault> {
        drive(self.io, self.remote, app)
    }
}

impl<P: Poller> Loop<Engine<P>> {
    /// Over this machine's sockets and a poller.
    pub(crate) fn polling(poller: P, config: &Config) -> Result<Self, StartError> {
        let engine = Engine::new(poller, &config.engine()?)
            .map_err(|error| StartError::System("the event loop can't be set up", error))?;
        Loop::new(engine, config)
    }
}

impl Loop<UringKernel> {
    /// Over this machine's io_uring.
    pub(crate) fn ringing(mode: Mode, config: &Config) -> Result<Self, StartError> {
        let ring = UringKernel::new(&config.ring(mode)?)
            .map_err(|missing| Unavailable(missing.to_string()))?;
        Loop::new(ring, config)
    }
}

#[cfg(any(feature = "send", feature = "send-ps1", feature = "send-ps2"))]
impl Loop<SendKernel> {
    /// Whether [`Loop::sending`] can run here.
    pub(crate) fn sending_available(delivery: Delivery) -> Result<(), Unavailable> {
        UringKernel::probe(delivery.mode()).map_err(|missing| Unavailable(missing.to_string()))
    }

    /// Over this machine's io_uring, whose completions are delivered as events.
    pub(crate) fn sending(delivery: Delivery, config: &Config) -> Result<Self, StartError> {
        let ring = SendKernel::new(&config.ring(delivery.mode())?, delivery)
            .map_err(|unusable| Unavailable(unusable.to_string()))?;
        Loop::new(ring, config)
    }
}

impl Config {
    /// How an [`Engine`] has to be set up.
    ///
    /// # Errors
    /// When the numbers make no sense.
    pub fn engine(&self) -> Result<EngineConfig, StartError> {
        self.check()?;
        Ok(EngineConfig {
            operations: operations(self),
            buffers: self.buffers,
            buffer_size: self.buffer_size,
        })
    }

    /// How a [`UringKernel`] has to be set up.
    ///
    /// # Errors
    /// When the numbers make no sense.
    pub fn ring(&self, mode: Mode) -> Result<UringConfig, StartError> {
        self.check()?;
        Ok(UringConfig {
            mode,
            operations: operations(self),
            buffers: self.buffers,
            buffer_size: self.buffer_size,
        })
    }
}
