//! Calls as futures, under any executor of one thread.
//!
//! No thread drives the pages. The first future that is pending becomes the driver: it wakes its own
//! task, so that it is polled again after all tasks that are ready. By then these have posted their
//! calls, and the driver has them executed in one batch. While all tasks wait, a thread waits for
//! the pages and wakes the driver.
//!
//! The drop of the last pending future has the calls executed whose futures are gone: nothing else would.
//!
//! The task of the driver may be waiting for something else, and not poll it. So each future wakes its task once, when it
//! is polled first; if no turn has come when it is polled again, it takes the turn. (Most calls end in that turn, which
//! would wake the task as well.) Later, the thread notices that no turn comes, and wakes the others (`watch.rs`).
//!
//! If the thread cannot be started, every future that is pending wakes its task again and again: one alone could be of a
//! task that does not poll it.

mod call;
mod throttled;

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;
use std::{fmt, io, mem};

// A simulated machine includes this module with modules of its own.
use super::clock::Instant;
use super::notifier::{self, Notifier};
use super::pages::{Config, Counters, EntryId, Pages, Room, Scratch};
use crate::descriptor::Descriptor;
use crate::error::Error;
use crate::operation::Operation;
use crate::watch::Watch;
use throttled::{Throttled, Ticket};

pub use call::CallFuture;

/// Pages whose calls are futures. A clone is another handle.
///
/// It belongs to one thread, as the tasks that use it do: spawn them on a local executor, such as
/// tokio's `LocalSet`. The tasks have each other's calls executed. One that keeps pending futures and polls none of them
/// when it is woken, as it waits for something else, can delay the others' calls: by some tens of milliseconds; if all
/// tasks had been waiting, by a second more.
///
/// Wakers may use the runtime, and so may operations whose result is taken, or which are dropped; but not
/// [`Operation::prepare`], which panics if it does. An operation that owns a future of its own runtime keeps the
/// runtime until it has ended.
#[derive(Clone)]
pub struct Runtime(Rc<RefCell<Inner>>);

struct Inner {
    pages: Pages,
    slots: Box<[Slot]>,
    /// Entries of futures that wait, in no order.
    waiting: Vec<u32>,
    throttled: Throttled,
    /// The future that has calls executed, and its task.
    driver: Option<(u64, Waker)>,
    next_future: u64,
    /// Times that calls were executed.
    turns: u64,
    /// Futures of calls in flight were dropped since then.
    has_abandoned: bool,
    /// The notifier waits for the driver.
    parked: bool,
    notifier: Option<Notifier>,
    /// When it is tried again to start the notifier.
    notifier_retry: Option<Instant>,
}

/// Drops an operation whose future is gone.
type Discard = Box<dyn FnOnce(io::Result<usize>, &Scratch)>;

/// A call that has ended.
enum Ended {
    /// The future of the entry waits for it, in a task.
    Awaited(Option<Waker>),
    /// The future of this entry is gone.
    Abandoned(usize, Discard),
}

/// The part that a pending future has to do for the others.
enum Part {
    Nothing,
    /// It is polled again, after all tasks that are ready now.
    Begin,
    /// It has a turn. Its task had another waker.
    Turn(Option<Waker>),
}

/// The state of a pending future's part for the others.
#[derive(Debug, Default)]
struct Pending {
    /// How many turns there had been when it was polled first; without a notifier, when it was polled last.
    turn: Option<u64>,
    /// The number under which the notifier has its task.
    registration: Option<u64>,
}

/// Wakers to wake and to drop when the runtime is not borrowed: both may use it.
#[derive(Default)]
#[must_use]
struct Wakers {
    to_wake: Option<Waker>,
    /// The driver, which wakes another one if that one does not use the entry for which it is woken.
    driver: Option<Waker>,
    _to_drop: [Option<Waker>; 2],
}

impl Wakers {
    fn wake(self) {
        [self.to_wake, self.driver].into_iter().flatten().for_each(Waker::wake);
    }
}

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
            throttled: Throttled::default(),
            driver: None,
            next_future: 0,
            turns: 0,
            has_abandoned: false,
            parked: false,
            notifier: None,
            notifier_retry: None,
            slots,
            pages,
        }))))
    }

    /// Registers a file or socket with the ring, as [`Pages::register_file`](crate::Pages::register_file). A file whose
    /// descriptor was dropped is closed in a turn, for which the drop wakes a task: while no future waits, it stays open.
    pub fn register_file(&self, descriptor: &Descriptor) -> bool {
        self.0.borrow_mut().pages.register_file(descriptor)
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
        let waited = {
            let mut inner = self.0.borrow_mut();
            inner.begin_turn();
            inner.pages.wait(timeout)
        };
        self.wake_ended();
        // A call that waits again for its descriptor leaves a thread to others, and frees no entry.
        self.wake_throttled();
        waited.map(drop)
    }

    /// Returns the number of calls in flight.
    #[cfg(feature = "green-threads")]
    pub(crate) fn outstanding(&self) -> usize {
        self.0.borrow().pages.outstanding()
    }

    /// Lets a pending future do its part for the others; see [`Inner::part_of`]. Returns whether it is to be registered,
    /// if it remains pending: not if its task was woken to poll it again.
    fn drive(&self, number: u64, waker: &Waker, pending: &mut Pending) -> bool {
        let part = self.0.borrow_mut().part_of(number, waker, pending);
        match part {
            Part::Nothing => true,
            Part::Begin => {
                waker.wake_by_ref();
                false
            }
            Part::Turn(former) => {
                drop(former);
                let wakes_itself =
                    self.turn() || self.wake_throttled() || self.keeps_entries() || {
                        // The former waker is dropped when nothing is borrowed: its drop may use the runtime.
                        let parked = self.0.borrow_mut().park(number, waker);
                        parked.is_none()
                    };
                if wakes_itself {
                    waker.wake_by_ref();
                }
                true
            }
        }
    }

    /// Has a future woken if no task has calls executed. It remains pending, and was polled before.
    fn register(&self, waker: &Waker, pending: &mut Pending) {
        let mut inner = self.0.borrow_mut();
        if inner.is_driven_by_owner() {
            return;
        }
        let turns = inner.turns;
        let Some(notifier) = inner.notifier() else {
            // The task polls, and takes a turn if none has come by then.
            pending.turn = Some(turns);
            drop(inner);
            return waker.wake_by_ref();
        };
        let former = match pending.registration {
            Some(registered) => notifier.with(|watch| watch.replace(registered, waker)),
            None => {
                pending.registration = Some(notifier.with(|watch| watch.add(waker)));
                None
            }
        };
        drop(inner);
        drop(former);
    }

    /// Ends what [`Runtime::register`] has begun.
    fn unregister(&self, pending: &mut Pending) {
        if let Some(registered) = pending.registration.take() {
            let former = self.0.borrow().change_watch(|watch| watch.remove(registered));
            drop(former);
        }
    }

    /// Has posted calls executed, and wakes the tasks whose calls have ended. Returns whether any
    /// has.
    ///
    /// # Panics
    /// If the pages cannot wait. That would be so in the next turn, too, and calls in flight would not end.
    fn turn(&self) -> bool {
        let (waited, former) = {
            let mut inner = self.0.borrow_mut();
            inner.begin_turn();
            inner.has_abandoned = false;
            let former = inner.change_watch(Watch::turn);
            (inner.pages.wait(Some(Duration::ZERO)), former)
        };
        drop(former);
        let any = self.wake_ended();
        if let Err(error) = waited {
            panic!("system calls in flight cannot end: {error}");
        }
        any
    }

    /// Has the calls executed whose futures are gone, if no other future is left that would. So those that were withdrawn
    /// end, those that cannot be cancelled are made, and the ring gets the cancellations of the others.
    fn end_abandoned(&self) {
        {
            let mut inner = self.0.borrow_mut();
            if !inner.has_abandoned || inner.is_driven() || inner.pages.is_in_child() {
                return;
            }
            inner.has_abandoned = false;
            // The next turn of a future reports an error that lasts.
            let _ = inner.pages.wait(Some(Duration::ZERO));
        }
        self.wake_ended();
    }

    /// Wakes the tasks whose calls have ended. Returns whether any has.
    fn wake_ended(&self) -> bool {
        let mut any = false;
        loop {
            let ended = self.0.borrow_mut().next_ended();
            match ended {
                None => return any,
                Some(Ended::Awaited(waker)) => waker.into_iter().for_each(Waker::wake),
                Some(Ended::Abandoned(index, discard)) => self.finish(index, discard),
            }
            any = true;
        }
    }

    /// Makes an output of the result of a call that has ended, and frees its entry.
    fn finish<T>(&self, index: usize, finish: impl FnOnce(io::Result<usize>, &Scratch) -> T) -> T {
        let ending = Ending { runtime: self, index };
        let (result, scratch) = {
            let inner = self.0.borrow();
            (inner.pages.result(index as u32), inner.pages.scratch(index))
        };
        // SAFETY: the call has ended, and no other is posted to the entry before it is freed, below. The runtime, which
        // has the memory, is borrowed.
        let output = finish(result, unsafe { &*scratch });
        drop(ending);
        output
    }
}

/// Frees the entry of a call that has ended when it is dropped, also if the operation panics.
struct Ending<'a> {
    runtime: &'a Runtime,
    index: usize,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut inner = self.runtime.0.borrow_mut();
        inner.pages.take(self.index as u32);
        let mut wakers = inner.free_entry();
        wakers.driver = wakers.driver.or_else(|| inner.driver_for_others());
        drop(inner);
        wakers.wake();
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("pages", &self.0.borrow().pages).finish_non_exhaustive()
    }
}

impl Inner {
    /// Posts the operation of a future. Fails with what it has to wait for. Returns the driver's waker, if it has to
    /// end its wait.
    fn post<O: Operation>(
        &mut self,
        operation: &mut O,
        ticket: Option<Ticket>,
    ) -> Result<(EntryId, Option<Waker>), Room> {
        if let Some(room) = self.has_to_wait(operation, ticket) {
            return Err(room);
        }
        // SAFETY: the future keeps the operation until it has completed, or leaves it to the slot,
        // which keeps it until then. A future that is forgotten never frees it.
        let posted = unsafe { self.pages.post_operation(operation) };
        let Ok(id) = posted else { return Err(self.pages.room_for(operation)) };
        let slot = &mut self.slots[id.index()];
        slot.done = false;
        slot.position = self.waiting.len();
        self.waiting.push(id.index() as u32);
        Ok((id, self.parked_driver()))
    }

    /// Begins a turn, in which calls are executed.
    fn begin_turn(&mut self) {
        self.turns += 1;
        self.throttled.forget_woken(self.turns);
    }

    /// Ends the wait of the driver, which has something to do. Returns its waker.
    fn parked_driver(&mut self) -> Option<Waker> {
        if !mem::take(&mut self.parked) {
            return None;
        }
        self.pages.end_of_sleep();
        // From now on the notifier counts ticks: the driver may not take its turn. It may have been woken by now.
        self.change_watch(Watch::take_driver)
    }

    /// Ends the wait of the driver if another call could go on in the place of one that has ended: it may have ended at
    /// once, as there is no thread for it. Returns the driver's waker.
    fn driver_for_others(&mut self) -> Option<Waker> {
        let has_work = self.parked && self.pages.has_work();
        if has_work { self.parked_driver() } else { None }
    }

    /// Removes an entry from those that wait.
    fn ended(&mut self, index: usize) {
        let position = self.slots[index].position;
        self.waiting.swap_remove(position);
        if let Some(moved) = self.waiting.get(position) {
            self.slots[*moved as usize].position = position;
        }
    }

    /// Leaves a call in flight, whose future is gone, to the runtime. Its memory and descriptor are not free before it
    /// has ended.
    fn abandon(&mut self, number: u64, id: EntryId, discard: Discard) -> Wakers {
        self.pages.cancel(id);
        self.has_abandoned = true;
        self.ended(id.index());
        let slot = &mut self.slots[id.index()];
        slot.discard = Some(discard);
        let of_future = slot.waker.take();
        // The driver ends the call.
        let is_others = self.driver.as_ref().is_some_and(|(driver, _)| *driver != number);
        let wakes = is_others && !self.pages.is_in_child();
        let driver = wakes.then(|| self.parked_driver()).flatten();
        Wakers { to_wake: None, driver, _to_drop: [of_future, None] }
    }

    /// Returns whether the owner or a future has calls executed, or a future was woken to have.
    fn is_driven(&self) -> bool {
        self.driver.is_some() || !self.waiting.is_empty() || !self.throttled.is_empty()
    }

    /// Returns whether no future drives the pages.
    fn is_driven_by_owner(&self) -> bool {
        matches!(self.driver, Some((0, _)))
    }

    /// Returns the notifier, which is started at the first time. Returns `None` if it cannot be, or could not be a short
    /// time ago.
    fn notifier(&mut self) -> Option<&Notifier> {
        if self.notifier.is_none()
            && self.notifier_retry.is_none_or(|retry| Instant::now() >= retry)
        {
            self.notifier = Notifier::start(self.pages.sleep_fd()).ok();
            if self.notifier.is_none() {
                self.notifier_retry = Some(Instant::now() + notifier::RETRY);
            }
        }
        self.notifier.as_ref()
    }

    /// Changes what the notifier wakes, if there is one.
    fn change_watch<R: Default>(&self, change: impl FnOnce(&mut Watch) -> R) -> R {
        self.notifier.as_ref().map_or_else(R::default, |notifier| notifier.with(change))
    }

    /// Returns what a pending future has to do: it becomes the driver if there is none. It takes a turn if it is the
    /// driver, or another future of its task, or if the driver has not taken one. At the first poll it only has its task
    /// woken, as no other wake-up is sure to come: the task may have used that of the driver for something else.
    fn part_of(&mut self, number: u64, waker: &Waker, pending: &mut Pending) -> Part {
        if self.is_driven_by_owner() {
            return Part::Nothing;
        }
        let is_first = pending.turn.is_none();
        let turn = *pending.turn.get_or_insert(self.turns);
        let is_overdue =
            pending.registration.is_some() && self.change_watch(|watch| watch.is_overdue());
        let Some((driver, of_driver)) = &mut self.driver else {
            self.driver = Some((number, waker.clone()));
            return Part::Begin;
        };
        if is_first {
            return Part::Begin;
        }
        let is_drivers = *driver == number || of_driver.will_wake(waker);
        if !(is_drivers || is_overdue || turn == self.turns && !self.parked) {
            return Part::Nothing;
        }
        *driver = number;
        let former = replace(of_driver, waker);
        if mem::take(&mut self.parked) {
            self.pages.end_of_sleep();
        }
        Part::Turn(former)
    }

    /// Returns the next call that has ended.
    fn next_ended(&mut self) -> Option<Ended> {
        let index = self.pages.next_done()? as usize;
        if let Some(discard) = self.slots[index].discard.take() {
            return Some(Ended::Abandoned(index, discard));
        }
        self.ended(index);
        self.slots[index].done = true;
        Some(Ended::Awaited(self.slots[index].waker.take()))
    }

    /// Lets a thread wait until something has completed, and returns the waker that it had before. Returns `None` if the
    /// driver, this future, has to go on, or is another one by now.
    fn park(&mut self, number: u64, waker: &Waker) -> Option<Option<Waker>> {
        let is_driver = self.driver.as_ref().is_some_and(|(driver, _)| *driver == number);
        // No event tells that the ring takes again what it has refused; so the task polls, as without a thread.
        if !is_driver || self.pages.ring_is_behind() || !self.pages.prepare_to_sleep() {
            return None;
        }
        let former = self.notifier()?.with(|watch| watch.park(waker.clone()));
        self.parked = true;
        Some(former)
    }

    /// Lets another future be the driver.
    fn replace_driver(&mut self, number: u64) -> Wakers {
        // Without a driver, this may be the future that was woken to be it.
        if self.driver.as_ref().is_some_and(|(driver, _)| *driver != number) {
            return Wakers::default();
        }
        let former = self.driver.take().map(|(_, waker)| waker);
        let parked = self.parked_driver();
        let first =
            self.waiting.first().and_then(|index| self.slots[*index as usize].waker.as_ref());
        // Those that wait for an entry can have the others' calls executed, too.
        let next = first.or_else(|| self.throttled.first_waker());
        Wakers { to_wake: next.cloned(), driver: None, _to_drop: [former, parked] }
    }
}

/// Replaces a waker by one of another task. Returns it, if it was.
fn replace(former: &mut Waker, waker: &Waker) -> Option<Waker> {
    (!former.will_wake(waker)).then(|| mem::replace(former, waker.clone()))
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
