//! Queue of undelivered events (SEND 3.6).
//!
//! Each event is in a holder, `struct event_holder`. An origin with its own holder, such as a
//! signal or a timer, has at most one queued event. A later one coalesces with it, and it can be
//! revoked. So the memory for events depends on the number of origins, not on their rate, and is
//! allocated in advance.

use crate::{Event, EventType, Group, Groups};

/// A holder that belongs to one origin of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HolderId(u32);

impl HolderId {
    /// Returns the holder created `count` holders after this one.
    pub(crate) fn after(self, count: u32) -> Self {
        HolderId(self.0 + count)
    }
}

#[derive(Debug)]
struct Holder {
    event: Event,
    queued: bool,
    group: Group,
    /// The holder is not an origin's; it is vacant again after delivery.
    transient: bool,
    previous: Option<u32>,
    next: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct List {
    first: Option<u32>,
    last: Option<u32>,
}

/// Undelivered events by group, first in first out in each.
#[derive(Debug)]
pub(crate) struct EventQueue {
    holders: Vec<Holder>,
    /// Free holders for events without their own.
    vacant: Vec<u32>,
    /// Released holders of origins.
    free: Vec<u32>,
    lists: [List; Group::COUNT as usize],
    waiting: Groups,
    len: u32,
}

impl EventQueue {
    /// Creates a queue for at most `transient` events without their own holder.
    pub(crate) fn new(transient: u32) -> Self {
        let mut queue = EventQueue {
            holders: Vec::new(),
            vacant: Vec::new(),
            free: Vec::new(),
            lists: [List::default(); Group::COUNT as usize],
            waiting: Groups::NONE,
            len: 0,
        };
        queue.vacant = (0..transient).map(|_| queue.add(true)).collect();
        queue
    }

    fn add(&mut self, transient: bool) -> u32 {
        let event = Event::new(EventType::OVERFLOW);
        let (queued, group) = (false, Group::FIRST);
        self.holders.push(Holder { event, queued, group, transient, previous: None, next: None });
        self.holders.len() as u32 - 1
    }

    /// Returns a holder for an origin. Only this may allocate.
    pub(crate) fn allocate(&mut self) -> HolderId {
        let at = self.free.pop().unwrap_or_else(|| self.add(false));
        HolderId(at)
    }

    /// Releases a holder and drops its event.
    pub(crate) fn release(&mut self, holder: HolderId) {
        self.revoke(holder);
        self.free.push(holder.0);
    }

    /// Returns the number of queued events.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the groups with queued events.
    pub(crate) fn waiting(&self) -> Groups {
        self.waiting
    }

    /// Returns whether there is room for an event without its own holder.
    pub(crate) fn has_room(&self) -> bool {
        !self.vacant.is_empty()
    }

    /// Queues an event without its own holder. Returns false if there is no room.
    pub(crate) fn post(&mut self, group: Group, event: Event) -> bool {
        let Some(at) = self.vacant.pop() else { return false };
        self.push(at, group, event);
        true
    }

    /// Queues an event, or coalesces it with the queued one of the same origin.
    pub(crate) fn generate(&mut self, holder: HolderId, group: Group, event: Event) {
        let at = holder.0;
        match &mut self.holders[at as usize] {
            Holder { queued: true, event: waiting, .. } => waiting.coalesce(event),
            _ => self.push(at, group, event),
        }
    }

    /// Revokes a holder's event. Returns false if none was queued.
    pub(crate) fn revoke(&mut self, holder: HolderId) -> bool {
        let queued = self.holders[holder.0 as usize].queued;
        if queued {
            self.unlink(holder.0);
        }
        queued
    }

    /// Returns the next event to deliver: the oldest of the lowest of these groups.
    pub(crate) fn first(&self, groups: Groups) -> Option<(Group, Event)> {
        let group = (self.waiting & groups).first()?;
        let at = self.lists[group.number() as usize].first?;
        Some((group, self.holders[at as usize].event))
    }

    /// Removes that event after delivery.
    pub(crate) fn delivered(&mut self, group: Group) {
        let Some(at) = self.lists[group.number() as usize].first else { return };
        self.unlink(at);
        if self.holders[at as usize].transient {
            self.vacant.push(at);
        }
    }

    /// Moves the queued events of a type to another group, or drops them. Events of sockets stay:
    /// their group was set with the socket.
    pub(crate) fn reassign(&mut self, kind: EventType, from: Group, to: Option<Group>) {
        if to == Some(from) {
            return;
        }
        let mut next = self.lists[from.number() as usize].first;
        while let Some(at) = next {
            next = self.holders[at as usize].next;
            let Holder { event, transient, .. } = self.holders[at as usize];
            let is_of_socket = !transient && [EventType::READY, EventType::DATA].contains(&kind);
            if event.kind != kind || is_of_socket {
                continue;
            }
            self.unlink(at);
            match to {
                Some(group) => self.push(at, group, event),
                None if transient => self.vacant.push(at),
                None => {}
            }
        }
    }

    #[inline]
    fn push(&mut self, at: u32, group: Group, event: Event) {
        let list = &mut self.lists[group.number() as usize];
        let previous = list.last.replace(at);
        match previous {
            Some(previous) => self.holders[previous as usize].next = Some(at),
            None => list.first = Some(at),
        }
        let holder = &mut self.holders[at as usize];
        (holder.event, holder.group, holder.queued) = (event, group, true);
        (holder.previous, holder.next) = (previous, None);
        self.waiting = self.waiting | group.into();
        self.len += 1;
    }

    #[inline]
    fn unlink(&mut self, at: u32) {
        let holder = &mut self.holders[at as usize];
        holder.queued = false;
        let Holder { previous, next, group, .. } = *holder;
        let list = &mut self.lists[group.number() as usize];
        match previous {
            Some(previous) => self.holders[previous as usize].next = next,
            None => list.first = next,
        }
        match next {
            Some(next) => self.holders[next as usize].previous = previous,
            None => list.last = previous,
        }
        if list.first.is_none() {
            self.waiting = self.waiting - group.into();
        }
        self.len -= 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(value: u64) -> Event {
        Event { value, ..Event::new(EventType::TIMER) }
    }

    #[test]
    fn events_of_one_origin_coalesce() {
        let mut queue = EventQueue::new(0);
        let (flooded, other) = (queue.allocate(), queue.allocate());
        for value in 0..100_000 {
            queue.generate(flooded, Group::FIRST, event(value));
        }
        queue.generate(other, Group::FIRST, event(1));
        assert_eq!((queue.len(), queue.holders.len()), (2, 2));
        let (group, first) = queue.first(Groups::ALL).unwrap();
        assert_eq!((first.value, first.count), (99_999, u16::MAX));
        queue.delivered(group);
        assert!(!queue.revoke(flooded) && queue.revoke(other));
        assert_eq!(queue.len(), 0);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Generate(usize, u8),
        Revoke(usize),
        Post(u8),
        Deliver(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4usize, 0..32u8).prop_map(|(at, group)| Step::Generate(at, group)),
            (0..4usize).prop_map(Step::Revoke),
            (0..32u8).prop_map(Step::Post),
            any::<u32>().prop_map(Step::Deliver),
        ]
    }

    proptest! {
        /// Compares with a plain list: lowest group first, in order within a group, one event per
        /// origin, and no more events without a holder than fit.
        #[test]
        fn behaves_like_a_list(steps in prop::collection::vec(step(), 0..200)) {
            let mut queue = EventQueue::new(3);
            let holders: Vec<_> = (0..4).map(|_| queue.allocate()).collect();
            let mut model: Vec<(u8, Option<usize>, u64, u16)> = Vec::new();
            for (value, step) in steps.into_iter().enumerate() {
                let value = value as u64;
                match step {
                    Step::Generate(at, group) => {
                        queue.generate(holders[at], Group::new(group).unwrap(), event(value));
                        match model.iter_mut().find(|entry| entry.1 == Some(at)) {
                            Some(entry) => (entry.2, entry.3) = (value, entry.3 + 1),
                            None => model.push((group, Some(at), value, 1)),
                        }
                    }
                    Step::Revoke(at) => {
                        let entry = model.iter().position(|entry| entry.1 == Some(at));
                        prop_assert_eq!(queue.revoke(holders[at]), entry.is_some());
                        entry.map(|entry| model.remove(entry));
                    }
                    Step::Post(group) => {
                        let room = model.iter().filter(|entry| entry.1.is_none()).count() < 3;
                        prop_assert_eq!(queue.post(Group::new(group).unwrap(), event(value)), room);
                        if room {
                            model.push((group, None, value, 1));
                        }
                    }
                    Step::Deliver(mask) => {
                        let groups = Groups::from_bits(mask);
                        let allowed = |entry: &&(u8, _, _, _)| mask & (1 << entry.0) != 0;
                        let group = model.iter().filter(allowed).map(|entry| entry.0).min();
                        let at = model.iter().position(|entry| Some(entry.0) == group);
                        let expected = at.map(|at| model.remove(at));
                        let first = queue.first(groups);
                        prop_assert_eq!(
                            first.map(|(group, event)| (group.number(), event.value, event.count)),
                            expected.map(|(group, _, value, count)| (group, value, count))
                        );
                        if let Some((group, _)) = first {
                            queue.delivered(group);
                        }
                    }
                }
                prop_assert_eq!(queue.len() as usize, model.len());
                prop_assert_eq!(queue.has_room(), model.iter().filter(|entry| entry.1.is_none()).count() < 3);
            }
        }
    }
}
