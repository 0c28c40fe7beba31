//! File work that takes a while, in place of threads.

use std::collections::VecDeque;
use std::time::Duration;

use super::machine::Machine;
use super::world::Event;
use crate::{Errno, Offload, Outcome, Token, Work};

/// File work under way on a simulated machine.
pub struct Works {
    machine: Machine,
    serial: u64,
    under_way: Vec<(u64, Token, Work)>,
    done: VecDeque<(Token, Outcome)>,
}

impl Works {
    pub(super) fn new(machine: Machine) -> Self {
        Works { machine, serial: 0, under_way: Vec::new(), done: VecDeque::new() }
    }
}

impl Offload for Works {
    fn post(&mut self, token: Token, work: Work) {
        self.serial += 1;
        self.under_way.push((self.serial, token, work));
        let mut world = self.machine.world();
        let delay = Duration::from_micros(world.dice.below(2_000) as u64);
        world.note(|| format!("file work {token:?} will take {delay:?}"));
        world.after(delay, Event::Work(self.serial));
    }

    fn take(&mut self) -> Option<(Token, Outcome)> {
        let due = std::mem::take(&mut self.machine.world().due_work);
        for id in due {
            let Some(at) = self.under_way.iter().position(|(other, ..)| *other == id) else {
                continue;
            };
            let (_, token, work) = self.under_way.swap_remove(at);
            let outcome = self.machine.do_work(&work);
            let failed = |errno: Errno| Outcome::Failed(errno, None);
            self.done.push_back((token, outcome.unwrap_or_else(failed)));
        }
        self.done.pop_front()
    }

    fn stop(&mut self) -> bool {
        self.under_way.clear();
        true
    }
}
