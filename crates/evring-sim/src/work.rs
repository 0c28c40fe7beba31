//! Offload threads, simulated.

use std::collections::VecDeque;
use std::time::Duration;

use shared_ring::author::{FileJob, Job, JobOutcome, Offload, OffloadThreads};
use shared_ring::files::FileOp;
use shared_ring::{Errno, Fd, Token};

use crate::machine::Machine;
use crate::state::Event;

/// Usual maximum time of a job, in microseconds.
const MAX_JOB_MICROS: usize = 2_000;

/// Jobs on a simulated machine, run by as many threads as on a real one.
pub struct SimOffload {
    machine: Machine,
    serial: u64,
    /// Jobs that no thread has started.
    queued: VecDeque<(Token, Job)>,
    started: Vec<StartedJob>,
    done: VecDeque<(Token, Result<JobOutcome, Errno>)>,
    /// Some threads hang, and are no longer waited for.
    abandoned: bool,
}

impl std::fmt::Debug for SimOffload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimOffload").field("queued", &self.queued.len()).finish_non_exhaustive()
    }
}

/// A job that a thread has started.
struct StartedJob {
    serial: u64,
    token: Token,
    job: Job,
    /// `None` if it never ends.
    ends: Option<Duration>,
}

impl SimOffload {
    pub(super) fn new(machine: Machine) -> Self {
        SimOffload {
            machine,
            serial: 0,
            queued: VecDeque::new(),
            started: Vec::new(),
            done: VecDeque::new(),
            abandoned: false,
        }
    }

    /// Starts queued jobs on idle threads.
    fn start_queued(&mut self) {
        let started = |jobs: &[StartedJob], calls| {
            jobs.iter().filter(|started| matches!(started.job, Job::Call(_)) == calls).count()
        };
        while let Some(at) = self.queued.iter().position(|(_, job)| {
            let calls = matches!(job, Job::Call(_));
            started(&self.started, calls) < OffloadThreads::MAX_THREADS
        }) {
            let (token, job) = self.queued.remove(at).expect("it was just found");
            self.start(token, job);
        }
    }

    fn start(&mut self, token: Token, job: Job) {
        self.serial += 1;
        let serial = self.serial;
        let mut state = self.machine.state();
        state.note(|| format!("a thread starts the job of {token:?}"));
        let event = Event::FileJob(serial);
        let ends = match &job {
            Job::File(job) => state.start_file_op(used_fd(job), MAX_JOB_MICROS, event),
            Job::Cache(file, _) => state.start_file_op(*file, MAX_JOB_MICROS, event),
            Job::Call(_) => {
                let time = Duration::from_micros(state.rng.below(MAX_JOB_MICROS) as u64);
                state.after(time, event);
                Some(state.now + time)
            }
        };
        drop(state);
        self.started.push(StartedJob { serial, token, job, ends });
    }

    /// Ends a job whose time has come. A call fails with `EAGAIN` if its thread waits.
    fn run(&self, serial: u64, job: &Job) -> Result<JobOutcome, Errno> {
        match job {
            Job::File(job) => {
                self.machine.state().end_file_op(Event::FileJob(serial));
                self.machine.do_work(job).map(JobOutcome::File)
            }
            Job::Cache(file, part) => {
                self.machine.state().end_file_op(Event::FileJob(serial));
                let read = self.machine.do_work(&FileOp::Read(*file, part.clone()));
                read.map(|_| JobOutcome::Cached)
            }
            Job::Call(call) => self.machine.do_call(call).map(JobOutcome::Call),
        }
    }
}

/// Returns whether a thread waits that makes a call with this result.
fn waits(job: &Job, result: &Result<JobOutcome, Errno>) -> bool {
    matches!((job, result), (Job::Call(_), Err(Errno::AGAIN)))
}

/// Returns the descriptor that a job uses.
fn used_fd(job: &FileJob) -> Fd {
    match job {
        FileOp::Open(at, _) | FileOp::Stat(at) | FileOp::List(at) => at.root,
        FileOp::Read(fd, _) => *fd,
        FileOp::Write(write) => write.file,
    }
}

// SAFETY: a job is run by `take`, which then returns its token; until then it is in `queued` or in `started`.
unsafe impl Offload for SimOffload {
    fn post(&mut self, token: Token, job: Job) {
        self.queued.push_back((token, job));
        self.start_queued();
    }

    fn withdraw(&mut self, token: Token) -> bool {
        let at = self.queued.iter().position(|(queued, _)| *queued == token);
        at.and_then(|at| self.queued.remove(at)).is_some()
    }

    fn take(&mut self) -> Option<(Token, Result<JobOutcome, Errno>)> {
        let due = std::mem::take(&mut self.machine.state().due_work);
        for serial in due {
            let Some(at) = self.started.iter().position(|started| started.serial == serial) else {
                continue;
            };
            let StartedJob { token, job, .. } = self.started.swap_remove(at);
            let result = self.run(serial, &job);
            if waits(&job, &result) {
                self.start(token, job);
                continue;
            }
            self.done.push_back((token, result));
        }
        self.start_queued();
        self.done.pop_front()
    }

    fn stop(&mut self) -> bool {
        if self.abandoned {
            return false;
        }
        self.queued.clear();
        // The threads end what they have started, but for calls that wait, and operations that hang.
        let mut started = std::mem::take(&mut self.started);
        started.retain(|StartedJob { serial, job, .. }| match job {
            Job::Call(_) => waits(job, &self.run(*serial, job)),
            _ => true,
        });
        let ends = started.iter().map(|StartedJob { job, ends, .. }| match (job, ends) {
            (Job::File(_) | Job::Cache(..), Some(ends)) => *ends,
            _ => Duration::MAX,
        });
        let last = ends.max().unwrap_or_default();
        let mut state = self.machine.state();
        let deadline = state.now + OffloadThreads::STOP_TIMEOUT;
        state.now = state.now.max(last.min(deadline));
        drop(state);
        self.abandoned = last > deadline;
        if self.abandoned {
            self.started = started;
        } else {
            self.done.clear();
            started
                .into_iter()
                .for_each(|StartedJob { serial, job, .. }| drop(self.run(serial, &job)));
        }
        !self.abandoned
    }
}

#[cfg(test)]
mod tests {
    use shared_ring::OpKind;
    use shared_ring::calls::Call;

    use super::*;
    use crate::{Faults, Plan, number};

    #[test]
    fn call_that_waits_forever_ended_with_the_threads() {
        let machine = Machine::new(&Plan { faults: Faults::NONE, ..Plan::default() });
        let (event, add) = machine.event().unwrap();
        for is_ready in [false, true] {
            let mut offload = SimOffload::new(machine.clone());
            let mut call = Call::read(number::of(&event), 8);
            // SAFETY: the call lives as long as the threads, and is looked at when they have ended.
            let job = unsafe { call.job() };
            offload.post(Token::new(OpKind::Call, 0, 0), Job::Call(job));
            machine.state().wait(None);
            assert!(offload.take().is_none(), "the thread waits");
            if is_ready {
                add(7);
            }
            assert_eq!(offload.stop(), is_ready);
            assert_eq!(offload.stop(), is_ready, "again");
            assert_eq!(call.memory(1) == 7_u64.to_ne_bytes(), is_ready);
        }
    }
}
