//! Events for daily use: by their types, without masks and groups.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::{
    Action, Actions, ControlBlock, Error, Event, EventType, Group, Groups, Poster, Trigger,
};

/// Takes an action for each type of event, when it comes, by interrupting the thread.
///
/// It is to the [control block](ControlBlock) what a library is to a system call: what signals(7) offer, with
/// posts and timers beside signals, and no system call to block and unblock.
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
    /// The types of the groups.
    types: [Option<EventType>; Group::COUNT as usize],
    /// Events of blocked types that came together with one that was waited for: of each type no more than
    /// the buffer holds.
    kept: VecDeque<Event>,
}

impl Notifier {
    /// Places in the event buffer.
    const EVENTS: u32 = 256;

    /// Makes the calling thread's control block.
    ///
    /// # Errors
    /// As [`ControlBlock::define`].
    pub fn new() -> Result<Self, Error> {
        let mut control_block = ControlBlock::define(Self::EVENTS)?;
        control_block.set_handler(Actions::new(), Trigger::Level);
        let kept = VecDeque::new();
        Ok(Notifier {
            control_block,
            actions: Vec::new(),
            types: [None; Group::COUNT as usize],
            kept,
        })
    }

    /// Registers an action for a type of events, and unblocks it. One type may have several. Types
    /// that come first are told first.
    ///
    /// # Errors
    /// [`Error::TooManyTypes`] when 32 types have actions, and as [`ControlBlock::set_group`].
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

    /// Forgets a type's actions; its events are dropped.
    ///
    /// # Errors
    /// As [`ControlBlock::set_group`].
    pub fn off(&mut self, kind: EventType) -> Result<(), Error> {
        self.actions.retain(|(known, _)| *known != kind);
        self.kept.retain(|event| event.kind != kind);
        self.types.iter_mut().filter(|known| **known == Some(kind)).for_each(|known| *known = None);
        self.control_block.set_group(kind, None)
    }

    /// Lets events of a type wait. No system call.
    ///
    /// # Errors
    /// As [`ControlBlock::set_notify`].
    pub fn block(&mut self, kind: EventType) -> Result<(), Error> {
        let groups = self.control_block.block().notify() - self.group(kind);
        self.control_block.set_notify(groups)
    }

    /// Lets them come, those first that have waited. No system call, unless one has waited.
    ///
    /// # Errors
    /// As [`ControlBlock::set_notify`].
    pub fn unblock(&mut self, kind: EventType) -> Result<(), Error> {
        while let Some(event) = self.take_kept(&[kind]) {
            self.act(event);
        }
        let groups = self.control_block.block().notify() | self.group(kind);
        self.control_block.set_notify(groups)
    }

    /// Sleeps until an event of one of these types comes, or until a time, and returns it without
    /// taking its action. Of others the actions are taken meanwhile.
    ///
    /// # Errors
    /// As [`ControlBlock::wait`].
    pub fn wait(
        &mut self,
        kinds: &[EventType],
        until: Option<Instant>,
    ) -> Result<Option<Event>, Error> {
        if let Some(event) = self.take_kept(kinds) {
            return Ok(Some(event));
        }
        let all = self.control_block.block().notify();
        let wanted = kinds.iter().fold(Groups::NONE, |all, kind| all | self.group(*kind));
        self.control_block.set_notify(Groups::NONE)?;
        let found = self.await_one(kinds, all | wanted, until);
        // What came with it, of types that are blocked, waits on.
        while let Some(event) = self.control_block.next_event() {
            if (self.group(event.kind) - all).is_empty() {
                self.act(event);
            } else {
                self.kept.push_back(event);
            }
        }
        self.control_block.set_notify(all)?;
        found
    }

    fn await_one(
        &mut self,
        kinds: &[EventType],
        mask: Groups,
        until: Option<Instant>,
    ) -> Result<Option<Event>, Error> {
        while self.control_block.wait(mask, until)? {
            let Some(event) = self.control_block.next_event() else { continue };
            if kinds.contains(&event.kind) {
                return Ok(Some(event));
            }
            self.act(event);
        }
        Ok(None)
    }

    /// Takes an event's actions.
    fn act(&self, event: Event) {
        let actions = self.actions.iter().filter(|(kind, _)| *kind == event.kind);
        actions.for_each(|(_, action)| action.take(event));
    }

    fn take_kept(&mut self, kinds: &[EventType]) -> Option<Event> {
        let at = self.kept.iter().position(|event| kinds.contains(&event.kind))?;
        self.kept.remove(at)
    }

    /// Has an event of the type [`TIMER`](EventType::TIMER) come again and again, or no more.
    ///
    /// # Errors
    /// As [`ControlBlock::set_timer`].
    pub fn set_timer(&mut self, every: Option<Duration>) -> Result<(), Error> {
        self.control_block.set_timer(every)
    }

    /// Posts events of the type [`USER`](EventType::USER), from any thread.
    pub fn poster(&self) -> Poster {
        self.control_block.poster()
    }

    /// The group of a type, if it has actions.
    fn group(&self, kind: EventType) -> Groups {
        self.place(Some(kind)).map_or(Groups::NONE, Groups::from)
    }

    /// The group of a type, or the first that is free.
    fn place(&self, kind: Option<EventType>) -> Option<Group> {
        let place = self.types.iter().position(|known| *known == kind)?;
        Group::new(place as u8).ok()
    }
}
