//! The table of bounds in ARCHITECTURE.md, as far as a server itself can compare what it uses with it.

use super::usage::Usage;
use crate::{Config, HIGH_WATER};

/// Maximum number of operations of a connection in flight: a receive and a send, or only a connect or a close.
const MAX_CONN_OPS: usize = 2;

/// Maximum number of file operations of a connection, including deferred ones.
const MAX_CONN_FILE_OPS: usize = 16;

/// Maximum number of directory listings at a time.
const MAX_LISTS: usize = 4;

/// Memory with which a connection does not end, whatever the others hold, in bytes.
const MIN_HELD_BYTES: usize = 1024;

/// Maximum memory of one piece kept for reuse, and overhead of a list, in bytes.
const MAX_KEPT_BYTES: usize = 64 * 1024;

impl Usage {
    /// Maximum memory of the queue of a connection, in bytes: a list holds its sent bytes until all of them are sent,
    /// and vectors double.
    pub fn max_queue_memory(config: &Config) -> usize {
        4 * config.max_queued_bytes + MAX_KEPT_BYTES
    }

    /// Returns the first bound that is exceeded: its subject, the value and the maximum. A connection may receive
    /// `landed` bytes before a pause takes effect.
    pub fn exceeded(&self, config: &Config, landed: usize) -> Option<(&'static str, usize, usize)> {
        let connections = config.max_connections as usize;
        // One waits for each listener. Connections that the program opens take the room of accepts in flight.
        let listeners = config.listen.len();
        let in_flight = if self.connected > 0 { config.backlog.max(16) as usize } else { 0 };
        let accepted = connections + listeners * (1 + in_flight);
        let tail = self.max_unconsumed + landed;
        let queue = Self::max_queue_memory(config);
        let per_address = config.max_per_address.map_or(0, |max| max as usize);
        let per_network = config.max_per_network.map_or(0, |max| max as usize);
        // A connection that holds little does not end for the others. The one that ends may have filled its queue.
        let held = config.max_buffered_bytes + connections * MIN_HELD_BYTES + queue + 2 * tail;
        let queued_files = config.max_queued_bytes / HIGH_WATER + 1;
        let file_ops = config.max_file_ops as usize;
        // As many lists as tails.
        let spare = 2 * connections.clamp(128, 1_024);
        let bounds = [
            ("connections", self.connections, connections),
            ("connections with those that wait", self.connections + self.deferred, accepted),
            ("operations of a connection in flight", self.operations_per_connection, MAX_CONN_OPS),
            ("unconsumed bytes", self.tail, tail),
            ("memory of unconsumed bytes", self.tail_memory, 2 * tail + MAX_KEPT_BYTES),
            ("queued bytes", self.queued, config.max_queued_bytes),
            ("memory of queued bytes", self.queue_memory, queue),
            ("memory of all connections", self.held, held),
            ("bytes of files read ahead", self.read_ahead_bytes, config.max_buffered_bytes / 2),
            ("bytes of writes to files", self.write_bytes, config.max_buffered_bytes),
            ("queued files of a connection", self.queued_files, queued_files),
            ("kept lists and tails", self.spare, spare),
            ("memory of a kept list or tail", self.spare_memory, MAX_KEPT_BYTES + Self::LIST),
            ("file operations", self.file_ops + self.completed_file_ops, file_ops),
            ("deferred file operations", self.deferred_file_ops, connections),
            ("file operations of a connection", self.file_ops_per_connection, MAX_CONN_FILE_OPS),
            ("directory listings", self.lists, MAX_LISTS),
            ("entries of pauses", self.pauses, 2 * self.slots),
            ("memory counter errors", self.miscounted, 0),
            ("connections of an address", self.largest_share, per_address),
            ("connections of a network", self.largest_network, per_network),
            ("counters of networks", self.network_shares, self.with_share),
            ("counters of addresses", self.shares, self.with_share),
            ("connections without a counter", self.with_share, self.shares),
        ];
        bounds.into_iter().find(|(_, value, max)| value > max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::connection::{ConnFlags, Connection, Phase};

    #[test]
    fn connections_that_wait_were_not_compared_with_their_bound() {
        let config = Config::default().with(|c| {
            c.listen = vec!["127.0.0.1:0".parse().unwrap(); 2];
            c.max_connections = 10;
        });
        let usage = |deferred, connected| {
            Usage { connections: 10, deferred, connected, ..Usage::default() }.exceeded(&config, 0)
        };
        assert_eq!(usage(2, 0), None);
        assert_eq!(usage(3, 0), Some(("connections with those that wait", 13, 12)));
        // Those that the program opens take the room of accepts in flight.
        assert_eq!(usage(2 + 2 * config.backlog as usize, 1), None);
        assert!(usage(3 + 2 * config.backlog as usize, 1).is_some());
    }

    #[test]
    fn operations_of_one_connection_were_hidden_by_those_of_others() {
        let config = Config::default();
        let open = |flags| Connection { phase: Phase::Open, flags, ..Connection::default() };
        let mut usage = Usage { connections: 2, ..Usage::default() };
        usage.add(&open(ConnFlags::RECEIVING | ConnFlags::SENDING));
        usage.add(&open(ConnFlags::empty()));
        assert_eq!(usage.exceeded(&config, 0), None);
        let mut usage = Usage { connections: 2, ..Usage::default() };
        usage.add(&open(ConnFlags::all()));
        usage.add(&open(ConnFlags::empty()));
        assert_eq!(
            usage.exceeded(&config, 0),
            Some(("operations of a connection in flight", 3, 2))
        );
    }
}
