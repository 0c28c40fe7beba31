//! The submission and completion queues that a program shares with the kernel.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use io_uring::squeue::Entry as Sqe;
use io_uring::{IoUring, Probe, cqueue};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, io_uring_enter_arg, io_uring_getevents_arg, io_uring_ptr,
};

use crate::poller::timeout_of;
use crate::{Linux, Process, System, Token};

/// A completion queue entry.
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// Identifies the submission.
    pub user_data: u64,
    /// A count or a descriptor, or a negated errno.
    pub result: i32,
    /// `IORING_CQE_F_...`.
    pub flags: u32,
}

/// A completion as the ring reports it, not decoded yet.
#[derive(Clone, Copy, Debug)]
pub struct RawCompletion(pub(super) Cqe);

impl RawCompletion {
    /// Returns the token of the operation.
    pub fn token(self) -> Token {
        Token::from_bits(self.0.user_data)
    }

    /// Returns a count, a descriptor or a state, or a negated errno.
    pub fn result(self) -> i32 {
        self.0.result
    }

    /// Returns whether more completions of its submission will follow.
    pub fn has_more(self) -> bool {
        cqueue::more(self.0.flags)
    }

    /// Returns whether it carries a receive buffer.
    pub fn has_buffer(self) -> bool {
        cqueue::buffer_select(self.0.flags).is_some()
    }

    /// Returns user data, result and flags.
    pub fn into_parts(self) -> (u64, i32, u32) {
        (self.0.user_data, self.0.result, self.0.flags)
    }

    /// Creates a completion from user data, result and flags.
    pub fn from_parts(user_data: u64, result: i32, flags: u32) -> Self {
        RawCompletion(Cqe { user_data, result, flags })
    }
}

/// The time at which the kernel runs deferred work, which makes completions land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only in a turn (`DEFER_TASKRUN`): maximum throughput. Nothing lands between turns.
    Deferred,
    /// At any entry into the kernel (`COOP_TASKRUN`), including signals. If the listener's signal
    /// is unblocked, connections land while the application computes; else they land in batches.
    Cooperative,
    /// At once, by interrupting the application.
    Immediate,
}

/// A feature that a ring requires besides its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Completions survive an overflow of their queue (NODROP).
    NoDrop,
    /// A wait can have a timeout (EXT_ARG).
    ExtArg,
    /// The kernel reads a submission's arguments when it takes it (SUBMIT_STABLE).
    SubmitStable,
    /// The ring polls sockets internally (FAST_POLL).
    FastPoll,
}

/// Submission and completion queues and their system calls: io_uring(7).
pub trait Ring: Sized {
    /// The machine of the ring.
    type System: System;

    /// Creates the queues.
    ///
    /// # Errors
    /// Those of io_uring_setup(2).
    fn setup(system: &Self::System, mode: Mode, entries: Entries) -> io::Result<Self>;

    /// Returns whether the ring belongs to a process from which this one was forked. Then it accepts
    /// no submissions, returns no completions, and must not be entered.
    fn is_parents(&self) -> bool {
        false
    }

    /// Returns whether the kernel has a feature.
    fn has_feature(&self, feature: Feature) -> bool;

    /// Returns the first of these operations that the kernel does not support.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    fn first_unsupported(
        &self,
        operations: &[(u8, &'static str)],
    ) -> io::Result<Option<&'static str>>;

    /// Registers a buffer ring of `count` entries at `address` for receives.
    ///
    /// # Safety
    /// The buffer ring, and the buffers while they are in it, stay valid until they are
    /// unregistered or the queues are closed.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    unsafe fn register_buffers(&mut self, address: u64, count: u16, group: u16) -> io::Result<()>;

    /// Unregisters the buffer ring; no receive is in flight.
    fn unregister_buffers(&mut self, group: u16);

    /// Limits the kernel's worker threads: for bounded work (files) and for unbounded work.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    fn limit_workers(&mut self, max: [u32; 2]) -> io::Result<()>;

    /// Appends a submission to the queue. Returns false if the queue is full.
    ///
    /// # Safety
    /// The memory that the submission points to does not move, and belongs to the kernel, until the
    /// last completion of the submission was taken.
    unsafe fn push(&mut self, sqe: &Sqe) -> bool;

    /// Returns the number of submissions that the kernel has not taken.
    fn queued(&mut self) -> u32;

    /// Returns whether the submission queue is full.
    fn is_full(&mut self) -> bool;

    /// Returns whether the kernel has deferred work for the next entry.
    fn has_taskrun(&mut self) -> bool;

    /// Returns whether the kernel holds completions for which the queue had no room.
    fn has_overflowed(&mut self) -> bool;

    /// Submits the queue, runs the kernel's deferred work, and waits for `wanted` completions, at
    /// most for `timeout`. Returns the number of submissions taken.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, Errno>;

    /// Returns the number of completions in the queue, without a system call.
    fn landed(&self) -> u32;

    /// Moves the queued completions to `into`, without a system call.
    fn reap(&mut self, into: &mut VecDeque<Cqe>);
}

/// Lengths of the queues.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// Submission queue. If it is full, further submissions wait for the next turn.
    pub submissions: u32,
    /// Completion queue. If it overflows, the kernel keeps the excess, at a cost.
    pub completions: u32,
}

/// A ring of this machine.
///
/// Threads can't share it, as its queues are accessed by plain loads and stores:
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<shared_ring::uring::LinuxRing>();
/// ```
pub struct LinuxRing {
    ring: IoUring,
    /// Makes the type `!Sync`, although the queues are `Sync`.
    not_sync: PhantomData<Cell<()>>,
    /// The process that created the ring. A child of fork(2) shares the queues, so it must not use them.
    process: Process,
}

impl std::fmt::Debug for LinuxRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinuxRing").finish_non_exhaustive()
    }
}

impl AsFd for LinuxRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring is open as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl LinuxRing {
    /// Creates the table of registered files, with so many free places.
    ///
    /// # Errors
    /// Those of io_uring_register(2): `EINVAL` before Linux 5.19, `EMFILE` if the limit on descriptors is lower. `EBADF` in a
    /// child of fork(2).
    pub(super) fn create_file_table(&mut self, places: u32) -> io::Result<()> {
        if self.is_parents() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        self.ring.submitter().register_files_sparse(places)
    }

    /// Puts files into the table from a place on; -1 empties a place. Operations that the kernel has taken keep their file.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub(super) fn set_files(&mut self, first: u32, files: &[RawFd]) -> io::Result<()> {
        if self.is_parents() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        self.ring.submitter().register_files_update(first, files).map(drop)
    }

    /// Takes the oldest queued completion, without a system call.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Cqe> {
        if self.is_parents() {
            return None;
        }
        self.ring.completion().next().map(|cqe| Cqe::of(&cqe))
    }
}

impl Cqe {
    #[inline]
    fn of(entry: &cqueue::Entry) -> Self {
        Cqe { user_data: entry.user_data(), result: entry.result(), flags: entry.flags() }
    }
}

/// The switch of io_uring, which Linux has since 6.6.
pub(super) const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

/// Returns the error of io_uring_setup(2) that means the same for each filter of system calls: a kernel that `has_switch` has
/// io_uring, so a filter returned `ENOSYS`, as that of Podman does.
fn of_a_filter(error: io::Error, has_switch: bool) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOSYS) if has_switch => io::Error::from_raw_os_error(libc::EPERM),
        _ => error,
    }
}

impl Ring for LinuxRing {
    type System = Linux;

    fn setup(_system: &Linux, mode: Mode, entries: Entries) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        let builder = builder
            .setup_clamp()
            .setup_cqsize(entries.completions)
            .setup_submit_all()
            .setup_single_issuer();
        let builder = match mode {
            Mode::Deferred => {
                builder.setup_defer_taskrun().setup_coop_taskrun().setup_taskrun_flag()
            }
            Mode::Cooperative => builder.setup_coop_taskrun().setup_taskrun_flag(),
            Mode::Immediate => builder,
        };
        let ring = builder.build(entries.submissions);
        let ring = ring.map_err(|error| of_a_filter(error, Path::new(SWITCH).exists()))?;
        Ok(LinuxRing { ring, not_sync: PhantomData, process: Process::current() })
    }

    fn is_parents(&self) -> bool {
        !self.process.is_current()
    }

    fn has_feature(&self, feature: Feature) -> bool {
        let params = self.ring.params();
        match feature {
            Feature::NoDrop => params.is_feature_nodrop(),
            Feature::ExtArg => params.is_feature_ext_arg(),
            Feature::SubmitStable => params.is_feature_submit_stable(),
            Feature::FastPoll => params.is_feature_fast_poll(),
        }
    }

    fn first_unsupported(
        &self,
        operations: &[(u8, &'static str)],
    ) -> io::Result<Option<&'static str>> {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        Ok(operations.iter().find(|(code, _)| !probe.is_supported(*code)).map(|(_, name)| *name))
    }

    unsafe fn register_buffers(&mut self, address: u64, count: u16, group: u16) -> io::Result<()> {
        // SAFETY: the caller keeps the memory valid.
        unsafe { self.ring.submitter().register_buf_ring_with_flags(address, count, group, 0) }
    }

    fn unregister_buffers(&mut self, group: u16) {
        // Errors are harmless: closing the queues unregisters it too.
        let _ = self.ring.submitter().unregister_buf_ring(group);
    }

    fn limit_workers(&mut self, mut max: [u32; 2]) -> io::Result<()> {
        self.ring.submitter().register_iowq_max_workers(&mut max)
    }

    #[inline]
    unsafe fn push(&mut self, sqe: &Sqe) -> bool {
        // SAFETY: the caller keeps the memory that it points to.
        self.process.is_current() && unsafe { self.ring.submission().push(sqe) }.is_ok()
    }

    #[inline]
    fn queued(&mut self) -> u32 {
        self.ring.submission().len() as u32
    }

    #[inline]
    fn is_full(&mut self) -> bool {
        self.ring.submission().is_full()
    }

    #[inline]
    fn has_taskrun(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    #[inline]
    fn has_overflowed(&mut self) -> bool {
        self.ring.submission().cq_overflow()
    }

    fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, Errno> {
        let time = timeout.map(timeout_of);
        let ts = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let arg = io_uring_getevents_arg {
            ts: io_uring_ptr::new(ts.cast_mut().cast()),
            ..Default::default()
        };
        let submissions = self.queued();
        let flags = IoringEnterFlags::GETEVENTS | IoringEnterFlags::EXT_ARG;
        // SAFETY: the callers of `push` keep the memory of submissions, and `arg` points to a time
        // that lives until the call returns.
        unsafe { io_uring_enter_arg(self, submissions, wanted, flags, Some(&arg)) }
    }

    #[inline]
    fn landed(&self) -> u32 {
        // SAFETY: `&self` is not shared with another thread, as it is not `Sync`, and no other handle
        // of the queue exists now.
        unsafe { self.ring.completion_shared() }.len() as u32
    }

    /// Copies all entries at once, so that the queue's head moves once.
    #[inline]
    fn reap(&mut self, into: &mut VecDeque<Cqe>) {
        if self.is_parents() {
            return;
        }
        into.extend(self.ring.completion().map(|cqe| Cqe::of(&cqe)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_uring_that_a_container_hides_was_missing_in_the_kernel() {
        let errno = |errno, has_switch| {
            of_a_filter(io::Error::from_raw_os_error(errno), has_switch).raw_os_error().unwrap()
        };
        assert_eq!(errno(libc::ENOSYS, true), libc::EPERM);
        assert_eq!(errno(libc::ENOSYS, false), libc::ENOSYS, "an old kernel");
        assert_eq!(errno(libc::ENOMEM, true), libc::ENOMEM);
    }
}
