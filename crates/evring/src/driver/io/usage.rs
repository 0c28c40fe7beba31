//! What a server uses, for the simulation to see that it is bounded.

use std::collections::BTreeMap;

use shared_ring::{GatherList, Submit};

use super::{Io, SPARE};
use crate::Application;
use crate::driver::Driver;
use crate::driver::connection::{Connection, Phase, SendItem};

/// What a server uses between two callbacks: sums, and of some things the most that any connection has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Whether the server is stopping.
    pub stopping: bool,
    /// Connections, those that are opened or closed included.
    pub connections: usize,
    /// Connections that were accepted and are not let in.
    pub deferred: usize,
    /// Sockets that the driver has to close, listeners among them.
    pub sockets: usize,
    /// Of the latter, those that it has asked the kernel to close.
    pub closing: usize,
    /// Listeners.
    pub listeners: usize,
    /// How much an application may leave unconsumed.
    pub max_unconsumed: usize,
    /// Most unconsumed bytes of a connection, and most memory for them.
    pub tail: usize,
    /// See [`tail`](Usage::tail).
    pub tail_memory: usize,
    /// Most bytes queued on a connection, those in the send in flight included.
    pub queued: usize,
    /// Most memory that a queue holds, without the send in flight.
    pub queue_memory: usize,
    /// Bytes by which the memory that is counted for all connections differs from what they hold.
    pub miscounted: usize,
    /// Connections that were reset as their address had its share.
    pub refused_addresses: u64,
    /// Places taken by all addresses together, the most of one, and those of the connections that there are;
    /// see [`Config::max_per_address`](crate::Config::max_per_address).
    pub shares: usize,
    /// See [`shares`](Usage::shares).
    pub largest_share: usize,
    /// See [`shares`](Usage::shares).
    pub with_share: usize,
    /// Most files that wait to be sent on a connection, and on all together.
    pub queued_files: usize,
    /// See [`queued_files`](Usage::queued_files).
    pub all_queued_files: usize,
    /// Work on files in flight, and waiting; most of both for a connection.
    pub file_ops: usize,
    /// See [`file_ops`](Usage::file_ops).
    pub deferred_file_ops: usize,
    /// See [`file_ops`](Usage::file_ops).
    pub file_ops_per_connection: usize,
    /// Lists of directories that are being made, or that the application has not been given.
    pub lists: usize,
    /// Lists and tails kept for later, and the most memory of one of the latest.
    pub spare: usize,
    /// See [`spare`](Usage::spare).
    pub spare_memory: usize,
}

/// How many of the lists that are kept for later are looked at each time.
const RECENT: usize = 4;

/// Looks at what a server uses.
pub(crate) type Inspector = Option<Box<dyn FnMut(&Usage)>>;

impl<K: Submit, A: Application> Driver<K, A> {
    /// Has what is used looked at.
    pub(crate) fn inspect(&mut self) {
        let Some(mut inspector) = self.io.inspector.take() else { return };
        inspector(&Usage { max_unconsumed: A::MAX_UNCONSUMED, ..self.io.usage() });
        self.io.inspector = Some(inspector);
    }
}

impl<K: Submit> Io<K> {
    fn usage(&self) -> Usage {
        let mut usage = Usage {
            stopping: self.stopping,
            refused_addresses: self.stats.refused_addresses,
            connections: self.open as usize,
            deferred: self.deferred.len(),
            sockets: self.deferred.len(),
            spare: self.spare.len() + self.spare_tails.len(),
            deferred_file_ops: self.deferred_file_ops.len() + self.waiting_lists.len(),
            lists: self.lists(),
            ..Usage::default()
        };
        for listener in self.listeners.iter().filter(|listener| !listener.is_closed()) {
            usage.listeners += 1;
            usage.sockets += 1;
            usage.closing += usize::from(listener.socket().is_none());
        }
        self.connections.iter().for_each(|connection| usage.add(connection));
        if let Some(shares) = &self.shares {
            let (all, largest) = shares.in_use();
            (usage.shares, usage.largest_share) = (all as usize, largest as usize);
        }
        let of_links = self.connections.iter().map(|connection| connection.from);
        let sources = of_links.chain(self.deferred.iter().map(|(_, _, from)| *from));
        usage.with_share = sources.flatten().count();
        usage.miscounted = self.held.abs_diff(self.connections.iter().map(Connection::holds).sum());
        // Those that were put there last; the others were looked at before.
        let lists = self.spare.iter().rev().take(RECENT).map(|list| list.held());
        let tails = self.spare_tails.iter().rev().take(RECENT).map(|tail| tail.capacity());
        usage.spare_memory = lists.chain(tails).max().unwrap_or(0);
        if usage.deferred_file_ops > 0 || !self.has_no_file_ops() {
            let mut each = BTreeMap::new();
            let file_ops = self.file_ops.iter().flatten();
            usage.file_ops = file_ops.clone().count();
            let waiting = self.deferred_file_ops.iter().chain(&self.waiting_lists);
            for work in file_ops.chain(waiting.map(|(work, _)| work)) {
                *each.entry((work.on.slot(), work.on.generation())).or_insert(0) += 1;
            }
            usage.file_ops_per_connection = each.into_values().max().unwrap_or(0);
        }
        usage
    }
}

impl Usage {
    fn add(&mut self, connection: &Connection) {
        if connection.phase == Phase::Vacant {
            return;
        }
        // A socket without a number here is being closed by the kernel.
        let closing = connection.socket.is_none()
            && connection.phase == Phase::Ending
            && connection.is_busy();
        self.closing += usize::from(closing);
        self.sockets += usize::from(closing || connection.socket.is_some());
        self.tail = self.tail.max(connection.tail.len());
        self.tail_memory = self.tail_memory.max(connection.tail.capacity());
        if connection.phase == Phase::Ending {
            return;
        }
        self.queued = self.queued.max(connection.queued);
        let items = connection.queue.iter().map(|item| match item {
            SendItem::Memory(list) => list.held(),
            SendItem::File(..) => size_of::<SendItem>(),
        });
        self.queue_memory = self.queue_memory.max(items.sum());
        self.queued_files = self.queued_files.max(connection.queue.files());
        self.all_queued_files += connection.queue.files();
    }
}

impl Usage {
    /// The least memory of a list.
    pub const LIST: usize = size_of::<GatherList>();
    /// Most lists and tails that are kept for later.
    pub const SPARE: usize = 2 * SPARE;
}
