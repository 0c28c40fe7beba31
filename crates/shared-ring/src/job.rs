//! Work for other threads.

use std::ffi::CStr;
use std::ops::Range;

use rustix::io::Errno;

use crate::disk;
use crate::file_op::len;
use crate::{Blocking, CallJob, Fd, FileJob, FileJobOutcome, FileOp, FileOutcome, PathAt};

/// Work for another thread. Its operation owns the memory and the descriptors.
#[derive(Debug)]
pub enum Job {
    /// A file operation.
    File(FileJob),
    /// A part of a file to read, so that the page cache has it.
    Cache(Fd, Range<u64>),
    /// A system call.
    Call(CallJob),
}

/// The result of a [`Job`].
#[derive(Debug)]
pub enum JobOutcome<F = FileOutcome> {
    /// That of a file operation.
    File(F),
    /// A part of a file was read.
    Cached,
    /// The value that a system call has returned.
    Call(usize),
}

impl Job {
    /// Executes the job in the calling thread. May block.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn run(&self) -> Result<JobOutcome<FileJobOutcome>, Errno> {
        match self {
            Job::File(job) => job.run(Blocking::MayBlock).map(JobOutcome::File),
            Job::Cache(file, part) => disk::cache(*file, part.clone()).map(|()| JobOutcome::Cached),
            Job::Call(job) => job.run().map(JobOutcome::Call),
        }
    }
}

impl From<JobOutcome<FileJobOutcome>> for JobOutcome {
    fn from(outcome: JobOutcome<FileJobOutcome>) -> Self {
        match outcome {
            JobOutcome::File(done) => JobOutcome::File(done.into()),
            JobOutcome::Cached => JobOutcome::Cached,
            JobOutcome::Call(value) => JobOutcome::Call(value),
        }
    }
}

impl FileJob {
    /// Executes the operation in the calling thread.
    ///
    /// # Errors
    /// Those of the system call. With [`Blocking::NoBlock`], also those for which
    /// [`FileJob::would_block`] returns true.
    pub fn run(&self, disk: Blocking) -> Result<FileJobOutcome, Errno> {
        if disk == Blocking::NoBlock && self.may_always_block() {
            return Err(Errno::AGAIN);
        }
        match self {
            FileOp::Open(at, access) => {
                disk::open(at.borrow(), *access, disk).map(FileOutcome::Opened)
            }
            FileOp::Stat(at) => disk::stat(at.borrow(), disk).map(FileOutcome::Stat),
            FileOp::List(at) => disk::list(at.borrow()).map(FileOutcome::Listed),
            FileOp::Read(file, range) => {
                disk::read(*file, range.start, len(range), disk).map(FileOutcome::Read)
            }
            FileOp::Write(write) => {
                disk::write(write.file, write.at, &write.bytes).map(|()| FileOutcome::Written)
            }
        }
    }

    /// Returns whether an error with [`Blocking::NoBlock`] means that the operation may block.
    pub fn would_block(error: Errno) -> bool {
        // Not cached; unknown whether cached; kernel without RWF_NOWAIT or RESOLVE_CACHED.
        Self::is_cold(error) || matches!(error, Errno::OPNOTSUPP | Errno::INVAL)
    }

    /// Returns whether an error of a read with [`Blocking::NoBlock`] means that the part is not in the page cache.
    pub fn is_cold(error: Errno) -> bool {
        error == Errno::AGAIN
    }
}

impl PathAt<Fd> {
    fn borrow(&self) -> PathAt<Fd, &CStr> {
        PathAt { root: self.root, path: &self.path, symlinks: self.symlinks }
    }
}
