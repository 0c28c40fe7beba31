//! Queues of entries, each linked in both directions: an entry leaves from anywhere at the same cost.

/// No entry.
const NONE: u32 = u32::MAX;

/// Entries in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryQueue {
    first: u32,
    last: u32,
}

impl Default for EntryQueue {
    fn default() -> Self {
        EntryQueue { first: NONE, last: NONE }
    }
}

impl EntryQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

/// The neighbours of an entry in its queue.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// The links of all entries, each of which is in one queue at most.
#[derive(Debug)]
pub(crate) struct Links(Box<[Link]>);

impl Links {
    pub(crate) fn new(entries: usize) -> Self {
        Links(vec![Link { before: NONE, after: NONE }; entries].into_boxed_slice())
    }

    pub(crate) fn push_back(&mut self, queue: &mut EntryQueue, entry: u32) {
        self.insert(queue, entry, Link { before: queue.last, after: NONE });
    }

    pub(crate) fn push_front(&mut self, queue: &mut EntryQueue, entry: u32) {
        self.insert(queue, entry, Link { before: NONE, after: queue.first });
    }

    pub(crate) fn pop_front(&mut self, queue: &mut EntryQueue) -> Option<u32> {
        let entry = queue.first;
        (entry != NONE).then(|| {
            self.remove(queue, entry);
            entry
        })
    }

    /// Removes an entry that is in the queue.
    pub(crate) fn remove(&mut self, queue: &mut EntryQueue, entry: u32) {
        let Link { before, after } = self.0[entry as usize];
        self.join(queue, before, after);
    }

    fn insert(&mut self, queue: &mut EntryQueue, entry: u32, link: Link) {
        self.0[entry as usize] = link;
        self.join(queue, link.before, entry);
        self.join(queue, entry, link.after);
    }

    /// Makes two entries neighbours, or one of them an end of the queue.
    fn join(&mut self, queue: &mut EntryQueue, before: u32, after: u32) {
        match before {
            NONE => queue.first = after,
            before => self.0[before as usize].after = after,
        }
        match after {
            NONE => queue.last = before,
            after => self.0[after as usize].before = before,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_from_anywhere() {
        let (mut links, mut queue) = (Links::new(8), EntryQueue::default());
        for entry in 0..5 {
            links.push_back(&mut queue, entry);
        }
        for entry in [2, 4, 0] {
            links.remove(&mut queue, entry);
        }
        links.push_front(&mut queue, 7);
        links.push_back(&mut queue, 6);
        for entry in [7, 1, 3, 6] {
            assert!(!queue.is_empty());
            assert_eq!(links.pop_front(&mut queue), Some(entry));
        }
        assert!(queue.is_empty());
        assert_eq!(links.pop_front(&mut queue), None);
        links.push_front(&mut queue, 5);
        links.remove(&mut queue, 5);
        assert!(queue.is_empty());
    }
}
