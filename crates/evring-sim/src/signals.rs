//! Simulated signals: the poller of real-time signals, and interrupted calls.

use std::io;
use std::time::Duration;

use shared_ring::author::{Signal, SignalSource};
use shared_ring::{Errno, Fd};

use crate::fault::Fault;
use crate::machine::Machine;
use crate::state::{SignalQueue, Signalling, WaitOutcome};

impl Machine {
    /// Called at each system call of a program that uses signals: peers may run, and a signal may
    /// report what they did. `in_kernel` is set for calls that a kernel makes in the middle of its
    /// own work; a handler must not use its ring then.
    pub(super) fn may_be_signalled(&self, in_kernel: bool) {
        let mut state = self.state();
        if matches!(state.signalling, Signalling::Never)
            || state.failure().is_some()
            || !state.rng.fault(Fault::Signal)
        {
            return;
        }
        state.note(|| "a signal interrupts the program".to_owned());
        state.enter();
        if let Signalling::Queued(_) = state.signalling {
            return state.queue_signals(false);
        }
        state.ring_is_busy = in_kernel;
        drop(state);
        // SAFETY: SIGIO has a handler, as `interrupts` requires; the handler finds the machine in
        // its state between two calls.
        unsafe { libc::raise(libc::SIGIO) };
        self.state().ring_is_busy = false;
    }

    /// From now on SIGIO interrupts the program, which has installed a handler.
    pub(super) fn interrupts(&self) {
        self.state().signalling = Signalling::Interrupts;
    }
}

/// The signal source of a simulated machine.
pub(crate) struct SimSignals {
    machine: Machine,
}

impl SimSignals {
    /// Creates an empty set of descriptors that signal, with a queue of at most `max` signals. A machine
    /// has one such set.
    pub(crate) fn new(machine: &Machine, max: usize) -> Self {
        machine.state().signalling = Signalling::Queued(SignalQueue::new(max));
        SimSignals { machine: machine.clone() }
    }
}

impl SignalSource for SimSignals {
    const MAX_MARKS: u8 = 4;
    /// Small, so that signals are still queued when their descriptors are closed.
    const MAX_BATCH: usize = 1;

    fn watch(&mut self, fd: Fd, mark: u8) -> io::Result<()> {
        let mut state = self.machine.state();
        state.kind(fd, "fcntl")?;
        // Earlier changes are not signalled.
        state.queue_signals(false);
        state.queue().marks.insert(fd, mark);
        Ok(())
    }

    fn ignore(&mut self, fd: Fd) {
        self.machine.state().queue().marks.remove(&fd);
    }

    fn forget(&mut self, fd: Fd) {
        self.machine.state().queue_signals(false);
        self.ignore(fd);
    }

    fn take(&mut self, timeout: Option<Duration>) -> io::Result<Option<Signal>> {
        let mut state = self.machine.state();
        state.enter();
        let (until, blocks) =
            (timeout.map(|timeout| state.now + timeout), timeout != Some(Duration::ZERO));
        if blocks && state.rng.fault(Fault::Interrupted) {
            return Ok(None);
        }
        loop {
            state.queue_signals(blocks);
            if state.failure().is_some() {
                return Err(Errno::CANCELED.into());
            }
            let next = state.queue().next();
            if next.is_some() || !blocks || state.wait(until) == WaitOutcome::TimedOut {
                return Ok(next);
            }
        }
    }

    /// Not counted.
    fn system_calls(&self) -> u64 {
        0
    }
}
