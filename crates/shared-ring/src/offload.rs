//! Threads for file operations that would block on the disk, and for system calls.

use std::collections::VecDeque;
use std::mem;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::{FileJobOutcome, Job, JobOutcome, Offload, Process, Token, Waker};

/// Threads for file operations, and others for system calls, which may wait for ever.
#[derive(Debug)]
pub struct OffloadThreads {
    files: ThreadPool,
    calls: ThreadPool,
}

/// Up to four threads, started on demand, which share the queues.
///
/// The queues are bounded by the number of operations in flight.
#[derive(Debug)]
struct ThreadPool {
    shared: Arc<Shared>,
    name: &'static str,
    /// A job was posted.
    is_used: bool,
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
    todo: Todo,
    done: VecDeque<(Token, Result<JobOutcome<FileJobOutcome>, Errno>)>,
    idle: usize,
    /// Number of threads that have not ended.
    running: usize,
    stop: bool,
}

/// Jobs that no thread has begun. Threads take them alternately from both queues, each in order.
#[derive(Debug, Default)]
struct Todo {
    /// Parts of files that sends wait for, of any number of connections.
    parts: VecDeque<(Token, Job)>,
    /// Other jobs, which would wait for all of these.
    others: VecDeque<(Token, Job)>,
    /// The job that was taken last is one of `others`.
    took_other: bool,
}

impl Todo {
    fn len(&self) -> usize {
        self.parts.len() + self.others.len()
    }

    fn push(&mut self, token: Token, job: Job) {
        let queue = if let Job::Cache(..) = job { &mut self.parts } else { &mut self.others };
        queue.push_back((token, job));
    }

    fn pop(&mut self) -> Option<(Token, Job)> {
        let takes_other = !self.others.is_empty() && (!self.took_other || self.parts.is_empty());
        self.took_other = takes_other;
        let queue = if takes_other { &mut self.others } else { &mut self.parts };
        queue.pop_front()
    }

    /// Removes a job. Returns whether it was queued.
    fn remove(&mut self, token: Token) -> bool {
        [&mut self.others, &mut self.parts].into_iter().any(|queue| {
            let found = queue.iter().position(|(other, _)| *other == token);
            found.is_some_and(|at| queue.remove(at).is_some())
        })
    }
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs until `stop`; the body of each thread.
    fn serve(&self) {
        let mut queues = self.queues();
        while !queues.stop {
            let Some((token, job)) = queues.todo.pop() else {
                queues.idle += 1;
                queues = self.posted.wait(queues).unwrap_or_else(PoisonError::into_inner);
                queues.idle -= 1;
                continue;
            };
            drop(queues);
            let result = job.run();
            queues = self.queues();
            queues.done.push_back((token, result));
            self.waker.wake();
        }
        queues.running -= 1;
        self.ended.notify_all();
    }
}

impl OffloadThreads {
    /// Maximum number of threads of each kind. These keep a disk busy; more would only queue there.
    pub const MAX_THREADS: usize = 4;

    /// Maximum time that [`stop`](Offload::stop) waits for jobs that hang.
    pub const STOP_TIMEOUT: Duration = Duration::from_secs(2);

    /// Creates the pool, which wakes when a job is done. Threads start with the first jobs.
    pub fn new(waker: Waker) -> Self {
        let files = ThreadPool::new("file work", waker.clone());
        OffloadThreads { files, calls: ThreadPool::new("system calls", waker) }
    }
}

// SAFETY: a thread puts the token into `done` after it has run the job. A job that is withdrawn is taken out of `todo` before
// a thread has it. The threads have ended, or are those of another process, when `stop` returns true.
unsafe impl Offload for OffloadThreads {
    fn post(&mut self, token: Token, job: Job) {
        match job {
            Job::File(_) | Job::Cache(..) => self.files.post(token, job),
            Job::Call(_) => self.calls.post(token, job),
        }
    }

    fn withdraw(&mut self, token: Token) -> bool {
        self.files.withdraw(token) || self.calls.withdraw(token)
    }

    fn take(&mut self) -> Option<(Token, Result<JobOutcome, Errno>)> {
        self.files.take().or_else(|| self.calls.take())
    }

    /// Stops the threads. Abandons those that hang after two seconds.
    fn stop(&mut self) -> bool {
        let deadline = Instant::now() + Self::STOP_TIMEOUT;
        let files = self.files.stop(deadline);
        self.calls.stop(deadline) && files
    }
}

impl Drop for OffloadThreads {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ThreadPool {
    fn new(name: &'static str, waker: Waker) -> Self {
        let queues = Mutex::default();
        let (posted, ended) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { queues, posted, ended, waker });
        ThreadPool {
            shared,
            name,
            is_used: false,
            threads: Vec::new(),
            abandoned: false,
            process: Process::current(),
        }
    }

    /// Queues a job. If no thread can be started, runs it in the calling thread.
    fn post(&mut self, token: Token, job: Job) {
        self.is_used = true;
        if !self.process.is_current() {
            return;
        }
        let mut queues = self.shared.queues();
        if queues.idle <= queues.todo.len() && self.threads.len() < OffloadThreads::MAX_THREADS {
            let shared = Arc::clone(&self.shared);
            let name = thread::Builder::new().name(self.name.to_owned());
            if let Ok(thread) = name.spawn(move || shared.serve()) {
                self.threads.push(thread);
                queues.running += 1;
            }
        }
        if self.threads.is_empty() {
            queues.done.push_back((token, job.run()));
            self.shared.waker.wake();
            return;
        }
        queues.todo.push(token, job);
        self.shared.posted.notify_one();
    }

    fn withdraw(&mut self, token: Token) -> bool {
        if !self.is_used || !self.process.is_current() {
            return false;
        }
        self.shared.queues().todo.remove(token)
    }

    fn take(&mut self) -> Option<(Token, Result<JobOutcome, Errno>)> {
        if !self.is_used || !self.process.is_current() {
            return None;
        }
        let (token, result) = self.shared.queues().done.pop_front()?;
        Some((token, result.map(JobOutcome::from)))
    }

    /// Stops the threads. Abandons those that hang after the deadline.
    fn stop(&mut self, deadline: Instant) -> bool {
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
        queues.done.clear();
        drop(queues);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Fd, FileJob, OpKind};

    /// No descriptor has this number, so jobs on it fail at once.
    const NOT_OPEN: i32 = i32::MAX;

    #[test]
    fn at_most_four_threads_do_all_jobs() {
        let mut threads = OffloadThreads::new(Waker::new().unwrap());
        for slot in 0..100 {
            let job = Job::File(FileJob::Read(Fd::from_raw(NOT_OPEN), 0..1));
            threads.post(Token::new(OpKind::File, slot, 0), job);
            assert!((1..=OffloadThreads::MAX_THREADS).contains(&threads.files.threads.len()));
        }
        let mut done = Vec::new();
        while done.len() < 100 {
            done.extend(threads.take().map(|(token, _)| token.slot()));
            thread::yield_now();
        }
        done.sort_unstable();
        assert_eq!(done, Vec::from_iter(0..100));
    }

    /// Returns the numbers of the jobs in the order in which one thread does them.
    fn order_of_one_thread(jobs: impl IntoIterator<Item = Job>) -> Vec<u32> {
        let threads = OffloadThreads::new(Waker::new().unwrap());
        let shared = Arc::clone(&threads.files.shared);
        let mut queues = shared.queues();
        for (slot, job) in (0..).zip(jobs) {
            queues.todo.push(Token::new(OpKind::File, slot, 0), job);
        }
        let all = queues.todo.len();
        queues.running += 1;
        drop(queues);
        let one = Arc::clone(&shared);
        let thread = thread::spawn(move || one.serve());
        while shared.queues().done.len() < all {
            thread::yield_now();
        }
        let order = shared.queues().done.iter().map(|(token, _)| token.slot()).collect();
        // Ends the thread.
        drop(threads);
        thread.join().unwrap();
        order
    }

    #[test]
    fn file_operation_waited_for_all_parts_that_sends_need() {
        let read = || Job::File(FileJob::Read(Fd::from_raw(NOT_OPEN), 0..1));
        let part = || Job::Cache(Fd::from_raw(NOT_OPEN), 0..1);
        let order = order_of_one_thread((0..1_000).map(|_| part()).chain([read()]));
        assert_eq!((order.len(), order[0], &order[1..4]), (1_001, 1_000, &[0, 1, 2][..]));
        // A part does not wait for all file operations either.
        let order = order_of_one_thread((0..1_000).map(|_| read()).chain([part()]));
        assert_eq!((order.len(), &order[..4]), (1_001, &[0, 1_000, 1, 2][..]));
        // Neither queue is preferred.
        let both = (0..6).map(|at| if at < 3 { part() } else { read() });
        assert_eq!(order_of_one_thread(both), [3, 0, 4, 1, 5, 2]);
    }

    #[test]
    fn job_of_either_queue_is_withdrawn() {
        let mut todo = Todo::default();
        let token = |slot| Token::new(OpKind::File, slot, 0);
        todo.push(token(0), Job::File(FileJob::Read(Fd::from_raw(NOT_OPEN), 0..1)));
        todo.push(token(1), Job::Cache(Fd::from_raw(NOT_OPEN), 0..1));
        assert!(todo.remove(token(1)) && !todo.remove(token(1)) && !todo.remove(token(2)));
        assert_eq!(todo.len(), 1);
        assert!(todo.remove(token(0)));
        assert!(todo.pop().is_none());
    }

    #[test]
    fn result_that_was_not_taken_before_a_stop_was_returned_after_it() {
        let mut threads = OffloadThreads::new(Waker::new().unwrap());
        let job = Job::File(FileJob::Read(Fd::from_raw(NOT_OPEN), 0..1));
        threads.post(Token::new(OpKind::File, 0, 0), job);
        while threads.files.shared.queues().done.is_empty() {
            thread::yield_now();
        }
        assert!(threads.stop());
        assert!(threads.take().is_none());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::{Fd, FileJob, OpKind};

    /// No descriptor has this number, so jobs on it fail at once.
    const NOT_OPEN: i32 = i32::MAX;

    /// In any schedule each job completes once, and the threads end.
    #[test]
    fn each_job_completes_once_and_threads_end() {
        loom::model(|| {
            let waker = Waker::for_model();
            let mut threads = OffloadThreads::new(waker.clone());
            for slot in 0..2 {
                let job = Job::File(FileJob::Read(Fd::from_raw(NOT_OPEN), 0..1));
                threads.post(Token::new(OpKind::File, slot, 0), job);
            }
            let mut done = Vec::new();
            while done.len() < 2 {
                waker.drain();
                while let Some((token, result)) = threads.take() {
                    assert!(matches!(result, Err(Errno::BADF)));
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
            threads.post(token, Job::File(FileJob::Read(Fd::from_raw(NOT_OPEN), 0..1)));
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
            let job = Job::File(FileJob::Read(Fd::from_raw(NOT_OPEN), 0..1));
            threads.post(Token::new(OpKind::File, 0, 0), job);
            drop(threads);
        });
    }
}
