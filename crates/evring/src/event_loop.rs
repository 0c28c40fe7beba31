//! The loop that runs applications on a mechanism's kernel.

use std::net::SocketAddr;

use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};
#[cfg(feature = "io-uring")]
use shared_ring::uring::{Mode, UringConfig};
use shared_ring::{EngineConfig, Kernel, KernelError};

use crate::driver::{Io, Usage, drive, open_listeners, open_roots, operations};
use crate::{
    Application, Commands, Config, Family, Listener, Multiplexer, RemoteHandle, StartError, Stats,
    Unavailable,
};

/// A mechanism, as the kernel that it sets up. [`MechanismLoop`] runs applications on it.
pub trait Mechanism: 'static {
    /// The name by which users choose it.
    const NAME: &'static str;
    /// How it reports events.
    const FAMILY: Family;
    /// A description of a few words.
    const SUMMARY: &'static str;
    /// Its kernel.
    type Kernel: Kernel;

    /// Returns whether it can run on this machine.
    ///
    /// # Errors
    /// The reason why not, which a user can act on.
    fn available() -> Result<(), Unavailable> {
        Ok(())
    }

    /// Sets up its kernel; [`Config::engine_config`] and [`Config::uring_config`] give the sizes.
    ///
    /// # Errors
    /// The feature that is missing, or the step that failed.
    fn kernel(config: &Config) -> Result<Self::Kernel, StartError>;
}

/// The loop of a mechanism.
pub struct MechanismLoop<M: Mechanism>(EventLoop<M::Kernel>);

impl<M: Mechanism> std::fmt::Debug for MechanismLoop<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MechanismLoop")
            .field("name", &M::NAME)
            .field("addresses", &self.0.addresses)
            .finish_non_exhaustive()
    }
}

impl<M: Mechanism> Multiplexer for MechanismLoop<M> {
    const NAME: &'static str = M::NAME;
    const FAMILY: Family = M::FAMILY;
    const SUMMARY: &'static str = M::SUMMARY;

    fn available() -> Result<(), Unavailable> {
        M::available()
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        EventLoop::new(M::kernel(config)?, config).map(MechanismLoop)
    }

    fn addresses(&self) -> &[SocketAddr] {
        self.0.addresses()
    }

    fn remote(&self) -> RemoteHandle {
        self.0.remote()
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.0.add_buffers(buffers)
    }

    fn set_listener_group(&mut self, at: Listener, group: BufferGroup) -> Result<(), BufferError> {
        self.0.set_listener_group(at, group)
    }

    fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError> {
        self.0.run(app)
    }
}

impl<M: Mechanism> MechanismLoop<M> {
    /// See [`EventLoop::run_inspected`].
    #[doc(hidden)]
    pub fn run_inspected<A: Application + 'static>(
        self,
        app: A,
        inspect: impl FnMut(&Usage) + 'static,
    ) -> Result<Stats, KernelError> {
        self.0.run_inspected(app, inspect)
    }
}

/// A server over any [`Kernel`], set up and ready to run.
///
/// [`Config::engine_config`] and [`Config::uring_config`] give the kernel's sizes.
pub struct EventLoop<K: Kernel> {
    io: Io<K>,
    addresses: Vec<SocketAddr>,
    remote: RemoteHandle,
}

impl<K: Kernel> std::fmt::Debug for EventLoop<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl<K: Kernel> EventLoop<K> {
    /// Opens the listeners and roots.
    ///
    /// # Errors
    /// If the configuration is invalid, or a listener or root cannot be opened.
    pub fn new(mut kernel: K, config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let roots = open_roots(kernel.host_mut(), config)?;
        let (listeners, addresses) = open_listeners(kernel.host_mut(), config)?;
        let remote = RemoteHandle::new(kernel.waker());
        Ok(EventLoop { io: Io::new(kernel, config, roots, listeners), addresses, remote })
    }

    /// See [`Multiplexer::addresses`].
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// See [`Multiplexer::remote`].
    pub fn remote(&self) -> RemoteHandle {
        self.remote.clone()
    }

    /// See [`Multiplexer::add_buffers`].
    ///
    /// # Errors
    /// Those of [`Multiplexer::add_buffers`].
    pub fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.io.add_buffers(buffers)
    }

    /// See [`Multiplexer::set_listener_group`].
    ///
    /// # Errors
    /// Those of [`Multiplexer::set_listener_group`].
    pub fn set_listener_group(
        &mut self,
        at: Listener,
        group: BufferGroup,
    ) -> Result<(), BufferError> {
        self.io.set_listener_group(at, group)
    }

    /// See [`Multiplexer::run`].
    ///
    /// # Errors
    /// If the kernel cannot be used any more.
    pub fn run<A: Application>(self, app: A) -> Result<Stats, KernelError> {
        drive(self.io, self.remote, app, |_| {})
    }

    /// As `run`, and calls `inspect` with what the server uses, after each completion and each turn.
    #[doc(hidden)]
    pub fn run_inspected<A: Application>(
        self,
        app: A,
        mut inspect: impl FnMut(&Usage),
    ) -> Result<Stats, KernelError> {
        drive(self.io, self.remote, app, |driver| inspect(&driver.usage()))
    }
}

impl Config {
    /// Returns the configuration of an [`Engine`](shared_ring::Engine).
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    pub fn engine_config(&self) -> Result<EngineConfig, StartError> {
        self.check()?;
        Ok(EngineConfig::new(operations(self), self.buffers, self.buffer_size))
    }

    /// Returns the configuration of a [`UringKernel`](shared_ring::uring::UringKernel).
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    #[cfg(feature = "io-uring")]
    pub fn uring_config(&self, mode: Mode) -> Result<UringConfig, StartError> {
        self.check()?;
        Ok(UringConfig::new(mode, operations(self), self.buffers, self.buffer_size))
    }
}
