//! Futures that wait for a free entry.

use std::collections::BTreeMap;
use std::ops::Range;
use std::task::Waker;

use super::super::pages::Room;
use super::{Inner, Operation, Runtime, Wakers, replace};

/// Turns in which a task that was woken for an entry is to poll its future.
const TURNS: u64 = 2;

/// The place of a future among those that wait for a free entry. It keeps the number until its call is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    /// The room that its call needs.
    room: Room,
    number: u64,
}

impl Ticket {
    /// The place before all others, which no other future has.
    #[cfg(feature = "green-threads")]
    pub(super) const FIRST: Ticket = Ticket { room: Room::Entry, number: 0 };

    /// Returns the tickets of a room that come before a number.
    fn before(number: u64, room: Room) -> Range<Ticket> {
        Ticket { room, number: 0 }..Ticket { room, number }
    }
}

/// The futures that wait for a free entry: for each sort of room, in order.
#[derive(Default)]
pub(super) struct Throttled {
    waiting: BTreeMap<Ticket, Waker>,
    /// Those that were woken, and in which turn. Each has an entry kept for it, which younger ones do not take before it is
    /// polled; but not for long, as its task may not poll it.
    woken: BTreeMap<Ticket, u64>,
    last_number: u64,
}

impl Throttled {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the waker of one that waits.
    pub(super) fn first_waker(&self) -> Option<&Waker> {
        self.waiting.values().next()
    }

    /// Removes one. Returns its waker, unless it was woken.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Waker> {
        self.woken.remove(&ticket);
        self.waiting.remove(&ticket)
    }

    /// Keeps no entry any longer for those that were woken some turns ago.
    pub(super) fn forget_woken(&mut self, turn: u64) {
        self.woken.retain(|_, woken| *woken + TURNS > turn);
    }

    /// Returns whether one waits for a room, and came before a number.
    fn has_older(&self, number: u64, room: Room) -> bool {
        self.waiting.range(Ticket::before(number, room)).next().is_some()
    }

    /// Returns for how many of each room an entry is kept, of those that came before a number.
    fn kept(&self, number: u64) -> [usize; Room::ALL.len()] {
        Room::ALL.map(|room| self.woken.range(Ticket::before(number, room)).count())
    }

    /// Returns the first one that waits for a room.
    fn first(&self, room: Room) -> Option<Ticket> {
        self.waiting.range(Ticket::before(u64::MAX, room)).next().map(|(ticket, _)| *ticket)
    }
}

impl Runtime {
    /// Wakes the tasks that could use a free entry: those woken before may not poll their futures. Returns whether there
    /// are any.
    pub(super) fn wake_throttled(&self) -> bool {
        let mut any = false;
        loop {
            let next = self.0.borrow_mut().next_throttled();
            let Some(waker) = next else { return any };
            waker.wake();
            any = true;
        }
    }

    /// Returns whether futures wait although there may be entries: they are kept for others, which were woken.
    pub(super) fn keeps_entries(&self) -> bool {
        let throttled = &self.0.borrow().throttled;
        !throttled.woken.is_empty() && !throttled.is_empty()
    }
}

impl Inner {
    /// Returns what the call of a future needs, if it has to wait for those that came before.
    pub(super) fn has_to_wait(
        &mut self,
        operation: &mut impl Operation,
        ticket: Option<Ticket>,
    ) -> Option<Room> {
        if self.throttled.waiting.is_empty() && self.throttled.woken.is_empty() {
            return None;
        }
        let room = self.pages.room_for(operation);
        let number = ticket.map_or(u64::MAX, |ticket| ticket.number);
        let older = |other| self.throttled.has_older(number, other);
        if self.pages.may_post(room, &self.throttled.kept(number), older) {
            return None;
        }
        self.pages.count_throttled();
        Some(room)
    }

    /// Returns the waker of the task that has waited for longest, of those whose calls could be posted now.
    fn next_throttled(&mut self) -> Option<Waker> {
        let Inner { pages, throttled, turns, .. } = self;
        let kept = throttled.kept(u64::MAX);
        let mut first = Room::ALL.into_iter().filter_map(|room| throttled.first(room));
        let next = first.find(|ticket| {
            pages.may_post(ticket.room, &kept, |other| throttled.has_older(ticket.number, other))
        })?;
        throttled.woken.insert(next, *turns);
        throttled.waiting.remove(&next)
    }

    /// Returns the task that may use an entry that is free, and the driver if there are others.
    pub(super) fn free_entry(&mut self) -> Wakers {
        let to_wake = self.next_throttled();
        let has_others = to_wake.is_some() && !self.throttled.is_empty();
        let driver = if has_others { self.parked_driver() } else { None };
        Wakers { to_wake, driver, _to_drop: [None, None] }
    }

    /// Lets a future wait for a free entry. Returns its place among those that do.
    pub(super) fn throttle(
        &mut self,
        ticket: Option<Ticket>,
        room: Room,
        waker: &Waker,
    ) -> (Ticket, Wakers) {
        if let Some(ticket) = ticket.filter(|ticket| ticket.room == room)
            && let Some(throttled) = self.throttled.waiting.get_mut(&ticket)
        {
            let _to_drop = [replace(throttled, waker), None];
            return (ticket, Wakers { _to_drop, ..Wakers::default() });
        }
        let number = ticket.map_or(self.throttled.last_number + 1, |ticket| ticket.number);
        self.throttled.last_number = self.throttled.last_number.max(number);
        let former = ticket.and_then(|ticket| self.throttled.remove(ticket));
        let place = Ticket { room, number };
        self.throttled.waiting.insert(place, waker.clone());
        // If it was woken, others have been faster: the entry for which it was may be of use for another one.
        let was_woken = ticket.is_some() && former.is_none();
        let mut wakers = if was_woken { self.free_entry() } else { Wakers::default() };
        wakers._to_drop[0] = former;
        // The driver ends the time for which entries are kept.
        if !self.throttled.woken.is_empty() && wakers.driver.is_none() {
            wakers.driver = self.parked_driver();
        }
        (place, wakers)
    }

    /// Ends the wait of a future for a free entry. Another one is woken for the entry for which it was.
    pub(super) fn leave(&mut self, ticket: Option<Ticket>) -> Wakers {
        let Some(ticket) = ticket else { return Wakers::default() };
        match self.throttled.remove(ticket) {
            None => self.free_entry(),
            former => Wakers { _to_drop: [former, None], ..Wakers::default() },
        }
    }
}
