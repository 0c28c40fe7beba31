//! The locks that an invocation holds, and what it has stored by them (section 5.4.1).

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::SharedTable;
use super::result::{BUSY, EXHAUSTED, FAULT, OK};

/// Maximum number of locks that a handler holds.
pub const MAX_LOCKS: usize = 4;
/// Maximum number of stores in an invocation.
pub const MAX_STORES: usize = 8;

const WORD: usize = size_of::<u64>();

/// Locks and stores of the current invocation. They are bounded, so nothing is allocated.
#[derive(Debug)]
pub(crate) struct SharedData {
    sections: Vec<usize>,
    /// Place in the table, and offset of the bytes in the memory of the handler.
    stores: Vec<(Range<usize>, usize)>,
}

impl SharedData {
    pub(crate) fn new() -> Self {
        SharedData {
            sections: Vec::with_capacity(MAX_LOCKS),
            stores: Vec::with_capacity(MAX_STORES),
        }
    }

    #[inline]
    pub(crate) fn has_locks(&self) -> bool {
        !self.sections.is_empty()
    }

    /// Takes the lock of a section, or finds that the invocation has it. Returns the place of the section in the table.
    pub(crate) fn lock(
        &mut self,
        table: &SharedTable,
        section: usize,
    ) -> Result<Range<usize>, i32> {
        let place = table.section(section).ok_or(FAULT)?;
        if self.sections.contains(&section) {
            return Ok(place);
        }
        if self.sections.len() == MAX_LOCKS {
            return Err(EXHAUSTED);
        }
        if !table.acquire(section) {
            return Err(BUSY);
        }
        self.sections.push(section);
        Ok(place)
    }

    /// Notes a store of bytes in the memory of the handler.
    pub(crate) fn store(
        &mut self,
        table: &SharedTable,
        to: Range<usize>,
        from: Range<usize>,
    ) -> i32 {
        let mut places = self.sections.iter().filter_map(|section| table.section(*section));
        let is_locked = places.any(|place| place.start <= to.start && to.end <= place.end);
        // Whole words, as the application accesses them.
        if !is_locked || !to.start.is_multiple_of(WORD) || !to.end.is_multiple_of(WORD) {
            return FAULT;
        }
        if self.stores.len() == MAX_STORES {
            return EXHAUSTED;
        }
        self.stores.push((to, from.start));
        OK
    }

    /// Writes all stores, in order. `memory` returns the address of an offset in the memory of the handler.
    pub(crate) fn commit(&mut self, table: &SharedTable, memory: impl Fn(usize) -> *const u8) {
        for (to, from) in self.stores.drain(..) {
            let from = memory(from).cast::<u64>();
            let words = &table.words()[to.start / WORD..to.end / WORD];
            for (n, word) in words.iter().enumerate() {
                // SAFETY: the bytes were readable when they were stored, and the handler does not run.
                word.store(unsafe { from.add(n).read_unaligned() }, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn release(&mut self, table: &SharedTable) {
        self.stores.clear();
        self.sections.drain(..).for_each(|section| table.release(section));
    }
}
