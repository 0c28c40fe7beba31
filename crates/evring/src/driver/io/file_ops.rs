//! File operations of connections: how many run at a time, and whose turn is next.

use std::collections::VecDeque;
use std::io;

use shared_ring::__private::Table;
use shared_ring::{
    Access, Errno, File, FileOutcome, Op, OpKind, Outcome, PathAt, Submit, SubmitError, Submitted,
    Token,
};

use super::Io;
use crate::{Config, ConnId, FileOp, MAX_READ_BYTES, MAX_WRITE_BYTES};

/// Maximum number of file operations in flight; others are deferred.
pub(crate) const MAX_FILE_OPS: u32 = 256;

/// Maximum number of directory listings in flight or not delivered yet. Each takes up to
/// [`Listing::MAX_BYTES`](shared_ring::Listing::MAX_BYTES).
pub(crate) const MAX_LISTS: usize = 4;

/// Maximum number of bytes that are read at a time for a send queue.
const MAX_READ_AHEAD_BYTES: u32 = 64 * 1024;

/// Maximum number of file operations per connection, in flight or deferred.
const MAX_FILE_OPS_PER_CONNECTION: u32 = 16;

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

/// The file operations of a server.
pub(crate) struct FileOps {
    roots: Vec<File>,
    max_in_flight: usize,
    pub(super) in_flight: Table<Option<FileRequest>>,
    free: Vec<u32>,
    pub(super) deferred: VecDeque<(FileRequest, Op)>,
    /// Directory listings that wait for others to complete.
    pub(super) waiting_lists: VecDeque<(FileRequest, Op)>,
    /// Those that completed or failed on submission.
    pub(crate) finished: VecDeque<(FileRequest, Outcome)>,
    /// Number of bytes of all writes that are in flight or wait.
    write_bytes: usize,
    /// Number of bytes of all reads for send queues that are in flight or not delivered yet.
    read_ahead_bytes: usize,
}

impl FileOps {
    pub(super) fn new(roots: Vec<File>, config: &Config) -> Self {
        FileOps {
            roots,
            max_in_flight: config.max_file_ops.clamp(1, MAX_FILE_OPS) as usize,
            in_flight: Table::default(),
            free: (0..MAX_FILE_OPS).rev().collect(),
            deferred: VecDeque::new(),
            waiting_lists: VecDeque::new(),
            finished: VecDeque::new(),
            write_bytes: 0,
            read_ahead_bytes: 0,
        }
    }

    /// Returns whether no operation is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == MAX_FILE_OPS as usize
    }

    /// Returns the number of operations that wait until another one has completed.
    pub(super) fn num_deferred(&self) -> usize {
        self.deferred.len() + self.waiting_lists.len()
    }

    /// Returns the number of directory listings in flight or not delivered yet.
    pub(super) fn lists(&self) -> usize {
        let in_flight = self.in_flight.iter().flatten().filter(|work| work.is_list);
        let made = self
            .finished
            .iter()
            .filter(|(_, outcome)| matches!(outcome, Outcome::File(FileOutcome::Listed(_))));
        in_flight.count() + made.count()
    }

    /// Returns whether another operation can start. A completed one counts until it is delivered, as it may
    /// have opened a file.
    fn has_room(&self) -> bool {
        let in_flight = MAX_FILE_OPS as usize - self.free.len();
        in_flight + self.finished.len() < self.max_in_flight
    }

    /// Returns whether another directory listing can start.
    fn has_room_for_list(&self) -> bool {
        self.has_room() && self.lists() < MAX_LISTS
    }

    /// Ends an operation that is not in flight.
    fn end(&mut self, work: FileRequest, outcome: Outcome) {
        self.write_bytes -= work.write_bytes as usize;
        self.finished.push_back((FileRequest { write_bytes: 0, ..work }, outcome));
    }

    /// Defers an operation, up to `max`. At the limit, operations of closed connections are dropped first.
    #[cold]
    fn defer(&mut self, work: FileRequest, op: Op, max: usize, is_alive: impl Fn(ConnId) -> bool) {
        if self.num_deferred() >= max {
            let write_bytes = &mut self.write_bytes;
            self.deferred.retain(|(work, _)| {
                let is_alive = is_alive(work.on);
                *write_bytes -= if is_alive { 0 } else { work.write_bytes as usize };
                is_alive
            });
            self.waiting_lists.retain(|(work, _)| is_alive(work.on));
        }
        if self.num_deferred() < max {
            let waiting = if work.is_list { &mut self.waiting_lists } else { &mut self.deferred };
            waiting.push_back((work, op));
        } else {
            self.end(work, Outcome::Failed(Errno::BUSY, None));
        }
    }

    /// Returns the next deferred operation if there is room for it. Listings come first: they are limited to few, so
    /// they do not delay other operations.
    fn next(&mut self) -> Option<(FileRequest, Op)> {
        if !self.waiting_lists.is_empty() && self.has_room_for_list() {
            return self.waiting_lists.pop_front();
        }
        if self.has_room() { self.deferred.pop_front() } else { None }
    }

    /// Converts a command into an operation.
    fn prepare(&self, op: FileOp, config: &Config) -> Result<Op, Errno> {
        let op = match op {
            FileOp::Open((root, _), access)
                if access != Access::Read && !config.writable_roots.contains(&root) =>
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
                if self.write_bytes + write.bytes.len() > config.max_buffered_bytes =>
            {
                return Err(Errno::BUSY);
            }
            op => op,
        };
        let op = op.try_map_path(|(root, path)| {
            let root = self.roots.get(usize::from(root.0)).ok_or(Errno::NOENT)?.clone();
            let path = path.as_c().ok_or(Errno::INVAL)?;
            Ok(PathAt { root, path, symlinks: config.symlinks })
        });
        op.map(Op::File)
    }
}

impl<K: Submit> Io<K> {
    /// Starts an operation of the application, or defers it. At a limit, the operation fails.
    pub(super) fn request_file_op(&mut self, on: ConnId, tag: u32, op: FileOp) {
        let Some(connection) = self.alive_mut(on) else { return };
        let crowded = connection.files >= MAX_FILE_OPS_PER_CONNECTION;
        connection.files += 1;
        let is_list = matches!(op, FileOp::List(_));
        let write_bytes = match &op {
            FileOp::Write(write) => write.bytes.len() as u32,
            _ => 0,
        };
        let work = FileRequest { on, tag, is_list, write_bytes, read_ahead_bytes: 0 };
        let prepared = match self.file_ops.prepare(op, &self.config) {
            Ok(_) if crowded => Err(Errno::BUSY),
            prepared => prepared,
        };
        self.file_ops.write_bytes += write_bytes as usize;
        match prepared {
            Ok(op) => self.start_file_op(work, op),
            Err(errno) => self.file_ops.end(work, Outcome::Failed(errno, None)),
        }
    }

    /// Starts a file operation or defers it.
    fn start_file_op(&mut self, work: FileRequest, op: Op) {
        let ops = &mut self.file_ops;
        let has_room = if work.is_list { ops.has_room_for_list() } else { ops.has_room() };
        let Some(at) = ops.free.pop_if(|_| has_room) else {
            let (max, connections) = (self.config.max_connections as usize, &self.connections);
            return ops.defer(work, op, max, |on| {
                connections.get(on.slot() as usize).is_some_and(|connection| connection.is(on))
            });
        };
        let ended = match self.kernel.submit(Token::new(OpKind::File, at, 0), op) {
            Ok(Submitted::InFlight) => {
                *ops.in_flight.at(at as usize) = Some(work);
                return;
            }
            Ok(Submitted::Done(outcome)) => outcome,
            Err(SubmitError { .. }) => Outcome::Failed(Errno::NOBUFS, None),
        };
        ops.free.push(at);
        ops.end(work, ended);
    }

    /// Completes a file operation. Returns `None` if its connection is closed.
    pub(crate) fn finish_file_op(&mut self, token: Token) -> Option<FileRequest> {
        let ops = &mut self.file_ops;
        let work = ops.in_flight.get_mut(token.slot() as usize)?.take()?;
        ops.free.push(token.slot());
        ops.write_bytes -= work.write_bytes as usize;
        self.wanted(work)
    }

    /// Starts deferred file operations while there is room. Called after completed ones are delivered: the
    /// next operation on an open file comes before another file is opened.
    pub(crate) fn start_deferred_file_ops(&mut self) {
        while let Some((next, op)) = self.file_ops.next() {
            if self.alive(next.on).is_some() {
                self.start_file_op(next, op);
            } else {
                self.file_ops.write_bytes -= next.write_bytes as usize;
            }
        }
    }

    /// Returns the request if the application or the send queue should still receive the result.
    pub(crate) fn wanted(&mut self, work: FileRequest) -> Option<FileRequest> {
        self.file_ops.read_ahead_bytes -= work.read_ahead_bytes as usize;
        let connection = self.alive_mut(work.on)?;
        connection.files -= 1;
        let wanted = work.read_ahead_bytes > 0 || connection.app_gets_files();
        wanted.then_some(work)
    }

    /// Returns whether a part of the first queued file can be read ahead: none is being read, and all
    /// connections together hold at most half of the maximum.
    pub(crate) fn can_read_ahead(&self, slot: u32) -> bool {
        let connection = &self.connections[slot as usize];
        let held = self.held + self.file_ops.read_ahead_bytes + MAX_READ_AHEAD_BYTES as usize;
        connection.queue.files() > 0
            && !connection.is_reading_ahead
            && held <= self.config.max_buffered_bytes / 2
            && self.file_ops.deferred.is_empty()
            && self.file_ops.has_room()
    }

    /// Starts to read the first bytes of the first queued file, which [can be read](Io::can_read_ahead). Returns false if
    /// the file has changed.
    pub(crate) fn read_ahead(&mut self, slot: u32, max_bytes: u32) -> bool {
        let on = self.conn(slot);
        let Some((file, range)) = self.connections[slot as usize].queue.first_file() else {
            return true;
        };
        if self.has_changed(&file, range.start) {
            return false;
        }
        let connection = &mut self.connections[slot as usize];
        let max = u64::from(max_bytes.clamp(1, MAX_READ_AHEAD_BYTES));
        let max = max.min(File::BLOCK_BYTES - range.start % File::BLOCK_BYTES);
        // Queued ranges are not empty.
        let read_ahead_bytes = (range.end - range.start).min(max) as u32;
        let range = range.start..range.start + u64::from(read_ahead_bytes);
        connection.is_reading_ahead = true;
        connection.files += 1;
        self.file_ops.read_ahead_bytes += read_ahead_bytes as usize;
        self.stats.read_ahead += 1;
        let work = FileRequest { on, tag: 0, is_list: false, write_bytes: 0, read_ahead_bytes };
        self.start_file_op(work, Op::File(shared_ring::FileOp::Read(file, range)));
        true
    }
}
