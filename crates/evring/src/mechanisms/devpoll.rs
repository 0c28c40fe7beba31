//! /dev/poll as measured on Linux: the kernel keeps the interest set, and each wait scans all of it for
//! hints (SEND 2.3.1).

use shared_ring::poller;

use super::kernels::{BoxedEngine, boxed_engine};
use crate::{Config, Family, Mechanism, StartError};

/// /dev/poll by Provos and Lever, with epoll's edges as hints.
#[derive(Debug)]
pub struct DevPoll;

impl Mechanism for DevPoll {
    const NAME: &'static str = "devpoll";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "/dev/poll, an interest set scanned for hints";
    type Kernel = BoxedEngine;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let poller = poller::DevPoll::new()
            .map_err(|error| StartError::System("cannot set up epoll", error))?;
        boxed_engine(poller, config)
    }
}
