//! Event handlers: what runs when the application is interrupted.
//!
//! A handler runs between any two instructions of the application, so it may do very little. It
//! never enters an application; it notes what has happened. The handlers of this module are made
//! of parts that are known to be safe there; one of your own is `unsafe` to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::gate::Gate;
use crate::{Event, EventType, Groups};

/// What is called when events have been delivered that interrupt (SEND 3.2, `handler`).
///
/// # Safety
/// `handle` runs in a signal handler, between any two instructions of its thread. It does only what
/// is safe there (signal-safety(7)): no memory from the allocator, none given back, no lock, no
/// output by way of the standard library, no access to what the interrupted code may be changing.
/// A panic ends the process; in a signal handler it does so before the panic hook runs.
///
/// Code of an application does all of that, so it has no place here, and nothing in this crate lets
/// it in:
///
/// ```compile_fail
/// use send_core::{Events, ControlBlock, Trigger};
/// let mut send = ControlBlock::define(8)?;
/// // A closure is no handler.
/// send.set_handler(|events: &mut Events<'_>| println!("{events:?}"), Trigger::Level);
/// # Ok::<(), send_core::Error>(())
/// ```
pub unsafe trait Handler: 'static {
    /// Uses events up. Those that are left stay in the buffer.
    fn handle(&mut self, events: &mut Events<'_>);
}

/// When a handler is called again (SEND 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Once for what was delivered. What it leaves waits for the next delivery.
    Edge,
    /// Until the buffer is empty: the interrupted state is not restored before.
    Level,
}

/// The buffer, as a handler sees it.
#[derive(Debug)]
pub struct Events<'a> {
    gate: &'a Gate,
}

impl<'a> Events<'a> {
    /// The events of a gate that can't be interrupted while this lives.
    pub(crate) fn new(gate: &'a Gate) -> Self {
        Events { gate }
    }

    /// The groups that may interrupt.
    pub fn notify(&self) -> Groups {
        self.gate.block.notify()
    }

    /// Sets the groups that may interrupt from when the handler has returned.
    pub fn set_notify(&mut self, groups: Groups) {
        self.gate.block.set_notify(groups);
        // Whoever opens the gate lets the signal through again, if need be.
        self.gate.mark_pending();
    }

    /// How many events wait undelivered.
    pub fn num_queued(&self) -> u32 {
        self.gate.block.num_queued()
    }

    /// The instruction that was interrupted; none when the handler was called because the mask was
    /// raised or a critical section left.
    pub fn interrupted_at(&self) -> Option<usize> {
        self.gate.interrupted_at()
    }
}

impl Iterator for Events<'_> {
    type Item = Event;

    /// Takes the oldest event out of the buffer.
    fn next(&mut self) -> Option<Event> {
        // SAFETY: whoever made this holds the critical section.
        unsafe { self.gate.block.take() }
    }
}

/// A handler that raises a flag, and leaves the events for the application to take when it sees that. For
/// [`Trigger::Edge`], as it uses nothing up.
#[derive(Clone, Debug, Default)]
pub struct SetFlag(pub Arc<AtomicBool>);

// SAFETY: it sets an atomic flag.
unsafe impl Handler for SetFlag {
    fn handle(&mut self, _: &mut Events<'_>) {
        self.0.store(true, Ordering::Release);
    }
}

/// One thing that is safe to do in a handler.
#[derive(Clone, Debug)]
pub enum Action {
    /// Add the event's count to a number.
    Count(Arc<AtomicU64>),
    /// Set a flag.
    Raise(Arc<AtomicBool>),
    /// Write bytes to a descriptor, by write(2); failures are not told.
    Write(i32, &'static [u8]),
}

impl Action {
    pub(crate) fn take(&self, event: Event) {
        match self {
            Action::Count(number) => {
                number.fetch_add(event.count.into(), Ordering::Relaxed);
            }
            Action::Raise(flag) => flag.store(true, Ordering::Release),
            Action::Write(fd, bytes) => {
                // SAFETY: `bytes` is memory to be read; what the descriptor is matters to its owner.
                unsafe { libc::write(*fd, bytes.as_ptr().cast(), bytes.len()) };
            }
        }
    }
}

/// A handler that takes one action for each type of event, as in the thesis' example (SEND 3.3).
/// Events for which it has none are used up.
#[derive(Clone, Debug, Default)]
pub struct Actions(Vec<(EventType, Action)>);

impl Actions {
    /// None at all.
    pub fn new() -> Self {
        Actions::default()
    }

    /// Adds an action for a type of event.
    #[must_use]
    pub fn on(mut self, kind: EventType, action: Action) -> Self {
        self.0.push((kind, action));
        self
    }
}

// SAFETY: the list is not changed any more, and every `Action` adds to an atomic number, sets an
// atomic flag or calls write(2).
unsafe impl Handler for Actions {
    fn handle(&mut self, events: &mut Events<'_>) {
        for event in events {
            for (_, action) in self.0.iter().filter(|(kind, _)| *kind == event.kind) {
                action.take(event);
            }
        }
    }
}
