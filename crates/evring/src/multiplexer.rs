//! The trait that every mechanism implements.

use std::fmt;
use std::net::SocketAddr;

use shared_ring::KernelError;
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};

use crate::{Application, Config, Listener, RemoteHandle, StartError, Stats, Unavailable};

/// A mechanism's way of reporting events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Reports which descriptors are ready; the I/O follows.
    Readiness,
    /// Reports which operations are complete.
    Completion,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Readiness => "readiness",
            Family::Completion => "completion",
        })
    }
}

/// An event mechanism: it owns the loop and calls the application.
pub trait Multiplexer: Sized {
    /// Name by which users select it.
    const NAME: &'static str;
    /// The way it reports events.
    const FAMILY: Family;
    /// Short description.
    const SUMMARY: &'static str;

    /// Checks whether the mechanism can run on this machine.
    ///
    /// # Errors
    /// Returns the reason why not, as a message for the user.
    fn available() -> Result<(), Unavailable>;

    /// Opens the listeners and roots. Connections wait in the listen backlogs until `run`.
    ///
    /// # Errors
    /// Fails if the configuration is invalid, the mechanism is unavailable, or a listener or root cannot be
    /// opened.
    fn new(config: &Config) -> Result<Self, StartError>;

    /// Returns the local addresses of the listeners, in the order of [`Config::listen`].
    fn addresses(&self) -> &[SocketAddr];

    /// Returns a handle for other threads.
    fn remote(&self) -> RemoteHandle;

    /// Adds a group of receive buffers; see [`Commands::add_buffers`](crate::Commands::add_buffers).
    ///
    /// # Errors
    /// Those of that command.
    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError>;

    /// Chooses the buffer group of the connections that a listener accepts.
    ///
    /// # Errors
    /// If there is no such group, or no such listener.
    fn set_listener_group(&mut self, at: Listener, group: BufferGroup) -> Result<(), BufferError>;

    /// Runs the server until [`RemoteHandle::stop`].
    ///
    /// # Errors
    /// If a system call fails that the loop needs. The application is notified that each connection has closed.
    ///
    /// # Panics
    /// With the panic of a callback of the application, after all descriptors were closed.
    fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError>;
}
