//! Work for other threads.

use rustix::io::Errno;

use crate::nonblocking::Blocking;
use crate::{CallJob, FileJob, FileJobOutcome, FileOutcome};

/// Work for another thread. Its operation owns the memory and the descriptors.
#[derive(Debug)]
pub enum Job {
    /// A file operation.
    File(FileJob),
    /// A system call.
    Call(CallJob),
}

/// The result of a [`Job`].
#[derive(Debug)]
pub enum JobOutcome<F = FileOutcome> {
    /// That of a file operation.
    File(F),
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
            Job::Call(job) => job.run().map(JobOutcome::Call),
        }
    }
}

impl From<JobOutcome<FileJobOutcome>> for JobOutcome {
    fn from(outcome: JobOutcome<FileJobOutcome>) -> Self {
        match outcome {
            JobOutcome::File(done) => JobOutcome::File(done.into()),
            JobOutcome::Call(value) => JobOutcome::Call(value),
        }
    }
}
