//! Kernels that several mechanisms share.

#[cfg(any(feature = "send", feature = "send-ps1", feature = "send-ps2"))]
use send_core::kernel::{Delivery, SendKernel};
use shared_ring::Engine;
use shared_ring::poller::Poller;
#[cfg(feature = "io-uring")]
use shared_ring::uring::{Mode, UringKernel};

use crate::{Config, StartError, Unavailable};

/// The kernel of all pollers but epoll. They share one type, so that an application is compiled once for
/// all of them.
pub(super) type BoxedEngine = Engine<Box<dyn Poller>>;

/// Sets up non-blocking system calls over a poller of the shared type.
pub(super) fn boxed_engine(
    poller: impl Poller + 'static,
    config: &Config,
) -> Result<BoxedEngine, StartError> {
    engine(Box::new(poller), config)
}

/// Sets up non-blocking system calls over a poller.
pub(super) fn engine<P: Poller>(poller: P, config: &Config) -> Result<Engine<P>, StartError> {
    Engine::new(poller, &config.engine_config()?)
        .map_err(|error| StartError::System("cannot set up the event loop", error))
}

/// Sets up io_uring.
#[cfg(feature = "io-uring")]
pub(super) fn uring(mode: Mode, config: &Config) -> Result<UringKernel, StartError> {
    Ok(UringKernel::new(&config.uring_config(mode)?).map_err(unavailable)?)
}

/// Sets up io_uring whose completions are delivered as events.
#[cfg(any(feature = "send", feature = "send-ps1", feature = "send-ps2"))]
pub(super) fn send_kernel(delivery: Delivery, config: &Config) -> Result<SendKernel, StartError> {
    Ok(SendKernel::new(&config.uring_config(delivery.mode())?, delivery).map_err(unavailable)?)
}

/// Returns whether io_uring can run here in that mode.
#[cfg(feature = "io-uring")]
pub(super) fn uring_available(mode: Mode) -> Result<(), Unavailable> {
    UringKernel::probe(mode).map_err(unavailable)
}

fn unavailable(reason: impl std::fmt::Display) -> Unavailable {
    Unavailable(reason.to_string())
}
