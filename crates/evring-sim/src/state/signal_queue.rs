//! A thread's queue of signals.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use shared_ring::Fd;
use shared_ring::author::Signal;
use shared_ring::poller::Readiness;

/// The signal raised for a change of a descriptor.
pub(crate) enum Signalling {
    /// None.
    Never,
    /// SIGIO interrupts this thread. The program has installed a handler.
    Interrupts,
    /// A real-time signal is queued.
    Queued(SignalQueue),
}

/// A thread's queue of real-time signals.
#[derive(Default)]
pub(crate) struct SignalQueue {
    /// The mark of each descriptor that signals.
    pub(crate) marks: HashMap<Fd, u8, FixedState>,
    pub(super) signals: VecDeque<(Fd, u8, Readiness)>,
    pub(super) max: usize,
    pub(super) overflowed: bool,
}

impl SignalQueue {
    /// Creates a queue of at most `max` signals.
    pub(crate) fn new(max: usize) -> Self {
        SignalQueue { max, ..SignalQueue::default() }
    }

    /// Takes the lowest signal first, as the kernel does; SIGIO is lower than those with marks.
    pub(crate) fn next(&mut self) -> Option<Signal> {
        if std::mem::take(&mut self.overflowed) {
            return Some(Signal::Overflow);
        }
        let lowest = self.signals.iter().map(|(_, mark, _)| *mark).min()?;
        let at = self.signals.iter().position(|(_, mark, _)| *mark == lowest)?;
        self.signals.remove(at).map(|(fd, mark, ready)| Signal::Ready(fd, mark, ready))
    }
}
