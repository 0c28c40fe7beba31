//! Signals: a thread's queue of real-time signals, played, and calls that are interrupted.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::fault::Fault;
use super::machine::Machine;
use super::poller::readiness;
use super::state::{DescriptorKind, Passed, SimState};
use crate::poller::{Readiness, RtSig, Signal, SignalSource};
use crate::{Errno, Fd, Table};

/// Real-time signals, on a simulated machine.
pub type SimRtSig = RtSig<SimSignals, Machine>;

impl SimRtSig {
    /// Makes an empty set on a machine, with a queue of at most so many signals.
    pub fn simulated(machine: &Machine, max: usize) -> Self {
        machine.state().signalling =
            Signalling::Queued(SimSignalQueue { max, ..SimSignalQueue::default() });
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
    Queued(SimSignalQueue),
}

/// A thread's queue of real-time signals.
#[derive(Default)]
pub(super) struct SimSignalQueue {
    /// The marks of those that signal, plus one.
    marks: Table<u8>,
    signals: VecDeque<(Fd, u8, Readiness)>,
    max: usize,
    overflowed: bool,
}

impl SimSignalQueue {
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

impl SimState {
    fn queue(&mut self) -> &mut SimSignalQueue {
        match &mut self.signalling {
            Signalling::Queued(queue) => queue,
            _ => unreachable!("a queue was made with the poller"),
        }
    }

    /// Queues a signal for each descriptor of which something has changed. A waker that nobody has
    /// drained stirs all the time, so that of wakers only a call is told that waits.
    fn queue_signals(&mut self, waits: bool) {
        let mut wakers = Vec::new();
        while let Some(fd) = self.take_changed() {
            let Some(mark) = self.queue().marks.at(fd.index()).checked_sub(1) else { continue };
            if !waits && matches!(self.what(fd, "poll"), Ok(DescriptorKind::Event(_))) {
                wakers.push(fd);
                continue;
            }
            let ready = readiness(self, fd);
            let queue = self.queue();
            if queue.signals.len() < queue.max {
                queue.signals.push_back((fd, mark, ready));
                self.note(|| format!("{fd:?} signals {ready:?}"));
            } else {
                queue.overflowed = true;
            }
        }
        wakers.into_iter().for_each(|fd| self.mark_changed(fd.raw() as u32));
    }
}

impl Machine {
    /// At any system call of a program that is told by signals, others may go on, and a signal may come
    /// that tells of what they did. `inside` says that it is a call that only a kernel makes, in the middle
    /// of its own work: then a handler must not touch its ring.
    pub(super) fn may_be_signalled(&self, inside: bool) {
        let mut state = self.state();
        if matches!(state.signalling, Signalling::Never)
            || state.failure().is_some()
            || !state.rng.fault(Fault::Signal)
        {
            return;
        }
        state.note(|| "a signal comes".to_owned());
        state.enter();
        if let Signalling::Queued(_) = state.signalling {
            return state.queue_signals(false);
        }
        state.ring_is_used = inside;
        drop(state);
        // SAFETY: it has a handler, as has been asked for; the handler finds the machine as it is between
        // two calls.
        unsafe { libc::raise(libc::SIGIO) };
        self.state().ring_is_used = false;
    }

    /// From now on SIGIO interrupts the program, which has a handler for it.
    pub(super) fn interrupts(&self) {
        self.state().signalling = Signalling::Interrupts;
    }
}

/// Signals of a simulated machine.
pub struct SimSignals {
    machine: Machine,
}

impl SignalSource for SimSignals {
    const MAX_MARKS: u8 = 4;
    /// Few, so that some are left when their descriptors are closed.
    const MAX_BATCH: usize = 1;

    fn watch(&mut self, fd: Fd, mark: u8) -> io::Result<()> {
        let mut state = self.machine.state();
        state.what(fd, "fcntl")?;
        // What happened before was not signalled.
        state.queue_signals(false);
        *state.queue().marks.at(fd.index()) = mark + 1;
        Ok(())
    }

    fn ignore(&mut self, fd: Fd) {
        *self.machine.state().queue().marks.at(fd.index()) = 0;
    }

    fn forget(&mut self, fd: Fd) {
        self.machine.state().queue_signals(false);
        self.ignore(fd);
    }

    fn take(&mut self, timeout: Option<Duration>) -> io::Result<Option<Signal>> {
        let mut state = self.machine.state();
        state.enter();
        let (until, waits) =
            (timeout.map(|timeout| state.now + timeout), timeout != Some(Duration::ZERO));
        if waits && state.rng.fault(Fault::Interrupted) {
            return Ok(None);
        }
        loop {
            state.queue_signals(waits);
            if state.failure().is_some() {
                return Err(Errno::CANCELED.into());
            }
            let next = state.queue().next();
            if next.is_some() || !waits || state.wait(until) == Passed::Over {
                return Ok(next);
            }
        }
    }

    /// They are of no interest here.
    fn system_calls(&self) -> u64 {
        0
    }
}
