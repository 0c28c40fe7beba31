//! The ring's operations on non-blocking sockets: one engine over every [`Poller`].
//!
//! An operation is tried when it is posted, or when the poller says that it can be; what file
//! work would wait for the disk goes to a few threads.

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

/// How an [`Engine`] is set up.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Most operations in flight.
    pub operations: u32,
    /// Number of receive buffers.
    pub buffers: u16,
    /// Size of a receive buffer in bytes.
    pub buffer_size: u32,
}

/// A kernel made of a poller and non-blocking system calls.
pub struct Engine<P, S: System = Linux> {
    poller: P,
    system: S,
    offload: S::Offload,
    /// Operations that wait, and whether their end was asked for while a thread has them.
    inflight: InFlightTable<bool>,
    sockets: Table<Waiting>,
    pool: Rc<BufferPool>,
    /// Completions of this turn.
    done: Batch,
    /// Completions of the next turn: what was cancelled or refused since this one began.
    later: Batch,
    /// What the poller said, newest first while it is worked on.
    events: Vec<(Fd, Readiness)>,
    /// Sockets that may have more to read though no edge will say so.
    unread: VecDeque<Fd>,
    /// How many of them belong to this turn.
    rereads: usize,
    /// Waits so far.
    waits: u64,
    waker: Waker,
    waker_fd: Fd,
    now: Instant,
    counters: Counters,
    /// The process whose descriptors it waits for.
    process: Process,
}

/// The operations of a ring where there is none: on every Linux, in every container.
pub type PortableKernel = Engine<Epoll>;

/// The operations that wait for a socket, and what the poller was told and has said.
#[derive(Default)]
struct Waiting {
    reader: Option<Token>,
    writer: Option<Token>,
    wanted: Readiness,
    /// Edges seen and not used up.
    ready: Readiness,
    unread: bool,
    /// The wait after which a socket of this number was closed. What that wait said is not about
    /// the next one.
    closed_after: u64,
}

impl<P: Poller> Engine<P> {
    /// Makes an engine over an empty poller.
    ///
    /// # Errors
    /// When there is no descriptor for the waker.
    pub fn new(poller: P, config: &EngineConfig) -> std::io::Result<Self> {
        Engine::on(Linux::default(), poller, config)
    }
}

impl<P: Poller, S: System> Engine<P, S> {
    /// Most connections taken from a listener at a time, so that a flood of them leaves time
    /// for those that are open (a bare loop with this bound kept its goodput under overload).
    const MAX_ACCEPTS_PER_TURN: u16 = 16;

    /// Makes an engine over an empty poller of a machine.
    ///
    /// # Errors
    /// When there is no descriptor for the waker.
    pub(crate) fn on(mut system: S, mut poller: P, config: &EngineConfig) -> std::io::Result<Self> {
        let told = if P::BY_SIGNALS { WakeSignal::Signalled } else { WakeSignal::Polled };
        let waker = system.waker(told)?;
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

    /// Ends an operation that waits in the table.
    fn end(&mut self, fd: Fd, token: Token, outcome: Outcome) -> Completion {
        self.inflight.remove(token);
        self.remove_waiter(fd, token);
        Completion::last(token, outcome)
    }

    /// Ends an operation that waits in the table, and hands back what it was to send.
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

    /// Lets an operation wait until its socket is ready.
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

    /// Tells the poller what the operations of a socket wait for. Edges are asked for once.
    fn update_interest(&mut self, fd: Fd) -> std::io::Result<()> {
        let socket = self.sockets.at(fd.index());
        let mut want = Readiness::empty();
        want.set(Readiness::READ, P::EDGE || socket.reader.is_some());
        want.set(Readiness::WRITE, P::EDGE || socket.writer.is_some());
        if socket.wanted != want {
            if !self.process.is_current() {
                // The set is the parent's.
                return Err(Errno::PERM.into());
            }
            self.poller.set(fd, want)?;
            socket.wanted = want;
        }
        Ok(())
    }

    /// Remembers to read from a socket though no edge will say so.
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

    /// Uses what the poller said of a socket.
    #[inline]
    fn ready(&mut self, fd: Fd, ready: Readiness) -> Option<Completion> {
        if fd == self.waker_fd {
            return Some(self.on_wake());
        }
        let socket = self.sockets.at(fd.index());
        socket.ready |= ready;
        // What is to be looked at again has its turn behind the events.
        let reader = socket.reader.filter(|_| ready.contains(Readiness::READ) && !socket.unread);
        let writer = socket.writer.filter(|_| ready.contains(Readiness::WRITE));
        let read = reader.and_then(|token| self.read(fd, token));
        if let Some(written) = writer.and_then(|token| self.write(fd, token)) {
            self.done.push_back(written);
        }
        let has_more = ready == Readiness::READ && matches!(&read, Some(c) if !c.last);
        if !P::EDGE && !has_more {
            // Stop asking for what nobody waits for. A set that shrinks has room.
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
    /// of the stream stands behind it.
    fn note_remaining(&mut self, fd: Fd, n: usize) {
        let socket = self.sockets.at(fd.index());
        let full = n == self.pool.size();
        let ends = socket.ready.contains(Readiness::HANGUP);
        if full || ends {
            self.queue_reread(fd);
        } else {
            socket.ready.remove(Readiness::READ);
        }
    }

    /// Goes on with the operation that waits to write.
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

    /// Goes on with a send that waited.
    fn resume_send(&mut self, fd: Fd, token: Token, op: Op, disk: Blocking) -> Option<Completion> {
        match self.send(fd, token, op, disk) {
            Ok(Submitted::Done(outcome)) => Some(Completion::last(token, outcome)),
            Ok(Submitted::InFlight) => None,
            Err(refused) => unreachable!("its place was just vacated: {refused:?}"),
        }
    }

    /// Sends, or waits for the socket, or has a thread read what is to be sent.
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

    /// Has a thread do an operation's file work.
    fn offload(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        // SAFETY: the operation stays in the table until the work is done, or for good if that does not end.
        let work = unsafe { FileJob::of(&op) };
        self.inflight.insert(token, op, false)?;
        self.counters.offloaded_file_ops += 1;
        self.offload.post(token, work);
        Ok(Submitted::InFlight)
    }

    /// Does file work at once if everything is in memory, else has a thread do it.
    fn file_work(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        self.counters.system_calls += 1;
        // SAFETY: the operation is there until the call is over.
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

    /// Goes on with the next thing that this turn has to do.
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
            let first = self.ready(fd, ready);
            if first.is_some() {
                return first;
            }
            if !self.done.is_empty() {
                return self.done.pop_front();
            }
        }
    }

    /// The next socket that may have more to read though no edge says so.
    fn reread(&mut self) -> Option<(Fd, Readiness)> {
        self.rereads = self.rereads.checked_sub(1)?;
        let fd = self.unread.pop_front()?;
        self.sockets.at(fd.index()).unread = false;
        Some((fd, Readiness::READ))
    }

    /// How long the poller may wait.
    fn wait_timeout(&self, until: Option<Instant>) -> Option<Duration> {
        let left = !self.done.is_empty() || !self.events.is_empty();
        if left || !self.later.is_empty() || !self.unread.is_empty() {
            return Some(Duration::ZERO);
        }
        until.map(|at| at.saturating_duration_since(self.system.clock()))
    }
}

impl<P, S: System> Engine<P, S> {
    /// Ends the threads' work. The files of what hangs are leaked, as their numbers are still used.
    fn stop_offload(&mut self) {
        if !self.offload.stop() {
            mem::forget(mem::replace(&mut self.inflight, InFlightTable::new(0)));
        }
    }
}

// SAFETY: an operation is tried as it is posted, and in turns, while it stands in the table, which it leaves with
// its last completion. Threads have the numbers of files only, whose operations own them.
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
                // The number may be a new socket's before this turn is over.
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
            // A thread has it.
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
    /// Nothing is in flight in the kernel; sockets that were accepted and not delivered close.
    fn drop(&mut self) {
        self.stop_offload();
        for completion in self.done.drain(..).chain(self.later.drain(..)) {
            if let Outcome::Accepted(socket) = completion.outcome {
                self.system.close_unused(socket);
            }
        }
    }
}
