//! Real-time signals: the kernel queues one for each thing that happens, and they are taken one at a time,
//! and all at once while others are being served. When the queue overflows, poll tells how things stand
//! (SEND 2.4.2, after phhttpd).

use shared_ring::{Engine, poller};

use super::engine;
use crate::{Config, Family, Mechanism, StartError, Unavailable};

/// Real-time signals, by sigtimedwait(2). They stay blocked in the thread as long as this lives.
pub struct Rtsig;

impl Mechanism for Rtsig {
    const NAME: &'static str = "rtsig";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "real-time signals, taken one at a time while idle";
    type Kernel = Engine<poller::RtSig>;

    fn available() -> Result<(), Unavailable> {
        poller::RtSig::probe()
            .map_err(|error| Unavailable(format!("descriptors can't signal here: {error}")))
    }

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let poller = poller::RtSig::new()
            .map_err(|error| StartError::System("signals can't be used", error))?;
        engine(poller, config)
    }
}
