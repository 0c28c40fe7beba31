//! PS2: events are delivered while the application works, and it looks for them when it has nothing
//! left to do (SEND 4.7).
//!
//! The kernel accepts a connection as it arrives, and the application hears of it later.

use send_core::{Delivery, SendKernel};

use super::{send_kernel, uring_available};
use crate::{Config, Family, Mechanism, StartError, Unavailable};

/// Polling SEND 2: immediate delivery, batched notification.
pub struct SendPs2;

impl Mechanism for SendPs2 {
    const NAME: &'static str = "send-ps2";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "SEND without interruption: delivered at once, told in batches";
    type Kernel = SendKernel;

    fn available() -> Result<(), Unavailable> {
        uring_available(Delivery::Ps2.mode())
    }

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        send_kernel(Delivery::Ps2, config)
    }
}
