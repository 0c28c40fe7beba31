//! may_minihttp as a server under test: `benches/peers/may-minihttp`.

use super::external::Origin::Built;
use super::external::{External, arguments};

/// See the module.
pub(super) const MAY_MINIHTTP: External =
    External { name: "may-minihttp", origin: Built, configure: arguments };
