//! PS2: events are delivered while the application runs, and it polls for them when it has no work left
//! (SEND 4.7).
//!
//! The kernel accepts a connection as it arrives; the application is notified later.

use send_core::kernel::{Delivery, SendKernel};

use super::kernels::{send_kernel, uring_available};
use crate::{Config, Family, Mechanism, StartError, Unavailable};

/// Polling SEND 2: immediate delivery, batched notification.
#[derive(Debug)]
pub struct SendPs2;

impl Mechanism for SendPs2 {
    const NAME: &'static str = "send-ps2";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str =
        "SEND without interruption: immediate delivery, notification in batches";
    type Kernel = SendKernel;

    fn available() -> Result<(), Unavailable> {
        uring_available(Delivery::Ps2.mode())
    }

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        send_kernel(Delivery::Ps2, config)
    }
}
