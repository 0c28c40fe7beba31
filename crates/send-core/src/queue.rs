//! Events that wait to be delivered (SEND 3.6).
//!
//! Each stands in a holder, `struct event_holder`. Who has a holder of its own, such as a signal
//! or a timer, has at most one event waiting: a later one is taken in by it, and it can be withdrawn.
//! So the memory for events follows the number of their origins, not their rate, and is there
//! before they come.

use crate::{Event, EventType, Group, Groups};

/// A holder that belongs to one origin of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HolderId(u32);

impl HolderId {
    /// The holder that was made so many after this one.
    pub(crate) fn after(self, count: u32) -> Self {
        HolderId(self.0 + count)
    }
}

#[derive(Debug)]
struct Holder {
    event: Event,
    queued: bool,
    group: Group,
    /// Freed after delivery.
    passing: bool,
    before: Option<u32>,
    behind: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct List {
    first: Option<u32>,
    last: Option<u32>,
}

/// Events that wait, by their groups, each group first in first out.
#[derive(Debug)]
pub(crate) struct EventQueue {
    holders: Vec<Holder>,
    /// Holders for events that have none of their own.
    vacant: Vec<u32>,
    /// Holders that origins have given back.
    free: Vec<u32>,
    lists: [List; Group::COUNT as usize],
    waiting: Groups,
    len: u32,
}

impl EventQueue {
    /// A queue with room for so many events that have no holder of their own.
    pub(crate) fn new(passing: u32) -> Self {
        let mut queue = EventQueue {
            holders: Vec::new(),
            vacant: Vec::new(),
            free: Vec::new(),
            lists: [List::default(); Group::COUNT as usize],
            waiting: Groups::NONE,
            len: 0,
        };
        queue.vacant = (0..passing).map(|_| queue.add(true)).collect();
        queue
    }

    fn add(&mut self, passing: bool) -> u32 {
        let event = Event::new(EventType::OVERFLOW);
        let (queued, group) = (false, Group::FIRST);
        self.holders.push(Holder { event, queued, group, passing, before: None, behind: None });
        self.holders.len() as u32 - 1
    }

    /// Makes a holder; the only step that may allocate.
    pub(crate) fn hold(&mut self) -> HolderId {
        let at = self.free.pop().unwrap_or_else(|| self.add(false));
        HolderId(at)
    }

    /// Takes a holder back, and its event with it.
    pub(crate) fn release(&mut self, holder: HolderId) {
        self.revoke(holder);
        self.free.push(holder.0);
    }

    /// How many events wait.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The groups that have events waiting.
    pub(crate) fn waiting(&self) -> Groups {
        self.waiting
    }

    /// Whether there is room for an event without a holder.
    pub(crate) fn has_room(&self) -> bool {
        !self.vacant.is_empty()
    }

    /// Queues an event that has no holder of its own; false when there is no room.
    pub(crate) fn post(&mut self, group: Group, event: Event) -> bool {
        let Some(at) = self.vacant.pop() else { return false };
        self.push(at, group, event);
        true
    }

    /// Queues an event, or lets the one that waits already take it in.
    pub(crate) fn generate(&mut self, holder: HolderId, group: Group, event: Event) {
        let at = holder.0;
        match &mut self.holders[at as usize] {
            Holder { queued: true, event: waiting, .. } => waiting.coalesce(event),
            _ => self.push(at, group, event),
        }
    }

    /// Withdraws a holder's event; false when it did not wait.
    pub(crate) fn revoke(&mut self, holder: HolderId) -> bool {
        let queued = self.holders[holder.0 as usize].queued;
        if queued {
            self.unlink(holder.0);
        }
        queued
    }

    /// The event to be delivered next: the oldest of the lowest of these groups.
    pub(crate) fn first(&self, among: Groups) -> Option<(Group, Event)> {
        let group = (self.waiting & among).first()?;
        let at = self.lists[group.number() as usize].first?;
        Some((group, self.holders[at as usize].event))
    }

    /// Takes that event out: it was delivered.
    pub(crate) fn delivered(&mut self, group: Group) {
        let Some(at) = self.lists[group.number() as usize].first else { return };
        self.unlink(at);
        if self.holders[at as usize].passing {
            self.vacant.push(at);
        }
    }

    /// Moves what waits of one kind to another group, or drops it. What a socket tells stays where it is:
    /// its group was given with the socket.
    pub(crate) fn reassign(&mut self, kind: EventType, from: Group, to: Option<Group>) {
        if to == Some(from) {
            return;
        }
        let mut next = self.lists[from.number() as usize].first;
        while let Some(at) = next {
            next = self.holders[at as usize].behind;
            let Holder { event, passing, .. } = self.holders[at as usize];
            let is_a_sockets = !passing && [EventType::READY, EventType::DATA].contains(&kind);
            if event.kind != kind || is_a_sockets {
                continue;
            }
            self.unlink(at);
            match to {
                Some(group) => self.push(at, group, event),
                None if passing => self.vacant.push(at),
                None => {}
            }
        }
    }

    #[inline]
    fn push(&mut self, at: u32, group: Group, event: Event) {
        let list = &mut self.lists[group.number() as usize];
        let before = list.last.replace(at);
        match before {
            Some(before) => self.holders[before as usize].behind = Some(at),
            None => list.first = Some(at),
        }
        let holder = &mut self.holders[at as usize];
        (holder.event, holder.group, holder.queued) = (event, group, true);
        (holder.before, holder.behind) = (before, None);
        self.waiting = self.waiting | group.into();
        self.len += 1;
    }

    #[inline]
    fn unlink(&mut self, at: u32) {
        let holder = &mut self.holders[at as usize];
        holder.queued = false;
        let Holder { before, behind, group, .. } = *holder;
        let list = &mut self.lists[group.number() as usize];
        match before {
            Some(before) => self.holders[before as usize].behind = behind,
            None => list.first = behind,
        }
        match behind {
            Some(behind) => self.holders[behind as usize].before = before,
            None => list.last = before,
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
    fn a_flood_of_one_origin_is_one_event() {
        let mut queue = EventQueue::new(0);
        let (flooded, other) = (queue.hold(), queue.hold());
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
        /// Against a plain list: the lowest group first, in order within a group, one event for
        /// each origin, no more passing events than there is room for.
        #[test]
        fn behaves_like_a_list(steps in prop::collection::vec(step(), 0..200)) {
            let mut queue = EventQueue::new(3);
            let holders: Vec<_> = (0..4).map(|_| queue.hold()).collect();
            let mut model: Vec<(u8, Option<usize>, u64, u16)> = Vec::new();
            for (value, step) in steps.into_iter().enumerate() {
                let value = value as u64;
                match step {
                    Step::Generate(at, group) => {
                        queue.generate(holders[at], Group::new(group).unwrap(), event(value));
                        match model.iter_mut().find(|known| known.1 == Some(at)) {
                            Some(known) => (known.2, known.3) = (value, known.3 + 1),
                            None => model.push((group, Some(at), value, 1)),
                        }
                    }
                    Step::Revoke(at) => {
                        let known = model.iter().position(|known| known.1 == Some(at));
                        prop_assert_eq!(queue.revoke(holders[at]), known.is_some());
                        known.map(|known| model.remove(known));
                    }
                    Step::Post(group) => {
                        let room = model.iter().filter(|known| known.1.is_none()).count() < 3;
                        prop_assert_eq!(queue.post(Group::new(group).unwrap(), event(value)), room);
                        if room {
                            model.push((group, None, value, 1));
                        }
                    }
                    Step::Deliver(mask) => {
                        let among = Groups::from_bits(mask);
                        let allowed = |known: &&(u8, _, _, _)| mask & (1 << known.0) != 0;
                        let group = model.iter().filter(allowed).map(|known| known.0).min();
                        let at = model.iter().position(|known| Some(known.0) == group);
                        let expected = at.map(|at| model.remove(at));
                        let found = queue.first(among);
                        prop_assert_eq!(
                            found.map(|(group, event)| (group.number(), event.value, event.count)),
                            expected.map(|(group, _, value, count)| (group, value, count))
                        );
                        if let Some((group, _)) = found {
                            queue.delivered(group);
                        }
                    }
                }
                prop_assert_eq!(queue.len() as usize, model.len());
                prop_assert_eq!(queue.has_room(), model.iter().filter(|known| known.1.is_none()).count() < 3);
            }
        }
    }
}
