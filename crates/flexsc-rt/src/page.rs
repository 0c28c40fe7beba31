//! A syscall page: 64 entries, and one bit for each that waits for a syscall thread.
//!
//! The owner submits entries with one atomic operation for a page. A thread claims one entry at a
//! time, in turn, so a thread that blocks leaves the others to the next one, and no entry starves behind others that are
//! submitted again. The bits have a cache line of their own; an executor that claims one does not access the entries of
//! others.

use shared_ring::sync::{AtomicU32, AtomicU64, Ordering};

use crate::entry::Entry;

/// Entries of a page: 4 KiB of 64 bytes.
pub(crate) const ENTRIES: usize = 64;

/// The entries of a page.
#[derive(Debug)]
#[repr(C)]
#[cfg_attr(not(loom), repr(align(4096)))]
pub(crate) struct Page {
    entries: [Entry; ENTRIES],
}

impl Page {
    pub(crate) fn new() -> Self {
        Page { entries: std::array::from_fn(|_| Entry::new()) }
    }

    /// Returns the entries of pages, in order.
    #[inline]
    pub(crate) fn entries_of(pages: &[Page]) -> &[Entry] {
        const { assert!(size_of::<Page>() == ENTRIES * size_of::<Entry>()) };
        // SAFETY: a page is an array of entries without padding, so pages in a row are entries in a row.
        unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), pages.len() * ENTRIES) }
    }
}

/// The entries of a page that are submitted to syscall threads, and not claimed.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Submitted {
    mask: AtomicU64,
    /// The place after the one that was claimed last, to which the next claim gives precedence.
    next: AtomicU32,
}

impl Submitted {
    pub(crate) fn new() -> Self {
        Submitted { mask: AtomicU64::new(0), next: AtomicU32::new(0) }
    }

    /// Submits the entries of a mask.
    pub(crate) fn submit(&self, mask: u64) {
        // Release: the calls are written. AcqRel, as the chain of operations on the word carries it.
        self.mask.fetch_or(mask, Ordering::AcqRel);
    }

    /// Claims the next entry, in turn.
    #[inline]
    pub(crate) fn claim(&self) -> Option<usize> {
        // One executor holds a page, or two for a moment; any value is right.
        let next = self.next.load(Ordering::Relaxed);
        loop {
            let mask = self.mask.load(Ordering::Relaxed);
            if mask == 0 {
                return None;
            }
            let index = (next + mask.rotate_right(next).trailing_zeros()) % ENTRIES as u32;
            if self.withdraw(index as usize) {
                self.next.store((index + 1) % ENTRIES as u32, Ordering::Relaxed);
                return Some(index as usize);
            }
        }
    }

    /// Claims one entry, unless it is claimed.
    #[inline]
    pub(crate) fn withdraw(&self, index: usize) -> bool {
        let bit = 1 << index;
        self.mask.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Returns whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.mask.load(Ordering::Acquire) == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn page_has_4_kib() {
        assert_eq!((size_of::<Page>(), align_of::<Page>()), (4096, 4096));
    }

    #[test]
    fn claims_are_in_order_and_end() {
        let submitted = Submitted::new();
        submitted.submit(1 << 63 | 1 << 5);
        assert!(submitted.withdraw(5));
        assert!(!submitted.withdraw(5));
        submitted.submit(1);
        assert!(!submitted.is_empty());
        assert_eq!(
            (submitted.claim(), submitted.claim(), submitted.claim()),
            (Some(0), Some(63), None)
        );
        assert!(submitted.is_empty());
    }

    #[test]
    fn entry_starved_behind_lower_ones_that_were_submitted_again() {
        let submitted = Submitted::new();
        submitted.submit(1 << 63 | 0b111);
        for place in [0, 1, 2, 63, 0, 1, 2, 63] {
            assert_eq!(submitted.claim(), Some(place));
            submitted.submit(1 << place);
        }
        // A claim of one entry does not count.
        assert!(submitted.withdraw(1));
        assert_eq!((submitted.claim(), submitted.claim()), (Some(0), Some(2)));
    }
}
