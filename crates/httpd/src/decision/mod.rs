//! Decisions: pure functions over a request, a file's metadata and the configuration.

pub(crate) mod accept;
pub(crate) mod coding;
pub(crate) mod conditions;
pub(crate) mod options;
pub(crate) mod plan;
pub(crate) mod representation;
