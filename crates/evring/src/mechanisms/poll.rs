//! poll: the application keeps the interest set and passes all of it to each wait.

use shared_ring::poller;

use super::kernels::{BoxedEngine, boxed_engine};
use crate::{Config, Family, Mechanism, StartError};

/// poll(2).
#[derive(Debug)]
pub struct Poll;

impl Mechanism for Poll {
    const NAME: &'static str = "poll";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "poll, all descriptors passed to each wait";
    type Kernel = BoxedEngine;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        boxed_engine(poller::Poll::default(), config)
    }
}
