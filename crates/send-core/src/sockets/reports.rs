//! Undecoded reports of received bytes.
//!
//! A signal handler takes them from the ring, but must not access the pool of their buffers. So it
//! keeps them undecoded, in memory allocated before. Each report owns a buffer, so there are at
//! most as many as buffers.

use shared_ring::uring::RawCompletion;

/// Storage for the reports of all sockets.
pub(crate) struct Reports {
    nodes: Box<[Node]>,
    vacant: Option<u32>,
    len: u32,
}

#[derive(Clone, Copy)]
struct Node {
    report: RawCompletion,
    next: Option<u32>,
}

/// The reports of one socket, oldest first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReportList {
    first: Option<u32>,
    last: Option<u32>,
}

impl ReportList {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl Reports {
    /// Creates storage for `max` reports.
    pub(crate) fn new(max: u32) -> Self {
        let next = |at| (at + 1 < max).then_some(at + 1);
        let node = |at| Node { report: RawCompletion::from_parts(0, 0, 0), next: next(at) };
        Reports { nodes: (0..max).map(node).collect(), vacant: (max > 0).then_some(0), len: 0 }
    }

    /// Returns the number of reports.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Appends a report. Returns false if there is no room.
    pub(crate) fn push(&mut self, to: &mut ReportList, report: RawCompletion) -> bool {
        let Some(at) = self.vacant else { return false };
        self.vacant = self.nodes[at as usize].next;
        self.nodes[at as usize] = Node { report, next: None };
        match to.last.replace(at) {
            Some(before) => self.nodes[before as usize].next = Some(at),
            None => to.first = Some(at),
        }
        self.len += 1;
        true
    }

    /// Takes the oldest report.
    pub(crate) fn pop(&mut self, from: &mut ReportList) -> Option<RawCompletion> {
        let at = from.first?;
        let Node { report, next } = self.nodes[at as usize];
        from.first = next;
        if next.is_none() {
            from.last = None;
        }
        self.nodes[at as usize].next = self.vacant.replace(at);
        self.len -= 1;
        Some(report)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn lists_behave_like_queues_with_shared_storage(steps in prop::collection::vec((0..3usize, any::<bool>()), 0..200)) {
            let mut reports = Reports::new(5);
            let mut lists = [ReportList::default(); 3];
            let mut model = [const { VecDeque::new() }; 3];
            for (value, (at, pushed)) in steps.into_iter().enumerate() {
                if pushed {
                    let room = model.iter().map(VecDeque::len).sum::<usize>() < 5;
                    let report = RawCompletion::from_parts(0, value as i32, 0);
                    prop_assert_eq!(reports.push(&mut lists[at], report), room);
                    if room {
                        model[at].push_back(value as i32);
                    }
                } else {
                    let taken = reports.pop(&mut lists[at]).map(RawCompletion::result);
                    prop_assert_eq!(taken, model[at].pop_front());
                }
                prop_assert_eq!(lists[at].is_empty(), model[at].is_empty());
                prop_assert_eq!(reports.len() as usize, model.iter().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
