//! Gives posted calls to their executors, and ends them.

use super::super::raw;
use super::super::threads::Threads;
use super::{Pages, Place, is_not_ready};
use crate::call::Waits;
use crate::error::Error;
use crate::page::ENTRIES;

/// Result of a call for which no thread can be started, as of pthread_create(3).
const NO_THREAD: isize = -(libc::EAGAIN as isize);

impl Pages {
    /// Submits the posted calls: executes calls in place, and hands others to threads.
    ///
    /// # Errors
    /// In a child of fork(2), or if the kernel refuses to enter the ring; the calls for other executors are made, and
    /// those for the ring stay queued.
    pub fn submit(&mut self) -> Result<(), Error> {
        self.execute()?;
        if self.sleeps_in_ring { self.enter_ring() } else { Ok(()) }
    }

    /// Executes a call in the owner's thread.
    #[inline]
    pub(super) fn execute_in_place(&mut self, index: u32) {
        let entry = self.shared.entry(index);
        self.counters.in_place += 1;
        // SAFETY: the owner has not submitted the entry to threads; the caller of `Pages::post` vouches for it.
        let result = unsafe {
            let (number, args) = entry.call();
            raw::system_call(number, &args)
        };
        if is_not_ready(result) && self.waits_again(index) {
            return;
        }
        self.finish(index, result);
    }

    /// Executes a bounded call in the owner's thread: it does not wait for a descriptor.
    #[inline(always)]
    pub(super) fn execute_bounded(&mut self, index: u32) {
        let entry = self.shared.entry(index);
        // SAFETY: as in `execute_in_place`.
        unsafe {
            let (number, args) = entry.call();
            entry.finish(raw::system_call(number, &args));
        }
        self.counters.in_place += 1;
        self.slots[index as usize].place = Place::Done;
        self.done.push_back(index);
    }

    /// Ends a call that no thread has.
    #[inline]
    pub(super) fn finish(&mut self, index: u32, result: isize) {
        // SAFETY: the owner has not submitted the entry to threads, has withdrawn it, or has seen that it is done.
        unsafe { self.shared.entry(index).finish(result) };
        self.slots[index as usize].place = Place::Done;
        self.done.push_back(index);
    }

    /// Notes an entry for the threads.
    pub(super) fn assign_thread(&mut self, index: u32) {
        self.slots[index as usize].place = Place::Thread;
        let page = index as usize / ENTRIES;
        if self.masks[page] == 0 {
            self.dirty.push(page as u32);
        }
        self.masks[page] |= 1 << (index as usize % ENTRIES);
        self.counters.on_threads += 1;
    }

    /// Submits the noted entries to the threads.
    #[inline]
    pub(super) fn publish(&mut self) {
        if !self.dirty.is_empty() {
            self.submit_to_threads();
        }
    }

    #[inline(never)]
    fn submit_to_threads(&mut self) {
        // In a child of fork(2), the lock of the threads may be that of one that does not exist.
        if !self.process.is_current() {
            return;
        }
        if let Some(threads) = &self.threads {
            let owner_works = !self.given.is_empty();
            if !threads.submit(&mut self.dirty, &mut self.masks, owner_works) {
                self.make_without_threads();
            }
        }
    }

    /// Makes or ends the calls that wait for a thread although none will come.
    #[inline]
    pub(super) fn make_stranded_calls(&mut self) {
        if let Some(threads) = &self.threads
            && threads.are_stranded()
            && threads.take_stranded_pages()
        {
            self.make_without_threads();
        }
    }

    /// Returns whether calls wait for a thread although none will come.
    pub(super) fn has_stranded_calls(&self) -> bool {
        self.threads.as_ref().is_some_and(Threads::are_stranded)
    }

    /// Makes or ends the calls that no thread has claimed, as none will.
    #[cold]
    fn make_without_threads(&mut self) {
        for page in 0..self.masks.len() {
            while let Some(place) = self.shared.submitted[page].claim() {
                let index = (page * ENTRIES + place) as u32;
                self.counters.on_threads -= 1;
                self.abandon_measurement(index);
                match self.slots[index as usize].waits {
                    Waits::Bounded => self.execute_in_place(index),
                    _ => self.finish(index, NO_THREAD),
                }
            }
        }
    }
}
