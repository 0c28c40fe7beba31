//! The queue of completed entries (section 7: "an outgoing queue").
//!
//! Executors put the numbers of entries into it, the owner takes them in order. So the owner finds
//! a completion without a scan, whatever the number of outstanding calls. The queue has as many
//! places as there are entries, and an entry is in it once at most, so it is never full.

use shared_ring::sync::{AtomicU32, AtomicU64, Ordering};

/// A place without an entry.
const EMPTY: u32 = u32::MAX;

/// Many producers, one consumer, bounded, without locks.
#[derive(Debug)]
pub(crate) struct Completions {
    places: Box<[AtomicU32]>,
    mask: u64,
    tail: Tail,
}

/// The producers' end, on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Tail(AtomicU64);

impl Completions {
    pub(crate) fn new(entries: usize) -> Self {
        let len = entries.next_power_of_two();
        let places = (0..len).map(|_| AtomicU32::new(EMPTY)).collect();
        Completions { places, mask: len as u64 - 1, tail: Tail(AtomicU64::new(0)) }
    }

    /// Adds an entry, which is done.
    #[inline]
    pub(crate) fn push(&self, entry: u32) {
        // AcqRel: this place was emptied before the owner submitted a call that an earlier
        // producer, or this one, completes.
        let place = self.tail.0.fetch_add(1, Ordering::AcqRel);
        self.place(place).store(entry, Ordering::Release);
    }

    /// Takes the entry at the consumer's end, and moves the end on.
    #[inline]
    pub(crate) fn pop(&self, head: &mut u64) -> Option<u32> {
        let place = self.place(*head);
        let entry = place.load(Ordering::Acquire);
        if entry == EMPTY {
            return None;
        }
        place.store(EMPTY, Ordering::Relaxed);
        *head += 1;
        Some(entry)
    }

    /// Returns whether the consumer finds nothing.
    pub(crate) fn is_empty(&self, head: u64) -> bool {
        self.place(head).load(Ordering::Acquire) == EMPTY
    }

    #[inline]
    fn place(&self, position: u64) -> &AtomicU32 {
        &self.places[(position & self.mask) as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_around_the_end() {
        let completions = Completions::new(3);
        let mut head = 0;
        for round in 0..10 {
            for entry in 0..3 {
                completions.push(round * 3 + entry);
            }
            for entry in 0..3 {
                assert!(!completions.is_empty(head));
                assert_eq!(completions.pop(&mut head), Some(round * 3 + entry));
            }
            assert_eq!(completions.pop(&mut head), None);
            assert!(completions.is_empty(head));
        }
    }
}
