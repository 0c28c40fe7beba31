//! Where events come from, beside signals and posts.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shared_ring::{Errno, Waker};

use crate::group::Assignment;
use crate::queue::{EventQueue, HolderId};
use crate::{Error, Event, EventType, Group, Groups};

/// A source of events, such as a ring.
///
/// # Safety
/// `collect`, `revalidate` and `queued` run in a signal handler of the thread that the source belongs to,
/// though never while that thread is in another method of it. They do only what is safe there
/// (signal-safety(7)): no memory from the allocator, none given back, no lock.
pub unsafe trait Source: 'static {
    /// Hands over what has come, as far as there is room.
    fn collect(&mut self, sink: &mut EventSink<'_>);

    /// How much has come that was not handed over.
    fn queued(&self) -> u32;

    /// How many origins of events it has, each of which has one event waiting at most. It stays so.
    fn origins(&self) -> u32 {
        0
    }

    /// The groups, beside those of event types, whose events interrupt by the signal of notification.
    fn groups(&self) -> Groups {
        Groups::NONE
    }

    /// An event is about to be delivered, of whatever source: what it says at this moment, or nothing
    /// when it is withdrawn.
    fn revalidate(&mut self, event: Event) -> Option<Event> {
        Some(event)
    }

    /// A type of events has been put into another group, or none; some that waited may be gone.
    fn regrouped(&mut self, kind: EventType) {
        let _ = kind;
    }

    /// The application asks for events: what can't be done in a signal handler is done now.
    fn maintain(&mut self) {}

    /// What ends a wait from outside.
    fn waker(&self) -> Waker;

    /// Sleeps until something comes, until a time, or until the waker is woken. It may wake early.
    ///
    /// # Errors
    /// When there can be no more sleep.
    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error>;
}

/// Where a source hands over its events.
#[derive(Debug)]
pub struct EventSink<'a> {
    queue: &'a mut EventQueue,
    groups: &'a Assignment,
    origins: Origins,
}

/// The holders of a source's origins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origins {
    first: Option<HolderId>,
    count: u32,
}

impl Origins {
    /// Makes the holders; the only step that may allocate.
    pub(crate) fn new(queue: &mut EventQueue, count: u32) -> Self {
        let first = (0..count).map(|_| queue.hold()).fold(None, |first, next| first.or(Some(next)));
        Origins { first, count }
    }

    fn holder(self, origin: u32) -> Option<HolderId> {
        self.first.filter(|_| origin < self.count).map(|first| first.after(origin))
    }
}

impl<'a> EventSink<'a> {
    pub(crate) fn new(queue: &'a mut EventQueue, groups: &'a Assignment, origins: Origins) -> Self {
        EventSink { queue, groups, origins }
    }

    /// The group of a type of events.
    pub fn group(&self, kind: EventType) -> Option<Group> {
        self.groups.get(kind)
    }

    /// Whether there is room for another event.
    pub fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Queues an event, which is dropped if its type belongs to no group. False when there is no
    /// room.
    pub fn post(&mut self, event: Event) -> bool {
        match self.groups.get(event.kind) {
            Some(group) => self.queue.post(group, event),
            None => true,
        }
    }

    /// Queues an event of one of the source's origins, or lets the one that waits take it in.
    pub fn raise(&mut self, origin: u32, group: Group, event: Event) {
        if let Some(holder) = self.origins.holder(origin) {
            self.queue.generate(holder, group, event);
        }
    }

    /// Withdraws the event of one of the source's origins.
    pub fn withdraw(&mut self, origin: u32) {
        if let Some(holder) = self.origins.holder(origin) {
            self.queue.revoke(holder);
        }
    }

    /// Queues an event in a holder.
    pub(crate) fn generate(&mut self, holder: HolderId, event: Event) {
        if let Some(group) = self.groups.get(event.kind) {
            self.queue.generate(holder, group, event);
        }
    }
}

/// No source at all: signals and posts only.
#[derive(Debug)]
pub struct NoSource(Waker);

impl NoSource {
    pub(crate) fn new() -> Result<Self, Error> {
        Waker::new().map(NoSource).map_err(Error::system("a descriptor to be woken by"))
    }
}

// SAFETY: the two methods do nothing.
unsafe impl Source for NoSource {
    fn collect(&mut self, _: &mut EventSink<'_>) {}

    fn queued(&self) -> u32 {
        0
    }

    fn waker(&self) -> Waker {
        self.0.clone()
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error> {
        let max = until.map(|at| at.saturating_duration_since(Instant::now()));
        let max = max.and_then(|max| Timespec::try_from(max).ok());
        // SAFETY: the waker keeps its descriptor open.
        let waker = unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) };
        match poll(&mut [PollFd::from_borrowed_fd(waker, PollFlags::IN)], max.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => {
                self.0.drain();
                Ok(())
            }
            Err(errno) => Err(Error::System("waiting for events", errno.raw_os_error())),
        }
    }
}
