//! The interface of Banga, Mogul and Druschel: interest is declared once per connection. A wait returns the
//! next events with the current state of their descriptors (Banga et al., sections 4 and 6).

use shared_ring::poller;

use super::kernels::{BoxedEngine, boxed_engine};
use crate::{Config, Family, Mechanism, StartError};

/// Declared interests, with epoll's edges as hints. For direct use, see [`shared_ring::interest`].
#[derive(Debug)]
pub struct Interest;

impl Mechanism for Interest {
    const NAME: &'static str = "interest";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "declared interests, events in order with their current state";
    type Kernel = BoxedEngine;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let poller = poller::InterestPoller::new()
            .map_err(|error| StartError::System("cannot set up epoll", error))?;
        boxed_engine(poller, config)
    }
}
