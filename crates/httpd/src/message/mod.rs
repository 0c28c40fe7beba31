//! Bytes and values: parsing of requests, and what their parts mean. Nothing here knows files or
//! connections.

pub(crate) mod body;
mod byte_set;
pub(crate) mod conversion;
pub(crate) mod head_errors;
pub(crate) mod host;
pub(crate) mod path;
pub(crate) mod range;
pub(crate) mod request;
pub(crate) mod split;
pub(crate) mod status;
