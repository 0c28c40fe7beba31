//! File operations of connections: how many run at a time, and whose turn is next.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Range;
use std::time::Instant;

use shared_ring::__private::Table;
use shared_ring::files::{Access, File, FileOutcome, PathAt};
use shared_ring::{Errno, Op, Outcome};

use crate::{Config, ConnId, FileChanged, FileOp, MAX_READ_BYTES, MAX_WRITE_BYTES};

/// Maximum number of file operations in flight; others are deferred.
pub(crate) const MAX_FILE_OPS: u32 = 256;

/// Maximum number of directory listings in flight or not delivered yet. Each takes up to
/// [`Listing::MAX_BYTES`](shared_ring::files::Listing::MAX_BYTES).
pub(crate) const MAX_LISTS: usize = 4;

/// A file operation of a connection.
#[derive(Clone, Debug)]
pub(crate) struct FileRequest {
    pub(crate) on: ConnId,
    pub(super) tag: u32,
    pub(super) is_list: bool,
    /// Number of bytes to write.
    pub(super) write_bytes: u32,
    /// Number of bytes to read for the connection's send queue; 0 for an operation of the application.
    pub(crate) read_ahead_bytes: u32,
    /// The file that the application reads, and the range, if it is looked at for changes afterwards.
    pub(crate) reads: Option<(File, Range<u64>)>,
    /// The read was made before, when the file was written to.
    pub(crate) is_repeated: bool,
    /// The application opens a file for reading only.
    pub(crate) opens_to_read: bool,
}

impl FileRequest {
    /// Returns the tag and the result for the application.
    pub(crate) fn done(self, outcome: Outcome) -> (u32, io::Result<FileOutcome>) {
        let done = match outcome {
            Outcome::File(done) => Ok(done),
            Outcome::Failed(Errno::STALE, _) if self.reads.is_some() => Err(FileChanged.into()),
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
    pub(super) free: Vec<u32>,
    pub(super) deferred: VecDeque<(FileRequest, Op)>,
    /// Directory listings that wait for others to complete.
    pub(super) waiting_lists: VecDeque<(FileRequest, Op)>,
    /// Those that completed or failed on submission.
    pub(crate) finished: VecDeque<(FileRequest, Outcome)>,
    /// Reads of files that are being written to, and when they are repeated.
    pub(super) looks: VecDeque<(Instant, FileRequest)>,
    /// Number of bytes of all writes that are in flight or wait.
    pub(super) write_bytes: usize,
    /// Number of bytes of all reads for send queues that are in flight or not delivered yet.
    pub(super) read_ahead_bytes: usize,
    /// A connection with operations has ended since those of ended connections were last dropped.
    has_dead: bool,
}

impl FileOps {
    pub(super) fn new(roots: Vec<File>, config: &Config) -> Self {
        FileOps {
            roots,
            max_in_flight: config.max_file_ops as usize,
            in_flight: Table::default(),
            free: (0..MAX_FILE_OPS).rev().collect(),
            deferred: VecDeque::new(),
            waiting_lists: VecDeque::new(),
            finished: VecDeque::new(),
            looks: VecDeque::new(),
            write_bytes: 0,
            read_ahead_bytes: 0,
            has_dead: false,
        }
    }

    /// Records that a connection with operations has ended.
    pub(crate) fn note_end(&mut self) {
        self.has_dead = true;
    }

    /// Returns whether no operation is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == MAX_FILE_OPS as usize
    }

    /// Returns the number of operations that wait until another one has completed, or for a time.
    pub(super) fn num_deferred(&self) -> usize {
        self.deferred.len() + self.waiting_lists.len() + self.looks.len()
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

    /// Returns whether another operation can start. An operation that may have opened a file counts until its result
    /// is delivered.
    pub(super) fn has_room(&self) -> bool {
        let in_flight = MAX_FILE_OPS as usize - self.free.len();
        in_flight + self.finished.len() < self.max_in_flight
    }

    /// Returns whether another directory listing can start.
    pub(super) fn has_room_for_list(&self) -> bool {
        self.has_room() && self.lists() < MAX_LISTS
    }

    /// Ends an operation that is not in flight. One that failed holds no file.
    pub(super) fn end(&mut self, work: FileRequest, outcome: Outcome) {
        self.write_bytes -= work.write_bytes as usize;
        let reads = work.reads.filter(|_| matches!(outcome, Outcome::File(_)));
        self.finished.push_back((FileRequest { write_bytes: 0, reads, ..work }, outcome));
    }

    /// Takes a read that can be repeated.
    pub(super) fn take_look(&mut self, now: Instant) -> Option<FileRequest> {
        self.next_look().filter(|at| *at <= now)?;
        self.looks.pop_front().map(|(_, work)| work)
    }

    /// Returns when the next file is looked at again.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.looks.front().map(|(at, _)| *at)
    }

    /// Returns the range of a read, of at most [`MAX_READ_BYTES`].
    pub(super) fn read_range(range: &Range<u64>) -> Range<u64> {
        range.start..range.end.min(range.start.saturating_add(MAX_READ_BYTES.into()))
    }

    /// Returns whether fewer than `max` operations wait. At the limit, those of ended connections are dropped first.
    pub(super) fn can_defer(&mut self, max: usize, is_alive: impl Fn(ConnId) -> bool) -> bool {
        if self.num_deferred() >= max && mem::take(&mut self.has_dead) {
            let write_bytes = &mut self.write_bytes;
            self.deferred.retain(|(work, _)| {
                let is_alive = is_alive(work.on);
                *write_bytes -= if is_alive { 0 } else { work.write_bytes as usize };
                is_alive
            });
            self.waiting_lists.retain(|(work, _)| is_alive(work.on));
            self.looks.retain(|(_, work)| is_alive(work.on));
        }
        self.num_deferred() < max
    }

    /// Defers an operation, up to `max`.
    #[cold]
    pub(super) fn defer(
        &mut self,
        work: FileRequest,
        op: Op,
        max: usize,
        is_alive: impl Fn(ConnId) -> bool,
    ) {
        if self.can_defer(max, is_alive) {
            let waiting = if work.is_list { &mut self.waiting_lists } else { &mut self.deferred };
            waiting.push_back((work, op));
        } else {
            self.end(work, Outcome::Failed(Errno::BUSY, None));
        }
    }

    /// Returns the next deferred operation if there is room for it. Listings come first: they are limited to few, so
    /// they do not delay other operations.
    pub(super) fn next(&mut self) -> Option<(FileRequest, Op)> {
        if !self.waiting_lists.is_empty() && self.has_room_for_list() {
            return self.waiting_lists.pop_front();
        }
        if self.has_room() { self.deferred.pop_front() } else { None }
    }

    /// Converts a command into an operation.
    pub(super) fn prepare(&self, op: FileOp, config: &Config) -> Result<Op, Errno> {
        let op = match op {
            FileOp::Open((root, _), access)
                if access != Access::Read && !config.writable_roots.contains(&root) =>
            {
                return Err(Errno::ROFS);
            }
            FileOp::Read(file, range) => {
                let range = FileOps::read_range(&range);
                FileOp::Read(file, range)
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::OwnedFd;

    use super::*;

    fn request() -> FileRequest {
        FileRequest {
            on: ConnId::new(0, 0),
            tag: 0,
            is_list: false,
            write_bytes: 0,
            read_ahead_bytes: 0,
            reads: None,
            is_repeated: false,
            opens_to_read: false,
        }
    }

    #[test]
    fn read_that_failed_kept_its_file_open_until_its_result_was_delivered() {
        let mut ops = FileOps::new(Vec::new(), &Config::default());
        let file = File::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let work = FileRequest { reads: Some((file, 0..1)), ..request() };
        ops.end(work.clone(), Outcome::Failed(Errno::IO, None));
        ops.end(work, Outcome::File(FileOutcome::Read(Vec::new().into())));
        let kept = |at: usize| ops.finished[at].0.reads.is_some();
        assert_eq!([kept(0), kept(1)], [false, true]);
    }

    #[test]
    fn operations_were_searched_for_those_of_ended_connections_though_none_had_ended() {
        let mut ops = FileOps::new(Vec::new(), &Config::default());
        let work = request();
        ops.looks.extend((0..3).map(|_| (Instant::now(), work.clone())));
        let looked_at = Cell::new(0);
        let looks_at = |ops: &mut FileOps, has_room, is_alive| {
            let can_defer = ops.can_defer(3, |_| {
                looked_at.set(looked_at.get() + 1);
                is_alive
            });
            assert_eq!(can_defer, has_room);
            looked_at.take()
        };
        assert_eq!(looks_at(&mut ops, false, true), 0);
        ops.note_end();
        assert_eq!([(); 2].map(|()| looks_at(&mut ops, false, true)), [3, 0]);
        ops.note_end();
        assert_eq!([(); 2].map(|()| looks_at(&mut ops, true, false)), [3, 0]);
    }
}
