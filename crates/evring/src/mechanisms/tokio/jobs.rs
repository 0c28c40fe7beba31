//! Jobs for tokio's blocking pool.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared_ring::author::{FileJobOutcome, Job, JobOutcome, Offload};
use shared_ring::{Errno, Token};

/// The jobs of operations, each of which has a task that waits for a thread of tokio.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    threads: JobQueue,
    tasks: RefCell<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    /// Jobs without a task.
    posted: Vec<Token>,
    ended: VecDeque<(Token, Result<JobOutcome, Errno>)>,
}

/// Jobs that have not ended.
#[derive(Clone, Debug, Default)]
pub(super) struct JobQueue(Arc<Mutex<Unended>>);

#[derive(Debug, Default)]
struct Unended {
    /// Jobs that no thread has started.
    queued: HashMap<Token, Job>,
    /// Number of jobs that threads run.
    running: usize,
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, Unended> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job, unless it was withdrawn.
    pub(super) fn run(&self, token: Token) -> Option<Result<JobOutcome<FileJobOutcome>, Errno>> {
        let mut unended = self.lock();
        let job = unended.queued.remove(&token)?;
        unended.running += 1;
        drop(unended);
        let result = job.run();
        self.lock().running -= 1;
        Some(result)
    }
}

impl Jobs {
    /// Returns the queue, for the threads.
    pub(super) fn queue(&self) -> JobQueue {
        self.threads.clone()
    }

    /// Takes the jobs for which no task has been spawned.
    pub(super) fn take_posted(&self) -> Vec<Token> {
        mem::take(&mut self.tasks.borrow_mut().posted)
    }

    /// Notes the result of a job that a thread has run.
    ///
    /// # Safety
    /// No thread uses the job any more.
    pub(super) unsafe fn ended(
        &self,
        token: Token,
        result: Result<JobOutcome<FileJobOutcome>, Errno>,
    ) {
        self.tasks.borrow_mut().ended.push_back((token, result.map(JobOutcome::from)));
    }
}

// SAFETY: results are of jobs that have ended, as the caller of `ended` says. A job that is withdrawn leaves `queued` before a
// thread has it, as all do in `stop`, which returns true if no thread runs another one.
unsafe impl Offload for Jobs {
    fn post(&mut self, token: Token, job: Job) {
        self.threads.lock().queued.insert(token, job);
        self.tasks.borrow_mut().posted.push(token);
    }

    fn withdraw(&mut self, token: Token) -> bool {
        self.threads.lock().queued.remove(&token).is_some()
    }

    fn take(&mut self) -> Option<(Token, Result<JobOutcome, Errno>)> {
        self.tasks.borrow_mut().ended.pop_front()
    }

    fn stop(&mut self) -> bool {
        let mut unended = self.threads.lock();
        unended.queued.clear();
        let has_ended = unended.running == 0;
        if has_ended {
            self.tasks.borrow_mut().ended.clear();
        }
        has_ended
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use shared_ring::author::FileJob;
    use shared_ring::{Fd, OpKind};

    use super::*;

    #[test]
    fn result_that_was_not_taken_before_a_stop_was_returned_after_it() {
        let mut jobs = Jobs::default();
        let token = Token::new(OpKind::File, 0, 0);
        let file = File::open("/dev/null").unwrap();
        // SAFETY: the file is open until the test ends.
        let fd = unsafe { Fd::lent(file.as_fd()) };
        jobs.post(token, Job::File(FileJob::Read(fd, 0..1)));
        let result = jobs.queue().run(token).unwrap();
        // SAFETY: the job has run.
        unsafe { jobs.ended(token, result) };
        assert!(jobs.stop());
        assert!(jobs.take().is_none());
    }
}
