//! Reports of received bytes that wait until the application makes something of them.
//!
//! A signal handler takes them from the ring, and must not touch the pool that their buffers are lent
//! from; so it keeps them as they are, in memory that was there before. Each stands for a buffer, so
//! there are never more than buffers.

use shared_ring::RawCompletion;

/// Room for the reports of all sockets.
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
    /// Room for so many.
    pub(crate) fn new(max: u32) -> Self {
        let next = |at| (at + 1 < max).then_some(at + 1);
        let node = |at| Node { report: RawCompletion::from_parts(0, 0, 0), next: next(at) };
        Reports { nodes: (0..max).map(node).collect(), vacant: (max > 0).then_some(0), len: 0 }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Adds one; false when there is no room.
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

    /// Takes the oldest.
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
        fn behave_like_queues_with_room_in_common(steps in prop::collection::vec((0..3usize, any::<bool>()), 0..200)) {
            let mut reports = Reports::new(5);
            let mut reports_left = [ReportList::default(); 3];
            let mut model = [const { VecDeque::new() }; 3];
            for (value, (at, pushed)) in steps.into_iter().enumerate() {
                if pushed {
                    let room = model.iter().map(VecDeque::len).sum::<usize>() < 5;
                    let report = RawCompletion::from_parts(0, value as i32, 0);
                    prop_assert_eq!(reports.push(&mut reports_left[at], report), room);
                    if room {
                        model[at].push_back(value as i32);
                    }
                } else {
                    let taken = reports.pop(&mut reports_left[at]).map(RawCompletion::result);
                    prop_assert_eq!(taken, model[at].pop_front());
                }
                prop_assert_eq!(reports_left[at].is_empty(), model[at].is_empty());
                prop_assert_eq!(reports.len() as usize, model.iter().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
