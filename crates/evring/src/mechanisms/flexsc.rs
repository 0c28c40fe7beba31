//! FlexSC: the stages of a connection post their system calls as entries of syscall pages, which are
//! executed in one batch per turn (FlexSC 4).

use flexsc_rt::kernel::FlexScKernel;

use crate::{Config, Family, Mechanism, StartError};

/// FlexSC: exception-less system calls.
#[derive(Debug)]
pub struct FlexSc;

impl Mechanism for FlexSc {
    const NAME: &'static str = "flexsc";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "FlexSC: system calls posted to pages, executed in batches";
    type Kernel = FlexScKernel;

    fn kernel(config: &Config) -> Result<Self::Kernel, StartError> {
        let engine = config.engine_config()?;
        FlexScKernel::with_workers(&engine, config.workers).map_err(|error| {
            StartError::System("cannot register syscall pages", std::io::Error::other(error))
        })
    }
}
