//! The simulated kernel's side of a ring of provided buffers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::memory::MemoryHold;

/// A ring of provided buffers as the kernel sees it.
#[derive(Debug)]
pub(super) struct Buffers {
    entries: *const BufRingEntry,
    count: u16,
    seen: u16,
    /// What can be received into, in the order in which it came.
    free: VecDeque<(u16, MemoryHold)>,
}

impl Buffers {
    pub(super) fn new(address: u64, count: u16) -> Self {
        Buffers { entries: address as *const _, count, seen: 0, free: VecDeque::new() }
    }

    /// Takes up what the program has provided since; whether that is sound.
    pub(super) fn look(&mut self) -> Result<(), String> {
        // SAFETY: whoever has registered the ring promised that it is there, a page at least and
        // filled with zeroes to begin with.
        let tail = unsafe { BufRingEntry::tail(self.entries) };
        // SAFETY: as above; it is two aligned bytes that the program writes to atomically.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) }.load(Ordering::Acquire);
        while self.seen != tail {
            // SAFETY: the index lies within the ring, and the entry was written before the tail.
            let entry = unsafe { &*self.entries.add(usize::from(self.seen % self.count)) };
            self.seen = self.seen.wrapping_add(1);
            let id = entry.bid();
            if self.free.iter().any(|(other, _)| *other == id) {
                return Err(format!("buffer {id} was given to the kernel twice"));
            }
            // SAFETY: whoever puts a buffer into the ring promises that it can be written to
            // until it is reported or the ring is withdrawn.
            let hold = unsafe { MemoryHold::to_write(entry.addr(), entry.len() as usize) };
            self.free.push_back((id, hold));
        }
        Ok(())
    }

    /// Whether nobody but the kernel has written to what it has.
    pub(super) fn are_untouched(&self) -> bool {
        self.free.iter().all(|(_, hold)| hold.is_untouched())
    }

    /// Takes the next buffer.
    pub(super) fn take(&mut self) -> Option<(u16, MemoryHold)> {
        self.free.pop_front()
    }

    /// Puts back what was not used.
    pub(super) fn put_back(&mut self, id: u16, hold: MemoryHold) {
        self.free.push_front((id, hold));
    }
}
