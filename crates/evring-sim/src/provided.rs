//! The simulated kernel's side of a ring of provided buffers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use crate::memory::MemoryHold;

/// A ring of provided buffers as the kernel sees it.
#[derive(Debug)]
pub(super) struct Buffers {
    entries: *const BufRingEntry,
    count: u16,
    head: u16,
    /// Buffers that are free to receive into, in the order of arrival.
    free: VecDeque<(u16, MemoryHold)>,
}

impl Buffers {
    pub(super) fn new(address: u64, count: u16) -> Self {
        Buffers { entries: address as *const _, count, head: 0, free: VecDeque::new() }
    }

    /// Takes the buffers that the program has provided since the last call.
    ///
    /// # Errors
    /// If the kernel has one of them already.
    pub(super) fn collect(&mut self) -> Result<(), String> {
        // SAFETY: the caller that registered the ring promised that it is valid, at least a page
        // long, and initially filled with zeroes.
        let tail = unsafe { BufRingEntry::tail(self.entries) };
        // SAFETY: as above; it is two aligned bytes that the program writes to atomically.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) }.load(Ordering::Acquire);
        while self.head != tail {
            // SAFETY: the index lies within the ring, and the entry was written before the tail.
            let entry = unsafe { &*self.entries.add(usize::from(self.head % self.count)) };
            self.head = self.head.wrapping_add(1);
            let id = entry.bid();
            if self.free.iter().any(|(other, _)| *other == id) {
                return Err(format!("buffer {id} was provided twice"));
            }
            // SAFETY: the program that provides a buffer promises that it can be written to until
            // it is reported or the ring is unregistered.
            let hold = unsafe { MemoryHold::to_write(entry.addr(), entry.len() as usize) };
            self.free.push_back((id, hold));
        }
        Ok(())
    }

    /// Returns whether only the kernel has written to its buffers.
    pub(super) fn are_untouched(&self) -> bool {
        self.free.iter().all(|(_, hold)| hold.is_untouched())
    }

    pub(super) fn take(&mut self) -> Option<(u16, MemoryHold)> {
        self.free.pop_front()
    }

    pub(super) fn put_back(&mut self, id: u16, hold: MemoryHold) {
        self.free.push_front((id, hold));
    }
}
