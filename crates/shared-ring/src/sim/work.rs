//! File work that takes time, simulated without threads.

use std::collections::VecDeque;
use std::time::Duration;

use super::machine::Machine;
use super::state::Event;
use crate::{FileJob, Offload, Outcome, Token};

/// File work in progress on a simulated machine.
pub struct SimOffload {
    machine: Machine,
    serial: u64,
    in_progress: Vec<(u64, Token, FileJob)>,
    done: VecDeque<(Token, Outcome)>,
}

impl SimOffload {
    pub(super) fn new(machine: Machine) -> Self {
        SimOffload { machine, serial: 0, in_progress: Vec::new(), done: VecDeque::new() }
    }
}

impl Offload for SimOffload {
    fn post(&mut self, token: Token, work: FileJob) {
        self.serial += 1;
        self.in_progress.push((self.serial, token, work));
        let mut state = self.machine.state();
        let delay = Duration::from_micros(state.rng.below(2_000) as u64);
        state.note(|| format!("file work {token:?} will take {delay:?}"));
        state.after(delay, Event::FileJob(self.serial));
    }

    fn take(&mut self) -> Option<(Token, Outcome)> {
        let due = std::mem::take(&mut self.machine.state().due_work);
        for id in due {
            let Some(at) = self.in_progress.iter().position(|(other, ..)| *other == id) else {
                continue;
            };
            let (_, token, work) = self.in_progress.swap_remove(at);
            self.done.push_back((token, self.machine.do_work(&work).into()));
        }
        self.done.pop_front()
    }

    fn stop(&mut self) -> bool {
        self.in_progress.clear();
        true
    }
}
