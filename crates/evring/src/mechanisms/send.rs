//! SEND: events are delivered while the application runs and interrupt it; there is no batch.
//!
//! The kernel accepts a connection as it arrives. The handler that interrupts the application puts it into
//! the queue of new connections, which come first (SEND 4.3, figure 4.2).

use send_core::kernel::{Delivery, SendKernel};

use super::kernels::{send_kernel, uring_available};
use crate::{Config, Family, Mechanism, StartError, Unavailable};

/// SEND: immediate delivery, preemptive notification.
#[derive(Debug)]
pub struct Send;

impl Mechanism for Send {
    const NAME: &'static str = "send";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "SEND: events interrupt, new connections first, no batches";
    type Kernel = SendKernel;

    fn available() -> Result<(), Unavailable> {
        uring_available(Delivery::Preemptive.mode())
    }

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        send_kernel(Delivery::Preemptive, config)
    }
}
