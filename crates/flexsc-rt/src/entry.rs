//! A syscall entry of 64 bytes (section 3.1.1, figure 2).
//!
//! One party at a time may touch an entry's call and result. `status` says which: the owner of the
//! pages while it is [`Status::Free`], [`Status::Submitted`] and not claimed, or [`Status::Done`];
//! the executor that has claimed it otherwise. The owner may only store [`Status::Cancel`] then.

use shared_ring::sync::{AtomicU16, Ordering, UnsafeCell};

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Status {
    /// No call.
    Free,
    /// A call that no executor has claimed.
    Submitted,
    /// An executor makes the call.
    Busy,
    /// The result is there.
    Done,
    /// An executor makes the call, and is to interrupt it (section 4.2).
    Cancel,
}

impl Status {
    fn of(number: u16) -> Self {
        [Status::Free, Status::Submitted, Status::Busy, Status::Done, Status::Cancel]
            [usize::from(number)]
    }
}

/// One system call: status, number, arguments, result.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    status: AtomicU16,
    /// The syscall thread that makes the call.
    thread: AtomicU16,
    number: UnsafeCell<u32>,
    args: UnsafeCell<[usize; 6]>,
    /// The result from the kernel: an error is negative.
    result: UnsafeCell<isize>,
}

// SAFETY: the cells are accessed by the party that `status` names; see the module.
unsafe impl Sync for Entry {}
// SAFETY: an entry holds plain numbers.
unsafe impl Send for Entry {}

impl Entry {
    pub(crate) fn new() -> Self {
        Entry {
            status: AtomicU16::new(Status::Free as u16),
            thread: AtomicU16::new(0),
            number: UnsafeCell::new(0),
            args: UnsafeCell::new([0; 6]),
            result: UnsafeCell::new(0),
        }
    }

    #[inline]
    pub(crate) fn status(&self) -> Status {
        Status::of(self.status.load(Ordering::Acquire))
    }

    /// Returns the syscall thread that makes the call, while the entry is busy.
    pub(crate) fn thread(&self) -> u16 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Fills in a call.
    ///
    /// # Safety
    /// Only the owner calls it, on a free entry.
    #[inline]
    pub(crate) unsafe fn fill(&self, number: u32, args: &[usize; 6]) {
        // SAFETY: the entry is free, so no executor reads its cells.
        self.number.with_mut(|cell| unsafe { *cell = number });
        // SAFETY: as above.
        self.args.with_mut(|cell| unsafe { *cell = *args });
        self.status.store(Status::Submitted as u16, Ordering::Release);
    }

    /// Returns number and arguments.
    ///
    /// # Safety
    /// The caller has claimed the entry, or owns it and no executor can claim it.
    #[inline]
    pub(crate) unsafe fn call(&self) -> (u32, [usize; 6]) {
        // SAFETY: no one writes to the cells of a submitted or busy entry.
        unsafe { (self.number.with(|cell| *cell), self.args.with(|cell| *cell)) }
    }

    /// Marks a claimed entry as busy on a syscall thread.
    #[inline]
    pub(crate) fn begin(&self, thread: u16) {
        self.thread.store(thread, Ordering::Relaxed);
        self.status.store(Status::Busy as u16, Ordering::Release);
    }

    /// Requests the interruption of a busy call. Returns whether it was busy.
    pub(crate) fn cancel(&self) -> bool {
        let (busy, cancel) = (Status::Busy as u16, Status::Cancel as u16);
        self.status.compare_exchange(busy, cancel, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Stores the result.
    ///
    /// # Safety
    /// The caller has claimed the entry, or owns it and no executor can claim it.
    #[inline]
    pub(crate) unsafe fn finish(&self, result: isize) {
        // SAFETY: only the caller accesses the cells until the status is `Done`.
        self.result.with_mut(|cell| unsafe { *cell = result });
        self.status.store(Status::Done as u16, Ordering::Release);
    }

    /// Stores the result of a call on a syscall thread, which the owner may cancel meanwhile.
    ///
    /// # Safety
    /// The caller has claimed the entry.
    #[inline]
    pub(crate) unsafe fn finish_on_thread(&self, result: isize) {
        // SAFETY: only the caller accesses the cells until the status is `Done`.
        self.result.with_mut(|cell| unsafe { *cell = result });
        // A swap, as a cancellation is one: it comes before or fails.
        self.status.swap(Status::Done as u16, Ordering::AcqRel);
    }

    /// Makes a done entry a submitted one again: its call has to be repeated.
    pub(crate) fn repeat(&self) {
        self.status.store(Status::Submitted as u16, Ordering::Relaxed);
    }

    /// Returns the result of a done entry.
    ///
    /// # Safety
    /// Only the owner calls it, on an entry that it has seen done.
    #[inline]
    pub(crate) unsafe fn peek(&self) -> isize {
        // SAFETY: the executor does not access the entry any more.
        self.result.with(|cell| unsafe { *cell })
    }

    /// Takes the result of a done entry, which is free afterwards.
    ///
    /// # Safety
    /// Only the owner calls it, on an entry that it has seen done.
    #[inline]
    pub(crate) unsafe fn take(&self) -> isize {
        debug_assert_eq!(self.status(), Status::Done);
        // SAFETY: the executor does not access the entry any more.
        let result = self.result.with(|cell| unsafe { *cell });
        self.status.store(Status::Free as u16, Ordering::Relaxed);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn entry_has_64_bytes_and_a_cache_line_of_its_own() {
        assert_eq!((size_of::<Entry>(), align_of::<Entry>()), (64, 64));
        assert_eq!(offset_of!(Entry, status), 0);
        assert_eq!(offset_of!(Entry, number), 4);
        assert_eq!(offset_of!(Entry, args), 8);
        assert_eq!(offset_of!(Entry, result), 56);
    }

    #[test]
    fn status_round_trips() {
        for status in [Status::Free, Status::Submitted, Status::Busy, Status::Done, Status::Cancel]
        {
            assert_eq!(Status::of(status as u16), status);
        }
    }
}
