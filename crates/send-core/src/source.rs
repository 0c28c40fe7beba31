//! Sources of events other than signals and posts.

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
/// `collect`, `revalidate` and `queued` run in a signal handler of the source's thread, though
/// never while that thread is in another method of the source. They may do only what is safe there
/// (signal-safety(7)): no allocation or deallocation, no lock.
pub unsafe trait Source: 'static {
    /// Passes events to the sink, as far as there is room.
    fn collect(&mut self, sink: &mut EventSink<'_>);

    /// Returns the number of events that were not passed to the sink.
    fn queued(&self) -> u32;

    /// Returns the number of origins, each with at most one queued event. It must be constant.
    fn origins(&self) -> u32 {
        0
    }

    /// Returns groups, other than those of event types, for which the notification signal is sent.
    fn groups(&self) -> Groups {
        Groups::NONE
    }

    /// Revalidates an event before its delivery. Returns its new contents, or `None` to withdraw
    /// it.
    fn revalidate(&mut self, event: Event) -> Option<Event> {
        Some(event)
    }

    /// Called after a type was assigned to another group or none; its events may have been dropped.
    fn regrouped(&mut self, kind: EventType) {
        let _ = kind;
    }

    /// Called when the application polls, to do work that is not safe in a signal handler.
    fn maintain(&mut self) {}

    /// Returns a waker that ends a wait from another thread.
    fn waker(&self) -> Waker;

    /// Sleeps until an event arrives, until a time, or until the waker is woken. May wake early.
    ///
    /// # Errors
    /// Returns an error if the source cannot be used any more.
    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error>;
}

/// Receives events from a source.
#[derive(Debug)]
pub struct EventSink<'a> {
    queue: &'a mut EventQueue,
    groups: &'a Assignment,
    origins: Origins,
}

/// Holders of a source's origins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origins {
    first: Option<HolderId>,
    count: u32,
}

impl Origins {
    /// Creates the holders. Only this may allocate.
    pub(crate) fn new(queue: &mut EventQueue, count: u32) -> Self {
        let first =
            (0..count).map(|_| queue.allocate()).fold(None, |first, next| first.or(Some(next)));
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

    /// Returns the group of an event type.
    pub fn group(&self, kind: EventType) -> Option<Group> {
        self.groups.get(kind)
    }

    /// Returns whether there is room for another event.
    pub fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Queues an event, or drops it if its type has no group. Returns false if there is no room.
    pub fn post(&mut self, event: Event) -> bool {
        match self.groups.get(event.kind) {
            Some(group) => self.queue.post(group, event),
            None => true,
        }
    }

    /// Queues an event of one of the source's origins, or coalesces it with the queued one.
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

/// The empty source, for signals and posts only.
#[derive(Debug)]
pub struct NoSource(Waker);

impl NoSource {
    pub(crate) fn new() -> Result<Self, Error> {
        Waker::new().map(NoSource).map_err(Error::system("a descriptor to be woken by"))
    }
}

// SAFETY: `collect` and `queued` do nothing.
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
