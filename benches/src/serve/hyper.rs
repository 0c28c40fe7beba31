//! hyper on tokio as a server under test: `benches/peers/hyper`.

use super::external::Origin::Built;
use super::external::{External, arguments};

/// See the module.
pub(super) const HYPER: External = External { name: "hyper", origin: Built, configure: arguments };
