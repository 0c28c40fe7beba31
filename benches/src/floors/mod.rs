//! Floors: baseline programs without parsing, which give a lower bound of a server's cost.
//!
//! Each file is an expert's minimal loop for one interface: it receives and sends. One read is one
//! request. A peer that never reads blocks the readiness floors, which are baselines, not servers.
//! A floor ends when its listener is shut down, so it needs no further descriptor to watch.

mod bare_ring;
mod connection;
mod epoll;
mod green;
mod null;
mod os_threads;
mod poll;
mod select;
#[cfg(test)]
mod tests;
mod tokio;
mod uring;

use std::io;
use std::net::TcpListener;

pub(crate) use bare_ring::{BareRing, Operation};
pub(crate) use connection::Task;

/// A floor: serves until the listener is shut down. Returns its number of system calls.
pub(crate) type Serve = fn(TcpListener, Task) -> io::Result<u64>;

/// Every floor, by the name of its interface.
pub(crate) const ALL: [(&str, Serve); 7] = [
    ("epoll", epoll::serve),
    ("poll", poll::serve),
    ("select", select::serve),
    ("uring", uring::serve),
    ("tokio", tokio::serve),
    ("green", green::serve),
    ("os-threads", os_threads::serve),
];

/// Returns the floor `name`, or the server `null`, against which load generators are measured.
pub(crate) fn named(name: &str) -> Option<Serve> {
    if name == "null" {
        return Some(null::serve);
    }
    ALL.iter().find(|(n, _)| *n == name).map(|(_, serve)| *serve)
}

/// Returns the name of the floor of a mechanism: on the same interface, or on the one that it is compared with.
pub(crate) fn for_mechanism(mechanism: &str) -> Option<&'static str> {
    let interface = match mechanism {
        // The paper's baseline, too, is the same server on epoll (FlexSC, section 6).
        "epoll-edge" | "flexsc" => "epoll",
        // No floor takes events by interruption.
        "send" | "send-ps1" | "send-ps2" => "uring",
        other => other,
    };
    ALL.iter().map(|(name, _)| *name).find(|name| *name == interface)
}
