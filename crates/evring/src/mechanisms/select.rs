//! select: bit maps of all descriptors, of any length, copied in and out at each wait.

use shared_ring::{Engine, poller};

use super::engine;
use crate::{Config, Family, Mechanism, StartError};

/// select(2), by pselect6(2).
pub struct Select;

impl Mechanism for Select {
    const NAME: &'static str = "select";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "select, bit maps of any length";
    type Kernel = Engine<poller::Select>;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        engine(poller::Select::default(), config)
    }
}
