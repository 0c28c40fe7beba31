//! Threads for file operations that would block on the disk.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::linux::file_outcome;
use crate::nonblocking::{self, Blocking};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::{
    Fd, Listing, Metadata, Offload, Op, Outcome, PathAt, Process, SymlinkPolicy, Token, Waker,
};

/// A path as operations hold it.
type Path = std::sync::Arc<CStr>;

/// A job for an offload thread. The caller keeps the descriptors open until it is done.
#[derive(Debug)]
pub enum FileJob {
    /// Open a path relative to a directory.
    Open(Fd, Path, SymlinkPolicy),
    /// Query the metadata of a path relative to a directory.
    Stat(Fd, Path, SymlinkPolicy),
    /// List the directory at a path.
    List(Fd, Path, SymlinkPolicy),
    /// Read from a file: offset and number of bytes.
    Read(Fd, u64, u32),
}

/// Result of a [`FileJob`].
#[derive(Debug)]
pub enum FileResult {
    /// Result of [`FileJob::Open`].
    Opened(OwnedFd, Metadata),
    /// Result of [`FileJob::Stat`].
    Stat(Metadata),
    /// Result of [`FileJob::List`].
    Listed(Listing),
    /// Result of [`FileJob::Read`].
    Read(Vec<u8>),
}

impl FileJob {
    /// Returns the file job of an operation. For a send of a file, the job reads the part to send.
    ///
    /// # Safety
    /// The operation owns the file, which the job names by number. It stays until the job is done.
    ///
    /// # Panics
    /// For an operation without a file.
    pub unsafe fn of(op: &Op) -> Self {
        match op {
            Op::Open { root, path, symlinks } => FileJob::Open(root.fd(), path.clone(), *symlinks),
            Op::Stat { root, path, symlinks } => FileJob::Stat(root.fd(), path.clone(), *symlinks),
            Op::List { root, path, symlinks } => FileJob::List(root.fd(), path.clone(), *symlinks),
            Op::Read { file, offset, len } | Op::SendFile { file, offset, len, .. } => {
                FileJob::Read(file.fd(), *offset, *len)
            }
            op => unreachable!("not a file operation: {op:?}"),
        }
    }

    /// Runs the job in the calling thread.
    ///
    /// # Errors
    /// Those of the system call. With [`Blocking::NoBlock`], also those for which
    /// [`FileJob::would_block`] returns true.
    pub fn run(&self, disk: Blocking) -> Result<FileResult, Errno> {
        match self {
            FileJob::Open(root, path, symlinks) => {
                nonblocking::open(path_at(*root, path, *symlinks), disk)
                    .map(|(fd, meta)| FileResult::Opened(fd, meta))
            }
            FileJob::Stat(root, path, symlinks) => {
                nonblocking::stat(path_at(*root, path, *symlinks), disk).map(FileResult::Stat)
            }
            // getdents(2) has no non-blocking mode.
            FileJob::List(..) if disk == Blocking::NoBlock => Err(Errno::AGAIN),
            FileJob::List(root, path, symlinks) => {
                nonblocking::list(path_at(*root, path, *symlinks)).map(FileResult::Listed)
            }
            FileJob::Read(file, offset, len) => {
                nonblocking::read(*file, *offset, *len, disk).map(FileResult::Read)
            }
        }
    }

    /// Returns whether an error with [`Blocking::NoBlock`] means that the job may block.
    pub fn would_block(error: Errno) -> bool {
        // Not cached; unknown whether cached; kernel without RWF_NOWAIT or RESOLVE_CACHED.
        matches!(error, Errno::AGAIN | Errno::OPNOTSUPP | Errno::INVAL)
    }
}

fn path_at(root: Fd, path: &CStr, symlinks: SymlinkPolicy) -> PathAt<'_> {
    PathAt { root, path, symlinks }
}

/// Up to four threads, started on demand, which share one queue.
///
/// The queue is bounded by the number of operations in flight.
#[derive(Debug)]
pub struct OffloadThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Some threads hang, and are no longer waited for.
    abandoned: bool,
    /// The process that owns the threads. In a child of fork(2) there are none, and the lock may
    /// be held forever.
    process: Process,
}

#[derive(Debug)]
struct Shared {
    queues: Mutex<Queues>,
    posted: Condvar,
    /// Notified when a thread ends.
    ended: Condvar,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Queues {
    todo: VecDeque<(Token, FileJob)>,
    done: VecDeque<(Token, Result<FileResult, Errno>)>,
    idle: usize,
    /// Number of threads that have not ended.
    running: usize,
    stop: bool,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs until `stop`; the body of each thread.
    fn serve(&self) {
        let mut queues = self.queues();
        while !queues.stop {
            let Some((token, job)) = queues.todo.pop_front() else {
                queues.idle += 1;
                queues = self.posted.wait(queues).unwrap_or_else(PoisonError::into_inner);
                queues.idle -= 1;
                continue;
            };
            drop(queues);
            let result = job.run(Blocking::MayBlock);
            queues = self.queues();
            queues.done.push_back((token, result));
            self.waker.wake();
        }
        queues.running -= 1;
        self.ended.notify_all();
    }
}

impl OffloadThreads {
    /// Maximum number of threads. These keep a disk busy; more would only queue there.
    pub(crate) const MAX_THREADS: usize = 4;

    /// Maximum time that [`stop`](Offload::stop) waits for jobs that hang.
    pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(2);

    pub(crate) fn new(waker: Waker) -> Self {
        let queues = Mutex::default();
        let (posted, ended) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { queues, posted, ended, waker });
        OffloadThreads {
            shared,
            threads: Vec::new(),
            abandoned: false,
            process: Process::current(),
        }
    }
}

impl Offload for OffloadThreads {
    /// Queues a job. If no thread can be started, runs it in the calling thread.
    fn post(&mut self, token: Token, job: FileJob) {
        if !self.process.is_current() {
            return;
        }
        let mut queues = self.shared.queues();
        if queues.idle <= queues.todo.len() && self.threads.len() < Self::MAX_THREADS {
            let shared = Arc::clone(&self.shared);
            let name = "file work".to_owned();
            if let Ok(thread) = thread::Builder::new().name(name).spawn(move || shared.serve()) {
                self.threads.push(thread);
                queues.running += 1;
            }
        }
        if self.threads.is_empty() {
            queues.done.push_back((token, job.run(Blocking::MayBlock)));
            self.shared.waker.wake();
            return;
        }
        queues.todo.push_back((token, job));
        self.shared.posted.notify_one();
    }

    fn withdraw(&mut self, token: Token) -> bool {
        if !self.process.is_current() {
            return false;
        }
        let todo = &mut self.shared.queues().todo;
        let at = todo.iter().position(|(queued, _)| *queued == token);
        at.and_then(|at| todo.remove(at)).is_some()
    }

    fn take(&mut self) -> Option<(Token, Outcome)> {
        if !self.process.is_current() {
            return None;
        }
        let (token, result) = self.shared.queues().done.pop_front()?;
        Some((token, file_outcome(result)))
    }

    /// Stops the threads. Abandons those that hang in a file system after two seconds.
    fn stop(&mut self) -> bool {
        if !self.process.is_current() {
            mem::forget(mem::take(&mut self.threads));
            return true;
        }
        if self.abandoned {
            return false;
        }
        let mut queues = self.shared.queues();
        queues.stop = true;
        self.shared.posted.notify_all();
        let deadline = Instant::now() + Self::STOP_TIMEOUT;
        while queues.running > 0 {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                self.threads.clear();
                self.abandoned = true;
                return false;
            }
            let waited = self.shared.ended.wait_timeout(queues, remaining);
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queues);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        true
    }
}

impl Drop for OffloadThreads {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::OpKind;

    /// No descriptor has this number, so jobs on it fail at once.
    const NOT_OPEN: i32 = i32::MAX;

    #[test]
    fn at_most_four_threads_do_all_jobs() {
        let mut threads = OffloadThreads::new(Waker::new().unwrap());
        for slot in 0..100 {
            let job = FileJob::Read(Fd::from_raw(NOT_OPEN), 0, 1);
            threads.post(Token::new(OpKind::File, slot, 0), job);
            assert!((1..=OffloadThreads::MAX_THREADS).contains(&threads.threads.len()));
        }
        let mut done = Vec::new();
        while done.len() < 100 {
            done.extend(threads.take().map(|(token, _)| token.slot()));
            thread::yield_now();
        }
        done.sort_unstable();
        assert_eq!(done, Vec::from_iter(0..100));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::OpKind;

    /// No descriptor has this number, so jobs on it fail at once.
    const NOT_OPEN: i32 = i32::MAX;

    /// In any schedule each job completes once, and the threads end.
    #[test]
    fn each_job_completes_once_and_threads_end() {
        loom::model(|| {
            let waker = Waker::for_model();
            let mut threads = OffloadThreads::new(waker.clone());
            for slot in 0..2 {
                let job = FileJob::Read(Fd::from_raw(NOT_OPEN), 0, 1);
                threads.post(Token::new(OpKind::File, slot, 0), job);
            }
            let mut done = Vec::new();
            while done.len() < 2 {
                waker.drain();
                while let Some((token, outcome)) = threads.take() {
                    assert!(matches!(outcome, Outcome::Failed(Errno::BADF, None)));
                    done.push(token.slot());
                }
            }
            done.sort_unstable();
            assert_eq!(done, [0, 1]);
        });
    }

    /// A job is withdrawn or done, never both.
    #[test]
    fn withdrawn_job_does_not_run() {
        loom::model(|| {
            let waker = Waker::for_model();
            let mut threads = OffloadThreads::new(waker.clone());
            let token = Token::new(OpKind::File, 0, 0);
            threads.post(token, FileJob::Read(Fd::from_raw(NOT_OPEN), 0, 1));
            let withdrawn = threads.withdraw(token);
            while !withdrawn && threads.take().is_none() {
                waker.drain();
            }
            assert!(threads.stop());
            assert!(threads.take().is_none());
        });
    }

    /// Threads end although a job is queued.
    #[test]
    fn threads_end_with_a_job_queued() {
        loom::model(|| {
            let mut threads = OffloadThreads::new(Waker::for_model());
            threads
                .post(Token::new(OpKind::File, 0, 0), FileJob::Read(Fd::from_raw(NOT_OPEN), 0, 1));
            drop(threads);
        });
    }
}
