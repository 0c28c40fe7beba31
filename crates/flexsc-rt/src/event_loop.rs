//! libflexsc: an event loop in which each call has a callback (section 4).

use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::time::Duration;
use std::{fmt, io, mem};

// A simulated machine includes this file with modules of its own.
use super::pages::{Config, Counters, EntryId, Pages, Room, Scratch};
use crate::descriptor::Descriptor;
use crate::error::{Busy, Error};
use crate::operation::{NOT_POSTED, Operation};

/// Posts operations, and calls their callbacks when they have completed.
///
/// Calls are executed after all callbacks of a turn have run, so callbacks make batches. A callback
/// may post several calls, and a call need not have a callback ([`EventLoop::post_silently`]).
pub struct EventLoop {
    pages: Pages,
    posted: Box<[Option<Box<dyn Posted>>]>,
    /// Calls that wait for room: for each kind of [`Room`] as many as there are entries at most, by number. So a call
    /// that needs a thread keeps none waiting that needs only an entry.
    delayed: [BTreeMap<u64, Box<dyn Delayed>>; Room::ALL.len()],
    /// The number of the next delayed call.
    next_delayed: u64,
    /// Posted calls that were delayed, by number.
    no_longer_delayed: BTreeMap<u64, EntryId>,
    /// Delayed calls that were cancelled, and whose callbacks have not run, with what they needed.
    cancelled: VecDeque<(Room, Box<dyn Delayed>)>,
    /// How many of them there are for each kind of [`Room`].
    cancelled_of: [usize; Room::ALL.len()],
    stopped: bool,
}

/// Identifies a call of an event loop, delayed or posted. It is not reused before 2^32 calls of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(Id);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Id {
    /// It was posted at once.
    Posted(EntryId),
    /// It was delayed, and has this number.
    Delayed(u64),
}

/// An operation that was not posted, as the pages are full. It is given back.
pub struct Refused<O, F> {
    /// The operation.
    pub operation: O,
    /// Its callback.
    pub callback: F,
}

impl<O, F> fmt::Debug for Refused<O, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refused: all syscall entries are busy")
    }
}

impl<O, F> fmt::Display for Refused<O, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Busy.fmt(f)
    }
}

impl<O, F> std::error::Error for Refused<O, F> {}

/// An operation in flight, and what follows it.
trait Posted {
    fn complete(self: Box<Self>, events: &mut EventLoop, result: io::Result<usize>, index: usize);

    /// Drops the result, which nothing waits for.
    fn discard(self: Box<Self>, result: io::Result<usize>, scratch: &Scratch);
}

/// An operation that waits for room.
trait Delayed {
    /// Posts it, with its number. Returns whether there was an entry.
    fn post(&mut self, events: &mut EventLoop, number: u64) -> bool;

    /// Ends it with `EINTR`.
    fn interrupt(self: Box<Self>, events: &mut EventLoop);
}

struct WithCallback<O, F> {
    operation: O,
    callback: F,
    /// Its number, if it was delayed.
    number: Option<u64>,
}

impl<O, F> Posted for WithCallback<O, F>
where
    O: Operation,
    F: FnOnce(&mut EventLoop, O::Output),
{
    fn complete(self: Box<Self>, events: &mut EventLoop, result: io::Result<usize>, index: usize) {
        let WithCallback { operation, callback, number } = *self;
        if let Some(number) = number {
            events.no_longer_delayed.remove(&number);
        }
        // SAFETY: the call has ended, and no other was posted since.
        let output = operation.finish(result, unsafe { &*events.pages.scratch(index) });
        callback(events, output);
    }

    fn discard(self: Box<Self>, result: io::Result<usize>, scratch: &Scratch) {
        drop(self.operation.finish(result, scratch));
    }
}

impl<O, F> Delayed for Option<WithCallback<O, F>>
where
    O: Operation,
    F: FnOnce(&mut EventLoop, O::Output) + 'static,
{
    fn post(&mut self, events: &mut EventLoop, number: u64) -> bool {
        let Some(WithCallback { operation, callback, .. }) = self.take() else { return true };
        let number = Some(number);
        match events.post_numbered(operation, callback, number) {
            Ok(_) => true,
            Err(Refused { operation, callback }) => {
                *self = Some(WithCallback { operation, callback, number });
                false
            }
        }
    }

    fn interrupt(self: Box<Self>, events: &mut EventLoop) {
        let Some(WithCallback { operation, callback, .. }) = *self else { return };
        let interrupted = Err(io::Error::from_raw_os_error(libc::EINTR));
        callback(events, operation.finish(interrupted, &NOT_POSTED));
    }
}

impl EventLoop {
    /// Registers pages for the loop (`flexsc_init`).
    ///
    /// # Errors
    /// As [`Pages::register`].
    pub fn new(config: &Config) -> Result<Self, Error> {
        let pages = Pages::register(config)?;
        let posted = (0..pages.entries()).map(|_| None).collect();
        Ok(EventLoop {
            pages,
            posted,
            delayed: Room::ALL.map(|_| BTreeMap::new()),
            next_delayed: 0,
            no_longer_delayed: BTreeMap::new(),
            cancelled: VecDeque::new(),
            cancelled_of: [0; Room::ALL.len()],
            stopped: false,
        })
    }

    /// Registers a file or socket with the ring: [`Pages::register_file`].
    pub fn register_file(&mut self, descriptor: &Descriptor) -> bool {
        self.pages.register_file(descriptor)
    }

    /// Posts an operation. The callback gets its output.
    ///
    /// # Errors
    /// If every entry that it may use is busy.
    pub fn post<O: Operation, F>(
        &mut self,
        operation: O,
        callback: F,
    ) -> Result<CallId, Refused<O, F>>
    where
        F: FnOnce(&mut EventLoop, O::Output) + 'static,
    {
        let id = self.post_numbered(operation, callback, None)?;
        Ok(CallId(Id::Posted(id)))
    }

    /// Posts an operation; one that was delayed has a number.
    fn post_numbered<O: Operation, F>(
        &mut self,
        mut operation: O,
        callback: F,
        number: Option<u64>,
    ) -> Result<EntryId, Refused<O, F>>
    where
        F: FnOnce(&mut EventLoop, O::Output) + 'static,
    {
        // SAFETY: the loop keeps the operation until it has completed, or forgets it.
        let posted = unsafe { self.pages.post_operation(&mut operation) };
        let Ok(id) = posted else { return Err(Refused { operation, callback }) };
        self.posted[id.index()] = Some(Box::new(WithCallback { operation, callback, number }));
        if let Some(number) = number {
            self.no_longer_delayed.insert(number, id);
            debug_assert!(self.no_longer_delayed.len() <= self.posted.len());
        }
        Ok(id)
    }

    /// Posts an operation, or delays it until there is room (section 7): an entry that it may use and, for one that
    /// waits indefinitely, a thread. It does not pass a delayed operation that only needs an entry, while
    /// [`EventLoop::post`] does. Delayed operations that need the same are posted in order. So a timer that has to end
    /// calls is none of them, as it could be delayed until these end: [`EventLoop::turn`] has a timeout.
    ///
    /// # Errors
    /// If as many operations that need the same are delayed as there are entries. One that was cancelled counts until its
    /// callback has run.
    pub fn post_or_delay<O: Operation, F>(
        &mut self,
        operation: O,
        callback: F,
    ) -> Result<CallId, Refused<O, F>>
    where
        F: FnOnce(&mut EventLoop, O::Output) + 'static,
    {
        let mut refused = if self.has_delayed() {
            Refused { operation, callback }
        } else {
            match self.post(operation, callback) {
                Ok(id) => return Ok(id),
                Err(refused) => refused,
            }
        };
        let room = self.pages.room_for(&mut refused.operation);
        if self.may_post(room, self.next_delayed) {
            return self.post(refused.operation, refused.callback);
        }
        let delayed = &mut self.delayed[room as usize];
        if delayed.len() + self.cancelled_of[room as usize] >= self.posted.len() {
            return Err(refused);
        }
        let (Refused { operation, callback }, number) = (refused, self.next_delayed);
        let call = WithCallback { operation, callback, number: Some(number) };
        delayed.insert(number, Box::new(Some(call)));
        self.next_delayed += 1;
        Ok(CallId(Id::Delayed(number)))
    }

    /// Posts or delays an operation whose output is of no interest.
    ///
    /// # Errors
    /// As [`EventLoop::post_or_delay`].
    pub fn post_silently<O: Operation>(&mut self, operation: O) -> Result<CallId, O> {
        self.post_or_delay(operation, |_, _| {}).map_err(|refused| refused.operation)
    }

    /// Requests cancellation of a call (section 4.2), delayed or posted. Its callback follows in any case: with the
    /// error `EINTR`, or with the call's result, if that came first. Without effect on a call that has completed. An id
    /// of another loop names a call of this one, or none.
    pub fn cancel(&mut self, id: CallId) {
        match id.0 {
            Id::Posted(id) => self.pages.cancel(id),
            Id::Delayed(number) => {
                let of_room =
                    |room: Room| Some((room, self.delayed[room as usize].remove(&number)?));
                if let Some((room, call)) = Room::ALL.into_iter().find_map(of_room) {
                    self.cancelled_of[room as usize] += 1;
                    self.cancelled.push_back((room, call));
                } else if let Some(id) = self.no_longer_delayed.get(&number) {
                    self.pages.cancel(*id);
                }
            }
        }
    }

    /// Runs callbacks until no call is outstanding, or [`EventLoop::stop`] was called
    /// (`flexsc_main_loop`). After a panic of a callback it can be called again.
    ///
    /// # Errors
    /// As [`Pages::wait`].
    pub fn run(&mut self) -> Result<(), Error> {
        while self.pages.outstanding() > 0 || self.has_delayed() || !self.cancelled.is_empty() {
            self.turn(None)?;
            if self.stopped {
                break;
            }
        }
        Ok(())
    }

    /// Executes the posted calls, waits for a completion, and runs the callbacks, or some of them if one calls
    /// [`EventLoop::stop`].
    ///
    /// # Errors
    /// As [`Pages::wait`].
    pub fn turn(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.stopped = false;
        self.post_delayed();
        let timeout = if self.cancelled.is_empty() { timeout } else { Some(Duration::ZERO) };
        self.pages.wait(timeout)?;
        // Calls that these callbacks cancel follow in the next turn.
        for _ in 0..self.cancelled.len() {
            if !self.stopped
                && let Some((room, cancelled)) = self.cancelled.pop_front()
            {
                self.cancelled_of[room as usize] -= 1;
                cancelled.interrupt(self);
            }
        }
        while !self.stopped
            && let Some(completion) = self.pages.next()
        {
            let index = completion.id.index();
            if let Some(posted) = self.posted[index].take() {
                posted.complete(self, completion.result, index);
            }
        }
        Ok(())
    }

    fn has_delayed(&self) -> bool {
        self.delayed.iter().any(|delayed| !delayed.is_empty())
    }

    /// Returns whether a call waits for room.
    #[cfg(all(test, not(loom)))]
    #[allow(dead_code, reason = "the simulation asks")]
    pub(crate) fn is_delayed(&self, id: CallId) -> bool {
        matches!(id.0, Id::Delayed(number) if self.delayed.iter().any(|all| all.contains_key(&number)))
    }

    /// Returns whether a call of this number that needs this may be posted.
    fn may_post(&self, room: Room, number: u64) -> bool {
        let first = |other: Room| self.delayed[other as usize].first_key_value();
        let older = |other| first(other).is_some_and(|(first, _)| *first < number);
        self.pages.may_post(room, &[0; Room::ALL.len()], older)
    }

    /// Posts the delayed calls for which there is room, in the order in which they came.
    fn post_delayed(&mut self) {
        while self.has_delayed() {
            let of_room =
                |room: Room| Some((room, *self.delayed[room as usize].first_key_value()?.0));
            let mut first = Room::ALL.into_iter().filter_map(of_room);
            let next = first.find(|(room, number)| self.may_post(*room, *number));
            let Some((room, _)) = next else { return };
            // If its preparation panics, the others stay.
            let Some((number, mut first)) = self.delayed[room as usize].pop_first() else { return };
            if !first.post(self, number) {
                self.delayed[room as usize].insert(number, first);
                return;
            }
        }
    }

    /// Lets the present [`turn`](EventLoop::turn) and [`EventLoop::run`] return after the present callback. The
    /// callbacks of other completed calls follow in the next turn.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Returns the number of calls that were posted and have not completed.
    pub fn outstanding(&self) -> usize {
        self.pages.outstanding()
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.pages.counters()
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop").field("pages", &self.pages).finish_non_exhaustive()
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // Leaked if a destructor panics, as the kernel may still use the others' memory.
        let mut posted = ManuallyDrop::new(mem::take(&mut self.posted));
        let ended = self.pages.shut_down_with(|completion, scratch| {
            if let Some(posted) = posted[completion.id.index()].take() {
                posted.discard(completion.result, scratch);
            }
        });
        if ended {
            drop(ManuallyDrop::into_inner(posted));
        }
    }
}
