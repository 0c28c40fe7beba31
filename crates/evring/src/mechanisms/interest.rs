//! Banga, Mogul and Druschel's interface: interest is declared once for each connection, and a wait takes
//! the next events, with the state that their descriptors are in now (Banga et al., sections 4 and 6).

use shared_ring::{Engine, poller};

use super::engine;
use crate::{Config, Family, Mechanism, StartError};

/// Declared interests, with epoll's edges as their hints; by hand, see [`shared_ring::interest`].
pub struct Interest;

impl Mechanism for Interest {
    const NAME: &'static str = "interest";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "declared interests, events in order with their current state";
    type Kernel = Engine<poller::InterestPoller>;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let poller = poller::InterestPoller::new()
            .map_err(|error| StartError::System("epoll can't be used", error))?;
        engine(poller, config)
    }
}
