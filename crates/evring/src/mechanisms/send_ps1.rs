//! PS1: events are delivered when the application has no work left and polls for them (SEND 4.7).
//!
//! The kernel accepts connections only then. This is Banga's interface, built from SEND.

use send_core::kernel::{Delivery, SendKernel};

use super::kernels::{send_kernel, uring_available};
use crate::{Config, Family, Mechanism, StartError, Unavailable};

/// Polling SEND 1: batched delivery and notification.
#[derive(Debug)]
pub struct SendPs1;

impl Mechanism for SendPs1 {
    const NAME: &'static str = "send-ps1";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "SEND without interruption: delivery and notification in batches";
    type Kernel = SendKernel;

    fn available() -> Result<(), Unavailable> {
        uring_available(Delivery::Ps1.mode())
    }

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        send_kernel(Delivery::Ps1, config)
    }
}
