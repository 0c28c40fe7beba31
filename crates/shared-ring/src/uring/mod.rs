//! The kernel of this machine through io_uring.
//!
//! One ring, one thread. A turn is one system call: it submits what was posted, runs the
//! kernel's deferred work, and waits for the first completion.

mod completion;
mod probe;
mod provided;
mod ring;
mod sqe;
mod stream;

pub use probe::{Feature, SetupError};
pub use ring::{Cqe, Entries, LinuxRing, RawCompletion, Ring};

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::Fd as Raw;
use rustix::io::Errno;

use crate::inflight::{Entry, InFlightTable};
use crate::nonblocking::{self, Blocking, FileRange, SendFileError};
use crate::process::error_in_child;
use crate::{
    Batch, BufferPool, Completion, Counters, FileJob, Host, Kernel, KernelError, Linux, Offload,
    Op, OpKind, Outcome, Submit, SubmitError, SubmitErrorKind, Submitted, System, Token,
    WakeSignal, Waker,
};
use provided::{BufferRing, GROUP};
use sqe::{Memory, OpState};

/// When the kernel carries out what became possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At a turn only (`DEFER_TASKRUN`): the most throughput. Nothing lands between two turns.
    Deferred,
    /// At any entry into the kernel (`COOP_TASKRUN`). A signal is an entry: unblock the
    /// listener's signal and connections land while the application
    /// computes; block it, and they come in batches.
    Cooperative,
    /// At once, by interrupting the application: completions land while it computes.
    Immediate,
}

/// How a [`UringKernel`] is set up.
#[derive(Clone, Copy, Debug)]
pub struct UringConfig {
    /// When completions land.
    pub mode: Mode,
    /// Most operations in flight.
    pub operations: u32,
    /// Number of receive buffers, a power of two.
    pub buffers: u16,
    /// Size of a receive buffer in bytes.
    pub buffer_size: u32,
}

const ENTRIES: Entries = Entries { submissions: 512, completions: 4096 };

/// Whether the kernel has accepts and receives that go on by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Multishot {
    /// It is assumed.
    Untried,
    Works,
    /// Each is posted again behind its completion.
    SubmitError,
}

/// Threads with which the kernel does what would wait: for files, and for everything else.
const WORKERS: [u32; 2] = [4, 16];

/// Most accepts of one listener in the ring at a time.
const MAX_ACCEPTS: u16 = 256;

/// How long a kernel that is dropped waits for its operations to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The kernel of this machine, through io_uring.
pub struct UringKernel<R: Ring = LinuxRing> {
    ring: R,
    system: R::System,
    /// Leaked when the ring can't be emptied, since the kernel may still write to it.
    owned: ManuallyDrop<Owned>,
    /// Submissions that found no room in the queue, or that wait for the next turn.
    unsubmitted: VecDeque<Token>,
    /// Receives that found no buffer.
    starved: VecDeque<Token>,
    /// Cancels not submitted yet.
    cancels: VecDeque<Token>,
    /// Completions of this turn that need no ring.
    done: Batch,
    /// Those of the next turn.
    later: Batch,
    /// Completions of this turn as the ring reported them.
    landed: VecDeque<Cqe>,
    waker: Waker,
    wake_in_flight: bool,
    /// Submissions in flight that go on and stand in no table.
    streams: u32,
    /// Does what the ring has no operation for.
    offload: <R::System as System>::Offload,
    mode: Mode,
    multishot: Multishot,
    /// Once all operations were to end: whether they have.
    finished: Option<bool>,
    now: Instant,
    counters: Counters,
}

/// The memory that the kernel may write to while operations are in flight.
struct Owned {
    inflight: InFlightTable<OpState>,
    provided: BufferRing,
    /// Where the waker's counter is read to.
    wake: Box<u64>,
}

impl UringKernel {
    /// Whether a ring can be set up in this mode.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn probe(mode: Mode) -> Result<(), SetupError> {
        let config = UringConfig { mode, operations: 1, buffers: 1, buffer_size: 1 };
        Self::new(&config).map(drop)
    }

    /// Sets up a ring. It belongs to the calling thread.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn new(config: &UringConfig) -> Result<Self, SetupError> {
        UringKernel::on(Linux::default(), config)
    }
}

impl<R: Ring> UringKernel<R> {
    /// Sets up a ring of a machine.
    ///
    /// # Errors
    /// Says what is missing.
    pub(crate) fn on(mut system: R::System, config: &UringConfig) -> Result<Self, SetupError> {
        let other = |error: io::Error| SetupError::Other(error.raw_os_error().unwrap_or(0));
        let mut ring: R = probe::setup(&system, config.mode, ENTRIES)?;
        let mut provided =
            BufferRing::new(BufferPool::new(config.buffers, config.buffer_size)).map_err(other)?;
        // SAFETY: the ring of buffers is mapped, and the buffers are there, until `provided` is
        // dropped, which is after the ring is closed or never.
        unsafe { ring.register_buffers(provided.address(), config.buffers, GROUP) }
            .map_err(|error| probe::refused(&error, "rings of provided buffers"))?;
        provided.give_back();
        ring.limit_workers(WORKERS)
            .map_err(|error| probe::refused(&error, "a bound on its worker threads"))?;
        let waker = system.waker(WakeSignal::Read).map_err(other)?;
        let (now, offload) = (system.clock(), system.offload(waker.clone()));
        let inflight = InFlightTable::new(config.operations);
        Ok(UringKernel {
            ring,
            system,
            owned: ManuallyDrop::new(Owned { inflight, provided, wake: Box::new(0) }),
            unsubmitted: VecDeque::with_capacity(ENTRIES.submissions as usize),
            starved: VecDeque::with_capacity(ENTRIES.submissions as usize),
            cancels: VecDeque::with_capacity(ENTRIES.submissions as usize),
            done: Batch::new(),
            later: Batch::new(),
            landed: VecDeque::with_capacity(ENTRIES.completions as usize),
            offload,
            waker,
            wake_in_flight: false,
            streams: 0,
            mode: config.mode,
            multishot: Multishot::Untried,
            finished: None,
            now,
            counters: Counters::default(),
        })
    }

    /// Hands an operation to the ring, or lets it wait for room.
    fn arm(&mut self, token: Token) {
        if !self.unsubmitted.is_empty() {
            return self.arm_later(token);
        }
        let Some(entry) = self.owned.inflight.get(token) else { return };
        if !Self::arm_now(&mut self.ring, entry, self.multishot) {
            self.arm_later(token);
        }
    }

    /// Hands an operation to the ring; false when the queue is full.
    #[inline]
    fn arm_now(ring: &mut R, entry: &mut Entry<OpState>, multishot: Multishot) -> bool {
        let multishot = multishot != Multishot::SubmitError;
        let sqe = sqe::sqe(entry.token, &mut entry.op, &mut entry.state, multishot);
        // SAFETY: every entry lies in `owned`, and is made for nothing else.
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

    /// Fills the submission queue with what waits for it, cancels first.
    fn fill(&mut self) -> Result<(), KernelError> {
        if self.ring.is_parents() {
            return Err(error_in_child());
        }
        loop {
            while let Some(token) = self.cancels.pop_front() {
                // It may have ended since, and another of its name have begun.
                let entry = self.owned.inflight.get(token);
                let due = entry.is_some_and(|e| e.state.cancelled) || !token.kind().is_tracked();
                let own = Token::new(OpKind::Cancel, 0, 0);
                let cancel = match token.kind() {
                    OpKind::Cancel => sqe::cancel_all(own),
                    _ => sqe::cancel(token, own),
                };
                // SAFETY: a cancel points to nothing.
                if due && !unsafe { self.ring.push(&cancel) } {
                    self.cancels.push_front(token);
                    break;
                }
            }
            // A cancel may concern what stands behind it, so what waits stays behind cancels.
            while self.cancels.is_empty() && !self.ring.is_full() {
                let Some(token) = self.unsubmitted.pop_front() else { return Ok(()) };
                self.submit_waiting(token);
            }
            if self.cancels.is_empty() && self.unsubmitted.is_empty() {
                return Ok(());
            }
            if self.enter(0, None)? == 0 {
                // The kernel takes no more until completions are taken out.
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
        debug_assert!(pushed, "the queue was just seen to have room");
    }

    /// Ends a cancelled operation of which the ring holds nothing any more.
    fn end_if_idle(&mut self, token: Token) -> Option<Completion> {
        let state = &self.owned.inflight.get(token)?.state;
        let errno = state.errno.unwrap_or(Errno::CANCELED);
        (state.in_ring == 0 && state.queued == 0).then(|| self.fail(token, errno))
    }

    /// Ends an operation that the ring does not hold.
    fn fail(&mut self, token: Token, errno: Errno) -> Completion {
        let data = self.owned.inflight.remove(token).and_then(|entry| match entry.op {
            Op::Send { data, .. } => Some(data),
            _ => None,
        });
        Completion::last(token, Outcome::Failed(errno, data))
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
        let token = Token::new(OpKind::Wake, 0, 0);
        let read = opcode::Read::new(fd, into, 8).build().user_data(token.bits());
        // SAFETY: it is read into a box of `owned`.
        self.wake_in_flight = unsafe { self.ring.push(&read) };
        Ok(())
    }

    /// Enters the kernel: submits, runs its deferred work, waits for `wanted` completions.
    /// Returns how many submissions it took.
    fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, KernelError> {
        if self.ring.is_parents() {
            return Err(error_in_child());
        }
        self.counters.system_calls += 1;
        match self.ring.enter(wanted, timeout) {
            Ok(taken) => Ok(taken),
            // The time is over; a signal was handled; completions must be taken out first; memory
            // is short at the moment. In each case what was not taken stays in the queue.
            Err(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(0),
            Err(errno) => Err(KernelError { context: "entering io_uring", error: errno.into() }),
        }
    }

    /// Sends part of a file at once, or arms what has to come before.
    fn send_file(&mut self, token: Token, disk: Blocking) -> Submitted {
        let Some(entry) = self.owned.inflight.get(token) else { return Submitted::InFlight };
        let Op::SendFile { fd, ref file, offset, len } = entry.op else {
            return Submitted::InFlight;
        };
        self.counters.system_calls += 1;
        entry.state.memory = Memory::None;
        let part = FileRange { file: file.fd(), offset, len };
        let outcome = match nonblocking::send_file(&mut self.system, fd, part, disk) {
            Ok(n) => Outcome::SentFile(n),
            Err(SendFileError::Failed(Errno::AGAIN)) => {
                self.arm(token);
                return Submitted::InFlight;
            }
            Err(SendFileError::Cold) => {
                self.counters.cold_file_reads += 1;
                entry.state.memory = Memory::Bytes(Vec::new());
                self.arm(token);
                return Submitted::InFlight;
            }
            Err(SendFileError::Failed(errno)) => Outcome::Failed(errno, None),
        };
        self.owned.inflight.remove(token);
        Submitted::Done(outcome)
    }

    /// Posts again receives that found no buffer, the oldest first, as many as there are buffers now.
    fn rearm_starved(&mut self) {
        for _ in 0..self.owned.provided.held() {
            let Some(token) = self.starved.pop_front() else { return };
            if let Some(entry) = self.owned.inflight.get(token) {
                entry.state.queued -= 1;
                self.arm_later(token);
            }
        }
    }

    /// Cancels everything but closes, and waits until the kernel has let go of all memory, within bounds.
    fn shut_down(&mut self) -> bool {
        let until = self.system.clock() + SHUTDOWN_TIMEOUT;
        let stopped = self.offload.stop();
        for token in self.owned.inflight.tokens() {
            match self.owned.inflight.get(token).map(|entry| &entry.op) {
                Some(Op::List { .. }) => {
                    let entry = self.owned.inflight.remove(token);
                    if !stopped {
                        // A thread hangs in it, and uses the descriptor still.
                        std::mem::forget(entry);
                    }
                }
                Some(Op::Close { .. }) => {}
                _ => self.cancel(token),
            }
        }
        if self.wake_in_flight {
            self.cancels.push_back(Token::new(OpKind::Wake, 0, 0));
        }
        if self.streams > 0 {
            self.cancels.push_back(Token::new(OpKind::Cancel, 0, 0));
        }
        self.close_late_arrivals();
        while self.owned.inflight.len() > 0 || self.wake_in_flight || self.streams > 0 {
            // The wake-up is not to be armed again.
            let now = self.system.clock();
            let turned = self.fill().and_then(|()| self.enter(1, Some(Duration::from_millis(100))));
            if turned.is_err() || now > until {
                return false;
            }
            self.close_late_arrivals();
        }
        true
    }

    /// Closes what came too late.
    fn close_late_arrivals(&mut self) {
        self.reap();
        while let Some(completion) = self.next() {
            if let Outcome::Accepted(socket) = completion.outcome {
                self.system.close_unused(socket);
            }
        }
    }
}

// SAFETY: a submission is made of an operation in the table, which leaves it with its last completion. What a
// submission that was taken refers to, the ring holds itself; those that are not taken when `finish` returns are
// handed over by turns only.
unsafe impl<R: Ring> Submit for UringKernel<R> {
    type Host = R::System;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        if !token.kind().is_tracked() {
            return Err(SubmitError { op, kind: SubmitErrorKind::TokenInUse });
        }
        let copies = match &op {
            Op::Accept { per_turn: Some(n), .. } => n.get().min(MAX_ACCEPTS),
            _ => 1,
        };
        let sends_file = matches!(op, Op::SendFile { .. });
        // SAFETY: the operation stays in the table until the work is done, or for good if that does not end.
        let work = matches!(op, Op::List { .. }).then(|| unsafe { FileJob::of(&op) });
        // It has to queue behind those that came before.
        let queues = matches!(op, Op::Receive { .. }) && !self.starved.is_empty();
        let entry = self.owned.inflight.insert(token, op, OpState::default())?;
        if queues {
            entry.state.queued += 1;
            self.starved.push_back(token);
            return Ok(Submitted::InFlight);
        }
        if sends_file {
            return Ok(self.send_file(token, Blocking::NoBlock));
        }
        if let Some(work) = work {
            self.counters.offloaded_file_ops += 1;
            self.offload.post(token, work);
            return Ok(Submitted::InFlight);
        }
        let in_turn = self.unsubmitted.is_empty();
        if !(in_turn && Self::arm_now(&mut self.ring, entry, self.multishot)) {
            self.arm_later(token);
        }
        (1..copies).for_each(|_| self.arm(token));
        Ok(Submitted::InFlight)
    }

    fn cancel(&mut self, token: Token) {
        let Some(entry) = self.owned.inflight.get(token) else { return };
        if std::mem::replace(&mut entry.state.cancelled, true) {
            return;
        }
        self.counters.cancels += 1;
        if entry.state.in_ring > 0 {
            self.cancels.push_back(token);
        } else if let Some(at) = self.starved.iter().position(|t| *t == token) {
            self.starved.remove(at);
            let failed = self.fail(token, Errno::CANCELED);
            self.later.push_back(failed);
        }
        // Else it waits to be submitted, or a thread has it, and it ends when its turn comes.
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

    fn landed(&self) -> u32 {
        self.ring.landed() + self.later.len() as u32
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl<R: Ring> Kernel for UringKernel<R> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        self.counters.turns += 1;
        self.owned.provided.give_back();
        self.rearm_starved();
        self.fill()?;
        self.arm_waker()?;
        // What could not be submitted is tried again without waiting for anything else.
        let submitted = self.cancels.is_empty() && self.unsubmitted.is_empty();
        // Those that were fed may not need all the buffers.
        let hungry = !self.starved.is_empty() && self.owned.provided.held() > 0;
        let left = self.landed() > 0 || !self.done.is_empty() || !self.landed.is_empty() || hungry;
        let wait = submitted && self.wake_in_flight && !left;
        let timeout = match until {
            Some(at) if wait => Some(at.saturating_duration_since(self.system.clock())),
            _ => None,
        };
        let wanted = u32::from(wait && timeout != Some(Duration::ZERO));
        // What has landed is worked on without a system call, unless something is to be submitted
        // or the kernel's own work waits for an entry.
        let enter = wait
            || self.mode == Mode::Deferred
            || self.ring.queued() > 0
            || self.ring.has_taskrun();
        if enter {
            self.enter(wanted, timeout.filter(|timeout| !timeout.is_zero()))?;
        }
        self.now = self.system.clock();
        self.reap();
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let completion = self.done.pop_front().or_else(|| self.next_of_ring())?;
        self.counters.completions += 1;
        Some(completion)
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
        // In a child of fork(2) the memory is a copy, which the kernel never writes to, and what is in
        // flight is the parent's.
        let is_parents = self.ring.is_parents();
        self.finish();
        if is_parents || self.finished == Some(true) {
            if !is_parents {
                self.ring.unregister_buffers(GROUP);
            }
            // SAFETY: it is not used after this, and the kernel has let go of all operations and of
            // the ring of buffers.
            unsafe { ManuallyDrop::drop(&mut self.owned) }
        }
    }
}
