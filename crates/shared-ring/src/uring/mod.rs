//! A kernel over io_uring.
//!
//! Each ring belongs to one thread. A turn is one system call: it submits posted operations, runs
//! the kernel's deferred work, and waits for the first completion. In deferred mode, the first send of a turn is a system
//! call of its own if nothing else waits to be submitted or reported, so that the next turn can wait. So is a long send,
//! and a read of a cached part of a file in every mode: the ring would read for all connections before it sends for one.

mod call_ring;
mod calls;
mod completion;
mod probe;
mod provided;
mod ring;
mod sqe;
mod stream;
mod submit;

pub use call_ring::{CallRing, Pushed};
pub use probe::SetupError;
pub use ring::{Cqe, Entries, Feature, LinuxRing, Mode, RawCompletion, Ring};

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::Fd as Raw;
use rustix::io::Errno;

use crate::discard::DiscardBuffer;
use crate::inflight::{InFlight, InFlightTable};
use crate::read_ahead::ReadAhead;
use crate::read_buffers::ReadBuffers;
use crate::{
    Batch, BufferError, BufferGroup, BufferPool, Completion, Counters, Host, Kernel, KernelError,
    Linux, Occupancy, Offload, Op, OpKind, Outcome, Submit, SubmitError, SubmitErrorKind,
    Submitted, System, Token, WakeSignal, Waker,
};
use provided::BufferRing;
use sqe::OpState;

/// Configuration of a [`UringKernel`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct UringConfig {
    /// The time at which completions land.
    pub mode: Mode,
    /// Maximum number of operations in flight.
    pub operations: u32,
    /// Number of receive buffers, a power of two.
    pub buffers: u16,
    /// Size of a receive buffer in bytes.
    pub buffer_size: u32,
}

impl UringConfig {
    /// Sizes a ring for `operations` in flight and `buffers` receive buffers, a power of two, of `buffer_size`
    /// bytes.
    pub const fn new(mode: Mode, operations: u32, buffers: u16, buffer_size: u32) -> Self {
        UringConfig { mode, operations, buffers, buffer_size }
    }
}

const ENTRIES: Entries = Entries { submissions: 512, completions: 4096 };

/// Whether the kernel supports multishot accepts and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Multishot {
    /// Assumed to be supported.
    Untried,
    Works,
    /// Each operation is posted again after its completion.
    Unsupported,
}

/// Maximum numbers of the kernel's worker threads: for bounded work (files) and unbounded work.
const WORKERS: [u32; 2] = [4, 16];

/// Maximum number of accepts of one listener in the ring at a time.
const MAX_ACCEPTS: u16 = 256;

/// Maximum time that a dropped kernel waits for its operations to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A kernel over io_uring.
pub struct UringKernel<R: Ring = LinuxRing> {
    ring: R,
    system: R::System,
    /// Leaked if operations remain in the ring, since the kernel may still write to it.
    owned: ManuallyDrop<Owned>,
    /// Operations whose submission found the queue full, or waits for the next turn.
    unsubmitted: VecDeque<Token>,
    /// Cancellations not submitted yet.
    cancels: VecDeque<Token>,
    /// Completions of this turn that did not come from the ring.
    done: Batch,
    /// Those of the next turn.
    later: Batch,
    /// Completions of this turn as the ring reported them.
    landed: VecDeque<Cqe>,
    /// Whether a send of this turn may leave at once.
    sends_at_once: bool,
    waker: Waker,
    wake_in_flight: bool,
    /// Number of multishot submissions outside the table in flight.
    streams: u32,
    /// Does file operations that the ring does not support, or refuses.
    offload: <R::System as System>::Offload,
    mode: Mode,
    multishot: Multishot,
    call_operations: calls::RingCalls,
    read_ahead: ReadAhead,
    read_buffers: ReadBuffers,
    /// The send that has just filled its socket.
    filled: Option<Token>,
    /// Each send that waits for the disk keeps it, too, so that it outlives the reads in flight.
    discarded: Rc<DiscardBuffer>,
    /// After `finish`: whether all operations have ended.
    finished: Option<bool>,
    now: Instant,
    counters: Counters,
}

impl<R: Ring> std::fmt::Debug for UringKernel<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringKernel").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// Memory that the kernel may write to while operations are in flight.
struct Owned {
    inflight: InFlightTable<OpState>,
    /// The receive buffers of each group.
    groups: Vec<BufferRing>,
    /// Destination of reads of the waker's counter.
    wake: Box<u64>,
}

impl Owned {
    /// Removes an operation from those that wait for a buffer. Returns false if it does not wait.
    fn remove_starved(&mut self, token: Token) -> bool {
        let Some(InFlight {
            op: Op::Receive { group, .. } | Op::ReceiveFrom { group, .. }, ..
        }) = self.inflight.get(token)
        else {
            return false;
        };
        let starved = &mut self.groups[group.index()].starved;
        let at = starved.iter().position(|waiting| *waiting == token);
        at.and_then(|at| starved.remove(at)).is_some()
    }
}

/// Registers a buffer ring and passes its buffers to the kernel.
///
/// # Safety
/// The returned buffer ring and its buffers stay allocated until the ring is closed or the group is
/// unregistered.
unsafe fn register<R: Ring>(
    ring: &mut R,
    mut provided: BufferRing,
    group: BufferGroup,
) -> io::Result<BufferRing> {
    // SAFETY: by the caller's promise.
    unsafe { ring.register_buffers(provided.address(), provided.count(), group.0) }?;
    provided.give_back();
    Ok(provided)
}

impl UringKernel {
    /// Sets up a ring, which belongs to the calling thread.
    ///
    /// # Errors
    /// The missing feature.
    pub fn new(config: &UringConfig) -> Result<Self, SetupError> {
        UringKernel::on(Linux::default(), config)
    }
}

impl<R: Ring> UringKernel<R> {
    /// Sets up a ring of `system`.
    ///
    /// # Errors
    /// The missing feature.
    pub fn on(mut system: R::System, config: &UringConfig) -> Result<Self, SetupError> {
        let other = |error: io::Error| SetupError::Other(error.raw_os_error().unwrap_or(0));
        let mut ring: R = probe::setup(&system, config.mode, ENTRIES)?;
        let pool = BufferPool::new(config.buffers, config.buffer_size);
        let provided = BufferRing::new(pool).map_err(other)?;
        // SAFETY: the buffer ring stays in `groups`.
        let provided = unsafe { register(&mut ring, provided, BufferGroup::DEFAULT) }
            .map_err(|error| probe::registration_error(&error, "rings of provided buffers"))?;
        ring.limit_workers(WORKERS)
            .map_err(|error| probe::registration_error(&error, "a bound on its worker threads"))?;
        let waker = system.waker(WakeSignal::Read).map_err(other)?;
        let (now, offload) = (system.clock(), system.offload(waker.clone()));
        let inflight = InFlightTable::new(config.operations);
        Ok(UringKernel {
            ring,
            system,
            owned: ManuallyDrop::new(Owned { inflight, groups: vec![provided], wake: Box::new(0) }),
            unsubmitted: VecDeque::with_capacity(ENTRIES.submissions as usize),
            cancels: VecDeque::with_capacity(ENTRIES.submissions as usize),
            done: Batch::new(),
            later: Batch::new(),
            landed: VecDeque::with_capacity(ENTRIES.completions as usize),
            sends_at_once: false,
            offload,
            waker,
            wake_in_flight: false,
            streams: 0,
            mode: config.mode,
            multishot: Multishot::Untried,
            call_operations: calls::RingCalls::default(),
            read_ahead: ReadAhead::default(),
            read_buffers: ReadBuffers::default(),
            filled: None,
            discarded: Rc::default(),
            finished: None,
            now,
            counters: Counters::default(),
        })
    }

    /// Submits an operation to the ring, or defers it if the queue is full.
    fn arm(&mut self, token: Token) {
        if !self.unsubmitted.is_empty() {
            return self.arm_later(token);
        }
        let Some(entry) = self.owned.inflight.get(token) else { return };
        if !Self::arm_now(&mut self.ring, entry, self.multishot) {
            self.arm_later(token);
        }
    }

    /// Submits an operation to the ring. Returns false if the queue is full.
    #[inline]
    fn arm_now(ring: &mut R, entry: &mut InFlight<OpState>, multishot: Multishot) -> bool {
        let multishot = multishot != Multishot::Unsupported;
        let sqe = sqe::sqe(entry.token, &mut entry.op, &mut entry.state, multishot);
        // SAFETY: the submission points into `owned`, to an entry made only for it, or to a buffer that this entry keeps.
        let pushed = unsafe { ring.push(&sqe) };
        entry.state.in_ring += u16::from(pushed);
        entry.state.multishot = multishot;
        pushed
    }

    #[cold]
    fn arm_later(&mut self, token: Token) {
        let Some(entry) = self.owned.inflight.get(token) else { return };
        entry.state.queued += 1;
        self.unsubmitted.push_back(token);
    }

    /// Fills the submission queue with deferred submissions, cancellations first.
    fn fill(&mut self) -> Result<(), KernelError> {
        if self.ring.is_parents() {
            return Err(KernelError::in_child());
        }
        loop {
            while let Some(token) = self.cancels.pop_front() {
                // It may have ended since, and its token may be in use by another operation.
                let entry = self.owned.inflight.get(token);
                let due =
                    entry.is_some_and(|e| e.state.cancel_is_due()) || !token.kind().is_tracked();
                let own = Token::new(OpKind::Cancel, 0, 0);
                let cancel = match token.kind() {
                    OpKind::Cancel => sqe::cancel_all(own),
                    _ => sqe::cancel(token, own),
                };
                // SAFETY: a cancellation points to no memory.
                if due && !unsafe { self.ring.push(&cancel) } {
                    self.cancels.push_front(token);
                    break;
                }
            }
            // A submission must not overtake a cancellation, which may concern the same token.
            while self.cancels.is_empty() && !self.ring.is_full() {
                let Some(token) = self.unsubmitted.pop_front() else { return Ok(()) };
                self.submit_waiting(token);
            }
            if self.cancels.is_empty() && self.unsubmitted.is_empty() {
                return Ok(());
            }
            if self.enter(0, None)? == 0 {
                // The kernel takes no more until completions are reaped.
                return Ok(());
            }
        }
    }

    fn submit_waiting(&mut self, token: Token) {
        let Some(entry) = self.owned.inflight.get(token) else { return };
        entry.state.queued -= 1;
        if entry.state.cancelled {
            let ended = self.end_if_idle(token);
            return self.later.extend(ended);
        }
        let pushed = Self::arm_now(&mut self.ring, entry, self.multishot);
        debug_assert!(pushed, "the queue was not full");
    }

    /// Ends a cancelled operation that has no submissions left.
    fn end_if_idle(&mut self, token: Token) -> Option<Completion> {
        let state = &self.owned.inflight.get(token)?.state;
        let errno = state.errno.unwrap_or(Errno::CANCELED);
        (state.in_ring == 0 && state.queued == 0).then(|| self.fail(token, errno))
    }

    /// Fails an operation that has no submissions in the ring.
    fn fail(&mut self, token: Token, errno: Errno) -> Completion {
        let failed = match self.owned.inflight.remove(token) {
            Some(entry) => entry.op.fail(errno),
            None => Outcome::Failed(errno, None),
        };
        Completion::last(token, failed)
    }

    /// Keeps one read of the waker in flight.
    fn arm_waker(&mut self) -> Result<(), KernelError> {
        if self.wake_in_flight {
            return Ok(());
        }
        if self.ring.is_full() {
            self.enter(0, None)?;
        }
        let fd = Raw(self.waker.fd().raw());
        let into = (&raw mut *self.owned.wake).cast();
        let read = opcode::Read::new(fd, into, 8).build().user_data(Token::WAKE.bits());
        // SAFETY: its destination is a box of `owned`.
        self.wake_in_flight = unsafe { self.ring.push(&read) };
        Ok(())
    }

    /// Enters the kernel: submits, runs deferred work, waits for `wanted` completions. Returns the
    /// number of submissions taken.
    fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, KernelError> {
        if self.ring.is_parents() {
            return Err(KernelError::in_child());
        }
        self.counters.system_calls += 1;
        match self.ring.enter(wanted, timeout) {
            Ok(taken) => Ok(taken),
            // Timeout; a signal was handled; completions must be reaped first; memory is short at the
            // moment. In each case the other submissions stay in the queue.
            Err(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(0),
            Err(errno) => Err(KernelError { context: "entering io_uring", error: errno.into() }),
        }
    }

    /// Returns dropped buffers to the kernel. Posts waiting receives again, oldest first, as many as their
    /// group has buffers.
    fn give_back_buffers(&mut self) {
        let Owned { inflight, groups, .. } = &mut *self.owned;
        for group in groups {
            group.give_back();
            for _ in 0..group.held() {
                let Some(token) = group.starved.pop_front() else { break };
                // It stays queued, for the next turn now.
                if inflight.get(token).is_some() {
                    self.unsubmitted.push_back(token);
                }
            }
        }
    }

    /// Cancels all operations except closes, and waits until the kernel has released all memory.
    /// Returns false if that took too long.
    fn shut_down(&mut self) -> bool {
        let until = self.system.clock() + SHUTDOWN_TIMEOUT;
        let stopped = self.offload.stop();
        for token in self.owned.inflight.tokens() {
            let Some(entry) = self.owned.inflight.get(token) else { continue };
            match entry.op {
                _ if entry.state.on_thread => {
                    let entry = self.owned.inflight.remove(token);
                    if !stopped {
                        // A thread hangs in it, and still uses the descriptor.
                        std::mem::forget(entry);
                    }
                }
                Op::Close { .. } => {}
                _ => self.cancel(token),
            }
        }
        if self.wake_in_flight {
            self.cancels.push_back(Token::WAKE);
        }
        if self.streams > 0 {
            self.cancels.push_back(Token::new(OpKind::Cancel, 0, 0));
        }
        self.close_late_arrivals();
        let mut can_wait = true;
        while self.uses_memory() && can_wait {
            // Not `turn`, which would arm the waker again.
            can_wait = self.system.clock() <= until
                && self
                    .fill()
                    .and_then(|()| self.enter(1, Some(Duration::from_millis(100))))
                    .is_ok();
            // Also after the last wait: a file that was opened meanwhile is closed.
            self.close_late_arrivals();
        }
        !self.uses_memory()
    }

    /// Returns whether the kernel uses memory of this one.
    fn uses_memory(&self) -> bool {
        !self.owned.inflight.is_empty() || self.wake_in_flight || self.streams > 0
    }

    /// Closes sockets that were accepted, and files that were opened, during the shutdown.
    fn close_late_arrivals(&mut self) {
        self.reap();
        while let Some(completion) = self.next() {
            if let Outcome::Accepted(socket) = completion.outcome {
                self.system.close_unused(socket);
            }
        }
    }
}

// SAFETY: a submission is made from an operation in the table, which leaves it with its last completion. The
// ring itself holds the files of a submission that was taken. Submissions that were not taken when `finish`
// returns are submitted by turns only.
unsafe impl<R: Ring> Submit for UringKernel<R> {
    type Host = R::System;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        if !token.kind().is_tracked() {
            return Err(SubmitError { op, kind: SubmitErrorKind::TokenInUse });
        }
        let copies = match op {
            Op::Send { .. } | Op::SendTo { .. } => return self.submit_send(token, op),
            Op::Receive { group, .. } | Op::ReceiveFrom { group, .. } => {
                return self.submit_receive(token, op, group);
            }
            Op::SendFile { .. } => {
                self.owned.inflight.insert(token, op, OpState::default())?;
                return Ok(self.send_file(token, false));
            }
            Op::Call(call, by) => return self.call(token, call, by),
            Op::File(op) => return self.submit_file(token, op),
            Op::Accept { per_turn: Some(n), .. } => n.get().min(MAX_ACCEPTS),
            Op::Close { ref socket } => {
                self.read_ahead.forget(socket.number());
                1
            }
            _ => 1,
        };
        let submitted = self.submit_to_ring(token, op, OpState::default())?;
        (1..copies).for_each(|_| self.arm(token));
        Ok(submitted)
    }

    fn cancel(&mut self, token: Token) {
        let Some(entry) = self.owned.inflight.get(token) else { return };
        if std::mem::replace(&mut entry.state.cancelled, true) {
            return;
        }
        let on_thread = entry.state.on_thread;
        self.counters.cancels += 1;
        if entry.state.in_ring > 0 {
            self.cancels.push_back(token);
        } else if self.owned.remove_starved(token) || on_thread && self.offload.withdraw(token) {
            let failed = self.fail(token, Errno::CANCELED);
            self.later.push_back(failed);
        }
        // Else it is deferred, or a thread has begun it; it ends when that is done.
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        let rejected = |error: io::Error| {
            BufferError::Rejected(Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))
        };
        let group = BufferGroup::after(self.owned.groups.len())?;
        if self.finished.is_some() || self.ring.is_parents() {
            return Err(BufferError::Rejected(Errno::PERM));
        }
        let provided = BufferRing::new(buffers.into_group(group)).map_err(rejected)?;
        // SAFETY: the buffer ring stays in `groups`.
        let provided = unsafe { register(&mut self.ring, provided, group) }.map_err(rejected)?;
        self.owned.groups.push(provided);
        Ok(group)
    }

    fn finish(&mut self) {
        if self.finished.is_none() && !self.ring.is_parents() {
            self.finished = Some(self.shut_down());
        }
    }

    fn host(&self) -> &R::System {
        &self.system
    }

    fn host_mut(&mut self) -> &mut R::System {
        &mut self.system
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy {
            in_flight: self.owned.inflight.len() as u32,
            unsubmitted: self.unsubmitted.len() as u32,
            free_buffers: self.owned.groups.iter().map(BufferRing::available).sum(),
            ..Occupancy::default()
        }
    }
}

impl<R: Ring> Kernel for UringKernel<R> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        self.counters.turns += 1;
        self.give_back_buffers();
        self.fill()?;
        self.arm_waker()?;
        // If some submissions were deferred, retry them without waiting.
        let submitted = self.cancels.is_empty() && self.unsubmitted.is_empty();
        // The receives posted again may not use all buffers.
        let starved =
            self.owned.groups.iter().any(|group| !group.starved.is_empty() && group.held() > 0);
        let pending =
            self.raw_pending() > 0 || !self.done.is_empty() || !self.later.is_empty() || starved;
        let wait = submitted && self.wake_in_flight && !pending;
        let timeout = match until {
            Some(at) if wait => Some(at.saturating_duration_since(self.system.clock())),
            _ => None,
        };
        let wanted = u32::from(wait && timeout != Some(Duration::ZERO));
        // Landed completions are processed without a system call, unless there are submissions or
        // deferred work of the kernel.
        let enter = wait
            || self.mode == Mode::Deferred
            || self.ring.queued() > 0
            || self.ring.has_taskrun();
        if enter {
            self.enter(wanted, timeout.filter(|timeout| !timeout.is_zero()))?;
        }
        self.now = self.system.clock();
        // In the other modes, completions land between turns.
        self.sends_at_once = self.mode == Mode::Deferred;
        self.reap();
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let next = if self.done.is_empty() { self.next_of_ring() } else { self.done.pop_front() };
        self.counters.completions += u64::from(next.is_some());
        next
    }

    fn reap(&mut self) {
        if self.ring.has_overflowed() {
            self.counters.overflows += 1;
        }
        self.done.append(&mut self.later);
        self.ring.reap(&mut self.landed);
    }
}

impl<R: Ring> Drop for UringKernel<R> {
    fn drop(&mut self) {
        // In a child of fork(2) the memory is a copy, to which the kernel never writes, and the
        // operations in flight are the parent's.
        let is_parents = self.ring.is_parents();
        self.finish();
        if is_parents || self.finished == Some(true) {
            if !is_parents {
                (0..self.owned.groups.len() as u16)
                    .for_each(|group| self.ring.unregister_buffers(group));
            }
            // SAFETY: it is not used after this, and the kernel has released all operations and the
            // buffer ring.
            unsafe { ManuallyDrop::drop(&mut self.owned) }
        }
    }
}
