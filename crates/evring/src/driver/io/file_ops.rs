//! Starts and ends file operations of connections.

use std::ops::Range;
use std::time::Instant;

use shared_ring::__private::Table;
use shared_ring::files::{Access, File};
use shared_ring::{Errno, Op, OpKind, Outcome, Submit, SubmitError, Submitted, Token};

use super::Io;
use super::changes::LOOK_AGAIN;
use super::file_requests::{FileOps, FileRequest};
use crate::driver::connection::{Connection, QueuedFile};
use crate::{ConnId, FILE_TAG, FileOp};

/// Maximum number of bytes that are read at a time for a send queue.
const MAX_READ_AHEAD_BYTES: u32 = 64 * 1024;

/// Maximum number of bytes in front of a file with which more of it is read, whatever the policy: a client that does not
/// read has two parts in memory at most.
const MAX_BYTES_BEFORE_READ: usize = MAX_READ_AHEAD_BYTES as usize;

/// Maximum number of file operations per connection, in flight or deferred, without the one of a layer and the one that
/// reads ahead for the send queue.
const MAX_FILE_OPS_PER_CONNECTION: u32 = 16;

/// Returns the file and the range of a read after which the file is looked at. A read of the whole file is not followed
/// by others.
fn looked_at(op: &FileOp) -> Option<(File, Range<u64>)> {
    let FileOp::Read(file, range) = op else { return None };
    let range = FileOps::read_range(range);
    let is_whole = |len| range.start == 0 && range.end >= len;
    file.opened_len().filter(|len| !is_whole(*len)).map(|_| (file.clone(), range))
}

fn is_alive(connections: &Table<Connection>, on: ConnId) -> bool {
    connections.get(on.slot() as usize).is_some_and(|connection| connection.is(on))
}

impl<K: Submit> Io<K> {
    /// Starts an operation of the application, or defers it. At a limit, the operation fails.
    pub(super) fn request_file_op(&mut self, on: ConnId, tag: u32, op: FileOp) {
        let Some(connection) = self.alive_mut(on) else { return };
        let is_crowded = match tag {
            FILE_TAG => connection.layer_files > 0,
            _ => connection.application_files() >= MAX_FILE_OPS_PER_CONNECTION,
        };
        connection.note_file_op(tag);
        let is_list = matches!(op, FileOp::List(_));
        let write_bytes = match &op {
            FileOp::Write(write) => write.bytes.len() as u32,
            _ => 0,
        };
        let work = FileRequest {
            on,
            tag,
            is_list,
            write_bytes,
            read_ahead_bytes: 0,
            reads: looked_at(&op),
            is_repeated: false,
            opens_to_read: matches!(op, FileOp::Open(_, Access::Read)),
        };
        let prepared = match self.file_ops.prepare(op, &self.config) {
            Ok(_) if is_crowded => Err(Errno::BUSY),
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
        if let Some(outcome) = self.submit_file_op(work.clone(), op) {
            self.file_ops.end(work, outcome);
        }
    }

    /// Starts a file operation or defers it. Returns its outcome if it has ended.
    fn submit_file_op(&mut self, work: FileRequest, op: Op) -> Option<Outcome> {
        let ops = &mut self.file_ops;
        let has_room = if work.is_list { ops.has_room_for_list() } else { ops.has_room() };
        let Some(at) = ops.free.pop_if(|_| has_room) else {
            let (max, connections) = (self.config.max_connections as usize, &self.connections);
            ops.defer(work, op, max, |on| is_alive(connections, on));
            return None;
        };
        let ended = match self.kernel.submit(Token::new(OpKind::File, at, 0), op) {
            Ok(Submitted::InFlight) => {
                *ops.in_flight.at(at as usize) = Some(work);
                return None;
            }
            Ok(Submitted::Done(outcome)) => outcome,
            Err(SubmitError { .. }) => Outcome::Failed(Errno::NOBUFS, None),
        };
        ops.free.push(at);
        Some(ended)
    }

    /// Completes a file operation. Returns `None` if its connection is closed.
    pub(crate) fn finish_file_op(&mut self, token: Token) -> Option<FileRequest> {
        let ops = &mut self.file_ops;
        let work = ops.in_flight.get_mut(token.slot() as usize)?.take()?;
        ops.free.push(token.slot());
        ops.write_bytes -= work.write_bytes as usize;
        self.wanted(work)
    }

    /// Returns whether another read of a file that is written to can be repeated later.
    pub(crate) fn can_look_again(&mut self) -> bool {
        let (max, connections) = (self.config.max_connections as usize, &self.connections);
        self.file_ops.can_defer(max, |on| is_alive(connections, on))
    }

    /// Has a read repeated later: its file is [written to](shared_ring::files::Contents::Written).
    pub(crate) fn look_again(&mut self, work: FileRequest) {
        self.connection(work.on.slot()).note_file_op(work.tag);
        let work = FileRequest { is_repeated: true, ..work };
        self.file_ops.looks.push_back((self.kernel.now() + LOOK_AGAIN, work));
    }

    /// Repeats the reads whose files can be looked at again.
    pub(crate) fn read_again(&mut self, now: Instant) {
        while let Some(work) = self.file_ops.take_look(now) {
            let Some((file, range)) = work.reads.clone() else { continue };
            if self.alive(work.on).is_some() {
                self.start_file_op(work, Op::File(shared_ring::files::FileOp::Read(file, range)));
            }
        }
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
        connection.layer_files -= u32::from(work.tag == FILE_TAG);
        let wanted = work.read_ahead_bytes > 0 || connection.app_gets_files();
        wanted.then_some(work)
    }

    /// Returns whether a part of the first queued file can be read ahead: none is being read, at most one is in front of
    /// it, all connections together hold at most half of the maximum, and no file operation has to wait.
    pub(crate) fn can_read_ahead(&self, slot: u32) -> bool {
        let connection = &self.connections[slot as usize];
        let is_due = connection.queue.files() > 0
            && !connection.is_reading_ahead
            && self.file_ops.deferred.is_empty()
            && self.file_ops.has_room()
            && connection.queue.bytes_before_file() <= MAX_BYTES_BEFORE_READ;
        if !is_due {
            return false;
        }
        // What it has just read is not counted yet.
        let held = self.held - connection.held + connection.holds();
        let with_read = held + self.file_ops.read_ahead_bytes + MAX_READ_AHEAD_BYTES as usize;
        with_read <= self.config.max_buffered_bytes / 2
    }

    /// Starts to read the first bytes of the first queued file, which [can be read](Io::can_read_ahead). Returns the outcome
    /// if the read has ended.
    pub(crate) fn read_ahead(&mut self, slot: u32, max_bytes: u32) -> Option<Outcome> {
        let on = self.conn(slot);
        let connection = &mut self.connections[slot as usize];
        let QueuedFile { file, left, .. } = connection.queue.first_file()?;
        let max = u64::from(max_bytes.clamp(1, MAX_READ_AHEAD_BYTES));
        let max = max.min(File::BLOCK_BYTES - left.start % File::BLOCK_BYTES);
        let read_ahead_bytes = (left.end - left.start).min(max) as u32;
        let range = left.start..left.start + u64::from(read_ahead_bytes);
        let read = Op::File(shared_ring::files::FileOp::Read(file.clone(), range));
        connection.is_reading_ahead = true;
        connection.files += 1;
        self.file_ops.read_ahead_bytes += read_ahead_bytes as usize;
        let work = FileRequest {
            on,
            tag: 0,
            is_list: false,
            write_bytes: 0,
            read_ahead_bytes,
            reads: None,
            is_repeated: false,
            opens_to_read: false,
        };
        let outcome = self.submit_file_op(work.clone(), read)?;
        // What is in memory is sent at once, so that other connections can use its buffer.
        self.wanted(work);
        Some(outcome)
    }
}
