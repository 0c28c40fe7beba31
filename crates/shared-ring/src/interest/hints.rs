//! HINTS: the queue of descriptors with events.

use std::collections::VecDeque;

use crate::Fd;
use crate::table::Table;

/// A bounded first-in-first-out queue of descriptors. A bit for each marks those in the queue, so
/// that several events cause one hint.
pub(crate) struct HintQueue {
    queue: VecDeque<Fd>,
    queued: Table<bool>,
    max: usize,
}

impl HintQueue {
    /// Creates an empty queue of at most `max` descriptors.
    pub(crate) fn new(max: usize) -> Self {
        HintQueue { queue: VecDeque::new(), queued: Table::default(), max }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Appends a descriptor unless it is queued. Returns false if the queue is full.
    #[must_use]
    pub(crate) fn post(&mut self, fd: Fd) -> bool {
        let queued = self.queued.at(fd.index());
        if *queued {
            return true;
        }
        if self.queue.len() == self.max {
            return false;
        }
        *queued = true;
        self.queue.push_back(fd);
        true
    }

    /// Takes the first descriptor.
    pub(crate) fn take(&mut self) -> Option<Fd> {
        let fd = self.queue.pop_front()?;
        self.queued[fd.index()] = false;
        Some(fd)
    }

    /// Removes all descriptors.
    pub(crate) fn discard(&mut self) {
        while self.take().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_holds_each_descriptor_once_in_order() {
        let [a, b, c] = [7, 2, 9].map(Fd::from_raw);
        let mut hints = HintQueue::new(2);
        assert!(hints.post(a) && hints.post(b) && hints.post(a));
        assert!(!hints.post(c), "the queue is full");
        assert!(hints.post(b), "already queued");
        assert_eq!((hints.take(), hints.len()), (Some(a), 1));
        assert!(hints.post(a));
        assert_eq!([hints.take(), hints.take(), hints.take()], [Some(b), Some(a), None]);
        assert!(hints.post(c) && hints.post(b));
        hints.discard();
        assert!(hints.take().is_none() && hints.post(c));
    }
}
