//! A thread's queue of real-time signals, played.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::fault::Fault;
use super::machine::Machine;
use super::poller::readiness;
use super::world::{Passed, What, World};
use crate::poller::{Readiness, RtSig, Signal, Signals};
use crate::{Errno, Fd, Table};

/// Real-time signals, on a simulated machine.
pub type SimRtSig = RtSig<SimSignals, Machine>;

impl SimRtSig {
    /// Makes an empty set on a machine, with a queue of at most so many signals.
    pub fn simulated(machine: &Machine, most: usize) -> Self {
        let (marks, queue) = (Table::default(), VecDeque::new());
        let signals =
            SimSignals { machine: machine.clone(), marks, queue, most, overflowed: false };
        RtSig::over(signals, machine.clone())
    }
}

/// Signals of a simulated machine.
pub struct SimSignals {
    machine: Machine,
    /// The marks of those that signal, plus one.
    marks: Table<u8>,
    queue: VecDeque<(Fd, u8, Readiness)>,
    most: usize,
    overflowed: bool,
}

impl SimSignals {
    /// Queues a signal for each descriptor of which something has changed. A waker that nobody has
    /// drained stirs all the time, so that of wakers only a call is told that waits.
    fn look(&mut self, world: &mut World, waits: bool) {
        let mut wakers = Vec::new();
        while let Some(fd) = world.take_stirred() {
            let Some(mark) = self.marks.at(fd.index()).checked_sub(1) else { continue };
            if !waits && matches!(world.what(fd, "poll"), Ok(What::Event(_))) {
                wakers.push(fd);
                continue;
            }
            let ready = readiness(world, fd);
            if self.queue.len() < self.most {
                world.note(|| format!("{fd:?} signals {ready:?}"));
                self.queue.push_back((fd, mark, ready));
            } else {
                self.overflowed = true;
            }
        }
        wakers.into_iter().for_each(|fd| world.stir(fd.raw() as u32));
    }

    /// The kernel hands out the lowest signal first; SIGIO is lower than those with marks.
    fn next(&mut self) -> Option<Signal> {
        if std::mem::take(&mut self.overflowed) {
            return Some(Signal::Overflow);
        }
        let lowest = self.queue.iter().map(|(_, mark, _)| *mark).min()?;
        let at = self.queue.iter().position(|(_, mark, _)| *mark == lowest)?;
        self.queue.remove(at).map(|(fd, mark, ready)| Signal::Ready(fd, mark, ready))
    }
}

impl Signals for SimSignals {
    const MARKS: u8 = 4;
    /// Few, so that some are left when their descriptors are closed.
    const AT_A_TIME: usize = 1;

    fn watch(&mut self, fd: Fd, mark: u8) -> io::Result<()> {
        let machine = self.machine.clone();
        let mut world = machine.world();
        world.what(fd, "fcntl")?;
        // What happened before was not signalled.
        self.look(&mut world, false);
        *self.marks.at(fd.index()) = mark + 1;
        Ok(())
    }

    fn ignore(&mut self, fd: Fd) {
        *self.marks.at(fd.index()) = 0;
    }

    fn forget(&mut self, fd: Fd) {
        let machine = self.machine.clone();
        self.look(&mut machine.world(), false);
        self.ignore(fd);
    }

    fn take(&mut self, most: Option<Duration>) -> io::Result<Option<Signal>> {
        let machine = self.machine.clone();
        let mut world = machine.world();
        world.enter();
        let (until, waits) = (most.map(|most| world.now + most), most != Some(Duration::ZERO));
        if waits && world.dice.fault(Fault::Interrupted) {
            return Ok(None);
        }
        loop {
            self.look(&mut world, waits);
            if world.failure().is_some() {
                return Err(Errno::CANCELED.into());
            }
            let next = self.next();
            if next.is_some() || !waits || world.wait(until) == Passed::Over {
                return Ok(next);
            }
        }
    }

    /// They are of no interest here.
    fn system_calls(&self) -> u64 {
        0
    }
}
