//! epoll, edge-triggered: each socket is put into the set once, and its changes are reported once, so
//! that what was not used up must be remembered.

use shared_ring::{Engine, poller};

use super::engine;
use crate::{Config, Family, Mechanism, StartError};

/// epoll(7), edge-triggered (`EPOLLET`).
pub struct EpollEdge;

impl Mechanism for EpollEdge {
    const NAME: &'static str = "epoll-edge";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "epoll, edge-triggered";
    type Kernel = Engine<poller::EpollEdge>;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let poller = poller::EpollEdge::new()
            .map_err(|error| StartError::System("epoll can't be used", error))?;
        engine(poller, config)
    }
}
