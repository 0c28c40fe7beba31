//! Offload threads, simulated.

use std::collections::VecDeque;
use std::time::Duration;

use super::machine::Machine;
use super::state::Event;
use crate::offload::OffloadThreads;
use crate::{Errno, Fd, FileJob, Offload, Outcome, Token};

/// Usual maximum time of a job, in microseconds.
const MAX_JOB_MICROS: usize = 2_000;

/// File jobs on a simulated machine, run by as many threads as on a real one.
pub struct SimOffload {
    machine: Machine,
    serial: u64,
    /// Jobs that no thread has started.
    queued: VecDeque<(Token, FileJob)>,
    started: Vec<StartedJob>,
    done: VecDeque<(Token, Outcome)>,
    /// Some threads hang, and are no longer waited for.
    abandoned: bool,
}

/// A job that a thread has started.
struct StartedJob {
    serial: u64,
    token: Token,
    job: FileJob,
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
        while self.started.len() < OffloadThreads::MAX_THREADS
            && let Some((token, job)) = self.queued.pop_front()
        {
            self.serial += 1;
            let serial = self.serial;
            let mut state = self.machine.state();
            state.note(|| format!("a thread starts the job of {token:?}"));
            let ends = state.start_file_op(used_fd(&job), MAX_JOB_MICROS, Event::FileJob(serial));
            self.started.push(StartedJob { serial, token, job, ends });
        }
    }
}

/// Returns the descriptor that a job uses.
fn used_fd(job: &FileJob) -> Fd {
    match job {
        FileJob::Open(fd, ..)
        | FileJob::Stat(fd, ..)
        | FileJob::List(fd, ..)
        | FileJob::Read(fd, ..) => *fd,
    }
}

impl Offload for SimOffload {
    fn post(&mut self, token: Token, job: FileJob) {
        self.queued.push_back((token, job));
        self.start_queued();
    }

    fn withdraw(&mut self, token: Token) -> bool {
        let at = self.queued.iter().position(|(queued, _)| *queued == token);
        at.and_then(|at| self.queued.remove(at)).is_some()
    }

    fn take(&mut self) -> Option<(Token, Outcome)> {
        let due = std::mem::take(&mut self.machine.state().due_work);
        for serial in due {
            let Some(at) = self.started.iter().position(|started| started.serial == serial) else {
                continue;
            };
            let StartedJob { token, job, .. } = self.started.swap_remove(at);
            self.machine.state().end_file_op(Event::FileJob(serial));
            let outcome = self.machine.do_work(&job);
            let failed = |errno: Errno| Outcome::Failed(errno, None);
            self.done.push_back((token, outcome.unwrap_or_else(failed)));
        }
        self.start_queued();
        self.done.pop_front()
    }

    fn stop(&mut self) -> bool {
        if self.abandoned {
            return false;
        }
        self.queued.clear();
        let mut state = self.machine.state();
        let deadline = state.now + OffloadThreads::STOP_TIMEOUT;
        let ends = self.started.iter().map(|started| started.ends.unwrap_or(Duration::MAX));
        let last = ends.max().unwrap_or_default();
        state.now = state.now.max(last.min(deadline));
        self.abandoned = last > deadline;
        if !self.abandoned {
            for StartedJob { serial, .. } in self.started.drain(..) {
                state.end_file_op(Event::FileJob(serial));
            }
        }
        !self.abandoned
    }
}
