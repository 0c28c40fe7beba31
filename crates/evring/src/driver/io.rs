//! The state of a server without its application: connections, listeners, and the memory that they hold.

mod bounds;
pub(crate) mod changes;
mod commands;
pub(crate) mod file_ops;
pub(crate) mod file_requests;
pub(crate) mod usage;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use shared_ring::__private::Table;
use shared_ring::buffers::{BufferError, BufferGroup, GatherList};
use shared_ring::files::File;
use shared_ring::{Host, OpKind, Socket, Submit, Token};

use super::connection::{ConnFlags, Connection, Phase, SendItem};
use super::deferred_reads::{DeferredReads, deferred_reads};
use super::listener::ListenerState;
use super::pause_ends::PauseEnds;
use super::shares::{Rejected, Shares, Source};
use super::timers::Timers;
use crate::admission::LoadEstimator;
use crate::wheel::after;
use crate::{Close, Config, ConnId, Listener, SendPolicy, Stats, Tail};
use changes::Versions;
use file_requests::{FileOps, MAX_FILE_OPS};

/// State of a server, except the application and its connection states.
pub(crate) struct Io<K: Submit> {
    pub(crate) kernel: K,
    pub(crate) config: Config,
    pub(crate) connections: Table<Connection>,
    vacant: Vec<u32>,
    /// Number of connections in use.
    pub(crate) open: u32,
    pub(crate) listeners: Vec<ListenerState>,
    /// The newest buffer group.
    last_group: BufferGroup,
    pub(crate) wheel: Timers,
    pub(crate) file_ops: FileOps,
    /// Of files in send queues.
    sent_versions: Versions,
    /// Of files that applications read.
    read_versions: Versions,
    /// Empty lists for reuse.
    #[expect(clippy::vec_box, reason = "the kernel takes the boxes and needs stable addresses")]
    spare: Vec<Box<GatherList>>,
    spare_tails: Vec<Tail>,
    max_spare: usize,
    /// Memory held for all connections; see [`Config::max_buffered_bytes`].
    held: usize,
    /// Connections to service after the callback.
    pub(crate) dirty: Vec<u32>,
    /// Connections to revisit in this turn.
    pub(crate) revisits: VecDeque<ConnId>,
    /// When the connections that send nothing for a time continue.
    pub(crate) pause_ends: PauseEnds,
    /// Receives bytes reserved for a closed connection.
    scratch: Vec<u8>,
    /// Accepted connections that are not admitted yet, oldest first: the server is full, or newer ones come
    /// first.
    pub(crate) deferred: VecDeque<(Listener, Socket, Option<Source>)>,
    /// Connections per source address and network; see [`Config::max_per_address`].
    pub(crate) shares: Option<Shares>,
    pub(crate) load: LoadEstimator,
    /// `None` for the default one, which needs no call.
    pub(crate) send_policy: Option<Box<dyn SendPolicy>>,
    /// Whether the policy is asked for bytes in memory, too.
    pub(crate) policy_decides_memory: bool,
    /// Reads that are held back, if the policy wants that.
    pub(crate) deferred_reads: Option<DeferredReads>,
    /// Time of the next search for idle connections.
    pub(crate) next_search: Instant,
    /// End of a [busy poll](Commands::busy_poll).
    pub(crate) busy_poll_ends: Instant,
    pub(crate) stopping: bool,
    /// The listeners are closed, and the connections go on.
    pub(crate) retiring: bool,
    /// End of the drain after a stop.
    pub(crate) drain_deadline: Option<Instant>,
    /// Since when a server that retires has file operations only.
    pub(crate) empty_since: Option<Instant>,
    pub(crate) stats: Stats,
}

impl<K: Submit> Drop for Io<K> {
    /// Closes all open sockets: the server never ran, or it failed.
    fn drop(&mut self) {
        // Queued operations would otherwise reach a new owner of the descriptor.
        self.kernel.finish();
        let connections =
            (0..self.connections.len()).filter_map(|slot| self.connections[slot].socket.take());
        let listeners = self.listeners.iter_mut().filter_map(ListenerState::take);
        let deferred = self.deferred.drain(..).map(|(_, socket, _)| socket);
        for socket in connections.chain(listeners).chain(deferred) {
            self.kernel.host_mut().close_unused(socket);
        }
    }
}

/// Bytes that a connection may hold even if all together exceed the maximum; enough for a short reply.
pub(crate) const MIN_HELD: usize = 1024;

/// Maximum number of lists, and of tails, kept for reuse.
const SPARE: usize = 1024;

/// Number of preallocated lists, and their capacity in bytes: enough for the response heads of the
/// connections that one turn usually answers.
const PREALLOCATED: usize = 128;
const PREALLOCATED_BYTES: usize = 512;

fn max_spare(config: &Config) -> usize {
    SPARE.min((config.max_connections as usize).max(PREALLOCATED))
}

/// Returns the maximum memory of the lists and tails kept for reuse.
pub(crate) fn spare_memory(config: &Config) -> usize {
    max_spare(config)
        * (size_of::<GatherList>() + GatherList::MAX_KEPT_BYTES + Tail::MAX_KEPT_BYTES)
}

/// Returns the maximum number of operations in flight. Each listener has an accept.
pub(crate) fn operations(config: &Config) -> u32 {
    let listeners = u32::try_from(config.listen.len()).unwrap_or(u32::MAX);
    let others = listeners.saturating_add(MAX_FILE_OPS + 1024);
    config.max_connections.saturating_mul(3).saturating_add(others)
}

impl<K: Submit> Io<K> {
    pub(crate) fn new(
        kernel: K,
        config: &Config,
        roots: Vec<File>,
        listeners: Vec<ListenerState>,
    ) -> Self {
        let now = kernel.now();
        let scans_all_fds = kernel.scans_all_fds();
        let send_policy = config.send_policy.map(|make| make());
        let policy_decides_memory =
            send_policy.as_ref().is_some_and(|policy| policy.decides_memory());
        let defers = send_policy.as_ref().is_some_and(|policy| policy.defers_reads());
        Io {
            kernel,
            // The sockets have been taken; clones would keep them open after the stop.
            config: Config { inherited: Vec::new(), ..config.clone() },
            connections: Table::default(),
            vacant: Vec::new(),
            open: 0,
            listeners,
            last_group: BufferGroup::DEFAULT,
            wheel: Timers::new(now, config.max_timers),
            file_ops: FileOps::new(roots, config),
            sent_versions: Versions::default(),
            read_versions: Versions::default(),
            spare: (0..PREALLOCATED)
                .map(|_| Box::new(GatherList::with_capacity(PREALLOCATED_BYTES)))
                .collect(),
            spare_tails: Vec::with_capacity(PREALLOCATED),
            max_spare: max_spare(config),
            held: 0,
            dirty: Vec::with_capacity(PREALLOCATED),
            revisits: VecDeque::with_capacity(PREALLOCATED),
            pause_ends: PauseEnds::default(),
            scratch: Vec::new(),
            deferred: VecDeque::new(),
            shares: Shares::new(config.max_per_address, config.max_per_network),
            load: LoadEstimator::new(config.admission, scans_all_fds),
            send_policy,
            policy_decides_memory,
            deferred_reads: defers.then(|| deferred_reads(config)),
            next_search: now,
            busy_poll_ends: now,
            stopping: false,
            retiring: false,
            drain_deadline: None,
            empty_since: None,
            stats: Stats::default(),
        }
    }

    pub(crate) fn connection(&mut self, slot: u32) -> &mut Connection {
        &mut self.connections[slot as usize]
    }

    /// Returns the connection if it is neither closed nor ending.
    fn alive(&self, id: ConnId) -> Option<&Connection> {
        self.connections.get(id.slot() as usize).filter(|connection| connection.is(id))
    }

    /// The same.
    fn alive_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.connections.get_mut(id.slot() as usize).filter(|connection| connection.is(id))
    }

    /// Sets or clears one of the two pauses of receiving. The connection is resumed when both are cleared.
    fn set_paused(&mut self, id: ConnId, pause: ConnFlags, on: bool) {
        let stopping = self.stopping;
        let Some(connection) = self.alive_mut(id) else { return };
        if on {
            connection.flags |= pause;
        } else if connection.has(pause) {
            connection.flags -= pause;
            if connection.is_paused() {
                return;
            }
            connection.flags |= ConnFlags::RESUMED;
            if stopping {
                // The connection may be idle now, and the application was not asked since the stop.
                connection.flags |= ConnFlags::QUIESCING;
            }
            self.mark_dirty(id.slot());
            self.schedule_revisit(id.slot());
        }
    }

    pub(crate) fn conn(&self, slot: u32) -> ConnId {
        ConnId::new(slot, self.connections[slot as usize].generation)
    }

    pub(crate) fn token(&self, kind: OpKind, slot: u32) -> Token {
        Token::new(kind, slot, self.connections[slot as usize].generation)
    }

    /// Returns whether another connection can be admitted.
    pub(crate) fn has_room(&self) -> bool {
        self.open < self.config.max_connections
    }

    /// Returns whether another connection can be accepted. One beyond the maximum is: it causes an idle
    /// connection to close.
    pub(crate) fn accepts(&self) -> bool {
        self.open as usize + self.deferred.len() <= self.config.max_connections as usize
    }

    /// Returns how many connections can be accepted and admitted.
    pub(crate) fn room(&self) -> u32 {
        self.config.max_connections.saturating_sub(self.open + self.deferred.len() as u32)
    }

    /// Returns whether a place becomes free before the time for the stop is over, as a connection is closing.
    pub(crate) fn gets_room(&self) -> bool {
        let has_time = self.drain_deadline.is_none_or(|at| self.kernel.now() < at);
        let is_closing = |connection: &Connection| match connection.phase {
            Phase::Flushing | Phase::Lingering | Phase::Ending => true,
            Phase::Open => {
                let closes = connection.close.is_some_and(|how| how != Close::Half);
                closes || connection.has(ConnFlags::QUIESCING)
            }
            Phase::Vacant | Phase::Connecting => false,
        };
        has_time && self.connections.iter().any(is_closing)
    }

    /// Counts an accepted connection for its source address and network, if they are limited. Fails if one
    /// has reached its maximum. A connection that is already broken does not count.
    pub(crate) fn take_share(&mut self, socket: &Socket) -> Result<Option<Source>, Rejected> {
        let Some(shares) = &mut self.shares else { return Ok(None) };
        let Some(from) = self.kernel.host().peer_addr(socket).map(Source::of) else {
            return Ok(None);
        };
        shares.take(from).map(|()| Some(from))
    }

    pub(crate) fn give_back_share(&mut self, from: Option<Source>) {
        if let (Some(shares), Some(from)) = (&mut self.shares, from) {
            shares.give_back(from);
        }
    }

    /// Records that an accepted connection is served for the first time.
    pub(crate) fn note_first_service(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        connection.flags -= ConnFlags::UNSERVED;
        let now = self.kernel.now();
        if self.load.first_service(now)
            && let Some(socket) = &connection.socket
            && let Some(time) = self.kernel.host().idle_time(socket)
        {
            self.load.sample_wait(now, time);
        }
    }

    /// Ends a turn of the load estimator and applies its limits.
    pub(crate) fn update_admission(&mut self) {
        let (now, full) = (self.kernel.now(), !self.has_room());
        let Some(limits) = self.load.end_turn(now, self.deferred.len(), full) else { return };
        if self.is_ending() {
            return;
        }
        let each = limits.waiting.map(|total| (total / self.listeners.len().max(1) as u32).max(1));
        for listener in &mut self.listeners {
            listener.limit_per_turn(limits.per_turn, &mut self.kernel);
            listener.fit_backlog(each, &mut self.kernel);
        }
    }

    /// Returns whether the listeners are closed, or about to be.
    pub(crate) fn is_ending(&self) -> bool {
        self.stopping || self.retiring
    }

    /// Returns whether no connection and no listener is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.open == 0
            && self.deferred.is_empty()
            && self.listeners.iter().all(ListenerState::is_closed)
    }

    /// Allocates a slot for a new connection.
    pub(crate) fn allocate_slot(&mut self, phase: Phase) -> u32 {
        let slot = self.vacant.pop().unwrap_or(self.connections.len() as u32);
        self.connections.at(slot as usize).phase = phase;
        self.open += 1;
        slot
    }

    /// Frees the slot of a closed connection.
    pub(crate) fn free_slot(&mut self, slot: u32) {
        let from = self.connections[slot as usize].from;
        self.give_back_share(from);
        if let Some(policy) = &mut self.send_policy {
            policy.closed(ConnId::new(slot, self.connections[slot as usize].generation));
        }
        self.sent_versions.forget(slot);
        self.read_versions.forget(slot);
        let connection = &mut self.connections[slot as usize];
        self.held -= connection.held;
        let generation = connection.generation.wrapping_add(1);
        let flags = connection.flags & ConnFlags::DIRTY;
        *connection = Connection { generation, flags, ..Connection::default() };
        self.open -= 1;
        self.vacant.push(slot);
    }

    /// Makes the close of a connection send a reset.
    pub(crate) fn reset_on_close(&mut self, slot: u32) {
        if let Some(socket) = &self.connections[slot as usize].socket {
            self.kernel.host_mut().reset_on_close(socket);
        }
    }

    /// Sets the driver's own timer for a connection.
    pub(crate) fn set_timer(&mut self, slot: u32, time: Duration) {
        self.wheel.set(slot, after(self.kernel.now(), time));
    }

    /// Schedules a connection for service after the callback.
    pub(crate) fn mark_dirty(&mut self, slot: u32) {
        self.connections[slot as usize].mark_dirty(slot, &mut self.dirty);
    }

    /// Schedules a connection for a revisit in this turn, after the current batch.
    pub(crate) fn schedule_revisit(&mut self, slot: u32) {
        let connection = self.connection(slot);
        if !connection.has(ConnFlags::REVISIT) {
            connection.flags |= ConnFlags::REVISIT;
            self.revisits.push_back(self.conn(slot));
        }
    }

    pub(crate) fn spare_list(&mut self) -> Box<GatherList> {
        self.spare.pop().unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn recycle(&mut self, mut list: Box<GatherList>) {
        if self.spare.len() < self.max_spare {
            if !list.is_empty() {
                list.clear();
            }
            self.spare.push(list);
        }
    }

    /// Updates the memory counted for a connection. Returns whether the connection must end because all
    /// together exceed the maximum. A connection that holds little is exempt.
    #[inline(always)]
    pub(crate) fn account(&mut self, slot: u32) -> bool {
        let connection = &mut self.connections[slot as usize];
        let (before, now) = (connection.held, connection.holds());
        if now == before {
            return false;
        }
        connection.held = now;
        self.held = self.held - before + now;
        now > before && now > MIN_HELD && self.held > self.config.max_buffered_bytes
    }

    pub(crate) fn spare_tail(&mut self) -> Tail {
        self.spare_tails.pop().unwrap_or_default()
    }

    /// Appends to the unconsumed bytes of a connection, in memory kept for reuse.
    pub(crate) fn append_to_tail(&mut self, slot: u32, bytes: &[u8]) {
        if self.connection(slot).tail.capacity() == 0 {
            self.connection(slot).tail = self.spare_tail();
        }
        self.connection(slot).tail.append(bytes);
    }

    pub(crate) fn recycle_tail(&mut self, mut tail: Tail) {
        if self.spare_tails.len() < self.max_spare && tail.is_reusable() {
            tail.clear();
            self.spare_tails.push(tail);
        }
    }

    pub(crate) fn drop_queue(&mut self, slot: u32) {
        while let Some(item) = self.connection(slot).queue.pop_front() {
            if let SendItem::Memory(list) = item {
                self.recycle(list);
            }
        }
    }

    fn check_group(&self, group: BufferGroup) -> Result<(), BufferError> {
        let exists = group.index() <= self.last_group.index();
        exists.then_some(()).ok_or(BufferError::Unknown(group))
    }

    /// Chooses the buffer group of the connections that a listener accepts.
    pub(crate) fn set_listener_group(
        &mut self,
        at: Listener,
        group: BufferGroup,
    ) -> Result<(), BufferError> {
        self.check_group(group)?;
        let listener = self.listeners.get_mut(usize::from(at.0)).ok_or(BufferError::Absent)?;
        listener.group = group;
        Ok(())
    }
}
