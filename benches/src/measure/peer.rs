//! The servers that are measured beside each other.

use std::fmt;

use super::Subject;
use crate::command::{What, Work};

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// This project's, on a mechanism.
    Ours(&'static str),
    /// The least program on an interface.
    Floor(&'static str),
    /// nginx, in a configuration.
    Nginx(&'static str),
    Hyper,
    /// The proxy of the examples, on a mechanism.
    Proxy(&'static str),
}

use Peer::{Floor, Hyper, Nginx, Ours, Proxy};

impl Peer {
    /// What is to be started.
    pub(crate) fn subject(self) -> Subject {
        let (what, mechanism) = match self {
            Ours(mechanism) => (What::Httpd, mechanism),
            Floor(interface) => (What::Floor, interface),
            Nginx(configuration) => (What::Nginx, configuration),
            Hyper => (What::Hyper, "tokio"),
            Proxy(mechanism) => (What::Proxy, mechanism),
        };
        Subject { what, mechanism: mechanism.to_owned(), work: Work::File }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ours(mechanism) | Proxy(mechanism) => f.write_str(mechanism),
            Floor(interface) => write!(f, "{interface} floor"),
            Nginx(configuration) => write!(f, "nginx {configuration}"),
            Hyper => f.write_str("hyper"),
        }
    }
}
