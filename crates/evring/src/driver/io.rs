//! Commands: they record requests, which the driver executes after the callback.

pub(crate) mod usage;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use shared_ring::__private::Table;
use shared_ring::{
    Access, BufferError, BufferGroup, BufferPool, Errno, File, FileOutcome, GatherList, Host, Op,
    OpKind, Outcome, PathAt, Socket, Submit, SubmitError, Submitted, Token,
};

use super::connection::{ConnFlags, Connection, Phase, SendItem};
use super::defer::{DeferredReads, deferred_reads};
use super::listener::ListenerState;
use super::pause::Pauses;
use super::shares::{Refused, Shares, Source};
use super::timers::Timers;
use crate::admission::LoadEstimator;
use crate::{
    AcceptPolicy, Chunk, Close, CloseReason, Commands, Config, ConnId, FileOp, Lateness, Listener,
    MAX_READ_BYTES, MAX_WRITE_BYTES, NoTimer, SendPolicy, Stats, Tail,
};

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
    roots: Vec<File>,
    /// Number of bytes of all writes to files that are in flight or wait.
    write_bytes: usize,
    /// Number of bytes of all reads for send queues that are in flight or not delivered yet.
    pub(crate) read_ahead_bytes: usize,
    file_ops: Table<Option<FileRequest>>,
    free_file_ops: Vec<u32>,
    deferred_file_ops: VecDeque<(FileRequest, Op)>,
    /// Directory listings that wait for others to complete.
    waiting_lists: VecDeque<(FileRequest, Op)>,
    /// File operations that completed or failed on submission.
    pub(crate) finished_file_ops: VecDeque<(FileRequest, Outcome)>,
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
    /// Connections that the policy has pause.
    pub(crate) pauses: Pauses,
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
    pub(crate) stopping: bool,
    /// The listeners are closed, and the connections go on.
    pub(crate) retiring: bool,
    /// End of the drain after a stop.
    pub(crate) drain_deadline: Option<Instant>,
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

/// Returns `now + time`, with `time` limited to one year to avoid overflow.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now + time.min(FAR)
}

/// A file operation of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileRequest {
    pub(crate) on: ConnId,
    tag: u32,
    is_list: bool,
    /// Number of bytes to write.
    write_bytes: u32,
    /// Number of bytes to read for the connection's send queue; 0 for an operation of the application.
    pub(crate) read_ahead_bytes: u32,
}

impl FileRequest {
    /// Returns the tag and the result for the application.
    pub(crate) fn done(self, outcome: Outcome) -> (u32, io::Result<FileOutcome>) {
        let done = match outcome {
            Outcome::File(done) => Ok(done),
            Outcome::Failed(errno, _) => Err(errno.into()),
            _ => Err(Errno::IO.into()),
        };
        (self.tag, done)
    }
}

/// Maximum number of file operations in flight; others are deferred.
pub(crate) const MAX_FILE_OPS: u32 = 256;

/// Maximum number of directory listings in flight or not delivered yet. Each takes up to
/// [`Listing::MAX_BYTES`](shared_ring::Listing::MAX_BYTES).
pub(crate) const MAX_LISTS: usize = 4;

/// Maximum number of bytes that are read at a time for a send queue.
pub(crate) const MAX_READ_AHEAD_BYTES: u32 = 64 * 1024;

/// Maximum number of file operations per connection, in flight or deferred.
const MAX_FILE_OPS_PER_CONNECTION: u32 = 16;

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

/// Returns the maximum number of operations in flight.
pub(crate) fn operations(config: &Config) -> u32 {
    config.max_connections.saturating_mul(3).saturating_add(MAX_FILE_OPS + 1024)
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
            roots,
            write_bytes: 0,
            read_ahead_bytes: 0,
            file_ops: Table::default(),
            free_file_ops: (0..MAX_FILE_OPS).rev().collect(),
            deferred_file_ops: VecDeque::new(),
            waiting_lists: VecDeque::new(),
            finished_file_ops: VecDeque::new(),
            spare: (0..PREALLOCATED)
                .map(|_| Box::new(GatherList::with_capacity(PREALLOCATED_BYTES)))
                .collect(),
            spare_tails: Vec::with_capacity(PREALLOCATED),
            max_spare: max_spare(config),
            held: 0,
            dirty: Vec::with_capacity(PREALLOCATED),
            revisits: VecDeque::with_capacity(PREALLOCATED),
            pauses: Pauses::default(),
            scratch: Vec::new(),
            deferred: VecDeque::new(),
            shares: Shares::new(config.max_per_address, config.max_per_network),
            load: LoadEstimator::new(config.admission, scans_all_fds),
            send_policy,
            policy_decides_memory,
            deferred_reads: defers.then(|| deferred_reads(config)),
            next_search: now,
            stopping: false,
            retiring: false,
            drain_deadline: None,
            stats: Stats::default(),
        }
    }

    pub(crate) fn connection(&mut self, slot: u32) -> &mut Connection {
        &mut self.connections[slot as usize]
    }

    /// Returns the connection if it is neither closed nor ending.
    fn alive(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.connections.get_mut(id.slot() as usize).filter(|connection| connection.is(id))
    }

    /// Sets or clears one of the two pauses of receiving. The connection is resumed when both are cleared.
    fn set_paused(&mut self, id: ConnId, pause: ConnFlags, on: bool) {
        let stopping = self.stopping;
        let Some(connection) = self.alive(id) else { return };
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

    /// Counts an accepted connection for its source address and network, if they are limited. Fails if one
    /// has reached its maximum. A connection that is already broken does not count.
    pub(crate) fn take_share(&mut self, socket: &Socket) -> Result<Option<Source>, Refused> {
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

    /// Returns whether no file operation is in flight.
    pub(crate) fn has_no_file_ops(&self) -> bool {
        self.free_file_ops.len() == MAX_FILE_OPS as usize
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

    #[inline]
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
    #[inline]
    pub(crate) fn account(&mut self, slot: u32) -> bool {
        let connection = &mut self.connections[slot as usize];
        let (before, now) = (connection.held, connection.holds());
        connection.held = now;
        self.held = self.held - before + now;
        now > before && now > MIN_HELD && self.held > self.config.max_buffered_bytes
    }

    pub(crate) fn spare_tail(&mut self) -> Tail {
        self.spare_tails.pop().unwrap_or_default()
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

    /// Starts a file operation or defers it.
    fn start_file_op(&mut self, work: FileRequest, op: Op) {
        let has_room =
            if work.is_list { self.has_room_for_list() } else { self.has_file_op_room() };
        if !has_room {
            return self.defer_file_op(work, op);
        }
        let Some(at) = self.free_file_ops.pop() else {
            return self.defer_file_op(work, op);
        };
        match self.kernel.submit(Token::new(OpKind::File, at, 0), op) {
            Ok(Submitted::InFlight) => *self.file_ops.at(at as usize) = Some(work),
            Ok(Submitted::Done(outcome)) => {
                self.free_file_ops.push(at);
                self.end_file_op(work, outcome);
            }
            Err(SubmitError { .. }) => {
                self.free_file_ops.push(at);
                self.end_file_op(work, Outcome::Failed(Errno::NOBUFS, None));
            }
        }
    }

    /// Ends a file operation that is not in flight.
    fn end_file_op(&mut self, work: FileRequest, outcome: Outcome) {
        self.write_bytes -= work.write_bytes as usize;
        self.finished_file_ops.push_back((FileRequest { write_bytes: 0, ..work }, outcome));
    }

    /// Defers a file operation, up to one per possible connection. At the limit, operations of closed
    /// connections are dropped first.
    #[cold]
    fn defer_file_op(&mut self, work: FileRequest, op: Op) {
        let max = self.config.max_connections as usize;
        let Io { connections, deferred_file_ops, waiting_lists, write_bytes, .. } = self;
        if deferred_file_ops.len() + waiting_lists.len() >= max {
            let alive = |on: ConnId| {
                connections.get(on.slot() as usize).is_some_and(|connection| connection.is(on))
            };
            deferred_file_ops.retain(|(work, _)| {
                let alive = alive(work.on);
                *write_bytes -= if alive { 0 } else { work.write_bytes as usize };
                alive
            });
            waiting_lists.retain(|(work, _)| alive(work.on));
        }
        if deferred_file_ops.len() + waiting_lists.len() < max {
            if work.is_list { waiting_lists } else { deferred_file_ops }.push_back((work, op));
        } else {
            self.end_file_op(work, Outcome::Failed(Errno::BUSY, None));
        }
    }

    /// Completes a file operation. Returns `None` if its connection is closed.
    pub(crate) fn finish_file_op(&mut self, token: Token) -> Option<FileRequest> {
        let work = self.file_ops.get_mut(token.slot() as usize)?.take()?;
        self.free_file_ops.push(token.slot());
        self.write_bytes -= work.write_bytes as usize;
        self.wanted(work)
    }

    /// Returns whether another file operation can start. A completed one counts until it is delivered, as
    /// it may have opened a file.
    fn has_file_op_room(&self) -> bool {
        let in_flight = MAX_FILE_OPS as usize - self.free_file_ops.len();
        in_flight + self.finished_file_ops.len()
            < self.config.max_file_ops.clamp(1, MAX_FILE_OPS) as usize
    }

    /// Returns whether another directory listing can start.
    fn has_room_for_list(&self) -> bool {
        self.has_file_op_room() && self.lists() < MAX_LISTS
    }

    /// Returns the number of directory listings in flight or not delivered yet.
    fn lists(&self) -> usize {
        let in_flight = self.file_ops.iter().flatten().filter(|work| work.is_list);
        let made = self
            .finished_file_ops
            .iter()
            .filter(|(_, outcome)| matches!(outcome, Outcome::File(FileOutcome::Listed(_))));
        in_flight.count() + made.count()
    }

    /// Starts deferred file operations while there is room. Called after completed ones are delivered: the
    /// next operation on an open file comes before another file is opened.
    pub(crate) fn start_deferred_file_ops(&mut self) {
        // Listings come first: they are limited to few, so they do not delay other operations.
        while !self.waiting_lists.is_empty() && self.has_room_for_list() {
            let Some((next, op)) = self.waiting_lists.pop_front() else { break };
            self.start_if_connected(next, op);
        }
        while self.has_file_op_room() {
            let Some((next, op)) = self.deferred_file_ops.pop_front() else { break };
            self.start_if_connected(next, op);
        }
    }

    fn start_if_connected(&mut self, work: FileRequest, op: Op) {
        if self.alive(work.on).is_some() {
            self.start_file_op(work, op);
        } else {
            self.write_bytes -= work.write_bytes as usize;
        }
    }

    /// Returns the request if the application or the send queue should still receive the result.
    pub(crate) fn wanted(&mut self, work: FileRequest) -> Option<FileRequest> {
        self.read_ahead_bytes -= work.read_ahead_bytes as usize;
        let connection = self.alive(work.on)?;
        connection.files -= 1;
        let wanted = work.read_ahead_bytes > 0
            || connection.app_reads()
            || connection.phase == Phase::Connecting;
        wanted.then_some(work)
    }

    /// Returns whether a part of the first queued file can be read ahead: none is being read, and all
    /// connections together hold at most half of the maximum.
    pub(crate) fn can_read_ahead(&self, slot: u32) -> bool {
        let connection = &self.connections[slot as usize];
        let held = self.held + self.read_ahead_bytes + MAX_READ_AHEAD_BYTES as usize;
        connection.queue.files() > 0
            && !connection.is_reading_ahead
            && held <= self.config.max_buffered_bytes / 2
            && self.deferred_file_ops.is_empty()
            && self.has_file_op_room()
    }

    /// Starts to read the first bytes of the first queued file, which [can be read](Io::can_read_ahead).
    pub(crate) fn read_ahead(&mut self, slot: u32, max_bytes: u32) {
        let on = self.conn(slot);
        let connection = &mut self.connections[slot as usize];
        let Some((file, range)) = connection.queue.first_file() else { return };
        let max = max_bytes.clamp(1, MAX_READ_AHEAD_BYTES);
        let len = (range.end - range.start).min(max.into()) as u32;
        let op =
            Op::File(shared_ring::FileOp::Read(file, range.start..range.start + u64::from(len)));
        connection.is_reading_ahead = true;
        connection.files += 1;
        // Queued ranges are not empty.
        let read_ahead_bytes = len;
        self.read_ahead_bytes += read_ahead_bytes as usize;
        self.stats.read_ahead += 1;
        let work = FileRequest { on, tag: 0, is_list: false, write_bytes: 0, read_ahead_bytes };
        self.start_file_op(work, op);
    }

    /// Converts a command into an operation.
    fn prepare_file_op(&self, op: FileOp) -> Result<Op, Errno> {
        let op = match op {
            FileOp::Open((root, _), access)
                if access != Access::Read && !self.config.writable_roots.contains(&root) =>
            {
                return Err(Errno::ROFS);
            }
            FileOp::Read(file, range) => {
                let max = range.start.saturating_add(MAX_READ_BYTES.into());
                FileOp::Read(file, range.start..range.end.min(max))
            }
            FileOp::Write(write) if write.bytes.len() > MAX_WRITE_BYTES => {
                return Err(Errno::MSGSIZE);
            }
            FileOp::Write(write)
                if self.write_bytes + write.bytes.len() > self.config.max_buffered_bytes =>
            {
                return Err(Errno::BUSY);
            }
            op => op,
        };
        let op = op.try_map_path(|(root, path)| {
            let root = self.roots.get(usize::from(root.0)).ok_or(Errno::NOENT)?.clone();
            let path = path.as_c().ok_or(Errno::INVAL)?;
            Ok(PathAt { root, path, symlinks: self.config.symlinks })
        });
        op.map(Op::File)
    }
}

impl<K: Submit> Io<K> {
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

impl<K: Submit> Commands for Io<K> {
    fn now(&self) -> Instant {
        self.kernel.now()
    }

    fn wall_time(&self) -> SystemTime {
        self.kernel.host().wall_time()
    }

    fn random(&mut self) -> u64 {
        self.kernel.host_mut().random()
    }

    fn send(&mut self, to: ConnId, chunk: Chunk<'_>) -> usize {
        let Io { connections, spare, dirty, config, .. } = self;
        let connection =
            connections.get_mut(to.slot() as usize).filter(|connection| connection.is(to));
        let Some(connection) = connection.filter(|connection| connection.takes_sends()) else {
            return 0;
        };
        let mut n = 0;
        if let Chunk::File(file, range) = chunk {
            if !range.is_empty() {
                connection.queue.push_back(SendItem::File(file, range));
            }
        } else {
            let list = connection.queue.list(|| spare.pop().unwrap_or_default());
            let before = list.len();
            match chunk {
                Chunk::Copy(bytes) => list.copy(bytes),
                Chunk::Static(bytes) => list.constant(bytes),
                Chunk::Shared(bytes) => list.shared(bytes),
                Chunk::Received(bytes) => list.received(bytes),
                Chunk::File(..) => {}
            }
            n = list.len() - before;
        }
        connection.mark_dirty(to.slot(), dirty);
        connection.note_queued(n, config.max_queued_bytes)
    }

    fn reserve(&mut self, to: ConnId, n: usize) -> &mut [u8] {
        let Io { connections, spare, dirty, config, scratch, .. } = self;
        let connection =
            connections.get_mut(to.slot() as usize).filter(|connection| connection.is(to));
        let Some(connection) = connection.filter(|connection| connection.takes_sends()) else {
            *scratch = vec![0; n];
            return scratch;
        };
        connection.note_queued(n, config.max_queued_bytes);
        connection.mark_dirty(to.slot(), dirty);
        connection.queue.list(|| spare.pop().unwrap_or_default()).reserve(n)
    }

    fn connect(&mut self, to: SocketAddr) -> ConnId {
        let full = self.open >= self.config.max_connections;
        let slot = self.allocate_slot(Phase::Connecting);
        self.stats.connected += 1;
        let opened = if full {
            Err(Errno::NOBUFS.into())
        } else {
            self.kernel.host_mut().socket(to, None, self.config.socket_buffers)
        };
        let submitted = opened.and_then(|socket| {
            let token = self.token(OpKind::Connect, slot);
            let connection = self.connection(slot);
            connection.socket = Some(socket);
            let Some(fd) = connection.fd() else { unreachable!("the socket was just stored") };
            let op = Op::Connect { fd, to };
            self.kernel.submit(token, op).map_err(|_| Errno::NOBUFS.into())
        });
        match submitted {
            Ok(Submitted::InFlight) => {
                self.connection(slot).flags |= ConnFlags::CONNECTING_OR_CLOSING
            }
            Ok(Submitted::Done(outcome)) => {
                if let Outcome::Failed(errno, _) = outcome {
                    self.connection(slot).reason = Some(CloseReason::Failed(errno.into()));
                }
                self.schedule_revisit(slot);
            }
            Err(error) => {
                self.connection(slot).reason = Some(CloseReason::Failed(error));
                self.schedule_revisit(slot);
            }
        }
        self.conn(slot)
    }

    fn file_op(&mut self, on: ConnId, tag: u32, op: FileOp) {
        let Some(connection) = self.alive(on) else { return };
        let crowded = connection.files >= MAX_FILE_OPS_PER_CONNECTION;
        connection.files += 1;
        let is_list = matches!(op, FileOp::List(_));
        let write_bytes = match &op {
            FileOp::Write(write) => write.bytes.len() as u32,
            _ => 0,
        };
        let errno = match self.prepare_file_op(op) {
            Ok(_) if crowded => Errno::BUSY,
            Ok(op) => {
                self.write_bytes += write_bytes as usize;
                let work = FileRequest { on, tag, is_list, write_bytes, read_ahead_bytes: 0 };
                return self.start_file_op(work, op);
            }
            Err(errno) => errno,
        };
        let work = FileRequest { on, tag, is_list, write_bytes: 0, read_ahead_bytes: 0 };
        self.finished_file_ops.push_back((work, Outcome::Failed(errno, None)));
    }

    fn set_receiving(&mut self, id: ConnId, on: bool) {
        self.set_paused(id, ConnFlags::PAUSED, !on);
    }

    fn hold(&mut self, id: ConnId, on: bool) {
        self.set_paused(id, ConnFlags::HELD, on);
    }

    fn set_deadline(&mut self, id: ConnId, at: Option<Instant>) {
        let Some(connection) = self.alive(id) else { return };
        if connection.close.is_some_and(|how| how != Close::Half) {
            return;
        }
        match at {
            Some(at) => self.wheel.set(id.slot(), at),
            None => self.wheel.clear(id.slot()),
        }
    }

    fn set_timer(&mut self, timer: u32, at: Option<Instant>) -> Result<(), NoTimer> {
        let max_timers = self.config.max_timers;
        self.wheel.set_own(timer, at).then_some(()).ok_or(NoTimer { timer, max_timers })
    }

    fn close(&mut self, id: ConnId, how: Close) {
        let Some(connection) = self.alive(id) else { return };
        if connection.close.is_none_or(|before| abruptness(how) > abruptness(before)) {
            connection.close = Some(how);
            self.mark_dirty(id.slot());
        }
    }

    fn unsent_bytes(&self, id: ConnId) -> u64 {
        let connection =
            self.connections.get(id.slot() as usize).filter(|connection| connection.is(id));
        let Some(connection) = connection else { return 0 };
        let socket = connection.socket.as_ref();
        let sent = socket.map_or(0, |socket| self.kernel.host().unacked_bytes(socket));
        sent + connection.queued as u64 + connection.queue.file_bytes()
    }

    fn is_receiving(&self, id: ConnId) -> bool {
        let connection = self.connections.get(id.slot() as usize);
        connection.is_some_and(|connection| connection.is(id) && !connection.has(ConnFlags::PAUSED))
    }

    fn is_open(&self, id: ConnId) -> bool {
        self.connections.get(id.slot() as usize).is_some_and(|connection| connection.is(id))
    }

    fn next_open(&self, slot: u32) -> Option<ConnId> {
        let mut ids = (slot..self.connections.len() as u32)
            .map(|slot| ConnId::new(slot, self.connections[slot as usize].generation));
        ids.find(|id| self.is_open(*id))
    }

    fn peer_addr(&self, id: ConnId) -> Option<SocketAddr> {
        let connection =
            self.connections.get(id.slot() as usize).filter(|connection| connection.is(id))?;
        self.kernel.host().peer_addr(connection.socket.as_ref()?)
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.last_group = self.kernel.add_buffers(buffers)?;
        Ok(self.last_group)
    }

    fn set_receive_group(&mut self, id: ConnId, group: BufferGroup) -> Result<(), BufferError> {
        self.check_group(group)?;
        let connection = self.alive(id).ok_or(BufferError::Absent)?;
        if connection.has(ConnFlags::GROUP_FIXED) {
            return Err(BufferError::TooLate);
        }
        connection.group = group;
        Ok(())
    }

    fn set_accept_policy(&mut self, at: Listener, how: AcceptPolicy) {
        if let Some(listener) = self.listeners.get_mut(usize::from(at.0)) {
            listener.set_policy(how, &mut self.kernel);
        }
    }

    fn lateness(&self, id: ConnId) -> Lateness {
        let connection =
            self.connections.get(id.slot() as usize).filter(|connection| connection.is(id));
        match connection.and_then(|connection| connection.socket.as_ref()) {
            // A client that still receives a reply has not waited for the next one.
            Some(socket) if self.load.is_overloaded() && self.unsent_bytes(id) == 0 => {
                self.load.lateness(self.kernel.host().idle_time(socket))
            }
            _ => Lateness::InTime,
        }
    }

    fn is_overloaded(&self) -> bool {
        self.load.is_overloaded()
    }

    fn stats(&self) -> Stats {
        Stats {
            cpu_time: self.kernel.host().cpu_time(),
            backlog: self.listeners.iter().map(ListenerState::length).sum(),
            service_rate: self.load.rate(),
            kernel: self.kernel.counters(),
            deferred_reads: self.deferred_reads.as_ref().map_or(0, |r| r.counters().deferred),
            ..self.stats
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn has_pending(&self) -> bool {
        self.kernel.landed() > 0
    }
}

fn abruptness(how: Close) -> u8 {
    match how {
        Close::Half => 0,
        Close::Linger => 1,
        Close::Flush => 2,
        Close::Reset => 3,
    }
}
