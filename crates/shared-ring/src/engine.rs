//! The ring's operations over non-blocking sockets and any [`Poller`].
//!
//! The engine attempts an operation when it is posted, and when the poller reports readiness.
//! Offload threads do file operations that would block.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::operations::{Continued, Operations, Read, SocketState};
use crate::poller::{Epoll, Poller, Readiness};
use crate::{
    Batch, BufferError, BufferGroup, BufferPool, Completion, Counters, Fd, Kernel, KernelError,
    Linux, Occupancy, Op, OpKind, Outcome, Process, Socket, Submit, SubmitError, Submitted, System,
    Token, WakeSignal, Waker,
};

/// Configuration of an [`Engine`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Maximum number of operations in flight.
    pub operations: u32,
    /// Number of receive buffers.
    pub buffers: u16,
    /// Size of a receive buffer in bytes.
    pub buffer_size: u32,
}

impl EngineConfig {
    /// Sizes an engine for `operations` in flight and `buffers` receive buffers of `buffer_size` bytes.
    pub const fn new(operations: u32, buffers: u16, buffer_size: u32) -> Self {
        EngineConfig { operations, buffers, buffer_size }
    }
}

/// A kernel over a poller and non-blocking system calls.
pub struct Engine<P, S: System = Linux> {
    poller: P,
    /// The poller is edge-triggered.
    by_edges: bool,
    operations: Operations<S, Polled>,
    /// Completions of this turn.
    done: Batch,
    /// Completions of the next turn: operations that were cancelled or failed during this one.
    later: Batch,
    /// Readiness reported by the poller, newest first while it is processed.
    events: Vec<(Fd, Readiness)>,
    /// Sockets that may have more to read although no edge will be reported.
    unread: VecDeque<Fd>,
    /// Number of entries of `unread` that belong to this turn.
    rereads: usize,
    /// Sockets with something to read, when no receive buffer of their group was free.
    starved: VecDeque<Fd>,
    /// Number of waits so far.
    waits: u64,
    waker: Waker,
    waker_fd: Fd,
    now: Instant,
    /// The process whose descriptors it waits for.
    process: Process,
}

impl<P, S: System> std::fmt::Debug for Engine<P, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("waits", &self.waits).finish_non_exhaustive()
    }
}

/// The engine over epoll, which works on every Linux and in every container.
pub type PortableKernel = Engine<Epoll>;

/// The state of the poller's request for one socket, and the readiness that it has reported.
#[derive(Default)]
struct Polled {
    wanted: Readiness,
    /// Edges reported and not used up.
    ready: Readiness,
    unread: bool,
    /// No receive buffer was free. It is not to be reported as readable meanwhile.
    starved: bool,
    /// The last wait before its writer began to wait.
    writer_after: u64,
    /// It is a listening socket, of which another process may have a descriptor.
    listens: bool,
    /// The wait after which a socket of this number was closed. Reports of that wait are not about the next
    /// socket.
    closed_after: u64,
}

impl<P: Poller> Engine<P> {
    /// Creates an engine over an empty poller.
    ///
    /// # Errors
    /// If there is no descriptor for the waker.
    pub fn new(poller: P, config: &EngineConfig) -> std::io::Result<Self> {
        Engine::on(Linux::default(), poller, config)
    }
}

impl<P: Poller, S: System> Engine<P, S> {
    /// Maximum number of connections accepted from a listener per turn. Under a flood it leaves
    /// time for open connections; a bare loop with this bound kept its goodput under overload.
    const MAX_ACCEPTS_PER_TURN: u16 = 16;

    /// Creates an engine over an empty poller of `system`.
    ///
    /// # Errors
    /// If there is no descriptor for the waker.
    pub fn on(mut system: S, mut poller: P, config: &EngineConfig) -> std::io::Result<Self> {
        let by_edges = poller.is_edge_triggered();
        let signal =
            if poller.needs_signals() { WakeSignal::Signalled } else { WakeSignal::Polled };
        let waker = system.waker(signal)?;
        let waker_fd = waker.fd();
        poller.set(waker_fd, Readiness::READ)?;
        let now = system.clock();
        let offload = system.offload(waker.clone());
        Ok(Engine {
            poller,
            by_edges,
            operations: Operations::new(system, config, offload),
            done: Batch::new(),
            later: Batch::new(),
            events: Vec::new(),
            unread: VecDeque::new(),
            rereads: 0,
            starved: VecDeque::new(),
            waits: 1,
            waker,
            waker_fd,
            now,
            process: Process::current(),
        })
    }

    fn socket(&mut self, fd: Fd) -> &mut SocketState<Polled> {
        self.operations.socket(fd)
    }

    /// Returns the completion of an operation that was continued, or lets it wait.
    fn continued(&mut self, continued: Continued) -> Option<Completion> {
        match continued {
            Continued::Completed(completion) => Some(completion),
            Continued::Waits(fd, token) => {
                self.wait_until_ready(fd, token);
                None
            }
        }
    }

    /// Lets an operation wait until its socket is ready.
    fn wait_until_ready(&mut self, fd: Fd, token: Token) {
        let (by_edges, waits) = (self.by_edges, self.waits);
        let socket = self.socket(fd);
        let reads = socket.reader == Some(token);
        if reads {
            // The one before may have starved.
            socket.notes.starved = false;
        } else {
            socket.notes.writer_after = waits;
        }
        if by_edges && reads && socket.notes.ready.contains(Readiness::READ) {
            self.queue_reread(fd);
        }
        self.wait_for_report(fd, token);
    }

    /// Has the poller report a socket for an operation, which fails if that is impossible.
    fn wait_for_report(&mut self, fd: Fd, token: Token) {
        if let Err(error) = self.update_interest(fd) {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
            let failed = self.operations.fail(fd, token, errno);
            self.later.push_back(failed);
        }
    }

    /// Notes that a socket has something to read, and no receive buffer is free.
    fn starve(&mut self, fd: Fd) {
        if !mem::replace(&mut self.socket(fd).notes.starved, true) {
            self.starved.push_back(fd);
        }
    }

    /// Lets starved sockets read, as many as there are receive buffers. Returns whether more can read if these do not.
    #[cold]
    fn feed_starved(&mut self) -> bool {
        let (mut fed, mut can_feed_more) = (0, false);
        for _ in 0..self.starved.len() {
            let Some(fd) = self.starved.pop_front() else { break };
            let SocketState { group, reader, notes, .. } = self.operations.socket(fd);
            let (group, reader) = (*group, *reader);
            if !notes.starved {
                continue;
            }
            let available = self.operations.buffers(group).available();
            if available <= fed {
                can_feed_more |= available > 0 && reader.is_some();
                self.starved.push_back(fd);
                continue;
            }
            self.socket(fd).notes.starved = false;
            let Some(reader) = reader else { continue };
            fed += 1;
            if self.by_edges {
                self.queue_reread(fd);
            } else {
                self.wait_for_report(fd, reader);
            }
        }
        can_feed_more
    }

    /// Registers with the poller the readiness that a socket's operations wait for. With edges the
    /// registration never changes.
    fn update_interest(&mut self, fd: Fd) -> std::io::Result<()> {
        let by_edges = self.by_edges;
        let socket = self.operations.socket(fd);
        let mut want = Readiness::empty();
        want.set(Readiness::READ, by_edges || socket.reader.is_some() && !socket.notes.starved);
        want.set(Readiness::WRITE, by_edges || socket.writer.is_some());
        if socket.notes.wanted != want {
            if !self.process.is_current() {
                // The interest set is the parent's.
                return Err(Errno::PERM.into());
            }
            self.poller.set(fd, want)?;
            socket.notes.wanted = want;
        }
        Ok(())
    }

    /// Notes to read from a socket though no edge will be reported.
    fn queue_reread(&mut self, fd: Fd) {
        if !mem::replace(&mut self.socket(fd).notes.unread, true) {
            self.unread.push_back(fd);
        }
    }

    fn cancel_reread(&mut self, fd: Fd) {
        if let Some(at) = self.unread.iter().position(|other| *other == fd) {
            self.unread.remove(at);
            self.rereads -= usize::from(at < self.rereads);
        }
    }

    /// Uses what the poller has reported of a socket.
    #[inline]
    fn ready(&mut self, fd: Fd, ready: Readiness) -> Option<Completion> {
        if fd == self.waker_fd {
            return Some(self.on_wake());
        }
        let socket = self.socket(fd);
        socket.notes.ready |= ready;
        // A socket to be read again has its turn behind the events.
        let has_turn = ready.contains(Readiness::READ) && !socket.notes.unread;
        let reader = socket.reader.filter(|_| has_turn);
        let writer = socket.writer.filter(|_| ready.contains(Readiness::WRITE));
        let read = reader.and_then(|token| self.read(fd, token));
        if let Some(token) = writer {
            let written = self.write(fd, token);
            self.done.extend(written);
        }
        let has_more = ready == Readiness::READ && matches!(&read, Some(c) if !c.is_last);
        if !self.by_edges && !has_more {
            // Without a waiter there is nothing to ask for. A set that shrinks has room.
            let _ = self.update_interest(fd);
        }
        read
    }

    #[inline]
    fn read(&mut self, fd: Fd, token: Token) -> Option<Completion> {
        if token.kind() == OpKind::Accept {
            self.accept(fd, token);
            return None;
        }
        match self.operations.read(fd, token) {
            Read::Completed(completion) => {
                if self.by_edges {
                    match &completion.outcome {
                        Outcome::Received(bytes) => self.note_remaining(fd, bytes.fills_buffer()),
                        // Its length says nothing about the next one.
                        Outcome::Datagram(_) => self.note_remaining(fd, true),
                        _ => {}
                    }
                }
                return Some(completion);
            }
            Read::NoBuffer => self.starve(fd),
            Read::Aborted => {}
            // What ends the stream, or follows an urgent byte, is reported when it arrives.
            Read::Empty => {
                self.socket(fd).notes.ready.remove(Readiness::READ | Readiness::HANGUP);
            }
        }
        None
    }

    fn write(&mut self, fd: Fd, token: Token) -> Option<Completion> {
        // A report says that the writer has room if the wait began after the writer. An edge, and a report of an earlier
        // wait, may be older than bytes that fill the socket now.
        let has_room = !self.by_edges && self.socket(fd).notes.writer_after < self.waits;
        if has_room && let Some(completion) = self.operations.found_room(fd, token) {
            return Some(completion);
        }
        let continued = self.operations.write(fd, token)?;
        self.continued(continued)
    }

    fn accept(&mut self, fd: Fd, token: Token) {
        let per_turn = self.operations.accepts_per_turn(token);
        for _ in 0..per_turn.unwrap_or(Self::MAX_ACCEPTS_PER_TURN) {
            match self.operations.read(fd, token) {
                Read::Completed(completion) => {
                    let last = completion.is_last;
                    self.done.push_back(completion);
                    if last {
                        return;
                    }
                }
                Read::Empty => return self.socket(fd).notes.ready.remove(Readiness::READ),
                Read::Aborted | Read::NoBuffer => {}
            }
        }
        if self.by_edges {
            self.queue_reread(fd);
        }
    }

    /// With edges: a read that fills less than its buffer has emptied the socket, unless the end of the stream, or data
    /// after an urgent byte, follows.
    fn note_remaining(&mut self, fd: Fd, full: bool) {
        let notes = &mut self.socket(fd).notes;
        if full || notes.ready.contains(Readiness::HANGUP) {
            self.queue_reread(fd);
        } else {
            notes.ready.remove(Readiness::READ);
        }
    }

    fn on_wake(&mut self) -> Completion {
        self.operations.counters.system_calls += 1;
        self.waker.drain();
        while let Some(continued) = self.operations.next_offloaded() {
            let completion = self.continued(continued);
            self.done.extend(completion);
        }
        Completion::woken()
    }

    /// Goes on with the next thing that this turn has to do.
    #[inline]
    fn next_completion(&mut self) -> Option<Completion> {
        loop {
            let (fd, ready) = match self.events.pop() {
                Some((fd, _)) if self.socket(fd).notes.closed_after == self.waits => {
                    continue;
                }
                Some(event) => event,
                None => self.reread()?,
            };
            if let Some(completion) = self.ready(fd, ready) {
                return Some(completion);
            }
            if !self.done.is_empty() {
                return self.done.pop_front();
            }
        }
    }

    /// Takes the next socket that may have more to read although no edge was reported.
    fn reread(&mut self) -> Option<(Fd, Readiness)> {
        self.rereads = self.rereads.checked_sub(1)?;
        let fd = self.unread.pop_front()?;
        self.socket(fd).notes.unread = false;
        Some((fd, Readiness::READ))
    }

    fn close(&mut self, socket: Socket) {
        let fd = socket.number();
        let Polled { unread: was_unread, listens, .. } = self.socket(fd).notes;
        // A child that has the descriptor keeps its file in the interest set, which in the child is the parent's.
        if (listens || Process::has_forked()) && self.process.is_current() {
            self.poller.forget_shared(fd);
        } else {
            self.poller.forget(fd);
        }
        self.operations.close(socket);
        // The number may be a new socket's before this turn is over.
        let waits = self.waits;
        let notes = &mut self.socket(fd).notes;
        (notes.closed_after, notes.starved) = (waits, false);
        if was_unread {
            self.cancel_reread(fd);
        }
    }

    /// How long the poller may wait.
    fn wait_timeout(&self, until: Option<Instant>) -> Option<Duration> {
        let pending = !self.done.is_empty() || !self.events.is_empty();
        if pending || !self.later.is_empty() || !self.unread.is_empty() {
            return Some(Duration::ZERO);
        }
        until.map(|at| at.saturating_duration_since(self.operations.system.clock()))
    }
}

impl<P: Poller, S: System> Engine<P, S> {
    /// Has the poller forget the listening sockets, of which others may have descriptors: those would cause signals.
    fn forget_listeners(&mut self) {
        if !self.process.is_current() {
            return;
        }
        for (number, notes) in self.operations.notes().enumerate() {
            if mem::take(&mut notes.listens) {
                self.poller.forget_shared(Fd::from_raw(number as i32));
            }
        }
    }
}

// SAFETY: an operation is attempted when it is posted, and in turns while it is in the table, which it
// leaves with its last completion. Threads use only numbers of files, which their operations own.
unsafe impl<P: Poller, S: System> Submit for Engine<P, S> {
    type Host = S;

    fn scans_all_fds(&self) -> bool {
        self.poller.scans_all_fds()
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        if let Op::Close { socket } = op {
            self.close(socket);
            return Ok(Submitted::Done(Outcome::Closed));
        }
        if let Op::Accept { listener, .. } = op {
            self.socket(listener).notes.listens = true;
        }
        let submitted = self.operations.submit(token, op);
        if let Ok(Submitted::InFlight) = submitted
            && let Some(fd) = self.operations.take_waiting()
        {
            self.wait_until_ready(fd, token);
        }
        submitted
    }

    fn cancel(&mut self, token: Token) {
        let cancelled = self.operations.cancel(token);
        self.later.extend(cancelled);
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.operations.add_buffers(buffers)
    }

    fn finish(&mut self) {
        self.operations.stop_offload();
        self.forget_listeners();
    }

    fn host(&self) -> &S {
        &self.operations.system
    }

    fn host_mut(&mut self) -> &mut S {
        &mut self.operations.system
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn counters(&self) -> Counters {
        let mut counters = self.operations.counters;
        counters.system_calls += self.poller.system_calls();
        counters.overflows += self.poller.overflows();
        counters
    }

    fn occupancy(&self) -> Occupancy {
        self.operations.occupancy()
    }
}

impl<P: Poller, S: System> Kernel for Engine<P, S> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        if !self.process.is_current() {
            return Err(KernelError::in_child());
        }
        self.operations.counters.turns += 1;
        let can_feed_more = !self.starved.is_empty() && self.feed_starved();
        let wait_timeout =
            if can_feed_more { Some(Duration::ZERO) } else { self.wait_timeout(until) };
        if self.events.is_empty() {
            self.poller
                .wait(wait_timeout, &mut self.events)
                .map_err(|error| KernelError { context: "waiting for descriptors", error })?;
            self.waits += 1;
            self.events.reverse();
        }
        self.now = self.operations.system.clock();
        self.rereads = self.unread.len();
        self.reap();
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let next =
            if self.done.is_empty() { self.next_completion() } else { self.done.pop_front() };
        self.operations.counters.completions += u64::from(next.is_some());
        next
    }

    fn reap(&mut self) {
        self.done.append(&mut self.later);
    }
}

impl<P, S: System> Drop for Engine<P, S> {
    /// Closes accepted sockets that were not delivered. The kernel has nothing in flight.
    fn drop(&mut self) {
        self.operations.discard(self.done.drain(..).chain(self.later.drain(..)));
    }
}
