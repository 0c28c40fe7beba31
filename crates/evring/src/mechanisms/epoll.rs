//! epoll, level-triggered: the kernel keeps the interest set and reports a descriptor as long as it is
//! ready.

use shared_ring::{Engine, poller};

use super::kernels::engine;
use crate::{Config, Family, Mechanism, StartError};

/// epoll(7), level-triggered.
#[derive(Debug)]
pub struct Epoll;

impl Mechanism for Epoll {
    const NAME: &'static str = "epoll";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "epoll, level-triggered";
    type Kernel = Engine<poller::Epoll>;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let poller = poller::Epoll::new()
            .map_err(|error| StartError::System("cannot set up epoll", error))?;
        engine(poller, config)
    }
}
