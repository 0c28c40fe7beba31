//! Futures that wait for a free entry.

use std::task::Waker;

use super::super::pages::Room;
use super::{Inner, Runtime, Wakers, replace};

/// The place of a future among those that wait for a free entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    /// The room that its call needs.
    room: Room,
    number: u64,
}

impl Runtime {
    /// Wakes a task that could use a free entry: those woken before may not poll their futures. Returns whether there is one.
    pub(super) fn wake_throttled(&self) -> bool {
        let next = self.0.borrow_mut().next_throttled();
        let any = next.is_some();
        next.into_iter().for_each(Waker::wake);
        any
    }
}

impl Inner {
    /// Returns the waker of the task that has waited for longest, of those whose calls could be posted now.
    pub(super) fn next_throttled(&mut self) -> Option<Waker> {
        let first_for = |room| {
            let tickets = Ticket { room, number: 0 }..=Ticket { room, number: u64::MAX };
            self.throttled.range(tickets).next().map(|(ticket, _)| *ticket)
        };
        let rooms = Room::ALL.into_iter().filter(|room| self.pages.has_room(*room));
        let next = rooms.filter_map(first_for).min_by_key(|ticket| ticket.number);
        next.and_then(|ticket| self.throttled.remove(&ticket))
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
            && let Some(throttled) = self.throttled.get_mut(&ticket)
        {
            let _to_drop = [replace(throttled, waker), None];
            return (ticket, Wakers { _to_drop, ..Wakers::default() });
        }
        // If it was woken, others have been faster: the entry for which it was may be of use for another one.
        let wakers = self.leave(ticket);
        self.next_ticket += 1;
        let ticket = Ticket { room, number: self.next_ticket };
        self.throttled.insert(ticket, waker.clone());
        (ticket, wakers)
    }

    /// Ends the wait of a future for a free entry. Another one is woken for the entry for which it was.
    pub(super) fn leave(&mut self, ticket: Option<Ticket>) -> Wakers {
        let Some(ticket) = ticket else { return Wakers::default() };
        match self.throttled.remove(&ticket) {
            None => self.free_entry(),
            former => Wakers { _to_drop: [former, None], ..Wakers::default() },
        }
    }
}
