//! Signals that changes of descriptors raise, and a thread's queue of them.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use shared_ring::Fd;
use shared_ring::author::Signal;
use shared_ring::poller::Readiness;

use super::{DescriptorKind, SimState, readiness};

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
    signals: VecDeque<(Fd, u8, Readiness)>,
    max: usize,
    overflowed: bool,
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

impl SimState {
    pub(crate) fn queue(&mut self) -> &mut SignalQueue {
        match &mut self.signalling {
            Signalling::Queued(queue) => queue,
            _ => unreachable!("the poller has created the queue"),
        }
    }

    /// Queues a signal for each changed descriptor. An undrained waker counts as changed at every
    /// call, so that only calls that block report wakers.
    pub(crate) fn queue_signals(&mut self, blocks: bool) {
        let mut wakers = Vec::new();
        while let Some(fd) = self.take_changed() {
            let Some(&mark) = self.queue().marks.get(&fd) else { continue };
            if !blocks && matches!(self.kind(fd, "poll"), Ok(DescriptorKind::Event(_))) {
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
