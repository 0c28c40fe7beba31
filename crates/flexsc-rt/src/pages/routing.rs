//! The choice of an executor for each posted call, and the times that it learns from.

use super::super::clock::Instant;
use super::super::raw::INTERRUPTED;
use super::{MEASURED, Pages, Place, RING_BATCH, Slot};
use crate::call::{Executor, Waits};
use crate::choice::{Choice, Choices, Depth, Row};
use crate::error::Error;
use crate::page::ENTRIES;

impl Pages {
    /// Submits the posted calls, without an entry into the ring in which the owner sleeps.
    #[inline(always)]
    pub(super) fn execute(&mut self) -> Result<(), Error> {
        if !self.process.is_current() {
            return Err(Error::InChild);
        }
        self.empty_released_places();
        match self.batch[..] {
            [index] => self.execute_one(index),
            _ => self.execute_batch(),
        }
    }

    /// Begins a batch, for the choice.
    fn begin_batch(&mut self) -> Depth {
        self.batch_number = self.batch_number.wrapping_add(1);
        self.depth = Depth::of(self.batch.len());
        self.chosen = None;
        self.measurements.begin_batch();
        self.depth
    }

    fn execute_batch(&mut self) -> Result<(), Error> {
        let depth = self.begin_batch();
        // First those for threads, so that these begin meanwhile.
        let mut in_place = 0;
        for next in 0..self.batch.len() {
            let index = self.batch[next];
            if let Some(measured) = self.route(index, depth) {
                self.batch[in_place] = if measured { index | MEASURED } else { index };
                in_place += 1;
            }
        }
        self.publish();
        let entered = self.begin_in_ring();
        let (mut next, mut measure) = (0, false);
        while next < in_place {
            let index = self.batch[next];
            if index & MEASURED == 0 && !measure {
                self.execute_in_place(index);
                next += 1;
            } else {
                (next, measure) = self.measure_run(next, in_place, depth);
            }
        }
        self.take_back();
        self.batch.clear();
        self.batchable = 0;
        // Calls in place that have to be made by a thread after all.
        self.publish();
        entered
    }

    /// The same for a batch of one call, which shares nothing with others.
    #[inline(always)]
    fn execute_one(&mut self, index: u32) -> Result<(), Error> {
        let Slot { place, pinned, waits, row, .. } = self.slots[index as usize];
        let is_plain = place == Place::Batch && pinned.is_none() && matches!(waits, Waits::Bounded);
        if !(is_plain && self.choices.pass_in_place(row)) {
            return self.route_one(index);
        }
        self.batch.clear();
        self.batchable = 0;
        self.execute_bounded(index);
        if self.ring.is_idle() { Ok(()) } else { self.begin_in_ring() }
    }

    /// The same, by any executor.
    #[inline(never)]
    fn route_one(&mut self, index: u32) -> Result<(), Error> {
        let depth = self.begin_batch();
        let by_owner = self.route(index, depth);
        self.batch.clear();
        self.batchable = 0;
        match by_owner {
            Some(false) => self.execute_in_place(index),
            Some(true) => {
                self.measure_in_place(index, depth);
            }
            None => {
                self.publish();
                self.take_back();
            }
        }
        // A call in place that has to be made by a thread after all.
        self.publish();
        self.begin_in_ring()
    }

    /// Executes a call in the owner's thread, and reports its time. Returns whether to measure the next one, too.
    #[inline(never)]
    fn measure_in_place(&mut self, index: u32, depth: Depth) -> bool {
        let row = self.slots[index as usize].row;
        let began = Instant::now();
        self.execute_in_place(index);
        let time_ns = began.elapsed().as_nanos() as u64;
        self.choices.report_in_place(row, depth, time_ns)
    }

    /// The same for a call of the batch and those of its row that follow before `end`, of which the first one shows whether
    /// they are slow. Returns which call is the next one, and whether to measure that one, too.
    #[inline(never)]
    fn measure_run(&mut self, first: usize, end: usize, depth: Depth) -> (usize, bool) {
        let index = self.batch[first] & !MEASURED;
        let row = self.slots[index as usize].row;
        let began = Instant::now();
        self.execute_in_place(index);
        let first_ns = began.elapsed().as_nanos() as u64;
        let is_next = |index: &&u32| self.slots[(**index & !MEASURED) as usize].row == row;
        let calls = 1 + self.batch[first + 1..end].iter().take_while(is_next).count();
        if calls == 1 || Choices::is_slow(first_ns) {
            return (first + 1, self.choices.report_in_place(row, depth, first_ns));
        }
        for next in first + 1..first + calls {
            self.execute_in_place(self.batch[next] & !MEASURED);
        }
        let time_ns = began.elapsed().as_nanos() as u64;
        self.choices.report_run(row, depth, time_ns, calls as u32);
        (first + calls, false)
    }

    /// Submits the calls for the ring. A ring in which the owner sleeps is entered later.
    #[inline]
    fn begin_in_ring(&mut self) -> Result<(), Error> {
        if !self.sleeps_in_ring {
            return self.enter_ring();
        }
        self.push_to_ring().map_err(|errno| Error::System("enter io_uring", errno.into()))
    }

    /// Decides which executor makes a posted call. Returns whether to measure it, if the owner does.
    #[expect(
        clippy::inline_always,
        reason = "a call of its own for each entry costs 15 instructions"
    )]
    #[inline(always)]
    fn route(&mut self, index: u32, depth: Depth) -> Option<bool> {
        let slot = &mut self.slots[index as usize];
        if slot.place == Place::CancelledBatch {
            self.finish(index, INTERRUPTED);
            return None;
        }
        if slot.in_batches && self.sleeps_in_ring && self.batchable >= RING_BATCH {
            self.ring.queue.push_back(index);
            return None;
        }
        let executor = match (slot.pinned, slot.waits) {
            (_, Waits::AfterReady(..)) if slot.in_batches && self.sleeps_in_ring => Executor::Ring,
            (Some(executor), Waits::Bounded) => executor,
            (None, Waits::Bounded) => {
                let row = slot.row;
                let choice = match self.chosen {
                    Some((chosen, choice)) if chosen == row => choice,
                    _ => self.choose(row, depth),
                };
                if choice.executor == Executor::InPlace {
                    return Some(choice.measured);
                }
                if choice.executor == Executor::Ring
                    && !self.ring.is_set_up()
                    && !self.ring_makes(index)
                {
                    return Some(false);
                }
                let executor = choice.executor;
                if choice.measured {
                    self.measure(index, executor);
                }
                executor
            }
            (_, waits) => match (slot.pinned, waits) {
                (Some(executor), _) => executor,
                (
                    None,
                    Waits::ReadyThenBlocks(fd, direction)
                    | Waits::AfterReady(fd, direction)
                    | Waits::UntilReady(fd, direction),
                ) => {
                    self.wait_for(index, fd, direction);
                    return None;
                }
                (None, Waits::Indefinitely) => Executor::Threads,
                (None, _) => Executor::InPlace,
            },
        };
        if executor == Executor::Ring {
            self.ring.queue.push_back(index);
            return None;
        }
        if executor == Executor::InPlace || self.threads.is_none() {
            return Some(false);
        }
        if executor == Executor::Shared {
            self.counters.shared += 1;
            if self.is_owners(index) {
                return Some(false);
            }
            self.given.push(index);
        }
        self.assign_thread(index);
        None
    }

    /// Chooses an executor for the calls of a row in this batch, or for the first of them.
    pub(super) fn choose(&mut self, row: Row, depth: Depth) -> Choice {
        let calls = self.batch.len() as u32;
        let choice = self.choices.choose(row, depth, self.batch_number, calls);
        if !choice.once {
            // One call in place shows the cost of the others.
            let measured = choice.measured && choice.executor != Executor::InPlace;
            self.chosen = Some((row, Choice { measured, ..choice }));
        }
        choice
    }

    /// Makes the calls of a shared batch that no thread has begun.
    #[inline]
    pub(super) fn take_back(&mut self) {
        // The threads begin with those that were given first, or where they ended the last time.
        while let Some(index) = self.given.pop() {
            let submitted = &self.shared.submitted[index as usize / ENTRIES];
            if !submitted.is_empty() && submitted.withdraw(index as usize % ENTRIES) {
                self.counters.on_threads -= 1;
                self.count_out(index);
                self.execute_in_place(index);
            }
        }
        self.end_owners_part();
    }

    /// Returns whether the ring can make a posted call, which it was chosen for, and counts it if not.
    #[cold]
    pub(super) fn ring_makes(&mut self, index: u32) -> bool {
        // SAFETY: no executor has the entry.
        let (number, args) = unsafe { self.shared.entry(index).call() };
        let can_make = self.ring_can_make(number, &args);
        if !can_make {
            self.counters.ring_refused += 1;
            self.ring_refuses(index);
        }
        can_make
    }

    /// Notes that the ring has no operation for a call.
    #[cold]
    pub(super) fn ring_refuses(&mut self, index: u32) {
        self.abandon_measurement(index);
        let row = self.slots[index as usize].row;
        self.choices.report_refused(row, self.depth, Executor::Ring);
        self.chosen = None;
    }
}
