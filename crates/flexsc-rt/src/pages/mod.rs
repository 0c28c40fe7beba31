//! The owner's side of the syscall pages: register, post, wait, take, cancel (section 3.2).

mod in_ring;
mod routing;
mod wait;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use shared_ring::SetupError;
use shared_ring::author::Process;

// A simulated machine includes this file with modules of its own.
use super::clock::Instant;
use super::raw::{self, INTERRUPTED};
use super::readiness::Readiness;
use super::ring::Ring;
use super::threads::Threads;
use crate::call::{Call, Executor, Waits};
use crate::choice::{Choice, Choices, Depth, Row};
use crate::entry::Status;
use crate::error::{Busy, Error};
use crate::interrupt;
use crate::operation::Operation;
use crate::page::ENTRIES;
use crate::shared::Shared;

/// Posted calls from which on the ring makes those of sockets and files, if the owner sleeps in it. With fewer, an entry
/// into the ring and its completion cost more than the calls in place.
const RING_BATCH: usize = 8;

/// Time that calls in flight have to end when the pages are dropped.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// How pages are registered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Number of entries, rounded up to whole pages of 64. Each takes 64 bytes, and 384 beside it.
    pub entries: u32,
    /// Entries that only bounded calls may use. So these can always make progress.
    pub reserve: u32,
    /// Maximum number of syscall threads. Without any, the owner makes all calls in place, and
    /// waits where they wait. One is kept for calls that do not wait indefinitely. While the system starts
    /// not even one, the owner makes bounded calls in place, and those that would block a thread end
    /// with `EAGAIN`.
    pub threads: u16,
    /// Maximum number of active syscall threads; by default one per core.
    pub active_threads: usize,
    /// Time after which the heartbeat counts a thread as blocked, once or twice.
    pub heartbeat: Duration,
    /// Whether syscall threads leave the owner's core while load and idle cores justify it: if a thread was active in
    /// three quarters of two windows of 64 heartbeats, and no more threads of the machine are runnable than the process
    /// may use cores. A process that may use few of many cores rarely finds that.
    pub specialise_cores: bool,
    /// Pins the executor of bounded calls, instead of the choice by cost.
    pub executor: Option<Executor>,
    /// Whether calls may use io_uring. It is set up when one is first given to it.
    pub ring: bool,
    /// Whether the owner sleeps in io_uring, and calls that wait for a descriptor wait there instead of in an epoll
    /// set. Then one entry into the kernel submits a batch, waits, and takes completions; but of several calls that
    /// wait for one descriptor, none is the first. Without effect where the kernel lacks an operation for it, and in
    /// a [`Runtime`](crate::Runtime).
    pub sleep_in_ring: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            entries: 1024,
            reserve: 64,
            threads: 64,
            active_threads: thread::available_parallelism().map_or(1, |cores| cores.get()),
            heartbeat: Duration::from_millis(1),
            specialise_cores: true,
            executor: None,
            ring: true,
            sleep_in_ring: false,
        }
    }
}

impl Config {
    /// Returns the default configuration with a number of entries.
    pub fn with_entries(entries: u32) -> Self {
        Config { entries, ..Config::default() }
    }
}

/// Identifies a posted call. It is not reused before 2^32 calls of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryId {
    index: u32,
    generation: u32,
}

impl EntryId {
    /// Returns the number of the entry, below [`Pages::entries`].
    #[inline]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// A call that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The call.
    pub id: EntryId,
    /// Its result. A cancelled call has `EINTR`, if the cancellation came in time.
    pub result: io::Result<usize>,
}

/// Memory of an entry that calls use for small structures; the kernel may write to it.
pub type Scratch = [u64; 32];

/// What happened on some pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls posted.
    pub posted: u64,
    /// Calls executed in place, repetitions included.
    pub in_place: u64,
    /// Calls submitted to syscall threads.
    pub on_threads: u64,
    /// Calls submitted to the ring.
    pub on_ring: u64,
    /// Calls pinned to the ring, or given to it by the choice, that another executor made: the ring or
    /// the kernel has no operation for them, or there is no ring (see [`Pages::ring_error`]).
    pub ring_refused: u64,
    /// Times that a call began to wait for a descriptor.
    pub readiness_waits: u64,
    /// Calls of epoll(7).
    pub epoll_calls: u64,
    /// Calls refused as all entries were busy.
    pub throttled: u64,
    /// Cancellations that ended a call before an executor began it.
    pub withdrawn: u64,
    /// Cancellations that interrupted an executor.
    pub interrupted: u64,
    /// Times that the owner slept.
    pub sleeps: u64,
    /// Entries into the ring: system calls of io_uring_enter(2).
    pub ring_entries: u64,
    /// Syscall threads started.
    pub threads_started: u64,
    /// Times that the heartbeat found a thread blocked.
    pub threads_blocked: u64,
    /// Syscall threads that ended in a call.
    pub threads_died: u64,
    /// Most syscall threads that were active at a time.
    pub max_active_threads: usize,
    /// Times that the syscall threads got cores of their own.
    pub cores_given: u64,
    /// Times that these were taken back.
    pub cores_taken_back: u64,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    /// Posted, and not submitted.
    Batch,
    /// Posted and cancelled, and not submitted.
    CancelledBatch,
    /// Submitted to a syscall thread.
    Thread,
    /// The same, and its cancellation is requested.
    CancelledThread,
    /// Submitted to the ring.
    Ring,
    /// The same, and its cancellation is requested.
    CancelledRing,
    /// The ring waits for its descriptor.
    Polled,
    /// The same, and its cancellation is requested.
    CancelledPolled,
    /// It waits for its descriptor.
    Waiting,
    /// It is done, and in the owner's queue.
    Done,
}

/// No descriptor. An option would make a [`Slot`] larger.
const NO_END: RawFd = -1;

/// What the owner notes of an entry.
#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    place: Place,
    pinned: Option<Executor>,
    uncancellable: bool,
    /// The ring makes it in a batch, if the owner sleeps there.
    in_batches: bool,
    waits: Waits,
    /// The end that it waits for in turn with that of `waits`; most calls have [`NO_END`].
    other_end: RawFd,
    row: Row,
    /// A call on a thread or in the ring whose time is to be reported.
    measured: Option<Measured>,
}

/// A call whose time is to be reported.
#[derive(Clone, Copy, Debug)]
struct Measured {
    depth: Depth,
    /// The calls that share the time.
    calls: u32,
    since: Instant,
}

/// A batch whose time is to be reported when the owner has made its part.
#[derive(Clone, Copy, Debug)]
struct MeasuredBatch {
    row: Row,
    depth: Depth,
    since: Instant,
}

/// Syscall pages, registered by one thread, their owner.
///
/// [`Pages::post`] fills in an entry and enters no kernel; [`Pages::wait`] has all posted calls
/// executed, and sleeps if none completes; [`Pages::next`] takes completions. In a child of fork(2)
/// the pages of the parent execute nothing.
#[derive(Debug)]
pub struct Pages {
    shared: Arc<Shared>,
    threads: Option<Threads>,
    max_indefinite: usize,
    reserve: usize,
    executor: Option<Executor>,
    may_use_ring: bool,
    free: Vec<u32>,
    slots: Box<[Slot]>,
    scratch: Option<Box<[UnsafeCell<Scratch>]>>,
    /// Posted entries, in order, and the number of their batch.
    batch: Vec<u32>,
    batch_number: u32,
    /// How many of them the ring makes if they are enough.
    batchable: usize,
    /// The owner sleeps in the ring.
    sleeps_in_ring: bool,
    /// For each page the entries that go to threads, and the pages that have any.
    masks: Box<[u64]>,
    dirty: Vec<u32>,
    /// Entries that are done without a thread.
    done: VecDeque<u32>,
    /// Entries of the batch that the owner shares with threads, and takes back.
    given: Vec<u32>,
    /// The shared batch that is measured.
    measured_batch: Option<MeasuredBatch>,
    /// Pages of a shared batch in turn: one of the owner, the others of the active threads.
    lanes: usize,
    /// The owner's end of the queue of completions.
    head: u64,
    readiness: Readiness,
    ring: Ring,
    /// Turns in which a completion was there at once.
    busy_turns: u32,
    choices: Choices,
    /// The choice for the calls of a row in this batch, and when the first measured one was given away.
    chosen: Option<(Row, Choice)>,
    depth: Depth,
    batch_since: Option<Instant>,
    /// Calls in flight that may wait indefinitely on a thread.
    indefinite: usize,
    counters: Counters,
    process: Process,
    /// One thread owns the pages: calls about the calling thread have a meaning.
    _not_send: PhantomData<*mut ()>,
}

impl Pages {
    /// Registers pages (`flexsc_register`). All memory is allocated here.
    ///
    /// # Errors
    /// If there is no free descriptor, or the signal for cancellation has a handler.
    pub fn register(config: &Config) -> Result<Self, Error> {
        let pages = (config.entries.clamp(1, 1 << 24) as usize).div_ceil(ENTRIES);
        let entries = pages * ENTRIES;
        let system = |what| move |error: io::Error| Error::System(what, error);
        let shared = Arc::new(Shared::new(pages).map_err(system("create an eventfd"))?);
        let threads = (config.threads > 0).then(|| {
            let active = config.active_threads.max(1);
            let (threads, heartbeat) = (config.threads, config.heartbeat);
            Threads::new(Arc::clone(&shared), threads, active, heartbeat, config.specialise_cores)
        });
        if threads.is_some() {
            interrupt::install()?;
        }
        let readiness = Readiness::new(entries, shared.bell.as_fd())
            .map_err(|errno| Error::System("create an epoll set", errno.into()))?;
        let slot = Slot {
            generation: 0,
            place: Place::Free,
            pinned: None,
            uncancellable: false,
            in_batches: false,
            waits: Waits::Bounded,
            other_end: NO_END,
            row: Row::default(),
            measured: None,
        };
        let mut ring = Ring::new(entries);
        let sleeps_in_ring = config.ring
            && config.sleep_in_ring
            && ring.set_up_for_sleep(shared.bell.as_fd(), &Call::of_batches());
        let lanes = if threads.is_some() { config.active_threads.max(1) } else { 1 };
        Ok(Pages {
            choices: Choices::new(if threads.is_some() { lanes } else { 0 }),
            threads,
            given: Vec::with_capacity(entries),
            measured_batch: None,
            lanes,
            max_indefinite: usize::from(config.threads).saturating_sub(1).max(1),
            reserve: (config.reserve as usize).min(entries - 1),
            executor: config.executor,
            may_use_ring: config.ring,
            free: free_entries(pages, config.active_threads.max(1)),
            slots: vec![slot; entries].into_boxed_slice(),
            scratch: Some(zeroed_scratch(entries)),
            batch: Vec::with_capacity(entries),
            batch_number: 0,
            batchable: 0,
            sleeps_in_ring,
            masks: vec![0; pages].into_boxed_slice(),
            dirty: Vec::with_capacity(pages),
            done: VecDeque::with_capacity(entries),
            head: 0,
            readiness,
            ring,
            busy_turns: 0,
            chosen: None,
            depth: Depth::of(0),
            batch_since: None,
            indefinite: 0,
            counters: Counters::default(),
            process: Process::current(),
            shared,
            _not_send: PhantomData,
        })
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of calls that were posted and whose completions were not taken.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns why there is no ring, if a call was to be given to it. Calls that are pinned to it are
    /// made by syscall threads then.
    pub fn ring_error(&self) -> Option<&SetupError> {
        self.ring.error()
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.epoll_calls = self.readiness.calls();
        counters.ring_entries = self.ring.entered();
        if let Some(threads) = &self.threads {
            let of_threads = threads.counters();
            counters.threads_started = of_threads.started;
            counters.threads_blocked = of_threads.blocked;
            counters.threads_died = of_threads.died;
            counters.max_active_threads = of_threads.max_active;
            counters.cores_given = of_threads.cores_given;
            counters.cores_taken_back = of_threads.cores_taken_back;
        }
        counters
    }

    /// Posts a call. It is executed at the next [`submit`](Pages::submit) or [`wait`](Pages::wait)
    /// at the earliest.
    ///
    /// # Errors
    /// If every entry that the call may use is busy, or every thread that may wait indefinitely.
    ///
    /// # Safety
    /// The call does nothing that the program must not do. All memory that it refers to stays valid
    /// until its completion was taken; after a drop of the pages, until [`Pages::shut_down`] has
    /// returned true, or for ever. Descriptors that it refers to stay open until then; if one is
    /// closed, the call may reach the next one of its number, or wait until it is cancelled.
    #[inline]
    pub unsafe fn post(&mut self, call: &Call) -> Result<EntryId, Busy> {
        let pinned = self.pin(call);
        let room = Room::of(call.waits, pinned);
        if !self.has_room(room) {
            self.counters.throttled += 1;
            return Err(Busy);
        }
        let Some(index) = self.free.pop() else { return Err(Busy) };
        self.indefinite += usize::from(room == Room::Thread);
        // SAFETY: the entry is free, and this is its owner.
        unsafe { self.shared.entry(index).fill(call.number, &call.args) };
        let slot = &mut self.slots[index as usize];
        slot.place = Place::Batch;
        slot.pinned = pinned;
        slot.uncancellable = call.uncancellable;
        slot.in_batches = call.in_batches;
        self.batchable += usize::from(call.in_batches);
        slot.waits = call.waits;
        slot.other_end = call.other_end.unwrap_or(NO_END);
        slot.row = self.choices.row(call.number, call.kind);
        slot.measured = None;
        self.batch.push(index);
        self.counters.posted += 1;
        Ok(EntryId { index, generation: slot.generation })
    }

    /// Returns the executor to which a call is pinned, which can make it.
    #[inline]
    fn pin(&mut self, call: &Call) -> Option<Executor> {
        let bounded = call.waits == Waits::Bounded;
        if let Waits::UntilReady(..) = call.waits {
            return None;
        }
        let pinned = call.pinned.or(self.executor.filter(|_| bounded));
        if pinned == Some(Executor::Shared) && !bounded {
            return Some(Executor::Threads);
        }
        if pinned == Some(Executor::Ring) && !self.ring_can_make(call.number, &call.args) {
            // A call that waits for a descriptor needs no thread.
            let on_thread = matches!(call.waits, Waits::Bounded | Waits::Indefinitely);
            return on_thread.then_some(Executor::Threads);
        }
        pinned
    }

    /// Returns whether the ring can make a call, and counts it if not.
    fn ring_can_make(&mut self, number: u32, args: &[usize; 6]) -> bool {
        let readiness = &mut self.readiness;
        let can_make = self.may_use_ring
            && self.ring.can_make(number, args, |ring| readiness.watch_ring(ring));
        self.counters.ring_refused += u64::from(!can_make);
        can_make
    }

    /// Returns whether a call that needs this could be posted.
    #[inline]
    pub(crate) fn has_room(&self, room: Room) -> bool {
        match room {
            Room::Entry => !self.free.is_empty(),
            Room::Unreserved => self.free.len() > self.reserve,
            Room::Thread => self.free.len() > self.reserve && self.indefinite < self.max_indefinite,
        }
    }

    /// Returns what an operation needs that was not posted.
    #[cold]
    pub(crate) fn room_for(&mut self, operation: &mut impl Operation) -> Room {
        let call = operation.prepare(&mut [0; 32]);
        let pinned = self.pin(&call);
        Room::of(call.waits, pinned)
    }

    /// Returns whether this is a child of fork(2), where nothing completes.
    #[inline]
    pub(crate) fn is_in_child(&self) -> bool {
        !self.process.is_current()
    }

    /// Returns the scratch memory of an entry. It belongs to its call until that has completed.
    ///
    /// Its content is what the last call of the entry left.
    #[inline]
    pub(crate) fn scratch(&self, index: usize) -> *mut Scratch {
        self.scratch.as_ref().map_or(std::ptr::null_mut(), |scratch| scratch[index].get())
    }

    /// Submits the posted calls: executes calls in place, and hands others to threads.
    ///
    /// # Errors
    /// In a child of fork(2), or if the kernel refuses to enter the ring; the calls for other executors are made, and
    /// those for the ring stay queued.
    pub fn submit(&mut self) -> Result<(), Error> {
        self.execute()?;
        if self.sleeps_in_ring { self.enter_ring() } else { Ok(()) }
    }

    /// Executes a call in the owner's thread.
    #[inline]
    fn execute_in_place(&mut self, index: u32) {
        let entry = self.shared.entry(index);
        self.counters.in_place += 1;
        // SAFETY: the owner has not submitted the entry to threads; who posted the call vouches
        // for it.
        let result = unsafe {
            let (number, args) = entry.call();
            raw::system_call(number, &args)
        };
        if is_not_ready(result) && self.waits_again(index) {
            return;
        }
        self.finish(index, result);
    }

    /// Ends a call that no thread has.
    #[inline]
    fn finish(&mut self, index: u32, result: isize) {
        // SAFETY: the owner has not submitted the entry to threads, has withdrawn it, or has seen that it is done.
        unsafe { self.shared.entry(index).finish(result) };
        self.slots[index as usize].place = Place::Done;
        self.done.push_back(index);
    }

    /// Notes an entry for the threads.
    fn assign_thread(&mut self, index: u32) {
        self.slots[index as usize].place = Place::Thread;
        let page = index as usize / ENTRIES;
        if self.masks[page] == 0 {
            self.dirty.push(page as u32);
        }
        self.masks[page] |= 1 << (index as usize % ENTRIES);
        self.counters.on_threads += 1;
    }

    /// Submits the noted entries to the threads.
    fn publish(&mut self) {
        if let Some(threads) = &self.threads
            && !self.dirty.is_empty()
        {
            let owner_works = !self.given.is_empty();
            if !threads.submit(&mut self.dirty, &mut self.masks, owner_works) {
                self.make_without_threads();
            }
        }
    }

    /// Makes or ends the calls that were submitted to threads, as there is none.
    #[cold]
    fn make_without_threads(&mut self) {
        for page in 0..self.masks.len() {
            while let Some(place) = self.shared.submitted[page].claim() {
                let index = (page * ENTRIES + place) as u32;
                self.counters.on_threads -= 1;
                match self.slots[index as usize].waits {
                    Waits::Bounded => self.execute_in_place(index),
                    _ => self.finish(index, NO_THREAD),
                }
            }
        }
    }

    /// Returns whether [`Pages::next`] would return a completion.
    #[inline]
    pub fn has_completion(&self) -> bool {
        !self.done.is_empty() || !self.shared.completions.is_empty(self.head)
    }

    /// Takes a completion, and frees its entry.
    #[allow(clippy::should_implement_trait, reason = "completions come after it has returned none")]
    #[inline]
    pub fn next(&mut self) -> Option<Completion> {
        let index = self.next_done()?;
        Some(self.take(index))
    }

    /// Returns the next entry that is done. [`Pages::take`] has to follow, at any time.
    #[inline]
    pub(crate) fn next_done(&mut self) -> Option<u32> {
        let next = self.find_done();
        if !self.dirty.is_empty() {
            // A call that was not ready is a thread's again.
            self.publish();
        }
        next
    }

    #[inline]
    fn find_done(&mut self) -> Option<u32> {
        loop {
            if let Some(index) = self.done.pop_front() {
                return Some(index);
            }
            if !self.process.is_current() {
                return None;
            }
            let index = self.shared.completions.pop(&mut self.head)?;
            self.report(index, Executor::Threads, &mut None);
            // SAFETY: the completion says that the entry is done.
            let result = unsafe { self.shared.entry(index).peek() };
            if is_not_ready(result) {
                if self.slots[index as usize].place == Place::CancelledThread {
                    // It must not wait again.
                    self.finish(index, INTERRUPTED);
                    continue;
                }
                if self.waits_again(index) {
                    continue;
                }
            }
            self.slots[index as usize].place = Place::Done;
            return Some(index);
        }
    }

    /// Frees an entry that [`Pages::next_done`] has returned.
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Completion {
        // SAFETY: the entry is done, and this is its owner.
        let result = unsafe { self.shared.entry(index).take() };
        let slot = &mut self.slots[index as usize];
        let id = EntryId { index, generation: slot.generation };
        slot.generation = slot.generation.wrapping_add(1);
        slot.place = Place::Free;
        self.indefinite -= usize::from(Room::of(slot.waits, slot.pinned) == Room::Thread);
        self.free.push(index);
        Completion { id, result: raw::decode(result) }
    }

    /// Requests cancellation of a call (section 4.2). Its completion follows in any case: with
    /// `EINTR` if the cancellation came in time, else with the call's result. Without effect on a
    /// call that has completed.
    pub fn cancel(&mut self, id: EntryId) {
        let slot = &mut self.slots[id.index()];
        if slot.generation != id.generation || slot.uncancellable || !self.process.is_current() {
            return;
        }
        match slot.place {
            Place::Free
            | Place::Done
            | Place::CancelledBatch
            | Place::CancelledThread
            | Place::CancelledRing
            | Place::CancelledPolled => {}
            Place::Batch => {
                slot.place = Place::CancelledBatch;
                self.counters.withdrawn += 1;
            }
            Place::Waiting => {
                if let Some((fd, direction)) = slot.waits.descriptor() {
                    self.readiness.remove(id.index, fd, direction);
                }
                self.counters.withdrawn += 1;
                self.finish(id.index, INTERRUPTED);
            }
            Place::Thread => self.cancel_on_thread(id.index),
            Place::Ring => {
                slot.place = Place::CancelledRing;
                self.counters.interrupted += 1;
                let name = self.ring_name(id.index);
                self.ring.cancel(name);
            }
            Place::Polled => {
                slot.place = Place::CancelledPolled;
                self.counters.withdrawn += 1;
                let name = self.ring_name(id.index);
                self.ring.cancel(name);
            }
        }
    }

    fn cancel_on_thread(&mut self, index: u32) {
        let (page, place) = (index as usize / ENTRIES, index as usize % ENTRIES);
        if self.shared.submitted[page].withdraw(place) {
            self.counters.withdrawn += 1;
            self.finish(index, INTERRUPTED);
            return;
        }
        self.slots[index as usize].place = Place::CancelledThread;
        let entry = self.shared.entry(index);
        // A thread that has claimed the entry marks it as busy next.
        while entry.status() == Status::Submitted {
            std::hint::spin_loop();
        }
        if entry.cancel() {
            self.counters.interrupted += 1;
            if let Some(threads) = &self.threads {
                threads.interrupt(index);
            }
        }
    }

    /// Cancels all calls, and waits two seconds at most until they have ended. Returns whether they
    /// have. If not, the kernel may still use their memory.
    pub fn shut_down(&mut self) -> bool {
        self.shut_down_with(|_, _| {})
    }

    /// The same; `ended` gets each completion with its scratch memory.
    pub(crate) fn shut_down_with(&mut self, mut ended: impl FnMut(Completion, &Scratch)) -> bool {
        if !self.process.is_current() {
            // The parent's threads do not exist here.
            return true;
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        for index in 0..self.slots.len() as u32 {
            let generation = self.slots[index as usize].generation;
            self.cancel(EntryId { index, generation });
        }
        while self.outstanding() > 0 {
            while let Some(completion) = self.next() {
                // SAFETY: the call has ended, and nothing is posted meanwhile.
                let scratch = unsafe { &*self.scratch(completion.id.index()) };
                ended(completion, scratch);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if self.outstanding() == 0 {
                break;
            }
            if remaining.is_zero() || self.wait(Some(remaining)).is_err() {
                return false;
            }
        }
        true
    }

    /// Prepares an operation and posts it.
    ///
    /// # Errors
    /// As [`Pages::post`]; the operation stays with the caller.
    ///
    /// # Safety
    /// The operation is not dropped before [`Operation::finish`] was called after its completion,
    /// or [`Pages::shut_down`] has returned true.
    #[inline]
    pub(crate) unsafe fn post_operation(
        &mut self,
        operation: &mut impl Operation,
    ) -> Result<EntryId, Busy> {
        // SAFETY: `Operation` and the caller promise it.
        unsafe { self.post_with(|scratch| operation.prepare(scratch)) }
    }

    /// Posts a call that may refer to the scratch memory of its entry.
    ///
    /// # Errors
    /// As [`Pages::post`].
    ///
    /// # Safety
    /// As for [`Pages::post`].
    #[inline]
    pub(crate) unsafe fn post_with(
        &mut self,
        prepare: impl FnOnce(&mut Scratch) -> Call,
    ) -> Result<EntryId, Busy> {
        let Some(index) = self.free.last() else {
            self.counters.throttled += 1;
            return Err(Busy);
        };
        // SAFETY: the entry is free, so nothing else uses its scratch memory.
        let call = prepare(unsafe { &mut *self.scratch(*index as usize) });
        // SAFETY: the caller promises it.
        unsafe { self.post(&call) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let ended = self.shut_down();
        if !ended {
            mem::forget(self.scratch.take());
        }
        if let Some(threads) = &self.threads
            && self.process.is_current()
        {
            let timeout = if ended { STOP_TIMEOUT } else { Duration::ZERO };
            threads.stop(Instant::now() + timeout);
        }
    }
}

/// Returns scratch memory of entries, of which the system gives pages when they are first used.
fn zeroed_scratch(entries: usize) -> Box<[UnsafeCell<Scratch>]> {
    const WORDS: usize = size_of::<Scratch>() / size_of::<u64>();
    let zeroed: Box<[u64]> = vec![0; entries * WORDS].into_boxed_slice();
    let first = Box::into_raw(zeroed).cast::<UnsafeCell<Scratch>>();
    // SAFETY: so many cells of words have the size and alignment of the words.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(first, entries)) }
}

/// Result of a call for which no thread can be started, as of pthread_create(3).
const NO_THREAD: isize = -(libc::EAGAIN as isize);

/// In a batch: the call in place is measured.
const MEASURED: u32 = 1 << 31;

/// In the queue of the ring: it waits for the descriptor of the call.
const POLL: u32 = 1 << 31;

/// Returns the free entries, in the order in which a stack gives them away: in turn from as many
/// pages as threads may be active, so that these work apart.
fn free_entries(pages: usize, threads: usize) -> Vec<u32> {
    let mut free = Vec::with_capacity(pages * ENTRIES);
    for first in (0..pages).step_by(threads) {
        let group = first..(first + threads).min(pages);
        for place in 0..ENTRIES {
            free.extend(group.clone().map(|page| (page * ENTRIES + place) as u32));
        }
    }
    free.reverse();
    free
}

/// What a call needs to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    /// A free entry: it is bounded.
    Entry,
    /// A free entry that is not reserved for bounded calls.
    Unreserved,
    /// The same, and a thread that may wait indefinitely.
    Thread,
}

impl Room {
    pub(crate) const ALL: [Room; 3] = [Room::Entry, Room::Unreserved, Room::Thread];

    #[inline]
    fn of(waits: Waits, pinned: Option<Executor>) -> Self {
        let on_thread = match waits {
            Waits::Bounded => return Room::Entry,
            Waits::Indefinitely => !matches!(pinned, Some(Executor::InPlace | Executor::Ring)),
            Waits::UntilReady(..) => false,
            Waits::Ready(..) | Waits::AfterReady(..) | Waits::ReadyThenBlocks(..) => {
                pinned == Some(Executor::Threads)
            }
        };
        if on_thread { Room::Thread } else { Room::Unreserved }
    }
}

/// Returns whether a call has to wait for its descriptor.
#[inline]
fn is_not_ready(result: isize) -> bool {
    const AGAIN: isize = -(libc::EAGAIN as isize);
    const IN_PROGRESS: isize = -(libc::EINPROGRESS as isize);
    const ALREADY: isize = -(libc::EALREADY as isize);
    matches!(result, AGAIN | IN_PROGRESS | ALREADY)
}
