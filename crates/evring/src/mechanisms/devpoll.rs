//! /dev/poll as it was measured on Linux: the interest set is kept, and a wait goes through all of it for
//! hints that something has happened (SEND 2.3.1).

use shared_ring::{Engine, poller};

use super::engine;
use crate::{Config, Family, Mechanism, StartError};

/// /dev/poll by Provos and Lever, with epoll's edges as its hints.
pub struct Devpoll;

impl Mechanism for Devpoll {
    const NAME: &'static str = "devpoll";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "/dev/poll, a set that is scanned for hints";
    type Kernel = Engine<poller::DevPoll>;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let poller = poller::DevPoll::new()
            .map_err(|error| StartError::System("epoll can't be used", error))?;
        engine(poller, config)
    }
}
