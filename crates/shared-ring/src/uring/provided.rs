//! The ring through which receive buffers are given to the kernel.

use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::{Pool, RxBuf};

/// A ring of provided buffers: the pool's free buffers, in the kernel's hands.
///
/// We write entries and the tail; the kernel only reads them.
pub(super) struct Provided {
    entries: *mut BufRingEntry,
    count: u16,
    tail: u16,
    /// How many buffers the kernel holds.
    held: u16,
    pub(super) pool: Rc<Pool>,
}

/// The one group of buffers.
pub(super) const GROUP: u16 = 0;

impl Provided {
    /// Maps the ring's memory. The pool's count must be a power of two.
    pub(super) fn new(pool: Rc<Pool>) -> io::Result<Self> {
        let count = pool.count();
        assert!(count.is_power_of_two(), "a buffer ring has a power of two of entries");
        // SAFETY: a new anonymous mapping disturbs nobody.
        let entries = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                Self::bytes(count),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        Ok(Provided { entries: entries.cast(), count, tail: 0, held: 0, pool })
    }

    fn bytes(count: u16) -> usize {
        usize::from(count) * size_of::<BufRingEntry>()
    }

    /// Where the ring begins, for its registration.
    pub(super) fn address(&self) -> u64 {
        self.entries as u64
    }

    /// Gives every free buffer to the kernel, with one release store. Whether there were any.
    pub(super) fn give_back(&mut self) -> bool {
        let before = self.tail;
        while let Some(id) = self.pool.take() {
            // SAFETY: the index is below the count of entries that were mapped, and the kernel
            // reads no entry at or behind the tail, which has not moved yet.
            let entry =
                unsafe { &mut *self.entries.add(usize::from(self.tail & (self.count - 1))) };
            entry.set_addr(self.pool.address(id) as u64);
            entry.set_len(self.pool.size() as u32);
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
        }
        if before == self.tail {
            return false;
        }
        self.held += self.tail.wrapping_sub(before);
        // SAFETY: the first entry is mapped and initialised (by zeroes at least).
        let tail = unsafe { BufRingEntry::tail(self.entries) };
        // SAFETY: the tail is two aligned bytes of the mapping that the kernel only reads.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
        true
    }

    /// Takes the buffer that the kernel has filled with `len` bytes.
    ///
    /// # Safety
    /// A completion has just reported `id`, and no other use is made of that report.
    pub(super) unsafe fn filled(&mut self, id: u16, len: usize) -> RxBuf {
        self.held -= 1;
        // SAFETY: the kernel uses a buffer once and reports it once, so it holds it no more.
        unsafe { self.pool.lend(id, len) }
    }

    /// How many buffers the kernel holds.
    pub(super) fn held(&self) -> u16 {
        if planted!(BufferWritten) {
            // SAFETY: there is a buffer 0; that it is the kernel's is the bug.
            unsafe { self.pool.address(0).write(0) };
        }
        self.held
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; the kernel holds the pages of a registered
        // ring by itself, so it never sees them gone.
        let _ = unsafe { munmap(self.entries.cast(), Self::bytes(self.count)) };
    }
}
