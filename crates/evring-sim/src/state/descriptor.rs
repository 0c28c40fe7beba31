//! A descriptor of the program.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;

use super::arrivals::Datagrams;
use crate::stream::End;

/// The object behind a descriptor.
#[derive(Debug)]
pub(crate) enum DescriptorKind {
    Listener(u32),
    /// An unconnected socket.
    Fresh,
    /// A socket that is connecting: the number of the attempt, and the address.
    Connecting(u64, SocketAddr),
    /// A socket whose connect failed; the error was not reported yet.
    Refused(Errno),
    Connected(End),
    /// A socket for datagrams.
    Datagrams(Datagrams),
    /// A file, and whether it may be written to.
    File(u32, bool),
    Event(Arc<AtomicU64>),
}

#[derive(Debug, Default)]
pub(super) struct Descriptor {
    pub(super) kind: Option<DescriptorKind>,
    /// Is in the list of changed descriptors.
    pub(super) is_changed: bool,
    pub(super) resets: bool,
    /// Number of times that a descriptor with this number was opened.
    pub(super) openings: u32,
}
