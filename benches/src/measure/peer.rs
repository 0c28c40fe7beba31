//! The servers that are compared.

use std::fmt;

use super::Subject;
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::serve;

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// This project's web server, on a mechanism.
    Ours(&'static str),
    /// The floor for an interface.
    Floor(&'static str),
    /// nginx, in a configuration.
    Nginx(&'static str),
    /// lighttpd, on an event handler.
    Lighttpd(&'static str),
    Haproxy,
    H2o,
    Hyper,
    /// A router of axum on hyper.
    Axum,
    MayMinihttp,
    /// The example proxy, on a mechanism.
    Proxy(&'static str),
    /// This project's web server, on a mechanism, with a policy for sending files.
    Delivery(&'static str, &'static str),
    /// A blocking process for each connection, which sends by a method.
    Plain(&'static str),
}

use Peer::{
    Axum, Delivery, Floor, H2o, Haproxy, Hyper, Lighttpd, MayMinihttp, Nginx, Ours, Plain, Proxy,
};

impl Peer {
    /// Returns the program to start.
    pub(crate) fn subject(self) -> Subject {
        let (what, mechanism) = match self {
            Ours(mechanism) => (ServerKind::Httpd, mechanism),
            Floor(interface) => (ServerKind::Floor, interface),
            Nginx(configuration) => (ServerKind::Nginx, configuration),
            Lighttpd(handler) => (ServerKind::Lighttpd, handler),
            Haproxy => (ServerKind::Haproxy, "epoll"),
            H2o => (ServerKind::H2o, "epoll"),
            Hyper => (ServerKind::Hyper, "tokio"),
            Axum => (ServerKind::Axum, "tokio"),
            MayMinihttp => (ServerKind::MayMinihttp, "may"),
            Proxy(mechanism) => (ServerKind::Proxy, mechanism),
            Plain(method) => (ServerKind::Plain, method),
            Delivery(mechanism, policy) => {
                let mechanism = format!("{mechanism}/{policy}");
                return Subject { what: ServerKind::Delivery, mechanism, work: Workload::File };
            }
        };
        Subject { what, mechanism: mechanism.to_owned(), work: Workload::File }
    }
}

impl Peer {
    /// Returns its name in the names of ratios.
    pub(crate) fn short_name(self) -> String {
        match self {
            Nginx("tuned") => "nginx".to_owned(),
            peer => peer.to_string().replace(['-', ' '], "_"),
        }
    }

    /// Returns the version of an external server, or `None` for ours. With `build`, a library's server
    /// is built first.
    ///
    /// # Errors
    /// If it is not installed, or cannot be built.
    pub(crate) fn find(self, build: bool) -> Result<Option<String>, Failure> {
        serve::named(self.subject().what).map(|external| external.find(build)).transpose()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ours(mechanism) | Proxy(mechanism) => f.write_str(mechanism),
            Floor(interface) => write!(f, "{interface} floor"),
            Nginx(configuration) => write!(f, "nginx {configuration}"),
            Lighttpd(handler) => write!(f, "lighttpd {handler}"),
            Delivery(mechanism, policy) => write!(f, "{mechanism} {policy}"),
            Plain(method) => write!(f, "process {method}"),
            Haproxy => f.write_str("haproxy"),
            H2o => f.write_str("h2o"),
            Hyper => f.write_str("hyper"),
            Axum => f.write_str("axum"),
            MayMinihttp => f.write_str("may_minihttp"),
        }
    }
}
