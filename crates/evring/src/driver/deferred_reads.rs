//! Reads of the application that are held back until their connection has sent what it has (ECEM, section 3.2).
//!
//! The pair is: disk read response => network write request. It exists while a read is held back.

use ecem::{Event, EventKind, EventManager};
use shared_ring::Outcome;

use super::io::file_requests::FileRequest;
use crate::{Config, ConnId};

/// Maximum number of reads that are held back. At the maximum the oldest one of the connection is delivered,
/// or, if it has none, the new one.
pub(crate) const MAX_DEFERRED_READS: usize = 256;

/// An object of events: a connection's file or its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    File(ConnId),
    Socket(ConnId),
}

/// Reads that are held back.
pub(crate) type DeferredReads = EventManager<(FileRequest, Outcome), Object>;

/// Returns the manager of reads without any.
pub(super) fn deferred_reads(config: &Config) -> DeferredReads {
    let mut bounds = ecem::Config::default();
    bounds.max_pairs = MAX_DEFERRED_READS;
    bounds.max_deferred = MAX_DEFERRED_READS;
    bounds.max_delay = config.max_read_delay;
    EventManager::new(&bounds)
}

/// Returns the events of the pair of a connection.
pub(super) fn pair_of(id: ConnId) -> (Event<Object>, Event<Object>) {
    let read = Event::new(Object::File(id), EventKind::DiskReadResponse);
    (read, Event::new(Object::Socket(id), EventKind::NetworkWriteRequest))
}
