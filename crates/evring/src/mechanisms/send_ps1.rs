//! PS1: events are delivered when the application has no work left and polls for them (SEND 4.7).
//!
//! The kernel accepts connections only then. This is Banga's interface, built from SEND.

use std::net::SocketAddr;

use send_core::{Delivery, SendKernel};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// Polling SEND 1: batched delivery and notification.
pub struct SendPs1(EventLoop<SendKernel>);

impl Multiplexer for SendPs1 {
    const NAME: &'static str = "send-ps1";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "SEND without interruption: delivery and notification in batches";

    fn available() -> Result<(), Unavailable> {
        EventLoop::send_available(Delivery::Ps1)
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        EventLoop::over_send(Delivery::Ps1, config).map(SendPs1)
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
