//! Calls as futures, under any executor.
//!
//! No thread drives the pages. The first future that is pending becomes the driver: it wakes its own
//! task, so that it is polled again after all tasks that are ready. By then these have posted their
//! calls, and the driver has them executed in one batch. While all tasks wait, a thread waits for
//! the pages and wakes the driver.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{fmt, io, mem};

// A simulated machine includes this file with modules of its own.
use super::notifier::Notifier;
use super::pages::{Config, Counters, EntryId, Pages, Room, Scratch};
use crate::error::Error;
use crate::operation::Operation;

/// Pages whose calls are futures. A clone is another handle.
///
/// It belongs to one thread, as the tasks that use it do: spawn them on a local executor, such as
/// tokio's `LocalSet`. A task that is woken must poll one of its pending futures, or drop them: it may
/// be the one that has the others' calls executed.
#[derive(Clone)]
pub struct Runtime(Rc<RefCell<Inner>>);

struct Inner {
    pages: Pages,
    slots: Box<[Slot]>,
    /// Entries of futures that wait, in no order.
    waiting: Vec<u32>,
    /// Tasks that wait for a free entry: for each sort of room, in order.
    throttled: BTreeMap<Ticket, Waker>,
    next_ticket: u64,
    /// The future that has calls executed, and its task.
    driver: Option<(u64, Waker)>,
    next_future: u64,
    /// The notifier waits for the driver.
    parked: bool,
    notifier: Option<Notifier>,
}

/// The place of a future among those that wait for a free entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    /// What its call needs.
    room: Room,
    number: u64,
}

/// Drops an operation whose future is gone.
type Discard = Box<dyn FnOnce(io::Result<usize>, &Scratch)>;

/// The future of an entry.
#[derive(Default)]
struct Slot {
    waker: Option<Waker>,
    done: bool,
    /// Its index in `waiting`.
    position: usize,
    discard: Option<Discard>,
}

impl Runtime {
    /// Registers pages for futures.
    ///
    /// # Errors
    /// As [`Pages::register`].
    pub fn new(config: &Config) -> Result<Self, Error> {
        // It sleeps where a descriptor is readable at the end, which is not in the ring.
        let config = Config { sleep_in_ring: false, ..config.clone() };
        let pages = Pages::register(&config)?;
        let slots: Box<[Slot]> = (0..pages.entries()).map(|_| Slot::default()).collect();
        Ok(Runtime(Rc::new(RefCell::new(Inner {
            waiting: Vec::with_capacity(slots.len()),
            throttled: BTreeMap::new(),
            next_ticket: 0,
            driver: None,
            next_future: 0,
            parked: false,
            notifier: None,
            slots,
            pages,
        }))))
    }

    /// Returns the future of an operation. Its call is posted at the first poll; while all entries that it may use are
    /// busy, the future waits. In a child of fork(2) its result is an error.
    ///
    /// A future that is dropped cancels its call. The memory of the call stays until it has ended.
    ///
    /// # Panics
    /// A poll panics if the kernel refuses to wait for calls, or to enter the ring: futures would stay pending.
    pub fn call<O: Operation>(&self, operation: O) -> CallFuture<O> {
        let mut inner = self.0.borrow_mut();
        inner.next_future += 1;
        let number = inner.next_future;
        CallFuture {
            runtime: self.clone(),
            number,
            ticket: None,
            state: State::Unposted(operation),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.0.borrow().pages.counters()
    }

    /// Registers pages whose owner calls [`Runtime::wait`]; no future drives them.
    #[cfg(feature = "green-threads")]
    pub(crate) fn driven_by_owner(config: &Config) -> Result<Self, Error> {
        let runtime = Runtime::new(config)?;
        // Futures count from 1.
        runtime.0.borrow_mut().driver = Some((0, Waker::noop().clone()));
        Ok(runtime)
    }

    /// Has posted calls executed, waits as [`Pages::wait`], and wakes the tasks whose calls have
    /// ended.
    #[cfg(feature = "green-threads")]
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let mut inner = self.0.borrow_mut();
        let waited = inner.pages.wait(timeout);
        inner.wake_ended();
        waited.map(drop)
    }

    /// Returns the number of calls in flight.
    #[cfg(feature = "green-threads")]
    pub(crate) fn outstanding(&self) -> usize {
        self.0.borrow().pages.outstanding()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("pages", &self.0.borrow().pages).finish_non_exhaustive()
    }
}

impl Inner {
    /// Posts the operation of a future. Fails with what it has to wait for.
    fn post<O: Operation>(&mut self, operation: &mut O) -> Result<EntryId, Room> {
        // SAFETY: the future keeps the operation until it has completed, or leaves it to the slot,
        // which keeps it until then. A future that is forgotten never frees it.
        let posted = unsafe { self.pages.post_operation(operation) };
        let Ok(id) = posted else { return Err(self.pages.room_for(operation)) };
        let slot = &mut self.slots[id.index()];
        slot.done = false;
        slot.position = self.waiting.len();
        self.waiting.push(id.index() as u32);
        self.wake_driver();
        Ok(id)
    }

    /// Ends the wait of the driver, which has something to do.
    fn wake_driver(&mut self) {
        if mem::take(&mut self.parked)
            && let Some((_, waker)) = &self.driver
        {
            waker.wake_by_ref();
        }
    }

    /// Removes an entry from those that wait.
    fn ended(&mut self, index: usize) {
        let position = self.slots[index].position;
        self.waiting.swap_remove(position);
        if let Some(moved) = self.waiting.get(position) {
            self.slots[*moved as usize].position = position;
        }
    }

    /// Makes a pending future the driver, or lets the driver go on. Another future of the driver's
    /// task takes its part, unless it has `just_posted` its call.
    fn drive(&mut self, number: u64, waker: &Waker, just_posted: bool) {
        match &mut self.driver {
            None => {
                self.driver = Some((number, waker.clone()));
                // After all tasks that are ready now.
                waker.wake_by_ref();
            }
            Some((driver, of_driver))
                if *driver == number || (!just_posted && of_driver.will_wake(waker)) =>
            {
                *driver = number;
                of_driver.clone_from(waker);
                if mem::take(&mut self.parked) {
                    self.pages.end_of_sleep();
                }
                if self.turn() {
                    waker.wake_by_ref();
                } else {
                    self.park(waker);
                }
            }
            Some(_) => {}
        }
    }

    /// Has posted calls executed, and wakes the tasks whose calls have ended. Returns whether any
    /// has.
    ///
    /// # Panics
    /// If the pages cannot wait. That would be so in the next turn, too, and calls in flight would not end.
    fn turn(&mut self) -> bool {
        let waited = self.pages.wait(Some(Duration::ZERO));
        let any = self.wake_ended();
        if let Err(error) = waited {
            panic!("system calls in flight cannot end: {error}");
        }
        any
    }

    /// Wakes the tasks whose calls have ended. Returns whether any has.
    fn wake_ended(&mut self) -> bool {
        let mut any = false;
        while let Some(index) = self.pages.next_done() {
            any = true;
            let index = index as usize;
            if let Some(discard) = self.slots[index].discard.take() {
                let completion = self.pages.take(index as u32);
                // SAFETY: the call has ended, and no other was posted since.
                discard(completion.result, unsafe { &*self.pages.scratch(index) });
                self.wake_throttled();
                continue;
            }
            self.ended(index);
            self.slots[index].done = true;
            if let Some(waker) = self.slots[index].waker.take() {
                waker.wake();
            }
        }
        any
    }

    /// Lets a thread wait until something has completed.
    fn park(&mut self, waker: &Waker) {
        if !self.pages.prepare_to_sleep() {
            waker.wake_by_ref();
            return;
        }
        if self.notifier.is_none() {
            self.notifier = Notifier::start(self.pages.sleep_fd()).ok();
        }
        match &self.notifier {
            Some(notifier) => {
                notifier.watch(waker.clone());
                self.parked = true;
            }
            // Without a thread, the task polls.
            None => waker.wake_by_ref(),
        }
    }

    /// Lets another future be the driver.
    fn replace_driver(&mut self, number: u64) {
        // Without a driver, this may be the future that was woken to be it.
        if self.driver.as_ref().is_some_and(|(driver, _)| *driver != number) {
            return;
        }
        self.driver = None;
        if mem::take(&mut self.parked) {
            self.pages.end_of_sleep();
        }
        let first =
            self.waiting.first().and_then(|index| self.slots[*index as usize].waker.as_ref());
        // Those that wait for an entry can have the others' calls executed, too.
        if let Some(waker) = first.or_else(|| self.throttled.values().next()) {
            waker.wake_by_ref();
        }
    }

    /// Wakes the task that has waited for longest, of those whose calls could be posted now.
    fn wake_throttled(&mut self) {
        let first_for = |room| {
            let tickets = Ticket { room, number: 0 }..=Ticket { room, number: u64::MAX };
            self.throttled.range(tickets).next().map(|(ticket, _)| *ticket)
        };
        let rooms = Room::ALL.into_iter().filter(|room| self.pages.has_room(*room));
        let next = rooms.filter_map(first_for).min_by_key(|ticket| ticket.number);
        if let Some(waker) = next.and_then(|ticket| self.throttled.remove(&ticket)) {
            waker.wake();
        }
    }

    /// Lets a future wait for a free entry. Returns its place among those that do.
    fn throttle(&mut self, ticket: Option<Ticket>, room: Room, waker: &Waker) -> Ticket {
        if let Some(ticket) = ticket.filter(|ticket| ticket.room == room)
            && let Some(throttled) = self.throttled.get_mut(&ticket)
        {
            throttled.clone_from(waker);
            return ticket;
        }
        // If it was woken, others have been faster: the entry for which it was may be of use for another one.
        self.leave(ticket);
        self.next_ticket += 1;
        let ticket = Ticket { room, number: self.next_ticket };
        self.throttled.insert(ticket, waker.clone());
        ticket
    }

    /// Ends the wait of a future for a free entry. Another one is woken for the entry for which it was.
    fn leave(&mut self, ticket: Option<Ticket>) {
        if ticket.is_some_and(|ticket| self.throttled.remove(&ticket).is_none()) {
            self.wake_throttled();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Futures hold the runtime, so all that is in flight has been given to the slots. They are leaked if a
        // destructor panics, as the kernel may still use the others' memory.
        let mut slots = ManuallyDrop::new(mem::take(&mut self.slots));
        let ended = self.pages.shut_down_with(|completion, scratch| {
            if let Some(discard) = slots[completion.id.index()].discard.take() {
                discard(completion.result, scratch);
            }
        });
        if ended {
            drop(ManuallyDrop::into_inner(slots));
        }
    }
}

/// The future of a call; see [`Runtime::call`].
#[must_use = "the call is posted when the future is polled"]
pub struct CallFuture<O: Operation> {
    runtime: Runtime,
    number: u64,
    /// Its place among those that wait, or have waited, for a free entry.
    ticket: Option<Ticket>,
    state: State<O>,
}

enum State<O> {
    Unposted(O),
    Posted(EntryId, O),
    #[cfg(feature = "green-threads")]
    Withdrawn(O),
    Done,
}

impl<O: Operation> CallFuture<O> {
    /// Returns whether the call was polled, and waits for a free entry.
    #[cfg(feature = "green-threads")]
    pub(crate) fn is_throttled(&self) -> bool {
        matches!(self.state, State::Unposted(_)) && self.ticket.is_some()
    }

    /// Requests cancellation of the call, which ends as [`Pages::cancel`] says. A call that was not
    /// posted yet is not made.
    #[cfg(feature = "green-threads")]
    pub(crate) fn cancel(&mut self) {
        self.state = match mem::replace(&mut self.state, State::Done) {
            State::Unposted(operation) => {
                self.runtime.0.borrow_mut().leave(self.ticket.take());
                State::Withdrawn(operation)
            }
            State::Posted(id, operation) => {
                self.runtime.0.borrow_mut().pages.cancel(id);
                State::Posted(id, operation)
            }
            state => state,
        };
    }
}

impl<O: Operation> CallFuture<O> {
    /// Ends the future with an error, as its call is not made, or not in this process.
    #[cold]
    fn fail(&mut self, error: io::Error) -> Poll<O::Output> {
        match mem::replace(&mut self.state, State::Done) {
            State::Unposted(operation) | State::Posted(_, operation) => {
                Poll::Ready(operation.finish(Err(error), &[0; 32]))
            }
            #[cfg(feature = "green-threads")]
            State::Withdrawn(operation) => Poll::Ready(operation.finish(Err(error), &[0; 32])),
            State::Done => panic!("{POLLED_AFTER_END}"),
        }
    }
}

/// The message of a panic.
const POLLED_AFTER_END: &str = "the future was polled after it had completed";

// The memory of an operation does not move with it, so nothing is pinned.
impl<O: Operation> Unpin for CallFuture<O> {}

impl<O: Operation> Future for CallFuture<O> {
    type Output = O::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<O::Output> {
        let this = self.get_mut();
        let mut inner = this.runtime.0.borrow_mut();
        if inner.pages.is_in_child() {
            drop(inner);
            return this.fail(io::Error::other(Error::InChild));
        }
        let waker = context.waker();
        let just_posted = matches!(this.state, State::Unposted(_));
        this.state = match mem::replace(&mut this.state, State::Done) {
            State::Unposted(mut operation) => match inner.post(&mut operation) {
                Ok(id) => {
                    if let Some(ticket) = this.ticket.take() {
                        inner.throttled.remove(&ticket);
                    }
                    State::Posted(id, operation)
                }
                Err(room) => {
                    this.state = State::Unposted(operation);
                    this.ticket = Some(inner.throttle(this.ticket, room, waker));
                    inner.drive(this.number, waker, false);
                    return Poll::Pending;
                }
            },
            #[cfg(feature = "green-threads")]
            State::Withdrawn(operation) => {
                drop(inner);
                let interrupted = io::Error::from_raw_os_error(libc::EINTR);
                return Poll::Ready(operation.finish(Err(interrupted), &[0; 32]));
            }
            state => state,
        };
        let State::Posted(id, _) = &this.state else { panic!("{POLLED_AFTER_END}") };
        let index = id.index();
        if !inner.slots[index].done {
            inner.slots[index].waker = Some(waker.clone());
            inner.drive(this.number, waker, just_posted);
            if !inner.slots[index].done {
                return Poll::Pending;
            }
        }
        let State::Posted(_, operation) = mem::replace(&mut this.state, State::Done) else {
            unreachable!("it was checked above");
        };
        let output = inner.finish(index, operation);
        inner.replace_driver(this.number);
        Poll::Ready(output)
    }
}

impl Inner {
    /// Takes the result of a call that has ended.
    fn finish<O: Operation>(&mut self, index: usize, operation: O) -> O::Output {
        let completion = self.pages.take(index as u32);
        // SAFETY: the call has ended, and no other was posted since.
        let scratch = unsafe { &*self.pages.scratch(index) };
        let output = operation.finish(completion.result, scratch);
        self.wake_throttled();
        output
    }
}

impl<O: Operation> Drop for CallFuture<O> {
    fn drop(&mut self) {
        let mut inner = self.runtime.0.borrow_mut();
        let is_in_child = inner.pages.is_in_child();
        match mem::replace(&mut self.state, State::Done) {
            State::Posted(id, operation) if inner.slots[id.index()].done => {
                drop(inner.finish(id.index(), operation));
            }
            State::Posted(id, operation) => {
                inner.pages.cancel(id);
                inner.ended(id.index());
                let slot = &mut inner.slots[id.index()];
                slot.waker = None;
                slot.discard =
                    Some(Box::new(move |result, scratch| drop(operation.finish(result, scratch))));
                // It ends the call, whose memory and descriptor are not free before that.
                if !is_in_child
                    && inner.driver.as_ref().is_some_and(|(driver, _)| *driver != self.number)
                {
                    inner.wake_driver();
                }
            }
            #[cfg(feature = "green-threads")]
            State::Withdrawn(_) => {}
            State::Unposted(_) => inner.leave(self.ticket.take()),
            State::Done => {}
        }
        if !is_in_child {
            inner.replace_driver(self.number);
        }
    }
}

impl<O: Operation> fmt::Debug for CallFuture<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Unposted(_) => "unposted",
            State::Posted(..) => "posted",
            #[cfg(feature = "green-threads")]
            State::Withdrawn(_) => "withdrawn",
            State::Done => "done",
        };
        f.debug_struct("CallFuture").field("state", &state).finish_non_exhaustive()
    }
}
