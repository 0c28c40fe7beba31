//! Real-time signals: the kernel queues a signal for each event. The mechanism takes one at a time when
//! idle, and all at once while connections are being served. If the queue overflows, it falls back to poll
//! (SEND 2.4.2, after phhttpd).

use shared_ring::poller;

use super::kernels::{BoxedEngine, boxed_engine};
use crate::{Config, Family, Mechanism, StartError, Unavailable};

/// Real-time signals, taken by sigtimedwait(2). They stay blocked in the thread until this is dropped.
#[derive(Debug)]
pub struct RtSig;

impl Mechanism for RtSig {
    const NAME: &'static str = "rtsig";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "real-time signals, taken one at a time while idle";
    type Kernel = BoxedEngine;

    fn available() -> Result<(), Unavailable> {
        poller::RtSig::probe()
            .map_err(|error| Unavailable(format!("cannot enable signals for descriptors: {error}")))
    }

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let poller = poller::RtSig::new()
            .map_err(|error| StartError::System("cannot set up real-time signals", error))?;
        boxed_engine(poller, config)
    }
}
