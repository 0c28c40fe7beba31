//! The signal for cancellations, which the simulated threads do not need.

use crate::error::Error;

pub(crate) fn install() -> Result<(), Error> {
    Ok(())
}
