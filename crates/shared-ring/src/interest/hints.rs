//! HINTS: the descriptors to which something has happened.

use std::collections::VecDeque;

use crate::{Fd, Table};

/// A bounded queue of descriptors, first in, first out. A bit for each says whether it stands in
/// it, so that many happenings are one hint.
pub(crate) struct HintQueue {
    queue: VecDeque<Fd>,
    queued: Table<bool>,
    max: usize,
}

impl HintQueue {
    /// Makes an empty queue for at most so many.
    pub(crate) fn new(max: usize) -> Self {
        HintQueue { queue: VecDeque::new(), queued: Table::default(), max }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Puts a descriptor at the end, unless it has its place; false when the queue is full.
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

    /// Takes the first.
    pub(crate) fn take(&mut self) -> Option<Fd> {
        let fd = self.queue.pop_front()?;
        self.queued[fd.index()] = false;
        Some(fd)
    }

    /// Throws all away.
    pub(crate) fn discard(&mut self) {
        while self.take().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_in_the_queue_once_and_in_order() {
        let [a, b, c] = [7, 2, 9].map(Fd::from_raw);
        let mut hints = HintQueue::new(2);
        assert!(hints.post(a) && hints.post(b) && hints.post(a));
        assert!(!hints.post(c), "there is no room");
        assert!(hints.post(b), "it has its place");
        assert_eq!((hints.take(), hints.len()), (Some(a), 1));
        assert!(hints.post(a));
        assert_eq!([hints.take(), hints.take(), hints.take()], [Some(b), Some(a), None]);
        assert!(hints.post(c) && hints.post(b));
        hints.discard();
        assert!(hints.take().is_none() && hints.post(c));
    }
}
