//! Posts calls: each takes a free entry, if there is room for it.

use super::{EntryId, NO_END, Pages, Place, Room, Scratch};
use crate::call::{Call, Executor, Waits};
use crate::error::Busy;
use crate::operation::Operation;
use crate::registered::NO_PLACE;

impl Pages {
    /// Posts a call. It is executed at the next [`submit`](Pages::submit) or [`wait`](Pages::wait)
    /// at the earliest.
    ///
    /// # Errors
    /// If every entry that the call may use is busy, or every thread that may wait indefinitely.
    ///
    /// # Safety
    /// The call does nothing that the program must not do. All memory that it refers to stays valid until its completion
    /// was taken; after a drop of the pages, until [`Pages::shut_down`] has returned true, or without end. Descriptors
    /// that it refers to stay open until then; if one is closed, the call may reach the next one of its number, or wait
    /// until it is cancelled. A clone of the [`Descriptor`] that was given to [`Call::about`] is kept until then: without
    /// one, the ring may find another file in its place.
    ///
    /// [`Descriptor`]: crate::Descriptor
    #[inline]
    pub unsafe fn post(&mut self, call: &Call) -> Result<EntryId, Busy> {
        let pinned = self.pin(call);
        let room = Room::of(call.waits, pinned);
        if !self.has_room(room) {
            self.counters.throttled += 1;
            return Err(Busy);
        }
        let Some(index) = self.free.pop() else { return Err(Busy) };
        self.unreserved += usize::from(room != Room::Entry);
        self.indefinite += usize::from(room == Room::Thread);
        // SAFETY: the entry is free, and this is its owner.
        unsafe { self.shared.entry(index).fill(call.number, &call.args) };
        let slot = &mut self.slots[index as usize];
        slot.place = Place::Batch;
        slot.pinned = pinned;
        slot.uncancellable = call.uncancellable;
        slot.room = room;
        slot.in_batches = call.in_batches;
        slot.by_changes = false;
        self.batchable += usize::from(call.in_batches);
        slot.waits = call.waits;
        slot.other_end = call.other_end.unwrap_or(NO_END);
        slot.ready_turns = 0;
        slot.file = self.files.as_ref().map_or(NO_PLACE, |files| files.place(call.file));
        let object = if slot.file == NO_PLACE { call.object } else { call.object.registered() };
        slot.row = self.choices.row(call.number, object);
        debug_assert_eq!(slot.measured, None, "the last call of the entry has ended");
        self.batch.push(index);
        self.counters.posted += 1;
        Ok(EntryId { index, generation: slot.generation })
    }

    /// Prepares an operation and posts it.
    ///
    /// # Errors
    /// As [`Pages::post`]; the operation stays with the caller.
    ///
    /// # Safety
    /// The operation is not dropped before [`Operation::finish`] was called after its completion,
    /// or [`Pages::shut_down`] has returned true.
    #[inline]
    pub(crate) unsafe fn post_operation(
        &mut self,
        operation: &mut impl Operation,
    ) -> Result<EntryId, Busy> {
        // SAFETY: `Operation` and the caller promise it.
        unsafe { self.post_with(|scratch| operation.prepare(scratch)) }
    }

    /// Posts a call that may refer to the scratch memory of its entry.
    ///
    /// # Errors
    /// As [`Pages::post`].
    ///
    /// # Safety
    /// As for [`Pages::post`].
    #[inline]
    pub(crate) unsafe fn post_with(
        &mut self,
        prepare: impl FnOnce(&mut Scratch) -> Call,
    ) -> Result<EntryId, Busy> {
        let Some(index) = self.free.last() else {
            self.counters.throttled += 1;
            return Err(Busy);
        };
        // SAFETY: the entry is free, so nothing else uses its scratch memory.
        let call = prepare(unsafe { &mut *self.scratch(*index as usize) });
        // SAFETY: the caller promises it.
        unsafe { self.post(&call) }
    }

    /// Returns the executor to which a call is pinned, which can make it.
    #[inline]
    fn pin(&mut self, call: &Call) -> Option<Executor> {
        let bounded = call.waits == Waits::Bounded;
        if let Waits::UntilReady(..) = call.waits {
            return None;
        }
        let pinned = call.pinned.or(self.executor.filter(|_| bounded));
        if pinned == Some(Executor::Shared) && !bounded {
            return Some(Executor::Threads);
        }
        // A bounded call needs an entry only, whether the ring or a thread makes it. The ring shows that when it is to take it.
        let is_checked = pinned == Some(Executor::Ring) && !(bounded && self.has_ring());
        if is_checked && !self.ring_can_make(call.number, &call.args) {
            self.counters.ring_refused += 1;
            // A call that waits for a descriptor needs no thread.
            let on_thread = matches!(call.waits, Waits::Bounded | Waits::Indefinitely);
            return on_thread.then_some(Executor::Threads);
        }
        pinned
    }

    /// Returns whether there is a ring to which calls may be given.
    #[inline]
    fn has_ring(&self) -> bool {
        self.may_use_ring && self.ring.is_set_up() && self.process.is_current()
    }

    /// Returns whether the ring can make a call.
    pub(super) fn ring_can_make(&mut self, number: u32, args: &[usize; 6]) -> bool {
        let readiness = &mut self.readiness;
        // A child of fork(2) shares the epoll set with its parent.
        self.may_use_ring
            && self.process.is_current()
            && self.ring.can_make(number, args, |ring| readiness.watch_ring(ring))
    }

    /// Returns whether a call that needs this could be posted.
    #[inline]
    fn has_room(&self, room: Room) -> bool {
        !self.free.is_empty() && self.needs_only_entry(room, &[0; Room::ALL.len()])
    }

    /// Returns whether a call that needs this could be posted if there was an entry for it, beside `others` that are to be
    /// posted: so many for each room.
    #[inline]
    fn needs_only_entry(&self, room: Room, others: &[usize; Room::ALL.len()]) -> bool {
        let [_, unreserved, indefinite] = *others;
        let may_wait = || self.unreserved + unreserved + indefinite < self.max_unreserved;
        match room {
            Room::Entry => true,
            Room::Unreserved => may_wait(),
            Room::Thread => may_wait() && self.indefinite + indefinite < self.max_indefinite,
        }
    }

    /// Returns whether a call that needs this may be posted, beside `others` that are to be posted: so many for each room.
    /// It does not pass an `older` call that needs only an entry, as a flood of younger ones would take each. It passes those
    /// that wait until another one that is not bounded has ended: that one may wait for this call (section 7).
    pub(crate) fn may_post(
        &self,
        room: Room,
        others: &[usize; Room::ALL.len()],
        older: impl Fn(Room) -> bool,
    ) -> bool {
        let is_behind = |other| older(other) && self.needs_only_entry(other, others);
        self.free.len() > others.iter().sum::<usize>()
            && self.needs_only_entry(room, others)
            && !Room::ALL.into_iter().any(is_behind)
    }

    /// Counts a call that has to wait for older ones.
    pub(crate) fn count_throttled(&mut self) {
        self.counters.throttled += 1;
    }

    /// Returns what an operation needs that was not posted.
    #[cold]
    pub(crate) fn room_for(&mut self, operation: &mut impl Operation) -> Room {
        let call = operation.prepare(&mut [0; 32]);
        let pinned = self.pin(&call);
        Room::of(call.waits, pinned)
    }

    /// Returns the scratch memory of an entry. It belongs to its call until that has completed.
    ///
    /// Its content is what the last call of the entry left.
    #[inline]
    pub(crate) fn scratch(&self, index: usize) -> *mut Scratch {
        self.scratch.as_ref().map_or(std::ptr::null_mut(), |scratch| scratch[index].get())
    }
}
