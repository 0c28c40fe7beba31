//! Signals: a thread's queue of real-time signals, played, and calls that are interrupted.

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
        machine.world().signalling = Signalling::Queued(Queue { most, ..Queue::default() });
        RtSig::over(SimSignals { machine: machine.clone() }, machine.clone())
    }
}

/// What becomes of a change that a signal tells of.
pub(super) enum Signalling {
    /// There are no signals.
    Never,
    /// SIGIO interrupts this thread, in earnest: whoever asked for it has a handler.
    Interrupts,
    /// A real-time signal is queued.
    Queued(Queue),
}

/// A thread's queue of real-time signals.
#[derive(Default)]
pub(super) struct Queue {
    /// The marks of those that signal, plus one.
    marks: Table<u8>,
    signals: VecDeque<(Fd, u8, Readiness)>,
    most: usize,
    overflowed: bool,
}

impl Queue {
    /// The kernel hands out the lowest signal first; SIGIO is lower than those with marks.
    fn next(&mut self) -> Option<Signal> {
        if std::mem::take(&mut self.overflowed) {
            return Some(Signal::Overflow);
        }
        let lowest = self.signals.iter().map(|(_, mark, _)| *mark).min()?;
        let at = self.signals.iter().position(|(_, mark, _)| *mark == lowest)?;
        self.signals.remove(at).map(|(fd, mark, ready)| Signal::Ready(fd, mark, ready))
    }
}

impl World {
    fn queue(&mut self) -> &mut Queue {
        match &mut self.signalling {
            Signalling::Queued(queue) => queue,
            _ => unreachable!("a queue was made with the poller"),
        }
    }

    /// Queues a signal for each descriptor of which something has changed. A waker that nobody has
    /// drained stirs all the time, so that of wakers only a call is told that waits.
    fn queue_signals(&mut self, waits: bool) {
        let mut wakers = Vec::new();
        while let Some(fd) = self.take_stirred() {
            let Some(mark) = self.queue().marks.at(fd.index()).checked_sub(1) else { continue };
            if !waits && matches!(self.what(fd, "poll"), Ok(What::Event(_))) {
                wakers.push(fd);
                continue;
            }
            let ready = readiness(self, fd);
            let queue = self.queue();
            if queue.signals.len() < queue.most {
                queue.signals.push_back((fd, mark, ready));
                self.note(|| format!("{fd:?} signals {ready:?}"));
            } else {
                queue.overflowed = true;
            }
        }
        wakers.into_iter().for_each(|fd| self.stir(fd.raw() as u32));
    }
}

impl Machine {
    /// At any system call of a program that is told by signals, others may go on, and a signal may come
    /// that tells of what they did. `inside` says that it is a call that only a kernel makes, in the middle
    /// of its own work: then a handler must not touch its ring.
    pub(super) fn may_be_signalled(&self, inside: bool) {
        let mut world = self.world();
        if matches!(world.signalling, Signalling::Never)
            || world.failure().is_some()
            || !world.dice.fault(Fault::Signal)
        {
            return;
        }
        world.note(|| "a signal comes".to_owned());
        world.enter();
        if let Signalling::Queued(_) = world.signalling {
            return world.queue_signals(false);
        }
        world.ring_is_used = inside;
        drop(world);
        // SAFETY: it has a handler, as has been asked for; the handler finds the machine as it is between
        // two calls.
        unsafe { libc::raise(libc::SIGIO) };
        self.world().ring_is_used = false;
    }

    /// From now on SIGIO interrupts the program, which has a handler for it.
    pub(super) fn interrupts(&self) {
        self.world().signalling = Signalling::Interrupts;
    }
}

/// Signals of a simulated machine.
pub struct SimSignals {
    machine: Machine,
}

impl Signals for SimSignals {
    const MARKS: u8 = 4;
    /// Few, so that some are left when their descriptors are closed.
    const AT_A_TIME: usize = 1;

    fn watch(&mut self, fd: Fd, mark: u8) -> io::Result<()> {
        let mut world = self.machine.world();
        world.what(fd, "fcntl")?;
        // What happened before was not signalled.
        world.queue_signals(false);
        *world.queue().marks.at(fd.index()) = mark + 1;
        Ok(())
    }

    fn ignore(&mut self, fd: Fd) {
        *self.machine.world().queue().marks.at(fd.index()) = 0;
    }

    fn forget(&mut self, fd: Fd) {
        self.machine.world().queue_signals(false);
        self.ignore(fd);
    }

    fn take(&mut self, most: Option<Duration>) -> io::Result<Option<Signal>> {
        let mut world = self.machine.world();
        world.enter();
        let (until, waits) = (most.map(|most| world.now + most), most != Some(Duration::ZERO));
        if waits && world.dice.fault(Fault::Interrupted) {
            return Ok(None);
        }
        loop {
            world.queue_signals(waits);
            if world.failure().is_some() {
                return Err(Errno::CANCELED.into());
            }
            let next = world.queue().next();
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
