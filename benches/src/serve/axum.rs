//! A router of axum under test: on hyper, `benches/peers/axum`, and on our server.

use super::external::Origin::Built;
use super::external::{External, arguments};

/// The router, which is the same file in both.
#[path = "../../peers/axum/src/router.rs"]
mod router;

pub(super) use router::router;

/// The router on hyper.
pub(super) const AXUM: External = External { name: "axum", origin: Built, configure: arguments };
