//! Signals that changes of descriptors raise.

use super::{DescriptorKind, SignalQueue, Signalling, SimState, readiness};

impl SimState {
    pub(crate) fn queue(&mut self) -> &mut SignalQueue {
        match &mut self.signalling {
            Signalling::Queued(queue) => queue,
            _ => unreachable!("the poller has created the queue"),
        }
    }

    /// Queues a signal for each changed descriptor. An undrained waker counts as changed at every call: few calls report
    /// wakers that do not block, so that they find no signal in the end.
    pub(crate) fn queue_signals(&mut self, blocks: bool) {
        let mut wakers = Vec::new();
        while let Some(fd) = self.take_changed() {
            let Some(&mark) = self.queue().marks.get(&fd) else { continue };
            let is_waker = matches!(self.kind(fd, "poll"), Ok(DescriptorKind::Event(_)));
            if is_waker && !blocks && !self.rng.once_in(8) {
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
