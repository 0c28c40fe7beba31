//! A syscall page: 64 entries, and one bit for each that waits for a syscall thread.
//!
//! The owner submits entries with one atomic operation for a page. A thread claims one entry at a
//! time, so a thread that blocks leaves the others to the next one. The bits have a cache line of
//! their own; an executor that claims one does not access the entries of others.

use shared_ring::sync::{AtomicU64, Ordering};

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
pub(crate) struct Submitted(AtomicU64);

impl Submitted {
    pub(crate) fn new() -> Self {
        Submitted(AtomicU64::new(0))
    }

    /// Submits the entries of a mask.
    pub(crate) fn submit(&self, mask: u64) {
        // Release: the calls are written. AcqRel, as the chain of operations on the word carries it.
        self.0.fetch_or(mask, Ordering::AcqRel);
    }

    /// Claims the first entry.
    #[inline]
    pub(crate) fn claim(&self) -> Option<usize> {
        loop {
            let mask = self.0.load(Ordering::Relaxed);
            if mask == 0 {
                return None;
            }
            let index = mask.trailing_zeros() as usize;
            if self.withdraw(index) {
                return Some(index);
            }
        }
    }

    /// Claims one entry, unless it is claimed.
    #[inline]
    pub(crate) fn withdraw(&self, index: usize) -> bool {
        let bit = 1 << index;
        self.0.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Returns whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
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
}
