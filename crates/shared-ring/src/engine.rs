//! The ring's operations over non-blocking sockets and any [`Poller`].
//!
//! The engine attempts an operation when it is posted, and when the poller reports readiness.
//! Offload threads do file operations that would block.

use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::inflight::{Entry, InFlightTable};
use crate::nonblocking::{
    self, Blocking, ReceiveError, SendAttempt, is_aborted_accept, is_fd_limit,
};
use crate::offload::FileJob;
use crate::poller::{Epoll, Poller, Readiness};
use crate::process::error_in_child;
use crate::{
    Batch, BufferPool, Completion, Counters, Fd, Kernel, KernelError, Linux, Offload, Op, OpKind,
    Outcome, Process, Submit, SubmitError, SubmitErrorKind, Submitted, System, Table, Token,
    WakeSignal, Waker,
};

/// Configuration of an [`Engine`].
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Maximum number of operations in flight.
    pub operations: u32,
    /// Number of receive buffers.
    pub buffers: u16,
    /// Size of a receive buffer in bytes.
    pub buffer_size: u32,
}

/// A kernel over a poller and non-blocking system calls.
pub struct Engine<P, S: System = Linux> {
    poller: P,
    system: S,
    offload: S::Offload,
    /// Operations in flight. The flag marks those cancelled while an offload thread has them.
    inflight: InFlightTable<bool>,
    sockets: Table<Waiting>,
    pool: Rc<BufferPool>,
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
    /// Number of waits so far.
    waits: u64,
    waker: Waker,
    waker_fd: Fd,
    now: Instant,
    counters: Counters,
    /// The process that made the engine.
    process: Process,
}

/// The engine over epoll, which works on every Linux and in every container.
pub type PortableKernel = Engine<Epoll>;

/// The operations that wait for a socket, and the poller's state for it.
#[derive(Default)]
struct Waiting {
    reader: Option<Token>,
    writer: Option<Token>,
    wanted: Readiness,
    /// Edges reported and not consumed yet.
    ready: Readiness,
    unread: bool,
    /// The wait after which a socket of this number was closed. Events of that wait do not concern
    /// the number's next socket.
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
    pub(crate) fn on(mut system: S, mut poller: P, config: &EngineConfig) -> std::io::Result<Self> {
        let signal = if P::BY_SIGNALS { WakeSignal::Signalled } else { WakeSignal::Polled };
        let waker = system.waker(signal)?;
        let waker_fd = waker.fd();
        poller.set(waker_fd, Readiness::READ)?;
        let now = system.clock();
        let offload = system.offload(waker.clone());
        Ok(Engine {
            poller,
            system,
            inflight: InFlightTable::new(config.operations),
            sockets: Table::default(),
            pool: BufferPool::new(config.buffers, config.buffer_size),
            done: Batch::new(),
            later: Batch::new(),
            events: Vec::new(),
            unread: VecDeque::new(),
            rereads: 0,
            waits: 1,
            offload,
            waker,
            waker_fd,
            now,
            counters: Counters::default(),
            process: Process::current(),
        })
    }

    /// Removes an operation from the table and returns its last completion.
    fn end(&mut self, fd: Fd, token: Token, outcome: Outcome) -> Completion {
        self.inflight.remove(token);
        self.remove_waiter(fd, token);
        Completion::last(token, outcome)
    }

    /// Fails an operation in the table; the completion returns its unsent data.
    fn fail(&mut self, fd: Fd, token: Token, errno: Errno) -> Completion {
        let data = match self.inflight.get(token) {
            Some(Entry { op: Op::Send { data, .. }, .. }) => Some(mem::take(data)),
            _ => None,
        };
        self.end(fd, token, Outcome::Failed(errno, data))
    }

    fn remove_waiter(&mut self, fd: Fd, token: Token) {
        let socket = self.sockets.at(fd.index());
        for place in [&mut socket.reader, &mut socket.writer] {
            if *place == Some(token) {
                *place = None;
            }
        }
    }

    /// Puts an operation into the table until its socket is ready.
    fn wait_until_ready(&mut self, fd: Fd, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        let reads = match op {
            Op::Accept { .. } => token.kind() == OpKind::Accept,
            Op::Receive { .. } => token.kind() == OpKind::Receive,
            _ => false,
        };
        self.inflight.insert(token, op, false)?;
        let socket = self.sockets.at(fd.index());
        *if reads { &mut socket.reader } else { &mut socket.writer } = Some(token);
        if P::EDGE && reads && socket.ready.contains(Readiness::READ) {
            self.queue_reread(fd);
        }
        if let Err(error) = self.update_interest(fd) {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
            let failed = self.fail(fd, token, errno);
            self.later.push_back(failed);
        }
        Ok(Submitted::InFlight)
    }

    /// Registers with the poller the readiness that a socket's operations wait for. With edges the
    /// registration never changes.
    fn update_interest(&mut self, fd: Fd) -> std::io::Result<()> {
        let socket = self.sockets.at(fd.index());
        let mut want = Readiness::empty();
        want.set(Readiness::READ, P::EDGE || socket.reader.is_some());
        want.set(Readiness::WRITE, P::EDGE || socket.writer.is_some());
        if socket.wanted != want {
            if !self.process.is_current() {
                // The interest set is the parent's.
                return Err(Errno::PERM.into());
            }
            self.poller.set(fd, want)?;
            socket.wanted = want;
        }
        Ok(())
    }

    /// Queues a socket to be read although no edge will be reported.
    fn queue_reread(&mut self, fd: Fd) {
        let socket = self.sockets.at(fd.index());
        if !mem::replace(&mut socket.unread, true) {
            self.unread.push_back(fd);
        }
    }

    fn cancel_reread(&mut self, fd: Fd) {
        if let Some(at) = self.unread.iter().position(|other| *other == fd) {
            self.unread.remove(at);
            self.rereads -= usize::from(at < self.rereads);
        }
    }

    /// Handles the readiness of a socket.
    #[inline]
    fn ready(&mut self, fd: Fd, ready: Readiness) -> Option<Completion> {
        if fd == self.waker_fd {
            return Some(self.on_wake());
        }
        let socket = self.sockets.at(fd.index());
        socket.ready |= ready;
        // Sockets in `unread` are read after the events.
        let reader = socket.reader.filter(|_| ready.contains(Readiness::READ) && !socket.unread);
        let writer = socket.writer.filter(|_| ready.contains(Readiness::WRITE));
        let read = reader.and_then(|token| self.read(fd, token));
        if let Some(written) = writer.and_then(|token| self.write(fd, token)) {
            self.done.push_back(written);
        }
        let has_more = ready == Readiness::READ && matches!(&read, Some(c) if !c.last);
        if !P::EDGE && !has_more {
            // Withdraw interest that no operation needs. A smaller set always has room.
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
        self.receive(fd, token)
    }

    fn accept(&mut self, fd: Fd, token: Token) {
        let max = match self.inflight.get(token) {
            Some(Entry { op: Op::Accept { per_turn: Some(n), .. }, .. }) => n.get(),
            _ => Self::MAX_ACCEPTS_PER_TURN,
        };
        for _ in 0..max {
            self.counters.system_calls += 1;
            match nonblocking::accept(&mut self.system, fd) {
                Ok(peer) => self.done.push_back(Completion::more(token, Outcome::Accepted(peer))),
                Err(Errno::AGAIN) => {
                    return self.sockets.at(fd.index()).ready.remove(Readiness::READ);
                }
                Err(errno) if is_aborted_accept(errno) => self.counters.accepts_aborted += 1,
                Err(errno) => {
                    self.counters.fd_limit_hits += u64::from(is_fd_limit(errno));
                    let failed = self.fail(fd, token, errno);
                    return self.done.push_back(failed);
                }
            }
        }
        if P::EDGE {
            self.queue_reread(fd);
        }
    }

    #[inline]
    fn receive(&mut self, fd: Fd, token: Token) -> Option<Completion> {
        self.counters.system_calls += 1;
        match nonblocking::receive(&mut self.system, fd, &self.pool) {
            Ok(bytes) => {
                if P::EDGE {
                    self.note_remaining(fd, bytes.len());
                }
                Some(Completion::more(token, Outcome::Received(bytes)))
            }
            Err(ReceiveError::End) => Some(self.end(fd, token, Outcome::Eof)),
            Err(ReceiveError::Failed(Errno::AGAIN)) => {
                self.sockets.at(fd.index()).ready.remove(Readiness::READ);
                None
            }
            Err(ReceiveError::Failed(errno)) => Some(self.fail(fd, token, errno)),
            Err(ReceiveError::NoBuffer) => {
                self.counters.system_calls -= 1;
                self.counters.buffer_shortages += 1;
                if P::EDGE {
                    self.queue_reread(fd);
                }
                None
            }
        }
    }

    /// With edges: a read that fills less than its buffer has emptied the socket, unless the end
    /// of the stream follows.
    fn note_remaining(&mut self, fd: Fd, n: usize) {
        let socket = self.sockets.at(fd.index());
        let full = n == self.pool.size();
        let hangup = socket.ready.contains(Readiness::HANGUP);
        if full || hangup {
            self.queue_reread(fd);
        } else {
            socket.ready.remove(Readiness::READ);
        }
    }

    /// Continues the operation that waits for the socket to be writable.
    fn write(&mut self, fd: Fd, token: Token) -> Option<Completion> {
        let entry = self.inflight.remove(token)?;
        self.remove_waiter(fd, token);
        if let Op::Connect { .. } = entry.op {
            self.counters.system_calls += 1;
            let outcome = match self.system.connected(fd) {
                Ok(()) => Outcome::Connected,
                Err(errno) => Outcome::Failed(errno, None),
            };
            return Some(Completion::last(token, outcome));
        }
        self.resume_send(fd, token, entry.op, Blocking::NoBlock)
    }

    /// Continues a send that waited.
    fn resume_send(&mut self, fd: Fd, token: Token, op: Op, disk: Blocking) -> Option<Completion> {
        match self.send(fd, token, op, disk) {
            Ok(Submitted::Done(outcome)) => Some(Completion::last(token, outcome)),
            Ok(Submitted::InFlight) => None,
            Err(error) => unreachable!("its table entry was just freed: {error:?}"),
        }
    }

    /// Sends, waits for the socket, or has an offload thread read the part of the file.
    #[inline]
    fn send(
        &mut self,
        fd: Fd,
        token: Token,
        op: Op,
        disk: Blocking,
    ) -> Result<Submitted, SubmitError> {
        self.counters.system_calls += 1;
        match nonblocking::try_to_send(&mut self.system, op, disk) {
            SendAttempt::Full(op) => self.wait_until_ready(fd, token, op),
            SendAttempt::Cold(op) => {
                self.counters.cold_file_reads += 1;
                self.offload(token, op)
            }
            SendAttempt::Done(outcome) => {
                self.counters.note_send(&outcome);
                Ok(Submitted::Done(outcome))
            }
        }
    }

    /// Posts an operation's file job to the offload threads.
    fn offload(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        // SAFETY: the operation stays in the table until the job is done, and is leaked if the job hangs.
        let work = unsafe { FileJob::of(&op) };
        self.inflight.insert(token, op, false)?;
        self.counters.offloaded_file_ops += 1;
        self.offload.post(token, work);
        Ok(Submitted::InFlight)
    }

    /// Does a file operation at once if its data is cached, else offloads it.
    fn file_work(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        self.counters.system_calls += 1;
        // SAFETY: the operation outlives the call.
        let work = unsafe { FileJob::of(&op) };
        match self.system.file_work(&work) {
            Ok(outcome) => Ok(Submitted::Done(outcome)),
            Err(errno) if FileJob::would_block(errno) => self.offload(token, op),
            Err(errno) => Ok(Submitted::Done(Outcome::Failed(errno, None))),
        }
    }

    fn on_wake(&mut self) -> Completion {
        self.counters.system_calls += 1;
        self.waker.drain();
        while let Some((token, outcome)) = self.offload.take() {
            let ended = self.offload_done(token, outcome);
            self.done.extend(ended);
        }
        Completion::more(Token::new(OpKind::Wake, 0, 0), Outcome::Woken)
    }

    fn offload_done(&mut self, token: Token, outcome: Outcome) -> Option<Completion> {
        let Entry { op, state: cancelled, .. } = self.inflight.remove(token)?;
        match op {
            _ if cancelled => Some(Completion::last(token, Outcome::Failed(Errno::CANCELED, None))),
            Op::SendFile { fd, .. } => self.resume_send(fd, token, op, Blocking::MayBlock),
            _ => Some(Completion::last(token, outcome)),
        }
    }

    /// Processes events of this turn up to the next completion.
    #[inline]
    fn next_completion(&mut self) -> Option<Completion> {
        loop {
            let (fd, ready) = match self.events.pop() {
                Some((fd, _)) if self.sockets.at(fd.index()).closed_after == self.waits => {
                    continue;
                }
                Some(event) => event,
                None => self.reread()?,
            };
            let completion = self.ready(fd, ready);
            if completion.is_some() {
                return completion;
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
        self.sockets.at(fd.index()).unread = false;
        Some((fd, Readiness::READ))
    }

    /// Returns the maximum time for the poller to wait.
    fn wait_timeout(&self, until: Option<Instant>) -> Option<Duration> {
        let pending = !self.done.is_empty() || !self.events.is_empty();
        if pending || !self.later.is_empty() || !self.unread.is_empty() {
            return Some(Duration::ZERO);
        }
        until.map(|at| at.saturating_duration_since(self.system.clock()))
    }
}

impl<P, S: System> Engine<P, S> {
    /// Stops the offload threads. If one hangs, leaks the files in flight: the thread still uses
    /// their numbers.
    fn stop_offload(&mut self) {
        if !self.offload.stop() {
            mem::forget(mem::replace(&mut self.inflight, InFlightTable::new(0)));
        }
    }
}

// SAFETY: an operation is attempted when it is posted, and in turns while it is in the table, which it
// leaves with its last completion. Threads use only numbers of files, which their operations own.
unsafe impl<P: Poller, S: System> Submit for Engine<P, S> {
    type Host = S;

    const SCANS_ALL_FDS: bool = P::SCANS_ALL_FDS;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        if self.inflight.get(token).is_some() {
            return Err(SubmitError { op, kind: SubmitErrorKind::TokenInUse });
        }
        match op {
            Op::Accept { listener: fd, .. } | Op::Receive { fd } => {
                self.wait_until_ready(fd, token, op)
            }
            Op::Send { fd, .. } | Op::SendFile { fd, .. } => {
                self.send(fd, token, op, Blocking::NoBlock)
            }
            Op::Connect { fd, to } => {
                self.counters.system_calls += 1;
                match self.system.connect(fd, to) {
                    Ok(()) => Ok(Submitted::Done(Outcome::Connected)),
                    Err(Errno::INPROGRESS) => self.wait_until_ready(fd, token, op),
                    Err(errno) => Ok(Submitted::Done(Outcome::Failed(errno, None))),
                }
            }
            Op::Close { socket } => {
                let fd = socket.number();
                self.counters.system_calls += 1;
                self.poller.forget(fd);
                let waiting = self.sockets.at(fd.index());
                let unread = waiting.unread;
                // The number may belong to a new socket before this turn ends.
                *waiting = Waiting { closed_after: self.waits, ..Waiting::default() };
                if unread {
                    self.cancel_reread(fd);
                }
                self.system.close_unused(socket);
                Ok(Submitted::Done(Outcome::Closed))
            }
            Op::List { .. } => self.offload(token, op),
            Op::Open { .. } | Op::Stat { .. } | Op::Read { .. } => self.file_work(token, op),
        }
    }

    fn cancel(&mut self, token: Token) {
        let Some(entry) = self.inflight.get(token) else { return };
        self.counters.cancels += 1;
        match entry.op {
            Op::Accept { listener: fd, .. }
            | Op::Receive { fd }
            | Op::Send { fd, .. }
            | Op::Connect { fd, .. } => {
                let failed = self.fail(fd, token, Errno::CANCELED);
                self.later.push_back(failed);
            }
            Op::SendFile { fd, .. } if self.sockets.at(fd.index()).writer == Some(token) => {
                let failed = self.fail(fd, token, Errno::CANCELED);
                self.later.push_back(failed);
            }
            // An offload thread has it.
            _ => entry.state = true,
        }
    }

    fn finish(&mut self) {
        self.stop_offload();
    }

    fn host(&self) -> &S {
        &self.system
    }

    fn host_mut(&mut self) -> &mut S {
        &mut self.system
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn landed(&self) -> u32 {
        self.later.len() as u32
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.system_calls += self.poller.system_calls();
        counters.overflows += self.poller.overflows();
        counters
    }
}

impl<P: Poller, S: System> Kernel for Engine<P, S> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        if !self.process.is_current() {
            return Err(error_in_child());
        }
        self.counters.turns += 1;
        let wait_timeout = self.wait_timeout(until);
        if self.events.is_empty() {
            self.poller
                .wait(wait_timeout, &mut self.events)
                .map_err(|error| KernelError { context: "waiting for descriptors", error })?;
            self.waits += 1;
            self.events.reverse();
        }
        self.now = self.system.clock();
        self.rereads = self.unread.len();
        self.reap();
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let next =
            if self.done.is_empty() { self.next_completion() } else { self.done.pop_front() };
        self.counters.completions += u64::from(next.is_some());
        next
    }

    fn reap(&mut self) {
        self.done.append(&mut self.later);
    }
}

impl<P, S: System> Drop for Engine<P, S> {
    /// Closes accepted sockets that were not delivered. The kernel has nothing in flight.
    fn drop(&mut self) {
        self.stop_offload();
        for completion in self.done.drain(..).chain(self.later.drain(..)) {
            if let Outcome::Accepted(socket) = completion.outcome {
                self.system.close_unused(socket);
            }
        }
    }
}
