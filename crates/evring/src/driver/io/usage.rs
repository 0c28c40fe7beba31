//! Resource usage of a server, for the checks of simulations and tests.

use std::collections::BTreeMap;

use shared_ring::__private::held;
use shared_ring::buffers::GatherList;
use shared_ring::{Outcome, Submit};

use super::Io;
use super::file_requests::FileOps;
use crate::driver::Driver;
use crate::driver::connection::{ConnFlags, Connection, Phase, SendItem};
use crate::driver::shares::Counts;
use crate::{Application, FILE_TAG};

/// Resource usage of a server between two callbacks: sums, and maxima per connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The server is stopping.
    pub stopping: bool,
    /// The server is stopping or retiring: its listeners are closed or closing.
    pub ending: bool,
    /// Connections, including those that are connecting or closing.
    pub connections: usize,
    /// Accepted connections that are not admitted.
    pub deferred: usize,
    /// Connections that the program has opened itself so far.
    pub connected: u64,
    /// Sockets that the driver must close, including listeners.
    pub sockets: usize,
    /// Of these, sockets whose close is in flight.
    pub closing: usize,
    /// Receives, sends, connects and closes of connections in flight, and their maximum per connection.
    pub operations: usize,
    /// See [`operations`](Usage::operations).
    pub operations_per_connection: usize,
    /// Listeners.
    pub listeners: usize,
    /// Maximum number of unconsumed bytes that the application may leave.
    pub max_unconsumed: usize,
    /// Maximum of unconsumed bytes per connection, and of the memory for them.
    pub tail: usize,
    /// See [`tail`](Usage::tail).
    pub tail_memory: usize,
    /// Maximum of bytes queued per connection, including the send in flight.
    pub queued: usize,
    /// Maximum memory of a queue, without the send in flight.
    pub queue_memory: usize,
    /// Memory counted for all connections.
    pub held: usize,
    /// Bytes of files being read ahead; of writes to files, in flight or deferred.
    pub read_ahead_bytes: usize,
    /// See [`read_ahead_bytes`](Usage::read_ahead_bytes).
    pub write_bytes: usize,
    /// Difference between the memory counted for all connections and the memory that they hold.
    pub miscounted: usize,
    /// Connections that were reset because their address had its maximum.
    pub rejected_addresses: u64,
    /// The same for networks.
    pub rejected_networks: u64,
    /// Connections counted for all addresses together and for the largest, and the connections that should
    /// be counted; see [`Config::max_per_address`](crate::Config::max_per_address).
    pub shares: usize,
    /// See [`shares`](Usage::shares).
    pub largest_share: usize,
    /// The same for all networks; see [`Config::max_per_network`](crate::Config::max_per_network).
    pub network_shares: usize,
    /// See [`network_shares`](Usage::network_shares).
    pub largest_network: usize,
    /// See [`shares`](Usage::shares).
    pub with_share: usize,
    /// Maximum of files queued per connection, and the sum of all.
    pub queued_files: usize,
    /// See [`queued_files`](Usage::queued_files).
    pub all_queued_files: usize,
    /// File operations in flight, and those completed and not delivered yet; some hold an open file. Those that failed hold
    /// nothing and do not count: the end of the turn delivers them.
    pub file_ops: usize,
    /// See [`file_ops`](Usage::file_ops).
    pub completed_file_ops: usize,
    /// File operations that are deferred, and reads that are repeated later.
    pub deferred_file_ops: usize,
    /// Maximum of all these per connection, without those that read ahead for its send queue, and those of a layer.
    pub file_ops_per_connection: usize,
    /// Directory listings in flight or not delivered yet.
    pub lists: usize,
    /// Lists and tails kept for reuse, and the maximum memory of the latest ones.
    pub spare: usize,
    /// See [`spare`](Usage::spare).
    pub spare_memory: usize,
    /// Entries of pauses of sends, and the connections for which there is memory.
    pub pauses: usize,
    /// See [`pauses`](Usage::pauses).
    pub slots: usize,
}

/// Number of kept lists that each inspection checks.
const RECENT: usize = 4;

impl<K: Submit, A: Application> Driver<K, A> {
    /// Returns the current usage.
    pub(crate) fn usage(&self) -> Usage {
        Usage { max_unconsumed: A::MAX_UNCONSUMED, ..self.io.usage() }
    }
}

impl<K: Submit> Io<K> {
    fn usage(&self) -> Usage {
        let mut usage = Usage {
            stopping: self.stopping,
            ending: self.is_ending(),
            rejected_addresses: self.stats.rejected_addresses,
            rejected_networks: self.stats.rejected_networks,
            connections: self.open as usize,
            deferred: self.deferred.len(),
            connected: self.stats.connected,
            sockets: self.deferred.len(),
            spare: self.spare.len() + self.spare_tails.len(),
            deferred_file_ops: self.file_ops.num_deferred(),
            lists: self.file_ops.lists(),
            held: self.held,
            read_ahead_bytes: self.file_ops.read_ahead_bytes,
            write_bytes: self.file_ops.write_bytes,
            pauses: self.pause_ends.ends.len(),
            slots: self.connections.len(),
            ..Usage::default()
        };
        for listener in self.listeners.iter().filter(|listener| !listener.is_closed()) {
            usage.listeners += 1;
            usage.sockets += 1;
            usage.closing += usize::from(listener.socket().is_none());
        }
        self.connections.iter().for_each(|connection| usage.add(connection));
        if let Some(shares) = &self.shares {
            let in_use =
                |counts: &Option<Counts>| counts.as_ref().map_or((0, 0), |counts| counts.in_use());
            (usage.shares, usage.largest_share) = in_use(&shares.addresses);
            (usage.network_shares, usage.largest_network) = in_use(&shares.networks);
        }
        let admitted = self.connections.iter().map(|connection| connection.from);
        let sources = admitted.chain(self.deferred.iter().map(|(_, _, from)| *from));
        usage.with_share = sources.flatten().count();
        usage.miscounted = self.held.abs_diff(self.connections.iter().map(Connection::holds).sum());
        // The latest ones; earlier inspections checked the others.
        let lists = self.spare.iter().rev().take(RECENT).map(|list| held(list));
        let tails = self.spare_tails.iter().rev().take(RECENT).map(|tail| tail.capacity());
        usage.spare_memory = lists.chain(tails).max().unwrap_or(0);
        usage.add_file_ops(&self.file_ops);
        usage
    }
}

impl Usage {
    pub(super) fn add(&mut self, connection: &Connection) {
        if connection.phase == Phase::Vacant {
            return;
        }
        let in_flight =
            ConnFlags::RECEIVING | ConnFlags::SENDING | ConnFlags::CONNECTING_OR_CLOSING;
        let operations = (connection.flags & in_flight).bits().count_ones() as usize;
        self.operations += operations;
        self.operations_per_connection = self.operations_per_connection.max(operations);
        // A connection without a socket has its close in flight.
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
            SendItem::Memory(list) => held(list),
            SendItem::File(..) => size_of::<SendItem>(),
        });
        self.queue_memory = self.queue_memory.max(items.sum());
        self.queued_files = self.queued_files.max(connection.queue.files());
        self.all_queued_files += connection.queue.files();
    }
}

impl Usage {
    fn add_file_ops(&mut self, file_ops: &FileOps) {
        let FileOps { in_flight, deferred, waiting_lists, looks, finished, .. } = file_ops;
        if self.deferred_file_ops == 0 && file_ops.is_idle() && finished.is_empty() {
            return;
        }
        let in_flight = in_flight.iter().flatten();
        let completed = finished
            .iter()
            .filter(|(_, outcome)| matches!(outcome, Outcome::File(_)))
            .map(|(work, _)| work);
        (self.file_ops, self.completed_file_ops) =
            (in_flight.clone().count(), completed.clone().count());
        let waiting = deferred.iter().chain(waiting_lists).map(|(work, _)| work);
        let waiting = waiting.chain(looks.iter().map(|(_, work)| work));
        let mut each = BTreeMap::new();
        for work in in_flight.chain(completed).chain(waiting) {
            if work.read_ahead_bytes == 0 && work.tag != FILE_TAG {
                *each.entry((work.on.slot(), work.on.generation())).or_insert(0) += 1;
            }
        }
        self.file_ops_per_connection = each.into_values().max().unwrap_or(0);
    }

    /// Minimum memory of a list, in bytes.
    pub const LIST: usize = size_of::<GatherList>();
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::TcpStream;
    use std::rc::Rc;

    use shared_ring::Engine;
    use shared_ring::poller::Poll;

    use shared_ring::files::Access;

    use super::*;
    use crate::{
        Commands, Config, Cx, EventLoop, FileOp, FileOutcome, FilePath, Listener, RemoteHandle,
        Root, Rx,
    };

    /// Lists a directory for a connection, and stops the server when it has the list.
    struct Lists(RemoteHandle);

    impl Application for Lists {
        type State = ();
        const MAX_UNCONSUMED: usize = 64;

        fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
            x.io.file_op(x.id, 1, FileOp::List((Root(0), "src".into())));
        }

        fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
            rx.take();
        }

        fn file(
            &mut self,
            _x: Cx<'_, impl Commands, ()>,
            _tag: u32,
            _done: std::io::Result<FileOutcome>,
        ) {
            self.0.stop();
        }
    }

    /// Runs a server with one client until its application stops it. Returns what it has used after each step.
    fn used<A: Application>(
        app: impl FnOnce(RemoteHandle) -> A,
        change: impl FnOnce(&mut Config),
    ) -> Vec<Usage> {
        let config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            roots: vec![env!("CARGO_MANIFEST_DIR").into()],
            ..Config::default()
        };
        let config = config.with(change);
        let kernel = Engine::new(Poll::default(), &config.engine_config().unwrap()).unwrap();
        let server = EventLoop::new(kernel, &config).unwrap();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let sees = Rc::clone(&seen);
        let _client = TcpStream::connect(server.addresses()[0]).unwrap();
        let app = app(server.remote());
        server.run_inspected(app, move |usage| sees.borrow_mut().push(*usage)).unwrap();
        seen.take()
    }

    fn max(seen: &[Usage], of: fn(&Usage) -> usize) -> usize {
        seen.iter().map(of).max().unwrap()
    }

    #[test]
    fn what_a_server_uses_is_seen() {
        let seen = used(Lists, |_| {});
        let max = |of| max(&seen, of);
        assert_eq!((max(|u| u.listeners), max(|u| u.connections)), (1, 1));
        assert_eq!((max(|u| u.sockets), max(|u| u.max_unconsumed)), (2, 64));
        assert_eq!((max(|u| u.file_ops), max(|u| u.file_ops_per_connection)), (1, 1));
        let last = *seen.last().unwrap();
        assert_eq!((last.listeners, last.sockets, last.file_ops), (0, 0, 0));
    }

    /// Reads a cached file as often as a connection may at a time, and then stops the server.
    struct Reads {
        left: usize,
        remote: RemoteHandle,
    }

    impl Application for Reads {
        type State = ();
        const MAX_UNCONSUMED: usize = 64;

        fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
            let path = (Root(0), FilePath::new("Cargo.toml"));
            x.io.file_op(x.id, 1, FileOp::Open(path, Access::Read));
        }

        fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
            rx.take();
        }

        fn file(
            &mut self,
            x: Cx<'_, impl Commands, ()>,
            _tag: u32,
            done: std::io::Result<FileOutcome>,
        ) {
            match done.unwrap() {
                FileOutcome::Opened(opened) => {
                    for tag in 0..self.left as u32 {
                        x.io.file_op(x.id, tag, FileOp::Read(opened.0.clone(), 0..1));
                    }
                }
                _ => self.left -= 1,
            }
            if self.left == 0 {
                self.remote.stop();
            }
        }
    }

    #[test]
    fn completed_file_operations_did_not_count_until_they_were_delivered() {
        let seen = used(|remote| Reads { left: 16, remote }, |c| c.max_file_ops = 4);
        let max = |of| max(&seen, of);
        // These complete at once, and the end of the next turn delivers them.
        assert_eq!(max(|u| u.completed_file_ops), 4);
        assert_eq!(max(|u| u.file_ops + u.completed_file_ops), 4);
        assert_eq!((max(|u| u.deferred_file_ops), max(|u| u.file_ops_per_connection)), (12, 16));
        let last = *seen.last().unwrap();
        assert_eq!((last.completed_file_ops, last.file_ops_per_connection), (0, 0));
        let more = Usage { completed_file_ops: 1, file_ops: 4, ..Usage::default() };
        let config = Config { max_file_ops: 4, ..Config::default() };
        assert_eq!(more.exceeded(&config, 0), Some(("file operations", 5, 4)));
    }
}
