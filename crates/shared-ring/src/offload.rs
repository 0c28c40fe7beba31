//! File work that would wait for the disk, done by a few threads.

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

/// A path, as operations have it.
type Path = std::sync::Arc<CStr>;

/// Work for a thread. Whoever posts it keeps the descriptors open until it is done.
#[derive(Debug)]
pub enum FileJob {
    /// Open a path that begins at a directory.
    Open(Fd, Path, SymlinkPolicy),
    /// Look at a path that begins at a directory.
    Stat(Fd, Path, SymlinkPolicy),
    /// List the directory that a path leads to.
    List(Fd, Path, SymlinkPolicy),
    /// Read from a file: where, and how many bytes.
    Read(Fd, u64, u32),
}

/// What became of the work.
#[derive(Debug)]
pub enum FileResult {
    /// The end of [`FileJob::Open`].
    Opened(OwnedFd, Metadata),
    /// The end of [`FileJob::Stat`].
    Stat(Metadata),
    /// The end of [`FileJob::List`].
    Listed(Listing),
    /// The end of [`FileJob::Read`].
    Read(Vec<u8>),
}

impl FileJob {
    /// The file work of an operation; for a send of a file, to read what it is to send.
    ///
    /// # Safety
    /// The operation, which holds the file, stays until the work is done. It names the file by its number.
    ///
    /// # Panics
    /// For an operation that has to do with no file.
    pub unsafe fn of(op: &Op) -> Self {
        match op {
            Op::Open { root, path, symlinks } => FileJob::Open(root.fd(), path.clone(), *symlinks),
            Op::Stat { root, path, symlinks } => FileJob::Stat(root.fd(), path.clone(), *symlinks),
            Op::List { root, path, symlinks } => FileJob::List(root.fd(), path.clone(), *symlinks),
            Op::Read { file, offset, len } | Op::SendFile { file, offset, len, .. } => {
                FileJob::Read(file.fd(), *offset, *len)
            }
            op => unreachable!("not file work: {op:?}"),
        }
    }

    /// Does the work in the calling thread.
    ///
    /// # Errors
    /// Those of the system call; with [`Blocking::NoBlock`] also those that say it would have waited.
    pub fn run(&self, disk: Blocking) -> Result<FileResult, Errno> {
        match self {
            FileJob::Open(root, path, symlinks) => {
                nonblocking::open(place(*root, path, *symlinks), disk)
                    .map(|(fd, meta)| FileResult::Opened(fd, meta))
            }
            FileJob::Stat(root, path, symlinks) => {
                nonblocking::stat(place(*root, path, *symlinks), disk).map(FileResult::Stat)
            }
            // There is no way to ask for a directory only if it is in memory.
            FileJob::List(..) if disk == Blocking::NoBlock => Err(Errno::AGAIN),
            FileJob::List(root, path, symlinks) => {
                nonblocking::list(place(*root, path, *symlinks)).map(FileResult::Listed)
            }
            FileJob::Read(file, offset, len) => {
                nonblocking::read(*file, *offset, *len, disk).map(FileResult::Read)
            }
        }
    }

    /// Whether the error of a try with [`Blocking::NoBlock`] means that a thread should try.
    pub fn would_block(error: Errno) -> bool {
        // Not cached; can't tell whether cached; kernel without the question.
        matches!(error, Errno::AGAIN | Errno::OPNOTSUPP | Errno::INVAL)
    }
}

fn place(root: Fd, path: &CStr, symlinks: SymlinkPolicy) -> PathAt<'_> {
    PathAt { root, path, symlinks }
}

/// A few threads, started when first needed, which share one queue.
///
/// The queue is as long as there are operations in flight, so their bound is its bound.
#[derive(Debug)]
pub struct OffloadThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Some of them hang, and are not waited for any more.
    abandoned: bool,
    /// The process that has them. In a child of fork(2) there are none, and the lock may be held for good.
    process: Process,
}

#[derive(Debug)]
struct Shared {
    queues: Mutex<Queues>,
    posted: Condvar,
    /// A thread has come to its end.
    ended: Condvar,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Queues {
    todo: VecDeque<(Token, FileJob)>,
    done: VecDeque<(Token, Result<FileResult, Errno>)>,
    idle: usize,
    /// Threads that have not come to their end.
    running: usize,
    stop: bool,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each thread does.
    fn serve(&self) {
        let mut queues = self.queues();
        while !queues.stop {
            let Some((token, work)) = queues.todo.pop_front() else {
                queues.idle += 1;
                queues = self.posted.wait(queues).unwrap_or_else(PoisonError::into_inner);
                queues.idle -= 1;
                continue;
            };
            drop(queues);
            let done = work.run(Blocking::MayBlock);
            queues = self.queues();
            queues.done.push_back((token, done));
            self.waker.wake();
        }
        queues.running -= 1;
        self.ended.notify_all();
    }
}

impl OffloadThreads {
    /// Enough to keep a disk busy; more would only queue there.
    pub(crate) const MAX_THREADS: usize = 4;

    /// How long [`stop`](Offload::stop) waits for work that hangs.
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
    /// Hands work to a thread. When none can be started the caller does it, slowly but surely.
    fn post(&mut self, token: Token, work: FileJob) {
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
            queues.done.push_back((token, work.run(Blocking::MayBlock)));
            self.shared.waker.wake();
            return;
        }
        queues.todo.push_back((token, work));
        self.shared.posted.notify_one();
    }

    fn take(&mut self) -> Option<(Token, Outcome)> {
        if !self.process.is_current() {
            return None;
        }
        let (token, result) = self.shared.queues().done.pop_front()?;
        Some((token, file_outcome(result)))
    }

    /// Waits for the threads, but not for ever: one whose file system hangs is left to itself.
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
        let until = Instant::now() + Self::STOP_TIMEOUT;
        while queues.running > 0 {
            let remaining = until.saturating_duration_since(Instant::now());
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

    /// No descriptor has this number, so that work on it fails at once.
    const NOT_OPEN: i32 = i32::MAX;

    #[test]
    fn a_few_threads_do_the_work() {
        let mut threads = OffloadThreads::new(Waker::new().unwrap());
        for slot in 0..100 {
            let work = FileJob::Read(Fd::from_raw(NOT_OPEN), 0, 1);
            threads.post(Token::new(OpKind::File, slot, 0), work);
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

    /// No descriptor has this number, so that work on it fails at once.
    const NOT_OPEN: i32 = i32::MAX;

    /// Whatever threads do the work, each piece comes back once, and they end when they are told.
    #[test]
    fn work_comes_back_and_threads_end() {
        loom::model(|| {
            let waker = Waker::for_model();
            let mut threads = OffloadThreads::new(waker.clone());
            for slot in 0..2 {
                let work = FileJob::Read(Fd::from_raw(NOT_OPEN), 0, 1);
                threads.post(Token::new(OpKind::File, slot, 0), work);
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

    /// Threads end though there is work that was not begun.
    #[test]
    fn they_end_before_their_work_does() {
        loom::model(|| {
            let mut threads = OffloadThreads::new(Waker::for_model());
            threads
                .post(Token::new(OpKind::File, 0, 0), FileJob::Read(Fd::from_raw(NOT_OPEN), 0, 1));
            drop(threads);
        });
    }
}
