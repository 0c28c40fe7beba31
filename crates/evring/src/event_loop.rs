//! The event loop over a kernel, on which the mechanisms are built.

use std::net::SocketAddr;

#[cfg(any(feature = "send", feature = "send-ps1", feature = "send-ps2"))]
use send_core::{Delivery, SendKernel};
use shared_ring::poller::Poller;
use shared_ring::{Engine, EngineConfig, Kernel, KernelError, Mode, UringConfig, UringKernel};

use crate::driver::{Io, drive, open_listeners, open_roots, operations};
use crate::{Application, Config, RemoteHandle, StartError, Stats, Unavailable};

/// A server over any [`Kernel`], ready to run.
///
/// [`Config::engine_config`] and [`Config::uring_config`] return the configuration of the kernel.
pub struct EventLoop<K: Kernel> {
    io: Io<K>,
    addresses: Vec<SocketAddr>,
    remote: RemoteHandle,
}

impl<K: Kernel> EventLoop<K> {
    /// Opens the listeners and roots.
    ///
    /// # Errors
    /// Fails if the configuration is invalid, or a listener or root cannot be opened.
    pub fn new(mut kernel: K, config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let roots = open_roots(kernel.host_mut(), config)?;
        let (listeners, addresses) = open_listeners(kernel.host_mut(), config)?;
        let remote = RemoteHandle::new(kernel.waker());
        Ok(EventLoop { io: Io::new(kernel, config, roots, listeners), addresses, remote })
    }

    /// See [`Multiplexer::addresses`](crate::Multiplexer::addresses).
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// See [`Multiplexer::remote`](crate::Multiplexer::remote).
    pub fn remote(&self) -> RemoteHandle {
        self.remote.clone()
    }

    /// Calls `inspector` with the resource usage after each completion and each turn.
    #[cfg(feature = "sim")]
    pub fn inspect(&mut self, inspector: impl FnMut(&crate::Usage) + 'static) {
        self.io.inspector = Some(Box::new(inspector));
    }

    /// See [`Multiplexer::run`](crate::Multiplexer::run).
    ///
    /// # Errors
    /// Fails if the kernel fails.
    pub fn run<A: Application>(self, app: A) -> Result<Stats, KernelError> {
        drive(self.io, self.remote, app)
    }
}

impl<P: Poller> EventLoop<Engine<P>> {
    /// Sets up an event loop over a poller.
    pub(crate) fn over_poller(poller: P, config: &Config) -> Result<Self, StartError> {
        let engine = Engine::new(poller, &config.engine_config()?)
            .map_err(|error| StartError::System("cannot set up the event loop", error))?;
        EventLoop::new(engine, config)
    }
}

impl EventLoop<UringKernel> {
    /// Sets up an event loop over io_uring.
    pub(crate) fn over_uring(mode: Mode, config: &Config) -> Result<Self, StartError> {
        let ring = UringKernel::new(&config.uring_config(mode)?)
            .map_err(|error| Unavailable(error.to_string()))?;
        EventLoop::new(ring, config)
    }
}

#[cfg(any(feature = "send", feature = "send-ps1", feature = "send-ps2"))]
impl EventLoop<SendKernel> {
    /// Returns whether [`EventLoop::over_send`] is available.
    pub(crate) fn send_available(delivery: Delivery) -> Result<(), Unavailable> {
        UringKernel::probe(delivery.mode()).map_err(|error| Unavailable(error.to_string()))
    }

    /// Sets up an event loop over SEND: io_uring completions delivered as events.
    pub(crate) fn over_send(delivery: Delivery, config: &Config) -> Result<Self, StartError> {
        let ring = SendKernel::new(&config.uring_config(delivery.mode())?, delivery)
            .map_err(|error| Unavailable(error.to_string()))?;
        EventLoop::new(ring, config)
    }
}

impl Config {
    /// Returns the configuration of an [`Engine`].
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    pub fn engine_config(&self) -> Result<EngineConfig, StartError> {
        self.check()?;
        Ok(EngineConfig {
            operations: operations(self),
            buffers: self.buffers,
            buffer_size: self.buffer_size,
        })
    }

    /// Returns the configuration of a [`UringKernel`].
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    pub fn uring_config(&self, mode: Mode) -> Result<UringConfig, StartError> {
        self.check()?;
        Ok(UringConfig {
            mode,
            operations: operations(self),
            buffers: self.buffers,
            buffer_size: self.buffer_size,
        })
    }
}
