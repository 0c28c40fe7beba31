//! The list of external servers.

use super::external::External;
use super::{axum, h2o, haproxy, hyper, lighttpd, may_minihttp, memcached, nginx};
use crate::command::ServerKind;

/// Returns the external server for `what`, if it is one.
pub(crate) fn named(what: ServerKind) -> Option<External> {
    match what {
        ServerKind::Nginx => Some(nginx::NGINX),
        ServerKind::Lighttpd => Some(lighttpd::LIGHTTPD),
        ServerKind::Haproxy => Some(haproxy::HAPROXY),
        ServerKind::H2o => Some(h2o::H2O),
        ServerKind::Hyper => Some(hyper::HYPER),
        ServerKind::Axum => Some(axum::AXUM),
        ServerKind::MayMinihttp => Some(may_minihttp::MAY_MINIHTTP),
        ServerKind::Memcached => Some(memcached::MEMCACHED),
        _ => None,
    }
}
