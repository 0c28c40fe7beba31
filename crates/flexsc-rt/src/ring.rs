//! The ring executor: entries whose calls io_uring has an operation for.
//!
//! The owner keeps such entries: no thread sees them. The kernel returns the number of an entry, so a
//! completion is found without a scan.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use shared_ring::SetupError;
use shared_ring::author::{CallJob, CallRing};

use crate::raw::INTERRUPTED;

/// What remains to be submitted, and the ring.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The ring, or the reason why there is none. `None` until a call wants it.
    calls: Option<Result<CallRing, SetupError>>,
    entries: usize,
    /// Entries that were not pushed yet, in order.
    pub(crate) queue: VecDeque<u32>,
    /// Names of calls to cancel, in order.
    cancels: VecDeque<u64>,
    in_flight: usize,
}

impl Ring {
    pub(crate) fn new(entries: usize) -> Self {
        Ring {
            calls: None,
            entries,
            queue: VecDeque::with_capacity(entries),
            cancels: VecDeque::with_capacity(entries),
            in_flight: 0,
        }
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
        let ring = CallRing::new(self.entries as u32)?;
        watch(ring.as_fd()).map_err(|errno| SetupError::Other(errno.raw_os_error()))?;
        Ok(ring)
    }

    fn calls(&mut self) -> Option<&mut CallRing> {
        self.calls.as_mut()?.as_mut().ok()
    }

    /// Returns whether calls, or their cancellations, are in the kernel or on their way.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.is_empty()
    }

    /// Returns whether the kernel has not taken everything.
    pub(crate) fn is_behind(&mut self) -> bool {
        let waits = !self.queue.is_empty() || !self.cancels.is_empty();
        waits || self.calls().is_some_and(CallRing::has_queued)
    }

    /// Pushes a call. Returns false if the kernel takes no more at the moment.
    ///
    /// # Safety
    /// As for [`CallRing::push`].
    pub(crate) unsafe fn push(
        &mut self,
        name: u64,
        number: u32,
        args: &[usize; 6],
    ) -> Result<bool, Errno> {
        let Some(ring) = self.calls() else { return Ok(false) };
        let job = CallJob { number, args: *args };
        // SAFETY: the caller promises it.
        let push = |ring: &mut CallRing| unsafe { ring.push(name, &job) };
        let pushed = push(ring) || (ring.enter()? > 0 && push(ring));
        self.in_flight += usize::from(pushed);
        Ok(pushed)
    }

    /// Requests the cancellation of a call at the next entry into the kernel.
    pub(crate) fn cancel(&mut self, name: u64) {
        self.cancels.push_back(name);
    }

    /// Pushes cancellations, before any call that could have the entry of a cancelled one.
    pub(crate) fn push_cancels(&mut self) -> Result<(), Errno> {
        let Some(Ok(ring)) = &mut self.calls else { return Ok(()) };
        while let Some(name) = self.cancels.front() {
            if !ring.cancel(*name) && (ring.enter()? == 0 || !ring.cancel(*name)) {
                break;
            }
            self.cancels.pop_front();
        }
        Ok(())
    }

    /// Enters the kernel if it has something to do.
    pub(crate) fn enter(&mut self) -> Result<(), Errno> {
        let Some(ring) = self.calls() else { return Ok(()) };
        if ring.needs_entry() {
            ring.enter()?;
        }
        Ok(())
    }

    /// Takes the name and the result of a call that has ended.
    pub(crate) fn next(&mut self) -> Option<(u64, isize)> {
        let (name, result) = self.calls()?.next_result()?;
        self.in_flight -= 1;
        let result = if result == -libc::ECANCELED { INTERRUPTED } else { result as isize };
        Some((name, result))
    }
}
