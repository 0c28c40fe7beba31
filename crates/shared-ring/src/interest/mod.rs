//! Banga, Mogul and Druschel's interface, "A scalable and explicit event delivery mechanism for
//! UNIX" (1999): a thread declares its interests once, and then takes the next events.
//!
//! ```
//! use std::io::Write;
//! use std::os::fd::AsRawFd;
//! use std::os::unix::net::UnixStream;
//!
//! use shared_ring::interest::{Event, Mask, declare_interest, get_next_event};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mut near, far) = UnixStream::pair()?;
//! let mut state = Mask::empty();
//! declare_interest(&far, Mask::READ, Some(&mut state))?;
//! assert_eq!(state, Mask::empty(), "nothing to read yet");
//! near.write_all(b"x")?;
//! let mut events = [Event::default(); 64];
//! let n = get_next_event(&mut events, None)?;
//! assert_eq!(events[..n], [Event { fd: far.as_raw_fd(), mask: Mask::READ }]);
//! # Ok(())
//! # }
//! ```
//!
//! Events are edge-triggered: each is reported once. A program that does not read all data must
//! remember that, as the descriptor is not reported again until its next event. Descriptors should
//! be non-blocking, since another thread may read first.
//!
//! | concept | section | this module | differences and reasons |
//! |---|---|---|---|
//! | `declare_interest` | 4 | [`declare_interest`], [`Interests::declare_interest`] | A state that is already true also causes an event: epoll reports it when a descriptor is added. |
//! | interest mask | 4 | [`Mask`] | The same bits. |
//! | no interest: mask 0 | 4 | `Mask::empty()` | Costs no system call. |
//! | state at declaration, older than any queued event | 4 | `Some(&mut state)` | Queried with poll(2) before epoll queues events. |
//! | closing removes | 4, 6 | closing removes the registration | A reused number is detected when it is declared, as adding it then succeeds. Results of a scan are checked. Hints of a file that is still open under another number are dropped. |
//! | `get_next_event`, `array_max` | 4 | [`get_next_event`], the length of the array | An empty array is an error. |
//! | current state; suppresses reports that are no longer true | 4 | one poll(2) for the candidates of a call | epoll checks too when it returns a hint. A race with other threads remains, as in the paper. |
//! | never waits to fill the array | 4 | the same | |
//! | timeout | 4 | `Option<Duration>` | A signal does not end the wait. |
//! | INTERESTED.read, .write, .except | 6 | one table of flags by descriptor | Three bit maps would cost a look-up more each. |
//! | HINTS, first in first out | 4, 6 | [`Interests::with_hints`], fed by edge-triggered epoll | A call takes at most as many hints from the kernel as its array has room for. The others stay in order, and disappear when their descriptor is closed. |
//! | reverse-mapping list, kept until close | 6 | the registration with epoll | Revoked interest costs a hint that is dropped, as in the paper. |
//! | a bit that coalesces | 6 | the bit beside the queue, and epoll's own | |
//! | overflow: discard, linear search in descriptor order | 6 | the same, from a cursor that is kept between calls | See below. |
//! | the kernel's list with one element in each socket (a reviewer's proposal) | 6 | epoll's ready list | So hints overflow only if their number is bounded on purpose. |
//! | several threads: all are notified | 4 | an epoll instance for each | |
//! | `SO_WAKEUP_ONE` | 4 | [`Mask::WAKE_ONE`] (`EPOLLEXCLUSIVE`) | For each thread's declaration, not for the socket. Not with [`Mask::EXCEPT`], which the kernel rejects. Threads that were not woken receive the event when they wait, if it is still true. |
//! | `declare_processwide_interest` | 9 | [`declare_processwide_interest`], [`ProcessWide`] | Implies wake-one. |
//! | priorities | 9, footnote 1 | none | The kernel's queue of hints has none. |
//! | sockets only | 6 | all files that epoll supports | A file on a disk is rejected (`EPERM`); it is always ready. |
//!
//! **Fairness after an overflow.** The paper's search begins at the lowest descriptor each time, so
//! with an array smaller than the set the highest may starve. This search continues after the last
//! descriptor of the previous call, and no hint is taken until it has visited every descriptor once.
//! So each descriptor has its turn before any has its second.

pub(crate) mod edges;
mod error;
mod hints;
mod mask;
mod process;
mod sets;

pub(crate) use edges::{EpollEdges, HintSource};
pub use error::Error;
pub(crate) use hints::HintQueue;
pub use mask::Mask;
pub use process::ProcessWide;
pub(crate) use sets::InterestSets;

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::{Fd, Linux};
use mask::state_of;

/// An event, as [`get_next_event`] reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The descriptor's number.
    pub fd: RawFd,
    /// Its current state, of the declared interests.
    pub mask: Mask,
}

/// The interests of one thread, as an explicit value. [`declare_interest`] and [`get_next_event`]
/// use those of the calling thread.
pub struct Interests {
    sets: InterestSets,
}

impl std::fmt::Debug for Interests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interests").finish_non_exhaustive()
    }
}

impl Interests {
    /// Creates empty sets. The queue of hints has room for each descriptor that the process may
    /// have, so it does not overflow.
    ///
    /// # Errors
    /// If there is no free descriptor.
    pub fn new() -> Result<Self, Error> {
        Self::with_hints(descriptors())
    }

    /// Creates empty sets with a queue of at most `max` hints.
    ///
    /// # Errors
    /// If there is no free descriptor.
    pub fn with_hints(max: usize) -> Result<Self, Error> {
        let edges = EpollEdges::new().map_err(Error::in_call("epoll_create1"))?;
        Ok(Interests { sets: InterestSets::new(edges, Linux::default(), max) })
    }

    /// See [`declare_interest`].
    ///
    /// # Errors
    /// [`Error::ExceptWithWakeOne`] for exceptions with [`Mask::WAKE_ONE`], those of poll(2) and of
    /// epoll_ctl(2).
    pub fn declare_interest(
        &mut self,
        fd: impl AsFd,
        mask: Mask,
        state: Option<&mut Mask>,
    ) -> Result<(), Error> {
        let fd = fd.as_fd();
        let one = mask.contains(Mask::WAKE_ONE);
        if one && mask.contains(Mask::EXCEPT) {
            return Err(Error::ExceptWithWakeOne);
        }
        if let Some(state) = state {
            *state = state_of(fd, mask)?;
        }
        let (fd, wanted) = (Fd::from_raw(fd.as_raw_fd()), mask.to_poll());
        if wanted == 0 {
            self.sets.replace(fd, 0);
            return Ok(());
        }
        self.sets.declare(fd, wanted, one).map_err(Error::in_call("epoll_ctl"))
    }

    /// See [`get_next_event`].
    ///
    /// # Errors
    /// [`Error::EmptyArray`], and those of epoll_wait(2) and poll(2).
    pub fn get_next_event(
        &mut self,
        array: &mut [Event],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        if array.is_empty() {
            return Err(Error::EmptyArray);
        }
        let mut remaining = timeout;
        let until = timeout.filter(|t| !t.is_zero()).and_then(|t| Instant::now().checked_add(t));
        loop {
            let found = self
                .sets
                .next_events(array.len(), remaining)
                .map_err(Error::in_call("epoll_wait"))?;
            for (event, entry) in array.iter_mut().zip(found) {
                *event = Event { fd: entry.fd, mask: Mask::from_poll(entry) };
            }
            if !found.is_empty() || remaining == Some(Duration::ZERO) {
                return Ok(found.len());
            }
            // No hint was still true, or a signal was handled.
            remaining = until.map(|until| until.saturating_duration_since(Instant::now()));
        }
    }

    /// Returns the number of overflows of the queue of hints.
    pub fn overflows(&self) -> u64 {
        self.sets.overflows()
    }
}

impl ProcessWide {
    /// Creates the interests of another thread, with a queue of at most `hints` hints.
    ///
    /// # Errors
    /// If there is no free descriptor.
    pub fn join(self: &Arc<Self>, hints: usize) -> Result<Interests, Error> {
        let mut interests = Interests::with_hints(hints)?;
        let id = self.add_thread(interests.sets.source().epoll())?;
        interests.sets.join(Arc::clone(self), id);
        Ok(interests)
    }
}

/// Returns the maximum number of descriptors of the process.
fn descriptors() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |max| max as usize)
}

thread_local! {
    static THREAD: RefCell<Option<Interests>> = const { RefCell::new(None) };
}

/// Returns the interests of all threads that use the functions of this module.
fn process() -> Result<Arc<ProcessWide>, Error> {
    static PROCESS: Mutex<Option<Arc<ProcessWide>>> = Mutex::new(None);
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(process) = &*process {
        return Ok(Arc::clone(process));
    }
    let new = Arc::new(ProcessWide::new()?);
    Ok(Arc::clone(process.insert(new)))
}

/// Calls `f` with the calling thread's interests, which the first call creates.
fn with_thread<T>(f: impl FnOnce(&mut Interests) -> Result<T, Error>) -> Result<T, Error> {
    THREAD.with_borrow_mut(|thread| match thread {
        Some(interests) => f(interests),
        None => f(thread.insert(process()?.join(descriptors())?)),
    })
}

/// Declares the calling thread's interest in a descriptor and replaces the previous one. An empty
/// mask revokes it; closing the descriptor ends it.
///
/// With `state`, also stores the current state, limited to `mask` unless that is empty. Later
/// changes are queued as events.
///
/// # Errors
/// [`Error::ExceptWithWakeOne`] for exceptions with [`Mask::WAKE_ONE`], those of poll(2) and of epoll_ctl(2).
pub fn declare_interest(fd: impl AsFd, mask: Mask, state: Option<&mut Mask>) -> Result<(), Error> {
    with_thread(|interests| interests.declare_interest(fd, mask, state))
}

/// Declares an interest for every thread of the process, including later ones. An event goes to the
/// first thread that waits.
///
/// # Errors
/// [`Error::ExceptWithWakeOne`] for exceptions, those of poll(2) and of epoll_ctl(2).
pub fn declare_processwide_interest(
    fd: impl AsFd,
    mask: Mask,
    state: Option<&mut Mask>,
) -> Result<(), Error> {
    process()?.declare_interest(fd, mask, state)
}

/// Takes the next events of the calling thread, oldest first, up to the length of the array, and
/// returns their number. If there is none, waits for at most `timeout`, or without limit with
/// `None`; returns 0 after the timeout.
///
/// The masks report the current state of the descriptors. Events that are no longer true are
/// dropped.
///
/// # Errors
/// [`Error::EmptyArray`], and those of epoll_wait(2) and poll(2).
pub fn get_next_event(array: &mut [Event], timeout: Option<Duration>) -> Result<usize, Error> {
    with_thread(|interests| interests.get_next_event(array, timeout))
}
