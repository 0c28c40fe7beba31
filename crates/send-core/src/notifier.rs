//! Actions for event types, without masks and groups.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::{
    Action, Actions, ControlBlock, Error, Event, EventType, Group, Groups, Poster, Trigger,
};

/// Runs actions for event types as they arrive, by interrupting the thread.
///
/// This is the high-level interface to the [control block](ControlBlock). It offers what signal(7)
/// does, also for posts and timers, and needs no system call to block and unblock.
///
/// ```
/// use send_core::{Action, EventType, Notifier};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// let stop = Arc::new(AtomicBool::new(false));
/// let mut notifier = Notifier::new()?;
/// notifier.on(EventType::signal(libc::SIGTERM)?, Action::Raise(stop.clone()))?;
/// # unsafe { libc::raise(libc::SIGTERM) };
/// while !stop.load(Ordering::Acquire) {
///     // compute
/// }
/// # Ok::<(), send_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Notifier {
    control_block: ControlBlock,
    actions: Vec<(EventType, Action)>,
    /// The type of each group.
    types: [Option<EventType>; Group::COUNT as usize],
    /// Deferred events of blocked types that arrived with an awaited one. There are at most as many
    /// of each type as the buffer holds.
    deferred: VecDeque<Event>,
}

impl Notifier {
    /// Capacity of the event buffer.
    const EVENTS: u32 = 256;

    /// Creates the calling thread's control block.
    ///
    /// # Errors
    /// As [`ControlBlock::define`].
    pub fn new() -> Result<Self, Error> {
        let mut control_block = ControlBlock::define(Self::EVENTS)?;
        control_block.set_handler(Actions::new(), Trigger::Level);
        let deferred = VecDeque::new();
        Ok(Notifier {
            control_block,
            actions: Vec::new(),
            types: [None; Group::COUNT as usize],
            deferred,
        })
    }

    /// Adds an action for an event type and unblocks the type. A type may have several actions.
    /// Types added earlier are delivered first.
    ///
    /// # Errors
    /// Returns [`Error::TooManyTypes`] if 32 types have actions, and the errors of
    /// [`ControlBlock::set_group`].
    pub fn on(&mut self, kind: EventType, action: Action) -> Result<(), Error> {
        let group =
            self.place(Some(kind)).or_else(|| self.place(None)).ok_or(Error::TooManyTypes)?;
        self.control_block.set_group(kind, Some(group))?;
        self.types[usize::from(group.number())] = Some(kind);
        self.actions.push((kind, action));
        let add =
            |all: Actions, (kind, action): &(EventType, Action)| all.on(*kind, action.clone());
        let actions = self.actions.iter().fold(Actions::new(), add);
        self.control_block.set_handler(actions, Trigger::Level);
        self.unblock(kind)
    }

    /// Removes a type's actions; its events are dropped.
    ///
    /// # Errors
    /// As [`ControlBlock::set_group`].
    pub fn off(&mut self, kind: EventType) -> Result<(), Error> {
        // Else the next type in this group would be notified before its action is set.
        self.block(kind)?;
        self.actions.retain(|(other, _)| *other != kind);
        self.deferred.retain(|event| event.kind != kind);
        self.types.iter_mut().filter(|slot| **slot == Some(kind)).for_each(|slot| *slot = None);
        self.control_block.set_group(kind, None)
    }

    /// Blocks a type: its events wait. Makes no system call.
    ///
    /// # Errors
    /// As [`ControlBlock::set_notify`].
    pub fn block(&mut self, kind: EventType) -> Result<(), Error> {
        let groups = self.control_block.block().notify() - self.group(kind);
        self.control_block.set_notify(groups)
    }

    /// Unblocks a type; its events that waited come first. No system call unless one waited.
    ///
    /// # Errors
    /// As [`ControlBlock::set_notify`].
    pub fn unblock(&mut self, kind: EventType) -> Result<(), Error> {
        while let Some(event) = self.take_deferred(&[kind]) {
            self.run_actions(event);
        }
        let groups = self.control_block.block().notify() | self.group(kind);
        self.control_block.set_notify(groups)
    }

    /// Sleeps until an event of one of these types arrives, or until a time. Returns the event
    /// without running its actions. Meanwhile, actions of other types run.
    ///
    /// As for sigwait(3), the types should be [blocked](Self::block) before: an event of an unblocked type that arrives
    /// before the call runs its actions, and is not returned. Events of a type without actions ([`on`](Self::on)) never
    /// arrive.
    ///
    /// # Errors
    /// As [`ControlBlock::wait`].
    pub fn wait(
        &mut self,
        kinds: &[EventType],
        until: Option<Instant>,
    ) -> Result<Option<Event>, Error> {
        if let Some(event) = self.take_deferred(kinds) {
            return Ok(Some(event));
        }
        let all = self.control_block.block().notify();
        let awaited = kinds.iter().fold(Groups::NONE, |all, kind| all | self.group(*kind));
        self.control_block.set_notify(Groups::NONE)?;
        let event = self.wait_for_any(kinds, awaited, all, until);
        // Events of blocked types that arrived with it stay deferred.
        while let Some(event) = self.control_block.next_event() {
            if (self.group(event.kind) - all).is_empty() {
                self.run_actions(event);
            } else {
                self.deferred.push_back(event);
            }
        }
        self.control_block.set_notify(all)?;
        event
    }

    fn wait_for_any(
        &mut self,
        kinds: &[EventType],
        awaited: Groups,
        others: Groups,
        until: Option<Instant>,
    ) -> Result<Option<Event>, Error> {
        loop {
            // After that time no others are delivered, as they might arrive without end.
            let has_expired = until.is_some_and(|at| at <= Instant::now());
            let mask = if has_expired { awaited } else { awaited | others };
            if !self.control_block.wait(mask, until)? {
                return Ok(None);
            }
            let Some(event) = self.control_block.next_event() else { continue };
            if kinds.contains(&event.kind) {
                return Ok(Some(event));
            }
            self.run_actions(event);
        }
    }

    /// Runs an event's actions.
    fn run_actions(&self, event: Event) {
        let actions = self.actions.iter().filter(|(kind, _)| *kind == event.kind);
        actions.for_each(|(_, action)| action.take(event));
    }

    fn take_deferred(&mut self, kinds: &[EventType]) -> Option<Event> {
        let at = self.deferred.iter().position(|event| kinds.contains(&event.kind))?;
        self.deferred.remove(at)
    }

    /// Starts a periodic event of type [`TIMER`](EventType::TIMER), or stops it with `None`.
    ///
    /// # Errors
    /// As [`ControlBlock::set_timer`].
    pub fn set_timer(&mut self, period: Option<Duration>) -> Result<(), Error> {
        self.control_block.set_timer(period)
    }

    /// Returns a handle that posts events of type [`USER`](EventType::USER) from any thread.
    pub fn poster(&self) -> Poster {
        self.control_block.poster()
    }

    /// Returns the group of a type, empty if it has no actions.
    fn group(&self, kind: EventType) -> Groups {
        self.place(Some(kind)).map_or(Groups::NONE, Groups::from)
    }

    /// Returns the group of a type, or the first free one for `None`.
    fn place(&self, kind: Option<EventType>) -> Option<Group> {
        let place = self.types.iter().position(|slot| *slot == kind)?;
        Group::new(place as u8).ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn wait_did_not_end_while_other_events_arrived() {
        let mut notifier = Notifier::new().unwrap();
        let count = Arc::new(AtomicU64::new(0));
        let signal = EventType::signal(libc::SIGURG).unwrap();
        for kind in [EventType::USER, signal] {
            notifier.on(kind, Action::Count(count.clone())).unwrap();
        }
        // As in `wait`, whose time has passed when the event arrives.
        notifier.control_block.set_notify(Groups::NONE).unwrap();
        notifier.poster().post(1).unwrap();
        let [awaited, others] = [signal, EventType::USER].map(|kind| notifier.group(kind));
        let past = Some(Instant::now());
        assert_eq!(notifier.wait_for_any(&[signal], awaited, others, past), Ok(None));
        assert_eq!(count.load(Ordering::Relaxed), 0, "one more could have followed");
    }
}
