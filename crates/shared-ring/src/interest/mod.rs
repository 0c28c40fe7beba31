//! Banga, Mogul and Druschel's interface, "A scalable and explicit event delivery mechanism for
//! UNIX" (1999): a thread declares once what it is interested in, and asks for the next events.
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
//! An event tells that something has happened, once. Who does not read all there is has to remember
//! so; the descriptor is not told of again until something happens to it. Descriptors should be
//! non-blocking, as another thread may be quicker.
//!
//! | concept | section | here | what differs, and why |
//! |---|---|---|---|
//! | `declare_interest` | 4 | [`declare_interest`], [`Interests::declare_interest`] | What is true already is also an event: epoll tells so when a descriptor is added. |
//! | interest mask | 4 | [`Mask`] | The same bits. |
//! | no interest: mask 0 | 4 | `Mask::empty()` | Costs no system call. |
//! | state at declaration, older than any queued event | 4 | `Some(&mut state)` | Asked by poll(2), before the kernel is told to queue events. |
//! | closing removes | 4, 6 | the kernel's registration goes by itself | A number that is used again is recognised when it is declared: adding it then succeeds. What a scan finds is checked. Hints of a file that lives on under another number are dropped. |
//! | `get_next_event`, `array_max` | 4 | [`get_next_event`], the length of the array | An array without room is refused. |
//! | current state, reports no longer true suppressed | 4 | one poll(2) for the candidates of a call | epoll looks too when it hands out a hint. A race with other threads remains, as in the paper. |
//! | never waits to fill the array | 4 | the same | |
//! | timeout | 4 | `Option<Duration>` | A signal does not end the wait. |
//! | INTERESTED.read, .write, .except | 6 | one table of flags by descriptor | Three bit maps are one look-up more each. |
//! | HINTS, first in first out | 4, 6 | [`Interests::with_hints`], fed by edge-triggered epoll | A call takes no more hints from the kernel than its array has room for. Those that it leaves there stay in order, and vanish when their descriptor is closed. |
//! | reverse-mapping list, kept until close | 6 | the registration with epoll | Revoked interest costs a hint that is dropped, as in the paper. |
//! | a bit that coalesces | 6 | the bit beside the queue; epoll's own before it | |
//! | overflow: discard, linear search in descriptor order | 6 | the same, from a cursor that is kept between calls | See below. |
//! | the kernel's list with one element in each socket (a reviewer's) | 6 | epoll's ready list is that | So hints overflow only where their number is bounded on purpose. |
//! | several threads: all are told | 4 | each has an epoll of its own | |
//! | `SO_WAKEUP_ONE` | 4 | [`Mask::WAKE_ONE`] (`EPOLLEXCLUSIVE`) | For each thread's declaration, not for the socket. Not with [`Mask::EXCEPT`], which the kernel refuses. Threads that were passed over find the event when they come, if it is true still. |
//! | `declare_processwide_interest` | 9 | [`declare_processwide_interest`], [`ProcessWide`] | Implies wake-one. |
//! | priorities | 9, footnote 1 | none | Hints lie in the kernel's queue, which has none. |
//! | sockets only | 6 | all that epoll takes | A file on a disk is refused (`EPERM`); it is always ready. |
//!
//! **Fairness after an overflow.** The paper's search begins at the lowest descriptor each time, so
//! that with an array smaller than the set the highest may starve. Here a search goes on where the
//! last call ended, goes around once, and no hint is taken meanwhile; so each descriptor has its turn
//! before any has its second.

mod edges;
mod hints;
mod process;
mod sets;

pub use edges::{EpollEdges, HintSource};
pub(crate) use hints::HintQueue;
pub use process::ProcessWide;
pub(crate) use sets::InterestSets;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bitflags::bitflags;
use rustix::process::{Resource, getrlimit};

use crate::poller::PollNow;
use crate::{Fd, Linux};

bitflags! {
    /// What is of interest, and what is true.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Mask: u32 {
        /// Reading, or accepting, will not wait.
        const READ = 0x1;
        /// Writing will not wait, or a connect has ended.
        const WRITE = 0x2;
        /// There is urgent data.
        const EXCEPT = 0x4;
        /// Only the first thread that waits is woken. Not reported.
        const WAKE_ONE = 0x8;
    }
}

impl Mask {
    const fn all_states() -> Self {
        Mask::READ.union(Mask::WRITE).union(Mask::EXCEPT)
    }

    const FLAGS: [(Mask, i16); 3] = [
        (Mask::READ, libc::POLLIN | libc::POLLRDHUP),
        (Mask::WRITE, libc::POLLOUT),
        (Mask::EXCEPT, libc::POLLPRI),
    ];

    /// In the format of poll(2).
    fn to_poll(self) -> i16 {
        let wanted = Self::FLAGS.iter().filter(|(mask, _)| self.contains(*mask));
        wanted.fold(0, |all, (_, flags)| all | flags)
    }

    /// What poll(2) says. Of what is broken, everything is true that was asked for.
    fn from_poll(entry: &libc::pollfd) -> Self {
        let broken = entry.revents & (libc::POLLHUP | libc::POLLERR) != 0;
        let state = if broken { entry.events } else { entry.revents };
        let said = Self::FLAGS.iter().filter(|(_, flags)| state & flags != 0);
        said.fold(Mask::empty(), |all, (mask, _)| all | *mask)
    }
}

/// An event, as [`get_next_event`] reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The descriptor's number.
    pub fd: RawFd,
    /// What is true of it now, of what was declared.
    pub mask: Mask,
}

/// Why a call was refused.
#[derive(Debug)]
pub enum Error {
    /// The array for events has no room.
    EmptyArray,
    /// Exceptions can't be delivered to one thread only.
    ExceptWithWakeOne,
    /// A system call failed.
    System(&'static str, io::Error),
}

impl Error {
    fn of(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Error::System(call, errno.into())
    }

    fn in_call(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Error::System(call, error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::EmptyArray => f.write_str("the array has no room for an event"),
            Error::ExceptWithWakeOne => f.write_str(
                "the kernel can't wake only one thread for an exception (EPOLLEXCLUSIVE); declare \
                 it in each thread, without WAKE_ONE",
            ),
            Error::System(call, error) => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System(_, error) => Some(error),
            Error::EmptyArray | Error::ExceptWithWakeOne => None,
        }
    }
}

/// What is true of a descriptor now, of what is asked for; with nothing asked for, all of it.
fn state_of(fd: BorrowedFd<'_>, mask: Mask) -> Result<Mask, Error> {
    let asked = if mask.to_poll() == 0 { Mask::all_states() } else { mask };
    let mut array = [libc::pollfd { fd: fd.as_raw_fd(), events: asked.to_poll(), revents: 0 }];
    Linux::default().poll_now(&mut array).map_err(Error::in_call("poll"))?;
    Ok(Mask::from_poll(&array[0]))
}

/// The interests of one thread, for who wants to hold them in hand; [`declare_interest`] and
/// [`get_next_event`] have the calling thread's.
pub struct Interests {
    sets: InterestSets,
}

impl Interests {
    /// Makes empty sets. The queue of hints has a place for each descriptor that the process may
    /// have, so that it does not overflow.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new() -> Result<Self, Error> {
        Self::with_hints(descriptors())
    }

    /// Makes empty sets with a queue of at most so many hints.
    ///
    /// # Errors
    /// When there is no descriptor left.
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
        let mut left = timeout;
        let until = timeout.filter(|t| !t.is_zero()).and_then(|t| Instant::now().checked_add(t));
        loop {
            let found =
                self.sets.next_events(array.len(), left).map_err(Error::in_call("epoll_wait"))?;
            for (event, entry) in array.iter_mut().zip(found) {
                *event = Event { fd: entry.fd, mask: Mask::from_poll(entry) };
            }
            if !found.is_empty() || left == Some(Duration::ZERO) {
                return Ok(found.len());
            }
            // What was hinted at was no longer true, or a signal was handled.
            left = until.map(|until| until.saturating_duration_since(Instant::now()));
        }
    }

    /// How often the queue of hints has overflowed.
    pub fn overflows(&self) -> u64 {
        self.sets.overflows()
    }
}

/// How many descriptors the process may have.
fn descriptors() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |max| max as usize)
}

thread_local! {
    static THREAD: RefCell<Option<Interests>> = const { RefCell::new(None) };
}

/// What all threads are interested in that use the calls of this module.
fn process() -> Result<Arc<ProcessWide>, Error> {
    static PROCESS: Mutex<Option<Arc<ProcessWide>>> = Mutex::new(None);
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(process) = &*process {
        return Ok(Arc::clone(process));
    }
    let new = Arc::new(ProcessWide::new()?);
    Ok(Arc::clone(process.insert(new)))
}

/// The calling thread's interests, made by its first call.
fn with_thread<T>(act: impl FnOnce(&mut Interests) -> Result<T, Error>) -> Result<T, Error> {
    THREAD.with_borrow_mut(|thread| match thread {
        Some(interests) => act(interests),
        None => act(thread.insert(process()?.join(descriptors())?)),
    })
}

/// Declares what the calling thread is interested in of a descriptor, in place of what it declared
/// before; with nothing, the interest is revoked. It ends by itself when the descriptor is closed.
///
/// With `state`, also tells what is true now, of what is declared. Whatever happens later is queued
/// as an event.
///
/// # Errors
/// [`Error::ExceptWithWakeOne`] for exceptions with [`Mask::WAKE_ONE`], those of poll(2) and of epoll_ctl(2).
pub fn declare_interest(fd: impl AsFd, mask: Mask, state: Option<&mut Mask>) -> Result<(), Error> {
    with_thread(|interests| interests.declare_interest(fd, mask, state))
}

/// Declares an interest of every thread of the process, also of those that begin later. An event is
/// for the first that waits.
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

/// Takes the next events of the calling thread, oldest first, as many as are there and the array has
/// room for, and returns how many. Waits only while there is none, at most `timeout`, for ever with
/// `None`; 0 when the time is over.
///
/// The masks say what is true of the descriptors now. An event of which nothing is true any more is
/// dropped.
///
/// # Errors
/// [`Error::EmptyArray`], and those of epoll_wait(2) and poll(2).
pub fn get_next_event(array: &mut [Event], timeout: Option<Duration>) -> Result<usize, Error> {
    with_thread(|interests| interests.get_next_event(array, timeout))
}
