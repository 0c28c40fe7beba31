//! The ring that provides receive buffers to the kernel.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::{BufferPool, RxBuf, Token};

/// A ring of provided buffers, which passes the pool's free buffers to the kernel.
pub(super) struct BufferRing<E: RingMemory = Mapped> {
    entries: E,
    count: u16,
    tail: u16,
    /// Number of buffers that the kernel holds.
    held: u16,
    /// Receives that wait for a buffer, oldest first.
    pub(super) starved: VecDeque<Token>,
    pool: Rc<BufferPool>,
}

/// The memory of the ring. The program writes entries and the tail; the kernel only reads them.
pub(super) trait RingMemory {
    /// Writes an entry.
    ///
    /// # Safety
    /// The index is within the ring, and the kernel does not read the entry: it has consumed the
    /// previous one at this index, and the tail has not passed it since.
    unsafe fn write(&mut self, at: u16, address: u64, len: u32, id: u16);

    /// Publishes all entries before the tail to the kernel.
    fn publish(&self, tail: u16);
}

/// A kernel that observes the tail observes the entries before it.
const PUBLISH: Ordering = Ordering::Release;

impl BufferRing {
    /// Maps the ring's memory. The pool's count must be a power of two.
    pub(super) fn new(pool: Rc<BufferPool>) -> io::Result<Self> {
        let entries = Mapped::new(pool.count())?;
        Ok(BufferRing::over(entries, pool))
    }

    /// Returns the ring's address, for its registration.
    pub(super) fn address(&self) -> u64 {
        self.entries.start as u64
    }
}

impl<E: RingMemory> BufferRing<E> {
    /// Creates a ring over memory with room for every buffer of the pool.
    fn over(entries: E, pool: Rc<BufferPool>) -> Self {
        let count = pool.count();
        assert!(count.is_power_of_two(), "a buffer ring has a power of two of entries");
        BufferRing { entries, count, tail: 0, held: 0, starved: VecDeque::new(), pool }
    }

    /// Passes every free buffer to the kernel, with one release store.
    pub(super) fn give_back(&mut self) {
        let before = self.tail;
        while let Some(id) = self.pool.take() {
            let (address, len) = (self.pool.address(id) as u64, self.pool.size() as u32);
            // SAFETY: there are as many entries as buffers, and this buffer is free, so the kernel
            // has consumed at least one entry: the oldest, which was at this index.
            unsafe { self.entries.write(self.tail & (self.count - 1), address, len, id) };
            self.tail = self.tail.wrapping_add(1);
        }
        if before == self.tail {
            return;
        }
        self.held += self.tail.wrapping_sub(before);
        self.entries.publish(self.tail);
    }

    /// Takes the buffer that the kernel has filled with `len` bytes.
    ///
    /// # Safety
    /// A completion has just reported `id`, and the report is used only once.
    pub(super) unsafe fn filled(&mut self, id: u16, len: usize) -> RxBuf {
        self.held -= 1;
        // SAFETY: the kernel uses a buffer once and reports it once, so it no longer holds it.
        unsafe { self.pool.lend(id, len) }
    }

    /// Returns the number of buffers.
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Returns the number of buffers that are not lent out.
    pub(super) fn available(&self) -> u32 {
        self.pool.available().into()
    }

    /// Returns the number of buffers that the kernel holds.
    pub(super) fn held(&self) -> u16 {
        self.held
    }
}

/// Mapped pages, as the kernel requires.
pub(super) struct Mapped {
    start: *mut BufRingEntry,
    count: u16,
}

impl Mapped {
    fn new(count: u16) -> io::Result<Self> {
        let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new anonymous mapping affects no other memory.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), Self::bytes(count), read_write, private)
        }?;
        Ok(Mapped { start: start.cast(), count })
    }

    fn bytes(count: u16) -> usize {
        usize::from(count) * size_of::<BufRingEntry>()
    }
}

impl RingMemory for Mapped {
    unsafe fn write(&mut self, at: u16, address: u64, len: u32, id: u16) {
        // SAFETY: by the caller's promise the index is within the mapping, and the kernel does not
        // read the entry.
        let entry = unsafe { &mut *self.start.add(usize::from(at)) };
        entry.set_addr(address);
        entry.set_len(len);
        entry.set_bid(id);
    }

    fn publish(&self, tail: u16) {
        // SAFETY: the first entry is mapped and initialised (by zeroes at least).
        let shared = unsafe { BufRingEntry::tail(self.start) };
        // SAFETY: the tail is two aligned bytes of the mapping that the kernel only reads.
        let shared = unsafe { AtomicU16::from_ptr(shared.cast_mut()) };
        shared.store(tail, PUBLISH);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length. The kernel pins the pages of a registered ring,
        // so they stay valid for it.
        let _ = unsafe { munmap(self.start.cast(), Self::bytes(self.count)) };
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sync::{Arc, AtomicU16 as SharedTail, Mutex, thread};

    const COUNT: u16 = 2;

    /// The memory of a model's ring: a cell for each entry, and the tail.
    struct Cells {
        entries: [UnsafeCell<u16>; COUNT as usize],
        tail: SharedTail,
    }

    impl RingMemory for Arc<Cells> {
        unsafe fn write(&mut self, at: u16, _address: u64, _len: u32, id: u16) {
            // SAFETY: loom checks that no other thread has access at the moment.
            self.entries[usize::from(at)].with_mut(|entry| unsafe { *entry = id });
        }

        fn publish(&self, tail: u16) {
            self.tail.store(tail, PUBLISH);
        }
    }

    /// The kernel, as another thread, reads each entry once it is published, while the program
    /// returns reported buffers. No entry is read and written at once, and none is lost.
    #[test]
    fn kernel_reads_published_entries() {
        const USES: u16 = 4;
        loom::model(|| {
            let cells = Arc::new(Cells { entries: Default::default(), tail: SharedTail::new(0) });
            // Buffers that the kernel has filled: a minimal completion queue.
            let filled = Arc::new(Mutex::new(Vec::new()));
            let kernel = {
                let (cells, filled) = (Arc::clone(&cells), Arc::clone(&filled));
                thread::spawn(move || {
                    for head in 0..USES {
                        while cells.tail.load(Ordering::Acquire) == head {
                            thread::yield_now();
                        }
                        let at = usize::from(head % COUNT);
                        // SAFETY: loom checks that no other thread writes at the moment.
                        let id = cells.entries[at].with(|entry| unsafe { *entry });
                        filled.lock().unwrap().push(id);
                    }
                })
            };
            let mut provided = BufferRing::over(cells, BufferPool::new(COUNT, 1));
            provided.give_back();
            let mut uses = 0;
            while uses < USES {
                let done = std::mem::take(&mut *filled.lock().unwrap());
                if done.is_empty() {
                    thread::yield_now();
                }
                for id in done {
                    // SAFETY: the kernel has just reported it.
                    drop(unsafe { provided.filled(id, 1) });
                    uses += 1;
                }
                provided.give_back();
            }
            kernel.join().unwrap();
        });
    }
}
