//! A counting allocator: a server reports the allocations of each request.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);

/// The system allocator with counters.
pub(crate) struct Counting;

/// Returns the number of allocations so far, including reallocations.
pub(crate) fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Returns the number of bytes currently allocated.
pub(crate) fn live() -> u64 {
    LIVE.load(Ordering::Relaxed)
}

fn count(grown: usize, shrunk: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    LIVE.fetch_add((grown as u64).wrapping_sub(shrunk as u64), Ordering::Relaxed);
}

// SAFETY: every call is forwarded unchanged to the system allocator, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller upholds the contract of `realloc`, and `old` came from `System`.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`, and `old` came from `System`.
        unsafe { System.dealloc(old, layout) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn allocations_and_frees_are_counted() {
        // Other tests allocate concurrently, hence the large size and the margin.
        const SIZE: usize = 64 << 20;
        let (calls, live) = (super::calls(), super::live());
        let memory = vec![0u8; SIZE];
        assert!(super::calls() > calls);
        assert!(super::live() > live + SIZE as u64 / 2);
        drop(memory);
        assert!(super::live() < live + SIZE as u64 / 2);
    }
}
