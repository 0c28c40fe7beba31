//! Memory owned by the simulated kernel.
//!
//! Each operation in flight holds its memory. The program must not change the bytes to send, nor
//! the bytes to receive into, which are poisoned, and must free neither. [`WatchingAllocator`]
//! detects frees.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

thread_local! {
    /// Length of each held range, by its start and the id of its hold.
    static HELD: RefCell<BTreeMap<(usize, u64), usize>> = const { RefCell::new(BTreeMap::new()) };
    /// Number of held ranges; readable while the map changes.
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
    /// A range that was freed while held.
    static FREED: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// An allocator that detects when memory of an operation in flight is freed.
///
/// A program that runs simulations installs it as its global allocator. Otherwise a free is
/// detected only if the memory is reused.
#[derive(Debug)]
pub struct WatchingAllocator<A>(pub A);

// SAFETY: every call is passed on unchanged to the inner allocator, which keeps the contract.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WatchingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note_freed(memory as usize, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { self.0.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note_freed(memory as usize, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { self.0.dealloc(memory, layout) }
    }
}

/// Notes that an allocation, and so every range within it, is freed.
#[inline]
fn note_freed(start: usize, len: usize) {
    if COUNT.get() > 0 {
        check_freed_range(start, len);
    }
}

#[cold]
fn check_freed_range(start: usize, len: usize) {
    let _ = HELD.try_with(|held| {
        // The map's own memory is never held.
        let Ok(held) = held.try_borrow() else { return };
        let range = (start, 0)..(start.saturating_add(len), 0);
        if let Some(((at, _), len)) = held.range(range).next() {
            FREED.set(Some((*at, *len)));
        }
    });
}

/// Takes the range that was freed while held, if any.
pub(super) fn take_freed() -> Option<(usize, usize)> {
    FREED.take()
}

/// A range of memory held by the kernel.
#[derive(Debug)]
pub(super) struct MemoryHold {
    start: usize,
    len: usize,
    id: u64,
    /// Hash of the content; none once the kernel has written to it.
    hash: Option<u64>,
}

impl MemoryHold {
    /// Holds memory that the kernel reads.
    ///
    /// # Safety
    /// The memory can be read until the hold is released.
    pub(super) unsafe fn to_read(start: u64, len: usize) -> Self {
        // SAFETY: by the caller's promise.
        unsafe { MemoryHold::new(start as usize, len) }
    }

    /// Holds memory that the kernel writes, and poisons it.
    ///
    /// # Safety
    /// The memory can be read and written until the hold is released.
    pub(super) unsafe fn to_write(start: u64, len: usize) -> Self {
        // SAFETY: by the caller's promise.
        unsafe { std::ptr::write_bytes(start as *mut u8, POISON, len) };
        // SAFETY: by the caller's promise.
        unsafe { MemoryHold::new(start as usize, len) }
    }

    /// Holds memory that the kernel writes for several operations, and that nothing reads. So what happens to it does
    /// not matter, except that it is freed.
    ///
    /// # Safety
    /// The memory can be read and written until the hold is released.
    pub(super) unsafe fn to_share(start: u64, len: usize) -> Self {
        // SAFETY: by the caller's promise.
        let mut hold = unsafe { MemoryHold::new(start as usize, len) };
        hold.hash = None;
        hold
    }

    unsafe fn new(start: usize, len: usize) -> Self {
        let id = NEXT.get();
        NEXT.set(id + 1);
        COUNT.set(COUNT.get() + 1);
        HELD.with_borrow_mut(|held| held.insert((start, id), len));
        let mut hold = MemoryHold { start, len, id, hash: None };
        hold.hash = Some(hold.hash_now());
        hold
    }

    fn hash_now(&self) -> u64 {
        FixedState::default().hash_one(self.bytes())
    }

    /// Returns whether only the kernel has written to it.
    pub(super) fn is_untouched(&self) -> bool {
        self.hash.is_none_or(|hash| hash == self.hash_now())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the caller that made the hold promised that the memory is valid. If it was freed
        // all the same, a `WatchingAllocator` has detected that, and the ring stops before it reads
        // it again.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }
    }

    pub(super) fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "a write exceeds the memory of the operation");
        self.hash = None;
        // SAFETY: as in `bytes`, for a hold that was made to be written to.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start as *mut u8, bytes.len());
        }
    }
}

impl Drop for MemoryHold {
    fn drop(&mut self) {
        COUNT.set(COUNT.get() - 1);
        let _ = HELD.try_with(|held| held.borrow_mut().remove(&(self.start, self.id)));
    }
}

/// Content of memory that the kernel has not written to yet.
pub(super) const POISON: u8 = 0xa5;
