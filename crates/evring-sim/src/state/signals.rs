//! Signals that changes of descriptors raise.

use super::{DescriptorKind, SignalQueue, Signalling, SimState, readiness};

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
