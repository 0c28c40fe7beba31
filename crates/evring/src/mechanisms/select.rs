//! select: bit maps of all descriptors, of any length, copied in and out at each wait.

use shared_ring::poller;

use super::kernels::{BoxedEngine, boxed_engine};
use crate::{Config, Family, Mechanism, StartError};

/// select(2), by pselect6(2).
#[derive(Debug)]
pub struct Select;

impl Mechanism for Select {
    const NAME: &'static str = "select";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "select, bit maps of any length";
    type Kernel = BoxedEngine;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        boxed_engine(poller::Select::default(), config)
    }
}
