//! Event handlers: code that runs when the application is interrupted.
//!
//! A handler runs between any two instructions of the application, so it may do very little. It
//! never calls the application; it only records events. The handlers of this module consist of
//! parts that are safe there. Implementing your own is `unsafe`.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::gate::Gate;
use crate::{Event, EventType, Groups};

/// The handler of delivered events that interrupt (SEND 3.2, `handler`).
///
/// # Safety
/// `handle` runs in a signal handler, between any two instructions of its thread. It may do only
/// what is safe there (signal-safety(7)): no allocation or deallocation, no lock, no output by the
/// standard library, no access to data that the interrupted code may be changing. A panic aborts
/// the process; in a signal handler this happens before the panic hook runs.
///
/// Application code does not meet these rules, and this crate does not accept it:
///
/// ```compile_fail
/// use send_core::control_block::{Events, ControlBlock, Trigger};
/// let mut send = ControlBlock::define(8)?;
/// // A closure is not a handler.
/// send.set_handler(|events: &mut Events<'_>| println!("{events:?}"), Trigger::Level);
/// # Ok::<(), send_core::Error>(())
/// ```
pub unsafe trait Handler: 'static {
    /// Takes events. Those not taken stay in the buffer.
    fn handle(&mut self, events: &mut Events<'_>);
}

/// Condition for calling a handler again (SEND 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Once per delivery. Events that are not taken wait for the next delivery.
    Edge,
    /// Until the buffer is empty, before the interrupted code resumes.
    Level,
}

/// A handler's view of the event buffer.
#[derive(Debug)]
pub struct Events<'a> {
    gate: &'a Gate,
}

impl<'a> Events<'a> {
    /// Creates the view of a gate that cannot be interrupted during its lifetime.
    pub(crate) fn new(gate: &'a Gate) -> Self {
        Events { gate }
    }

    /// Returns the groups whose events interrupt.
    pub fn notify(&self) -> Groups {
        self.gate.block.notify()
    }

    /// Sets the groups whose events interrupt, once the handler has returned.
    pub fn set_notify(&mut self, groups: Groups) {
        self.gate.block.set_notify(groups);
        // The code that reopens the gate unblocks the signal if necessary.
        self.gate.mark_pending();
    }

    /// Returns the number of undelivered events.
    pub fn num_queued(&self) -> u32 {
        self.gate.block.num_queued()
    }

    /// Returns the address of the interrupted instruction, or `None` if raising a mask or leaving a
    /// critical section called the handler.
    pub fn instruction_pointer(&self) -> Option<usize> {
        self.gate.instruction_pointer()
    }
}

impl Iterator for Events<'_> {
    type Item = Event;

    /// Takes the oldest event from the buffer.
    fn next(&mut self) -> Option<Event> {
        // SAFETY: the creator of this view holds the critical section.
        unsafe { self.gate.block.take() }
    }
}

/// A handler that sets a flag and leaves the events to the application. Use it with
/// [`Trigger::Edge`], as it takes no events.
#[derive(Clone, Debug, Default)]
pub struct SetFlag(pub Arc<AtomicBool>);

// SAFETY: it sets an atomic flag.
unsafe impl Handler for SetFlag {
    fn handle(&mut self, _: &mut Events<'_>) {
        self.0.store(true, Ordering::Release);
    }
}

/// An operation that is safe in a handler.
#[derive(Clone, Debug)]
pub enum Action {
    /// Adds the event's count to a number.
    Count(Arc<AtomicU64>),
    /// Sets a flag.
    Raise(Arc<AtomicBool>),
    /// Writes bytes to a descriptor with write(2), unless poll(2) reports no room, as for a full pipe.
    /// Errors are ignored. In a pipe to which nothing else writes at the same time, at most `PIPE_BUF`
    /// bytes (4096, pipe(7)) do not block. More may block the thread in its signal handler.
    Write(Arc<OwnedFd>, &'static [u8]),
}

impl Action {
    pub(crate) fn take(&self, event: Event) {
        match self {
            Action::Count(number) => {
                number.fetch_add(event.count.into(), Ordering::Relaxed);
            }
            Action::Raise(flag) => flag.store(true, Ordering::Release),
            Action::Write(fd, bytes) => {
                if is_writable(fd) {
                    // SAFETY: `bytes` is readable memory, and the action keeps the descriptor open.
                    unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
                }
            }
        }
    }
}

/// Returns whether a write does not wait for room. May be called in a signal handler.
fn is_writable(fd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::OUT)];
    poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().contains(PollFlags::OUT)
}

/// A handler with actions for event types, as in the thesis' example (SEND 3.3). It takes events
/// without an action, too.
#[derive(Clone, Debug, Default)]
pub struct Actions(Vec<(EventType, Action)>);

impl Actions {
    /// Creates a handler without actions.
    pub fn new() -> Self {
        Actions::default()
    }

    /// Adds an action for an event type.
    #[must_use]
    pub fn on(mut self, kind: EventType, action: Action) -> Self {
        self.0.push((kind, action));
        self
    }
}

// SAFETY: the list does not change any more, and every `Action` adds to an atomic number, sets an
// atomic flag or calls poll(2) and write(2).
unsafe impl Handler for Actions {
    fn handle(&mut self, events: &mut Events<'_>) {
        for event in events {
            for (_, action) in self.0.iter().filter(|(kind, _)| *kind == event.kind) {
                action.take(event);
            }
        }
    }
}
