//! The stages of a file operation: opens and reads are posted in a form that does not block, and again, for a
//! syscall thread, if they would have to wait for the disk.

use std::mem;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};

use rustix::io::Errno;
use shared_ring::author::{FileJob, InFlight, System};
use shared_ring::buffers::RxBuf;
use shared_ring::files::{FileOp, FileOutcome};
use shared_ring::nonblocking::Blocking;
use shared_ring::{Completion, Fd, Op, Outcome, Submitted, Token};

use super::super::raw::OwnedFile;
use super::{FlexScKernel, Stage, calls};
use crate::error::Busy;
use crate::pages::EntryId;

/// The call of a file operation that is posted.
pub(super) enum FileStage {
    /// The path is opened.
    Opening(Blocking),
    /// A range is read.
    Reading(ReadStage, Blocking),
}

/// A read of a range.
#[derive(Default)]
pub(super) struct ReadStage {
    /// Room for the next part of the range, of which the file may have few bytes.
    bytes: Vec<u8>,
    /// How many of them are there.
    filled: usize,
    /// A part was not in the page cache.
    was_cold: bool,
}

impl FlexScKernel {
    /// Returns whether the calls of a file operation are posted; a thread makes those of the others.
    pub(super) fn posts(op: &FileOp) -> bool {
        matches!(op, FileOp::Open(..) | FileOp::Stat(_) | FileOp::Read(..))
    }

    /// Posts the first call of a file operation in the table.
    pub(super) fn post_file(&mut self, token: Token) -> Result<(), Busy> {
        match self.in_flight.get(token) {
            Some(InFlight { op: Op::File(FileOp::Read(_, range)), .. }) => {
                let bytes = vec![0; len_of(range).min(MAX_ROOM_BYTES)];
                self.read(token, ReadStage { bytes, ..ReadStage::default() }, Blocking::NoBlock)
            }
            _ => self.open(token, Blocking::NoBlock),
        }
    }

    fn open(&mut self, token: Token, disk: Blocking) -> Result<(), Busy> {
        let Some(InFlight { op: Op::File(op), .. }) = self.in_flight.get(token) else {
            return Ok(());
        };
        let (at, access) = match op {
            FileOp::Open(at, access) => (at, Some(*access)),
            FileOp::Stat(at) => (at, None),
            _ => return Ok(()),
        };
        let (root, path) = (at.root.as_raw_fd(), at.path.as_ptr());
        let how = at.open_how(access, disk);
        // SAFETY: the operation owns root and path until the call has ended, or is leaked.
        let posted =
            unsafe { self.pages.post_with(|scratch| calls::open(root, path, how, disk, scratch)) };
        self.posted_for_file(token, posted?, FileStage::Opening(disk));
        Ok(())
    }

    fn read(&mut self, token: Token, mut stage: ReadStage, disk: Blocking) -> Result<(), Busy> {
        let Some(InFlight { op: Op::File(FileOp::Read(file, range)), .. }) =
            self.in_flight.get(token)
        else {
            return Ok(());
        };
        let (fd, offset) = (file.as_raw_fd(), range.start + stage.filled as u64);
        if stage.filled == stage.bytes.len() {
            let room = (len_of(range) - stage.filled).min(MAX_ROOM_BYTES);
            stage.bytes.resize(stage.filled + room, 0);
        }
        let room = &mut stage.bytes[stage.filled..];
        // SAFETY: the stage owns the bytes, the operation the file, until the call has ended, or they are
        // leaked.
        let posted =
            unsafe { self.pages.post_with(|scratch| calls::read(fd, offset, room, disk, scratch)) };
        self.posted_for_file(token, posted?, FileStage::Reading(stage, disk));
        Ok(())
    }

    fn posted_for_file(&mut self, token: Token, id: EntryId, stage: FileStage) {
        let on_thread = matches!(
            stage,
            FileStage::Opening(Blocking::MayBlock) | FileStage::Reading(_, Blocking::MayBlock)
        );
        self.operations.counters.offloaded_file_ops += u64::from(on_thread);
        self.has_posted |= !on_thread;
        self.owners[id.index()] = token;
        if let Some(InFlight { state, .. }) = self.in_flight.get(token) {
            state.stage = Stage::File(id, stage);
        }
    }

    /// Goes on with a file operation whose call has ended.
    pub(super) fn file_called(&mut self, token: Token, result: Result<usize, Errno>) {
        let Some(InFlight { op, state, .. }) = self.in_flight.get(token) else { return };
        let end = state.end;
        let (start, len_of_range) = match op {
            Op::File(FileOp::Read(_, range)) => (range.start, len_of(range)),
            _ => (0, 0),
        };
        let Stage::File(_, stage) = mem::replace(&mut state.stage, Stage::Idle) else { return };
        let posted = match (stage, result) {
            (FileStage::Opening(_), Ok(fd)) => {
                // SAFETY: the kernel has just opened it.
                let file = unsafe { OwnedFile::from_raw_fd(fd as RawFd) };
                if end.is_none() {
                    return self.opened(token, file);
                }
                Ok(())
            }
            (_, _) if end.is_some() => Ok(()),
            (_, Err(Errno::INTR)) => self.post_file(token),
            (FileStage::Opening(Blocking::NoBlock), Err(errno))
                if FileJob::would_block(errno) || may_lack_openat2(errno) =>
            {
                self.open(token, Blocking::MayBlock)
            }
            (FileStage::Opening(Blocking::MayBlock), Err(errno))
                if errno == Errno::AGAIN || may_lack_openat2(errno) =>
            {
                return self.open_by_job(token);
            }
            (FileStage::Reading(mut stage, disk), Ok(len)) => {
                stage.filled += len;
                // A call that has filled its room does not show whether the file ends there.
                let is_full = stage.filled == stage.bytes.len();
                let is_whole = len == 0 || stage.filled == len_of_range;
                if is_whole || ends_file(start + stage.filled as u64, disk) && !is_full {
                    return self.read_ended(token, stage);
                }
                self.read(token, stage, Blocking::NoBlock)
            }
            (FileStage::Reading(mut stage, Blocking::NoBlock), Err(errno))
                if FileJob::would_block(errno) =>
            {
                stage.was_cold |= FileJob::is_cold(errno);
                self.read(token, stage, Blocking::MayBlock)
            }
            (_, Err(errno)) => return self.end(token, |op| op.fail(errno)),
        };
        let failed = end.or(posted.err().map(|Busy| Errno::BUSY));
        if let Some(errno) = failed {
            self.end(token, |op| op.fail(errno));
        }
    }

    fn read_ended(&mut self, token: Token, stage: ReadStage) {
        let ReadStage { mut bytes, filled, was_cold } = stage;
        bytes.truncate(filled);
        let read = Outcome::File(FileOutcome::Read(RxBuf::from(bytes)));
        if self.in_flight.remove(token).is_some() {
            self.done.push_back(Completion { was_cold, ..Completion::last(token, read) });
        }
    }

    /// Ends an open or a query by the metadata of the file that its call has opened. fstat(2) does not wait, and the
    /// ring has no operation for it, so an entry of its own would only cost.
    fn opened(&mut self, token: Token, file: OwnedFile) {
        self.operations.counters.system_calls += 1;
        // SAFETY: the file is open during the call.
        let fd = unsafe { Fd::lent(file.as_fd()) };
        let meta = match self.operations.system.meta(fd) {
            Ok(meta) => meta,
            Err(errno) => return self.end(token, |op| op.fail(errno)),
        };
        let entry = self.in_flight.get(token);
        let outcome = match entry.map(|entry| &entry.op) {
            Some(Op::File(FileOp::Stat(_))) => {
                self.closes.close(file);
                FileOutcome::Stat(meta)
            }
            _ => FileOutcome::Opened(Box::new((self.closes.file(file), meta))),
        };
        self.end(token, |_| Outcome::File(outcome));
    }

    /// Lets a thread open a path: component by component without openat2(2), and by several tries of it if something is
    /// renamed meanwhile.
    #[cold]
    fn open_by_job(&mut self, token: Token) {
        let Some(InFlight { op, .. }) = self.in_flight.remove(token) else { return };
        match self.operations.submit(token, op) {
            Ok(Submitted::Done(outcome)) => self.done.push_back(Completion::last(token, outcome)),
            Ok(Submitted::InFlight) => {}
            Err(refused) => {
                self.done.push_back(Completion::last(token, refused.op.fail(Errno::BUSY)));
            }
        }
    }
}

/// Bytes of a read for which there is room before the file has had as many.
const MAX_ROOM_BYTES: usize = 1 << 20;

/// Returns the length of a range, below 4 GiB.
fn len_of(range: &Range<u64>) -> usize {
    u32::try_from(range.end.saturating_sub(range.start)).unwrap_or(u32::MAX) as usize
}

/// Returns whether a read that ended here before its range did has reached the end of the file. With `RWF_NOWAIT` the
/// kernel copies from the page cache, and stops before a page that is not cached; so it ends within a page only where
/// the file does.
fn ends_file(offset: u64, disk: Blocking) -> bool {
    disk == Blocking::NoBlock && !offset.is_multiple_of(MIN_PAGE_BYTES)
}

/// The size of a page, or a part of it.
const MIN_PAGE_BYTES: u64 = 4096;

/// Returns whether an error of openat2(2) may mean that the kernel lacks the call, or that a filter forbids it. A job finds out.
fn may_lack_openat2(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM)
}
