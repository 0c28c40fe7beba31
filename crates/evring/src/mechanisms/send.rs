//! SEND: events are delivered while the application runs and interrupt it; there is no batch.
//!
//! The kernel accepts a connection as it arrives. The handler that interrupts the application puts it into
//! the queue of new connections, which come first (SEND 4.3, figure 4.2).

use std::net::SocketAddr;

use send_core::{Delivery, SendKernel};

use crate::{Application, Config, Family, KernelError, EventLoop, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// SEND: immediate delivery, preemptive notification.
pub struct Send(EventLoop<SendKernel>);

impl Multiplexer for Send {
    const NAME: &'static str = "send";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "SEND: events interrupt, new connections first, no batches";

    fn available() -> Result<(), Unavailable> {
        EventLoop::send_available(Delivery::Preemptive)
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        EventLoop::over_send(Delivery::Preemptive, config).map(Send)
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
