//! epoll, edge-triggered: each socket is registered once and each change reported once, so the mechanism
//! must remember unused readiness.

use shared_ring::poller;

use super::kernels::{BoxedEngine, boxed_engine};
use crate::{Config, Family, Mechanism, StartError};

/// epoll(7), edge-triggered (`EPOLLET`).
#[derive(Debug)]
pub struct EpollEdge;

impl Mechanism for EpollEdge {
    const NAME: &'static str = "epoll-edge";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "epoll, edge-triggered";
    type Kernel = BoxedEngine;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let poller = poller::EpollEdge::new()
            .map_err(|error| StartError::System("cannot set up epoll", error))?;
        boxed_engine(poller, config)
    }
}
