//! File work that takes a while, in place of threads.

use std::collections::VecDeque;
use std::time::Duration;

use super::machine::Machine;
use super::state::Event;
use crate::offload::Threads;
use crate::{Errno, Fd, FileJob, Offload, Outcome, Token};

/// Work that is not begun usually takes less than so many microseconds.
const USUAL: usize = 2_000;

/// File work on a simulated machine, as a few threads do it.
pub struct SimOffload {
    machine: Machine,
    serial: u64,
    /// What no thread has begun.
    waiting: VecDeque<(Token, FileJob)>,
    under_way: Vec<Begun>,
    done: VecDeque<(Token, Outcome)>,
    /// Some of it hangs, and is not waited for any more.
    gave_up: bool,
}

/// Work that a thread has begun.
struct Begun {
    serial: u64,
    token: Token,
    work: FileJob,
    /// None if it never ends.
    ends: Option<Duration>,
}

impl SimOffload {
    pub(super) fn new(machine: Machine) -> Self {
        SimOffload {
            machine,
            serial: 0,
            waiting: VecDeque::new(),
            under_way: Vec::new(),
            done: VecDeque::new(),
            gave_up: false,
        }
    }

    /// Has threads that have nothing to do begin what waits.
    fn begin(&mut self) {
        while self.under_way.len() < Threads::MOST
            && let Some((token, work)) = self.waiting.pop_front()
        {
            self.serial += 1;
            let serial = self.serial;
            let mut state = self.machine.state();
            state.note(|| format!("a thread begins file work {token:?}"));
            let ends = state.begin_file_work(used(&work), USUAL, Event::FileJob(serial));
            self.under_way.push(Begun { serial, token, work, ends });
        }
    }
}

/// The descriptor that work uses.
fn used(work: &FileJob) -> Fd {
    match work {
        FileJob::Open(fd, ..)
        | FileJob::Stat(fd, ..)
        | FileJob::List(fd, ..)
        | FileJob::Read(fd, ..) => *fd,
    }
}

impl Offload for SimOffload {
    fn post(&mut self, token: Token, work: FileJob) {
        self.waiting.push_back((token, work));
        self.begin();
    }

    fn take(&mut self) -> Option<(Token, Outcome)> {
        let due = std::mem::take(&mut self.machine.state().due_work);
        for id in due {
            let Some(at) = self.under_way.iter().position(|begun| begun.serial == id) else {
                continue;
            };
            let Begun { serial, token, work, .. } = self.under_way.swap_remove(at);
            self.machine.state().end_file_work(Event::FileJob(serial));
            let outcome = self.machine.do_work(&work);
            let failed = |errno: Errno| Outcome::Failed(errno, None);
            self.done.push_back((token, outcome.unwrap_or_else(failed)));
        }
        self.begin();
        self.done.pop_front()
    }

    fn stop(&mut self) -> bool {
        if self.gave_up {
            return false;
        }
        self.waiting.clear();
        let mut state = self.machine.state();
        let until = state.now + Threads::STOP_TIMEOUT;
        let last = self.under_way.iter().map(|begun| begun.ends.unwrap_or(Duration::MAX)).max();
        let last = last.unwrap_or_default();
        state.now = state.now.max(last.min(until));
        self.gave_up = last > until;
        if !self.gave_up {
            for Begun { serial, .. } in self.under_way.drain(..) {
                state.end_file_work(Event::FileJob(serial));
            }
        }
        !self.gave_up
    }
}
