//! PS2: events are delivered while the application runs, and it polls for them when it has no work left
//! (SEND 4.7).
//!
//! The kernel accepts a connection as it arrives; the application is notified later.

use std::net::SocketAddr;

use send_core::{Delivery, SendKernel};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// Polling SEND 2: immediate delivery, batched notification.
pub struct SendPs2(EventLoop<SendKernel>);

impl Multiplexer for SendPs2 {
    const NAME: &'static str = "send-ps2";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "SEND without interruption: immediate delivery, notification in batches";

    fn available() -> Result<(), Unavailable> {
        EventLoop::send_available(Delivery::Ps2)
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        EventLoop::over_send(Delivery::Ps2, config).map(SendPs2)
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
