//! File work that takes time, simulated without threads.

use std::collections::VecDeque;
use std::time::Duration;

use super::machine::Machine;
use super::state::Event;
use crate::{Errno, Job, JobOutcome, Offload, Token};

/// Work of other threads in progress on a simulated machine.
pub struct SimOffload {
    machine: Machine,
    serial: u64,
    in_progress: Vec<(u64, Token, Job)>,
    done: VecDeque<(Token, Result<JobOutcome, Errno>)>,
}

impl SimOffload {
    pub(super) fn new(machine: Machine) -> Self {
        SimOffload { machine, serial: 0, in_progress: Vec::new(), done: VecDeque::new() }
    }
}

impl Offload for SimOffload {
    fn post(&mut self, token: Token, work: Job) {
        self.serial += 1;
        self.in_progress.push((self.serial, token, work));
        let mut state = self.machine.state();
        let delay = Duration::from_micros(state.rng.below(2_000) as u64);
        state.note(|| format!("work {token:?} will take {delay:?}"));
        state.after(delay, Event::Job(self.serial));
    }

    fn withdraw(&mut self, token: Token) -> bool {
        let Some(at) = self.in_progress.iter().position(|(_, other, _)| *other == token) else {
            return false;
        };
        let begun = self.machine.state().rng.once_in(2);
        if !begun {
            self.in_progress.swap_remove(at);
        }
        !begun
    }

    fn take(&mut self) -> Option<(Token, Result<JobOutcome, Errno>)> {
        let due = std::mem::take(&mut self.machine.state().due_work);
        for id in due {
            let Some(at) = self.in_progress.iter().position(|(other, ..)| *other == id) else {
                continue;
            };
            let (_, token, work) = self.in_progress.swap_remove(at);
            let result = match &work {
                Job::File(job) => self.machine.do_work(job).map(JobOutcome::File),
                Job::Call(job) => match self.machine.do_call(job) {
                    // The thread waits.
                    Err(Errno::AGAIN) => {
                        self.post(token, work);
                        continue;
                    }
                    result => result.map(JobOutcome::Call),
                },
            };
            self.done.push_back((token, result));
        }
        self.done.pop_front()
    }

    fn stop(&mut self) -> bool {
        self.in_progress.clear();
        true
    }
}
