//! The pair of queues that a program shares with the kernel.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::squeue::Entry as Sqe;
use io_uring::{IoUring, Probe, cqueue};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, Timespec, io_uring_enter_arg, io_uring_getevents_arg, io_uring_ptr,
};

use super::Mode;
use super::probe::Feature;
use crate::{Linux, Process, System, Token};

/// What the kernel reports of a submission.
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// What the submission was named.
    pub user_data: u64,
    /// A count or a descriptor, or the negative of an error's number.
    pub result: i32,
    /// `IORING_CQE_F_...`.
    pub flags: u32,
}

/// What a ring reports of an operation, not made out yet.
#[derive(Clone, Copy, Debug)]
pub struct RawCompletion(pub(super) Cqe);

impl RawCompletion {
    /// The name of the operation.
    pub fn token(self) -> Token {
        Token::from_bits(self.0.user_data)
    }

    /// A count, a descriptor or a state, or the negative of an error's number.
    pub fn result(self) -> i32 {
        self.0.result
    }

    /// Whether more reports of its submission will follow.
    pub fn has_more(self) -> bool {
        cqueue::more(self.0.flags)
    }

    /// Whether it brings a receive buffer.
    pub fn has_buffer(self) -> bool {
        cqueue::buffer_select(self.0.flags).is_some()
    }

    /// Three numbers, to be carried elsewhere.
    pub fn into_parts(self) -> (u64, i32, u32) {
        (self.0.user_data, self.0.result, self.0.flags)
    }

    /// The report of these numbers.
    pub fn from_parts(user_data: u64, result: i32, flags: u32) -> Self {
        RawCompletion(Cqe { user_data, result, flags })
    }
}

/// A pair of queues and the system calls about them: io_uring(7).
pub trait Ring: Sized {
    /// The machine of which it is.
    type System: System;

    /// Makes the queues.
    ///
    /// # Errors
    /// Those of io_uring_setup(2).
    fn setup(system: &Self::System, mode: Mode, entries: Entries) -> io::Result<Self>;

    /// Whether it is that of a process from which this one was forked. Then it takes no submissions, hands
    /// out no completions, and must not be entered.
    fn is_parents(&self) -> bool {
        false
    }

    /// Whether the kernel can do this.
    fn has_feature(&self, what: Feature) -> bool;

    /// The first of these operations that the kernel does not have.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    fn first_unsupported(
        &self,
        operations: &[(u8, &'static str)],
    ) -> io::Result<Option<&'static str>>;

    /// Lets receives take buffers from a ring of `count` at `address`.
    ///
    /// # Safety
    /// The ring of buffers, and the buffers while they are in it, are memory that is there until
    /// they are withdrawn or the queues are closed.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    unsafe fn register_buffers(&mut self, address: u64, count: u16, group: u16) -> io::Result<()>;

    /// Takes the ring of buffers back; no receive is in flight.
    fn unregister_buffers(&mut self, group: u16);

    /// Bounds the threads that do what would wait: for files, and for everything else.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    fn limit_workers(&mut self, max: [u32; 2]) -> io::Result<()>;

    /// Puts a submission into the queue; false when the queue is full.
    ///
    /// # Safety
    /// What the submission points to stays where it is, and belongs to the kernel, until the
    /// last completion of the submission has been taken.
    unsafe fn push(&mut self, sqe: &Sqe) -> bool;

    /// Submissions that the kernel has not taken.
    fn queued(&mut self) -> u32;

    /// Whether no submission can be added.
    fn is_full(&mut self) -> bool;

    /// Whether the kernel has work for the next entry.
    fn has_taskrun(&mut self) -> bool;

    /// Whether the kernel holds completions for which the queue had no room.
    fn has_overflowed(&mut self) -> bool;

    /// Hands over what is queued, runs the kernel's deferred work, and waits for `wanted`
    /// completions, no longer than `timeout`. Returns how many submissions were taken.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, Errno>;

    /// Completions that wait to be taken; no system call.
    fn landed(&self) -> u32;

    /// Takes the completions that wait; no system call.
    fn reap(&mut self, into: &mut VecDeque<Cqe>);
}

/// The lengths of the queues.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// When these are used up, more submissions wait for the next turn.
    pub submissions: u32,
    /// When these overflow the kernel keeps the rest, at a cost.
    pub completions: u32,
}

/// A ring of this machine.
///
/// Threads can't share it, as it is taken from its queues by plain loads and stores:
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<shared_ring::LinuxRing>();
/// ```
pub struct LinuxRing {
    ring: IoUring,
    /// Not `Sync`, though the queues are.
    alone: PhantomData<Cell<()>>,
    /// The process that made it. A child of fork(2) sees the same queues: it puts nothing in and takes
    /// nothing out.
    process: Process,
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
        let ring = builder.build(entries.submissions)?;
        Ok(LinuxRing { ring, alone: PhantomData, process: Process::current() })
    }

    fn is_parents(&self) -> bool {
        !self.process.is_current()
    }

    fn has_feature(&self, what: Feature) -> bool {
        let params = self.ring.params();
        match what {
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
        // SAFETY: the caller keeps the memory.
        unsafe { self.ring.submitter().register_buf_ring_with_flags(address, count, group, 0) }
    }

    fn unregister_buffers(&mut self, group: u16) {
        // It was registered, and closing the queues takes it back at the latest.
        let _ = self.ring.submitter().unregister_buf_ring(group);
    }

    fn limit_workers(&mut self, mut max: [u32; 2]) -> io::Result<()> {
        self.ring.submitter().register_iowq_max_workers(&mut max)
    }

    #[inline]
    unsafe fn push(&mut self, sqe: &Sqe) -> bool {
        // SAFETY: the caller keeps what it points to.
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
        let time = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let ts = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let arg = io_uring_getevents_arg {
            ts: io_uring_ptr::new(ts.cast_mut().cast()),
            ..Default::default()
        };
        let submissions = self.queued();
        let flags = IoringEnterFlags::GETEVENTS | IoringEnterFlags::EXT_ARG;
        // SAFETY: the ring is open as long as `self` lives.
        let fd = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        // SAFETY: what submissions point to was promised at `push`, and `arg` points to a time
        // that lives until the call returns.
        unsafe { io_uring_enter_arg(fd, submissions, wanted, flags, Some(&arg)) }
    }

    #[inline]
    fn landed(&self) -> u32 {
        // SAFETY: `&self` is not shared with another thread, as it is not `Sync`, and nothing holds the queue now.
        unsafe { self.ring.completion_shared() }.len() as u32
    }

    /// Copied out in one go, so that the queue's head moves once.
    #[inline]
    fn reap(&mut self, into: &mut VecDeque<Cqe>) {
        if self.is_parents() {
            return;
        }
        into.extend(self.ring.completion().map(|cqe| Cqe {
            user_data: cqe.user_data(),
            result: cqe.result(),
            flags: cqe.flags(),
        }));
    }
}
