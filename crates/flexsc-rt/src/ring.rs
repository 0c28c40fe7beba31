//! The ring executor: entries whose calls io_uring has an operation for.
//!
//! The owner keeps such entries: no thread sees them. The kernel returns the number of an entry, so a
//! completion is found without a scan.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use shared_ring::uring::{Mode, SetupError};

use super::call_ring::{CallJob, CallRing, Pushed};
use crate::call::Direction;
use crate::registered::NO_PLACE;

/// The name of the wait for the owner's bell; no entry has it.
const BELL: u64 = CallRing::MAX_NAME;

/// Result of a call or wait that was cancelled in the ring; calls may have it otherwise, too.
pub(crate) const CANCELLED: isize = -(libc::ECANCELED as isize);

/// The ring, and the calls and cancellations that remain to be submitted.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The ring, or the reason why there is none. `None` until a call wants it.
    calls: Option<Result<CallRing, SetupError>>,
    entries: usize,
    /// Entries that were not pushed yet, in order.
    pub(crate) queue: VecDeque<u32>,
    /// Names of calls to cancel, in order.
    cancels: VecDeque<u64>,
    /// Cancellations were pushed, which the kernel may not have taken.
    pushed_cancels: bool,
    in_flight: usize,
    /// The owner's bell, if the owner sleeps in the ring.
    bell: Option<BellWatch>,
    entered: u64,
}

/// The descriptor that ends the owner's sleep.
#[derive(Debug)]
struct BellWatch {
    fd: RawFd,
    /// The ring waits for it.
    is_watched: bool,
    has_rung: bool,
}

impl Ring {
    pub(crate) fn new(entries: usize) -> Self {
        Ring {
            calls: None,
            entries,
            queue: VecDeque::with_capacity(entries),
            cancels: VecDeque::with_capacity(entries),
            pushed_cancels: false,
            in_flight: 0,
            bell: None,
            entered: 0,
        }
    }

    /// Sets up a ring in which the owner sleeps, if it has operations for all these calls. Else it is set up later, if
    /// a call is given to it. Returns whether it was.
    pub(crate) fn set_up_for_sleep(
        &mut self,
        bell: BorrowedFd<'_>,
        calls: &[(u32, [usize; 6])],
    ) -> bool {
        let Ok(mut ring) = CallRing::new(self.entries as u32, Mode::Deferred) else { return false };
        let has = |(number, args): &(u32, [usize; 6])| {
            ring.has_operation(&CallJob { number: *number, args: *args })
        };
        let has_all = calls.iter().all(has);
        if has_all {
            self.calls = Some(Ok(ring));
            self.bell =
                Some(BellWatch { fd: bell.as_raw_fd(), is_watched: false, has_rung: false });
        }
        has_all
    }

    /// Returns the number of entries into the kernel.
    pub(crate) fn entered(&self) -> u64 {
        self.entered
    }

    /// Returns why there is no ring.
    pub(crate) fn error(&self) -> Option<&SetupError> {
        self.calls.as_ref()?.as_ref().err()
    }

    /// Returns whether the ring can make a call. The first call for which it may have an operation
    /// sets it up; `watch` makes its completions end the owner's sleep.
    pub(crate) fn can_make(
        &mut self,
        number: u32,
        args: &[usize; 6],
        watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> bool {
        let job = CallJob { number, args: *args };
        if self.calls.is_none() && CallRing::is_known(&job) {
            self.calls = Some(self.set_up(watch));
        }
        self.calls().is_some_and(|ring| ring.has_operation(&job))
    }

    #[cold]
    fn set_up(
        &self,
        watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<CallRing, SetupError> {
        let ring = CallRing::new(self.entries as u32, Mode::Cooperative)?;
        watch(ring.as_fd()).map_err(|errno| SetupError::Other(errno.raw_os_error()))?;
        Ok(ring)
    }

    fn calls(&mut self) -> Option<&mut CallRing> {
        self.calls.as_mut()?.as_mut().ok()
    }

    /// Returns whether no call is in the kernel, and neither calls nor cancellations are on their way.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        let has_cancels = self.pushed_cancels || !self.cancels.is_empty();
        self.in_flight == 0 && self.queue.is_empty() && !has_cancels
    }

    /// Returns the number of entries that the kernel has not taken.
    pub(crate) fn queued(&mut self) -> usize {
        self.queue.len() + self.calls().map_or(0, |ring| ring.queued() as usize)
    }

    /// Returns whether the kernel has not taken everything.
    pub(crate) fn is_behind(&mut self) -> bool {
        let waits = !self.queue.is_empty() || !self.cancels.is_empty();
        waits || self.calls().is_some_and(|ring| ring.queued() > 0)
    }

    /// Returns whether there is a ring.
    #[inline]
    pub(crate) fn is_set_up(&self) -> bool {
        matches!(self.calls, Some(Ok(_)))
    }

    /// Pushes a call. It is refused as [`Pushed::Full`] if the kernel takes no more at the moment.
    ///
    /// # Safety
    /// As for [`CallRing::push`], or with a place as for [`CallRing::push_registered`].
    #[inline]
    pub(crate) unsafe fn push(
        &mut self,
        name: u64,
        number: u32,
        args: &[usize; 6],
        place: u32,
    ) -> Result<Pushed, Errno> {
        let job = CallJob { number, args: *args };
        self.push_with(|ring| match place {
            // SAFETY: the caller promises it.
            NO_PLACE => unsafe { ring.push(name, &job) },
            // SAFETY: as above.
            place => unsafe { ring.push_registered(name, &job, place) },
        })
    }

    /// Creates the table of registered files. Returns false if the kernel refuses.
    pub(crate) fn create_file_table(&mut self, places: u32) -> bool {
        self.calls().is_some_and(|ring| ring.create_file_table(places))
    }

    /// Puts a file into a place of the table, or empties the place. Returns false if the kernel refuses.
    pub(crate) fn set_file(&mut self, place: u32, file: Option<BorrowedFd<'_>>) -> bool {
        self.calls().is_some_and(|ring| ring.set_file(place, file))
    }

    /// Pushes a wait until a descriptor is ready. Returns false if the kernel takes no more at the moment.
    pub(crate) fn push_poll(
        &mut self,
        name: u64,
        fd: RawFd,
        direction: Direction,
    ) -> Result<Pushed, Errno> {
        self.push_with(|ring| match ring.push_poll(name, fd, events(direction)) {
            true => Pushed::Queued,
            false => Pushed::Full,
        })
    }

    /// Pushes a multishot wait, for a descriptor that was reported as ready and is not. It reports the present state, and
    /// changes until it is cancelled.
    #[cold]
    pub(crate) fn push_watch(
        &mut self,
        name: u64,
        fd: RawFd,
        direction: Direction,
    ) -> Result<Pushed, Errno> {
        self.push_with(|ring| match ring.push_watch(name, fd, events(direction)) {
            true => Pushed::Queued,
            false => Pushed::Full,
        })
    }

    #[inline]
    fn push_with(&mut self, push: impl Fn(&mut CallRing) -> Pushed) -> Result<Pushed, Errno> {
        let Some(Ok(ring)) = &mut self.calls else { return Ok(Pushed::NoOperation) };
        let mut has_entered = false;
        // One place that pushes is compiled into this function, and costs no call of its own.
        let pushed = loop {
            let pushed = push(ring);
            if pushed != Pushed::Full || has_entered {
                break pushed;
            }
            self.entered += 1;
            if ring.enter(0, None)? == 0 {
                break pushed;
            }
            has_entered = true;
        };
        self.in_flight += usize::from(pushed == Pushed::Queued);
        Ok(pushed)
    }

    /// Requests the cancellation of a call at the next entry into the kernel.
    pub(crate) fn cancel(&mut self, name: u64) {
        self.cancels.push_back(name);
    }

    /// Pushes cancellations. Returns whether none remains: no call or wait may be pushed before, as it could have the
    /// name of one to be cancelled.
    pub(crate) fn push_cancels(&mut self) -> Result<bool, Errno> {
        let Some(Ok(ring)) = &mut self.calls else { return Ok(true) };
        while let Some(name) = self.cancels.front() {
            if !ring.cancel(*name) {
                self.entered += 1;
                if ring.enter(0, None)? == 0 || !ring.cancel(*name) {
                    return Ok(false);
                }
            }
            self.cancels.pop_front();
            self.pushed_cancels = true;
        }
        Ok(true)
    }

    /// Enters the kernel if it has something to do.
    pub(crate) fn enter(&mut self) -> Result<(), Errno> {
        let Some(Ok(ring)) = &mut self.calls else { return Ok(()) };
        if ring.needs_entry() {
            self.entered += 1;
            ring.enter(0, None)?;
        }
        self.pushed_cancels &= ring.queued() > 0;
        Ok(())
    }

    /// Enters the kernel, and sleeps there until there is a completion or the bell rings, at most for a timeout.
    /// Returns false if the kernel has taken nothing of what was submitted; then it has not slept.
    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) -> Result<bool, Errno> {
        let (Some(Ok(ring)), Some(bell)) = (&mut self.calls, &mut self.bell) else {
            return Ok(false);
        };
        bell.is_watched = bell.is_watched || ring.push_poll(BELL, bell.fd, PollFlags::IN);
        // The submissions for which the queue had no room could be all that would end the sleep.
        let is_behind = !self.queue.is_empty() || !self.cancels.is_empty();
        let sleeps = bell.is_watched && !is_behind && timeout != Some(Duration::ZERO);
        let wanted = u32::from(sleeps);
        self.entered += 1;
        let has_submissions = ring.queued() > 0;
        let taken = ring.enter(wanted, timeout.filter(|timeout| !timeout.is_zero()))?;
        self.pushed_cancels &= ring.queued() > 0;
        Ok(taken > 0 || !has_submissions)
    }

    /// Takes the name and a result of a call or wait, and whether more results follow.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(u64, isize, bool)> {
        let (name, result, more) = loop {
            let next = self.calls()?.next_result()?;
            if next.0 != BELL {
                break next;
            }
            self.bell_has_rung();
        };
        self.in_flight -= usize::from(!more);
        Some((name, result as isize, more))
    }

    #[cold]
    fn bell_has_rung(&mut self) {
        if let Some(bell) = &mut self.bell {
            (bell.is_watched, bell.has_rung) = (false, true);
        }
    }

    /// Returns whether the bell has rung since the last time.
    #[inline]
    pub(crate) fn take_ringing(&mut self) -> bool {
        self.bell.as_mut().is_some_and(|bell| std::mem::take(&mut bell.has_rung))
    }
}

/// Returns the events for which a wait waits.
fn events(direction: Direction) -> PollFlags {
    match direction {
        Direction::Read => PollFlags::IN | PollFlags::RDHUP,
        Direction::Write => PollFlags::OUT,
    }
}
