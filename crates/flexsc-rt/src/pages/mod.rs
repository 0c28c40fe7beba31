//! The owner's side of the syscall pages: register, post, wait, take, cancel (section 3.2).

mod blocking;
mod cancel;
mod config;
mod counters;
mod execute;
mod files;
mod in_ring;
mod measure;
mod measurements;
mod post;
mod room;
mod routing;
mod take;
mod wait;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;

use shared_ring::author::Process;
use shared_ring::uring::SetupError;

// A simulated machine includes this file with modules of its own.
use super::readiness::Readiness;
use super::ring::Ring;
use super::threads::Threads;
use crate::call::{Call, Executor, Waits};
use crate::choice::{Choice, Choices, Depth, Row};
use crate::entry_queue::{EntryQueue, Links};
use crate::error::Error;
use crate::interrupt;
use crate::page::ENTRIES;
use crate::registered::{FileTable, NO_PLACE};
use crate::shared::Shared;

pub use config::Config;
pub(crate) use config::MAX_ENTRIES;
pub use counters::Counters;
use measurements::{MeasurementId, Measurements};
pub(crate) use room::Room;
pub use take::Completion;

/// Posted calls from which on the ring makes those of sockets and files, if the owner sleeps in it. With fewer, an entry
/// into the ring and its completion cost more than the calls in place.
const RING_BATCH: usize = 8;

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

/// Memory of an entry that calls use for small structures; the kernel may write to it.
pub type Scratch = [u64; 32];

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
    /// The ring reports changes of its descriptor, and the call is made at each, until it is not refused with `EAGAIN`.
    Watched,
    /// The ring has reported room by a poll that is being ended.
    EndingPoll,
    /// The call was made at a report of changes, which are being ended.
    EndingWatch,
    /// The ring waits for its descriptor, or is ending that wait; the call is cancelled.
    CancelledPolled,
    /// It waits for its descriptor.
    Waiting,
    /// Its descriptor is ready, and it waits for a thread.
    Ready,
    /// It is done, and in the owner's queue.
    Done,
}

/// No descriptor. An option would make a [`Slot`] larger.
const NO_END: RawFd = -1;

/// The owner's notes on an entry.
#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    place: Place,
    pinned: Option<Executor>,
    uncancellable: bool,
    /// The room that it needed when it was posted.
    room: Room,
    /// It is on a thread, and was posted without one that may wait indefinitely.
    is_indefinite: bool,
    /// The ring makes it in a batch, if the owner sleeps there.
    in_batches: bool,
    /// The ring is to report changes: it has reported the descriptor as ready, and the call may have found that it is not.
    by_changes: bool,
    waits: Waits,
    /// The end that it waits for in turn with that of `waits`; most calls have [`NO_END`].
    other_end: RawFd,
    /// Times in a row that the call was not ready although both ends were.
    ready_turns: u8,
    /// The place of its file in the table of the ring, or [`NO_PLACE`].
    file: u32,
    row: Row,
    /// The measurement that counts it, if a thread or the ring has it.
    measured: Option<MeasurementId>,
}

/// Syscall pages, registered by one thread, their owner.
///
/// [`Pages::post`] fills in an entry and enters no kernel; [`Pages::wait`] has all posted calls
/// executed, and sleeps if none completes; [`Pages::next`] takes completions. In a child of fork(2)
/// the pages of the parent execute nothing.
#[derive(Debug)]
pub struct Pages {
    shared: Arc<Shared>,
    pub(super) threads: Option<Threads>,
    max_indefinite: usize,
    max_unreserved: usize,
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
    /// Pages of a shared batch in turn: one of the owner, the others of the active threads.
    lanes: usize,
    /// The owner's end of the queue of completions.
    head: u64,
    readiness: Readiness,
    ring: Ring,
    registered_files: u32,
    /// The table of registered files; `None` until one is to be registered.
    files: Option<FileTable>,
    /// Turns in which a completion was there at once.
    busy_turns: u32,
    choices: Choices,
    measurements: Measurements,
    /// The choice for the calls of a row in this batch.
    chosen: Option<(Row, Choice)>,
    depth: Depth,
    /// Calls that are not bounded.
    unreserved: usize,
    /// Calls that may wait indefinitely on a thread: those in flight of which that is known, and of others those on a
    /// thread.
    indefinite: usize,
    /// Entries of such others that wait for a thread.
    ready: EntryQueue,
    ready_links: Links,
    counters: Counters,
    /// Calls that had been posted when the pages were shut down, of which some did not end.
    gave_up: Option<u64>,
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
        let pages = (config.entries.clamp(1, MAX_ENTRIES) as usize).div_ceil(ENTRIES);
        let entries = pages * ENTRIES;
        let system = |what| move |error: io::Error| Error::System(what, error);
        let shared = Arc::new(Shared::new(pages).map_err(system("create an eventfd"))?);
        let threads = (config.threads > 0).then(|| {
            let active = config.active_threads.max(1);
            let (threads, heartbeat) = (config.threads, config.heartbeat);
            Threads::new(Arc::clone(&shared), threads, active, heartbeat, config.specialization)
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
            room: Room::Entry,
            is_indefinite: false,
            in_batches: false,
            by_changes: false,
            waits: Waits::Bounded,
            other_end: NO_END,
            ready_turns: 0,
            file: NO_PLACE,
            row: Row::default(),
            measured: None,
        };
        let mut ring = Ring::new(entries);
        let sleeps_in_ring = config.uses_ring
            && config.sleep_in_ring
            && ring.set_up_for_sleep(shared.bell.as_fd(), &Call::of_batches());
        let lanes = if threads.is_some() { config.active_threads.max(1) } else { 1 };
        Ok(Pages {
            choices: Choices::new(if threads.is_some() { lanes } else { 0 }),
            threads,
            given: Vec::with_capacity(entries),
            lanes,
            max_indefinite: usize::from(config.threads).saturating_sub(1).max(1),
            max_unreserved: entries - (config.reserve as usize).min(entries - 1),
            executor: config.executor,
            may_use_ring: config.uses_ring,
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
            registered_files: config.registered_files,
            files: None,
            busy_turns: 0,
            measurements: Measurements::new(),
            chosen: None,
            depth: Depth::of(0),
            unreserved: 0,
            indefinite: 0,
            ready: EntryQueue::default(),
            ready_links: Links::new(entries),
            counters: Counters::default(),
            gave_up: None,
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

    /// Returns whether this is a child of fork(2), where nothing completes.
    #[inline]
    pub(crate) fn is_in_child(&self) -> bool {
        !self.process.is_current()
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

/// Returns whether a call has to wait for its descriptor.
#[inline]
fn is_not_ready(result: isize) -> bool {
    const AGAIN: isize = -(libc::EAGAIN as isize);
    const IN_PROGRESS: isize = -(libc::EINPROGRESS as isize);
    const ALREADY: isize = -(libc::EALREADY as isize);
    matches!(result, AGAIN | IN_PROGRESS | ALREADY)
}
