//! Operations on non-blocking sockets, for kernels that learn when a socket is ready.
//!
//! An operation is tried when it is submitted, and again whenever its socket is ready. A kernel adds the
//! waiting: [`Engine`](crate::Engine) by a poller, the mechanism `tokio` of the crate `evring` by tasks.

use std::mem;
use std::rc::Rc;

use rustix::io::{Errno, retry_on_intr};

use crate::inflight::{InFlight, InFlightTable};
use crate::nonblocking::{self, ReceiveError, SendAttempt, is_aborted_accept, is_fd_limit};
use crate::read_ahead::ReadAhead;
use crate::read_buffers::ReadBuffers;
use crate::table::Table;
use crate::{
    BufferError, BufferGroup, BufferPool, Call, Completion, Counters, EngineConfig, Executor, Fd,
    FileJob, FileOp, GatherList, Job, JobOutcome, Occupancy, Offload, Op, OpKind, Outcome, Socket,
    SubmitError, SubmitErrorKind, Submitted, System, Token,
};

/// Operations on non-blocking sockets, and for each socket a kernel's notes `N`.
pub struct Operations<S: System, N, O: Offload = <S as System>::Offload> {
    /// The machine.
    pub system: S,
    /// Counters of this kernel.
    pub counters: Counters,
    /// The receive buffers of each group.
    pools: Vec<Rc<BufferPool>>,
    in_flight: InFlightTable<Pending>,
    sockets: Table<SocketState<N>>,
    read_ahead: ReadAhead,
    read_buffers: ReadBuffers,
    offload: O,
    /// The socket for which an operation has just begun to wait.
    waiting: Option<Fd>,
}

impl<S: System, N, O: Offload> std::fmt::Debug for Operations<S, N, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operations").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// The socket or the thread for which an operation in flight waits.
enum Pending {
    Socket,
    /// Another thread executes its job; a part of a file was not in the page cache.
    Thread {
        cancelled: bool,
        was_cold: bool,
    },
}

/// The operations that wait for a socket.
#[derive(Debug, Default)]
pub struct SocketState<N> {
    /// The accept or the receive.
    pub reader: Option<Token>,
    /// The send or the connect.
    pub writer: Option<Token>,
    /// The group of the receive.
    pub group: BufferGroup,
    /// The receive is one of datagrams.
    pub datagrams: bool,
    /// The kernel's notes.
    pub notes: N,
}

/// The state of an operation that was continued.
#[derive(Debug)]
pub enum Continued {
    /// It has ended.
    Completed(Completion),
    /// It waits until this socket is ready.
    Waits(Fd, Token),
}

/// The result of trying to receive or to accept once.
#[derive(Debug)]
pub enum Read {
    /// A completion.
    Completed(Completion),
    /// The socket has nothing to read.
    Empty,
    /// No receive buffer is free.
    NoBuffer,
    /// The connection was closed before it was accepted. The socket may have others.
    Aborted,
}

impl<S: System, N: Default, O: Offload> Operations<S, N, O> {
    /// Creates an empty table, and the buffers of the first group. `offload` executes jobs that would block.
    pub fn new(system: S, config: &EngineConfig, offload: O) -> Self {
        Operations {
            system,
            counters: Counters::default(),
            pools: vec![BufferPool::new(config.buffers, config.buffer_size)],
            in_flight: InFlightTable::new(config.operations),
            sockets: Table::default(),
            read_ahead: ReadAhead::default(),
            read_buffers: ReadBuffers::default(),
            offload,
            waiting: None,
        }
    }

    /// Returns the offload.
    pub fn offload(&self) -> &O {
        &self.offload
    }

    /// Adds a group of receive buffers.
    ///
    /// # Errors
    /// If there are [`BufferGroup::MAX`] groups.
    pub fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        let group = BufferGroup::after(self.pools.len())?;
        self.pools.push(buffers.into_group(group));
        Ok(group)
    }

    /// Returns the receive buffers of a group.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn buffers(&self, group: BufferGroup) -> &Rc<BufferPool> {
        &self.pools[group.index()]
    }

    /// Returns what these operations hold at the moment.
    pub fn occupancy(&self) -> Occupancy {
        Occupancy {
            in_flight: self.in_flight.len() as u32,
            free_buffers: self.pools.iter().map(|pool| u32::from(pool.available())).sum(),
            ..Occupancy::default()
        }
    }

    /// Returns the operations that wait for a socket, and the notes.
    #[inline]
    pub fn socket(&mut self, fd: Fd) -> &mut SocketState<N> {
        self.sockets.at(fd.index())
    }

    /// Returns the notes of every socket, in the order of their numbers, from 0 on.
    pub fn notes(&mut self) -> impl Iterator<Item = &mut N> {
        self.sockets.iter_mut().map(|socket| &mut socket.notes)
    }

    /// Closes the sockets that were accepted in completions which the kernel does not return.
    pub fn discard(&mut self, completions: impl IntoIterator<Item = Completion>) {
        for completion in completions {
            if let Outcome::Accepted(socket) = completion.outcome {
                self.system.close_unused(socket);
            }
        }
    }

    /// Takes the socket of the operation that has just begun to wait: after [`submit`](Operations::submit), for a call of
    /// [`read`](Operations::read) or [`write`](Operations::write) when it is ready. Returns `None` if no operation waits,
    /// or it waits for another thread.
    #[inline]
    pub fn take_waiting(&mut self) -> Option<Fd> {
        self.waiting.take()
    }

    /// Tries an operation other than a close. An operation that is then in flight waits for a
    /// [socket](Operations::take_waiting) or for another thread.
    ///
    /// # Errors
    /// Those of [`Submit::submit`](crate::Submit::submit).
    #[inline(always)]
    pub fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        if self.in_flight.get(token).is_some() {
            return Err(SubmitError { op, kind: SubmitErrorKind::TokenInUse });
        }
        match op {
            Op::Accept { listener: fd, .. } => self.wait(fd, token, op),
            Op::Receive { fd, group } | Op::ReceiveFrom { fd, group } => {
                if group.index() >= self.pools.len() {
                    return Err(SubmitError { op, kind: SubmitErrorKind::UnknownGroup });
                }
                let datagrams = matches!(op, Op::ReceiveFrom { .. });
                let submitted = self.wait(fd, token, op)?;
                let socket = self.socket(fd);
                (socket.group, socket.datagrams) = (group, datagrams);
                Ok(submitted)
            }
            Op::Send { fd, data } => {
                self.read_ahead.forget(fd);
                self.send_list(fd, token, data)
            }
            Op::SendTo { fd, .. } | Op::SendFile { fd, .. } => {
                self.send_datagram_or_file(fd, token, op, false)
            }
            Op::Writable { fd } => self.wait_for_room(fd, token),
            Op::Connect { fd, to } => {
                self.counters.system_calls += 1;
                match self.system.connect(fd, to) {
                    Ok(()) => Ok(Submitted::Done(Outcome::Connected)),
                    Err(Errno::INPROGRESS) => self.wait(fd, token, op),
                    Err(errno) => Ok(Submitted::Done(Outcome::Failed(errno, None))),
                }
            }
            Op::File(op) => self.file_work(token, op),
            Op::Call(call, by) => self.call(token, call, by),
            Op::Close { .. } => unreachable!("kernels close sockets themselves"),
        }
    }

    /// Closes a socket that no operation waits for, and forgets its notes.
    pub fn close(&mut self, socket: Socket) {
        self.counters.system_calls += 1;
        *self.socket(socket.number()) = SocketState::default();
        self.read_ahead.forget(socket.number());
        self.system.close_unused(socket);
    }

    fn wait(&mut self, fd: Fd, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        let reads = match op {
            Op::Accept { .. } => token.kind() == OpKind::Accept,
            Op::Receive { .. } | Op::ReceiveFrom { .. } => token.kind() == OpKind::Receive,
            Op::Call(_, Executor::WhenReadable) => token.kind() == OpKind::Call,
            _ => false,
        };
        self.in_flight.insert(token, op, Pending::Socket)?;
        let socket = self.socket(fd);
        *if reads { &mut socket.reader } else { &mut socket.writer } = Some(token);
        self.waiting = Some(fd);
        Ok(Submitted::InFlight)
    }

    /// Sends a list.
    #[inline(always)]
    fn send_list(
        &mut self,
        fd: Fd,
        token: Token,
        mut data: Box<GatherList>,
    ) -> Result<Submitted, SubmitError> {
        self.counters.system_calls += 1;
        match nonblocking::send(&mut self.system, fd, &mut data) {
            Ok(n) => {
                self.counters.short_sends += u64::from(!data.is_empty());
                Ok(Submitted::Done(Outcome::Sent(data, n)))
            }
            Err(Errno::AGAIN) => self.wait(fd, token, Op::Send { fd, data }),
            Err(errno) => Ok(Submitted::Done(Outcome::Failed(errno, Some(data)))),
        }
    }

    /// Sends a datagram, or a part of a file, which `was_read`.
    fn send_datagram_or_file(
        &mut self,
        fd: Fd,
        token: Token,
        op: Op,
        was_read: bool,
    ) -> Result<Submitted, SubmitError> {
        self.counters.system_calls += 1;
        let last_bytes = match op {
            Op::SendFile { len, is_last: true, .. } => Some(len),
            _ => None,
        };
        match nonblocking::try_to_send(&mut self.system, op, was_read) {
            // A socket has one writer that waits, but datagrams have no order.
            SendAttempt::Full(op @ Op::SendTo { .. }) if self.socket(fd).writer.is_some() => {
                Ok(Submitted::Done(op.fail(Errno::AGAIN)))
            }
            SendAttempt::Full(mut op) => {
                if let Op::SendFile { offset, len, is_last, .. } = &mut op {
                    nonblocking::cut_to_block(*offset, (len, is_last));
                }
                self.wait(fd, token, op)
            }
            SendAttempt::Cold(op) => self.read_first(fd, token, op),
            SendAttempt::Done(outcome) => {
                if let Outcome::SentFile { bytes, .. } = outcome
                    && last_bytes == Some(bytes)
                {
                    self.read_ahead.forget(fd);
                }
                self.counters.cold_file_reads += u64::from(matches!(outcome, Outcome::Cold));
                Ok(Submitted::Done(outcome))
            }
        }
    }

    /// Has a thread read what a send of a file needs. The operation stays in the table, as that of file work.
    fn read_first(&mut self, fd: Fd, token: Token, mut op: Op) -> Result<Submitted, SubmitError> {
        self.counters.cold_file_reads += 1;
        let Op::SendFile { ref file, offset, ref mut len, ref mut is_last, .. } = op else {
            unreachable!("not a send of a file: {op:?}")
        };
        let (number, ahead) = (file.fd(), &mut self.read_ahead);
        let part = (len, is_last);
        let read = nonblocking::read_first(&mut self.system, ahead, fd, (file, offset), part);
        self.counters.offloaded_file_ops += 1;
        let state = Pending::Thread { cancelled: false, was_cold: true };
        self.in_flight.insert(token, op, state)?;
        self.offload.post(token, Job::Cache(number, read));
        Ok(Submitted::InFlight)
    }

    fn wait_for_room(&mut self, fd: Fd, token: Token) -> Result<Submitted, SubmitError> {
        self.counters.system_calls += 1;
        match retry_on_intr(|| self.system.is_writable(fd)) {
            Ok(true) => Ok(Submitted::Done(Outcome::Writable)),
            Ok(false) => self.wait(fd, token, Op::Writable { fd }),
            Err(errno) => Ok(Submitted::Done(Outcome::Failed(errno, None))),
        }
    }

    /// Runs a file operation if everything is in memory; otherwise another thread has to.
    fn file_work(&mut self, token: Token, op: FileOp) -> Result<Submitted, SubmitError> {
        if let Err(errno) = op.check() {
            return Ok(Submitted::Done(Outcome::Failed(errno, None)));
        }
        // SAFETY: the operation stays in the table until its job has ended, or is leaked.
        let job = unsafe { op.job() };
        if job.may_always_block() {
            return self.offload_file(token, Op::File(op), job, false);
        }
        self.counters.system_calls += 1;
        let read = match &op {
            FileOp::Read(file, part) => self.read_buffers.read(&mut self.system, file.fd(), part),
            _ => None,
        };
        match read.unwrap_or_else(|| self.system.file_work(&job)) {
            Err(errno) if FileJob::would_block(errno) => {
                if let FileOp::Read(file, _) = &op {
                    // Sends of the file may have switched it off.
                    nonblocking::set_read_ahead(&mut self.system, file, true);
                }
                self.offload_file(token, Op::File(op), job, FileJob::is_cold(errno))
            }
            result => Ok(Submitted::Done(result.into())),
        }
    }

    fn offload_file(
        &mut self,
        token: Token,
        op: Op,
        job: FileJob,
        was_cold: bool,
    ) -> Result<Submitted, SubmitError> {
        let submitted = self.post(token, op, Job::File(job), was_cold);
        self.counters.offloaded_file_ops += u64::from(submitted.is_ok());
        submitted
    }

    fn post(
        &mut self,
        token: Token,
        op: Op,
        job: Job,
        was_cold: bool,
    ) -> Result<Submitted, SubmitError> {
        self.in_flight.insert(token, op, Pending::Thread { cancelled: false, was_cold })?;
        self.offload.post(token, job);
        Ok(Submitted::InFlight)
    }

    /// Makes a system call, or lets its executor make it.
    #[cold]
    fn call(
        &mut self,
        token: Token,
        mut call: Box<Call>,
        by: Executor,
    ) -> Result<Submitted, SubmitError> {
        // SAFETY: the call is accessed again after the job is done. Until then it stays in the table, or is
        // leaked.
        let job = unsafe { call.job() };
        if let Executor::Ring | Executor::Thread = by {
            let submitted = self.post(token, Op::Call(call, by), Job::Call(job), false);
            self.counters.offloaded_calls += u64::from(submitted.is_ok());
            return submitted;
        }
        self.counters.system_calls += 1;
        match (self.system.call(&job), call.fd()) {
            (Err(Errno::AGAIN), Some(fd)) if by != Executor::InPlace => {
                let socket = self.socket(fd);
                let waiter =
                    if by == Executor::WhenReadable { socket.reader } else { socket.writer };
                match waiter {
                    Some(_) => Ok(Submitted::Done(Outcome::Called(call, Err(Errno::BUSY)))),
                    None => self.wait(fd, token, Op::Call(call, by)),
                }
            }
            (result, _) => Ok(Submitted::Done(Outcome::Called(call, result))),
        }
    }

    /// Continues the next operation whose job another thread has run. Call it until it returns `None`, after each wake.
    pub fn next_offloaded(&mut self) -> Option<Continued> {
        while let Some((token, result)) = self.offload.take() {
            let Some((submitted, was_cold)) = self.offloaded(token, result) else { continue };
            if let Submitted::Done(outcome) = submitted {
                let completion = Completion::by_thread(token, outcome, was_cold);
                return Some(Continued::Completed(completion));
            }
            if let Some(fd) = self.waiting.take() {
                return Some(Continued::Waits(fd, token));
            }
        }
        None
    }

    /// Continues an operation whose job has ended. Returns also whether a part of a file was not in the page cache; `None`
    /// if it is not in flight.
    fn offloaded(
        &mut self,
        token: Token,
        result: Result<JobOutcome, Errno>,
    ) -> Option<(Submitted, bool)> {
        let InFlight { op, state, .. } = self.in_flight.remove(token)?;
        let (cancelled, was_cold) = match state {
            Pending::Thread { cancelled, was_cold } => (cancelled, was_cold),
            Pending::Socket => (false, false),
        };
        let submitted = match op {
            // It may have had an effect, so its result counts.
            Op::Call(..) => Submitted::Done(op.executed(result)),
            _ if cancelled => Submitted::Done(op.fail(Errno::CANCELED)),
            Op::SendFile { fd, .. } if result.is_ok() => self.resume(fd, token, op, true),
            _ => Submitted::Done(op.executed(result)),
        };
        Some((submitted, was_cold))
    }

    fn resume(&mut self, fd: Fd, token: Token, op: Op, was_read: bool) -> Submitted {
        let resumed = match op {
            Op::Writable { .. } => self.wait_for_room(fd, token),
            Op::Send { data, .. } => self.send_list(fd, token, data),
            op => self.send_datagram_or_file(fd, token, op, was_read),
        };
        resumed.expect("it gave up its place in the table")
    }

    /// Tries once the receive or the accept that waits for a socket.
    #[inline(always)]
    pub fn read(&mut self, fd: Fd, token: Token) -> Read {
        self.counters.system_calls += 1;
        match token.kind() {
            OpKind::Accept => self.accept(fd, token),
            OpKind::Call => self.call_again(fd, token),
            _ => self.receive(fd, token),
        }
    }

    /// Tries a system call again whose descriptor is readable.
    #[cold]
    fn call_again(&mut self, fd: Fd, token: Token) -> Read {
        let Some(InFlight { op: Op::Call(call, _), .. }) = self.in_flight.get(token) else {
            return Read::Empty;
        };
        // SAFETY: the call is accessed again after the job is done.
        let job = unsafe { call.job() };
        let result = self.system.call(&job);
        if result == Err(Errno::AGAIN) {
            return Read::Empty;
        }
        Read::Completed(self.end(fd, token, |op| op.executed(result.map(JobOutcome::Call))))
    }

    fn accept(&mut self, fd: Fd, token: Token) -> Read {
        match nonblocking::accept(&mut self.system, fd) {
            Ok(peer) => Read::Completed(Completion::more(token, Outcome::Accepted(peer))),
            Err(Errno::AGAIN) => Read::Empty,
            Err(errno) if is_aborted_accept(errno) => {
                self.counters.accepts_aborted += 1;
                Read::Aborted
            }
            Err(errno) => {
                self.counters.fd_limit_hits += u64::from(is_fd_limit(errno));
                Read::Completed(self.fail(fd, token, errno))
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, fd: Fd, token: Token) -> Read {
        let &mut SocketState { group, datagrams, .. } = self.sockets.at(fd.index());
        let pool = &self.pools[group.index()];
        let received = if datagrams {
            nonblocking::receive_from(&mut self.system, fd, pool).map(Outcome::Datagram)
        } else {
            nonblocking::receive(&mut self.system, fd, pool).map(Outcome::Received)
        };
        match received {
            Ok(outcome) => Read::Completed(Completion::more(token, outcome)),
            Err(ReceiveError::End) => Read::Completed(self.end(fd, token, |_| Outcome::Eof)),
            Err(ReceiveError::Failed(Errno::AGAIN)) => Read::Empty,
            Err(ReceiveError::Failed(errno)) => Read::Completed(self.fail(fd, token, errno)),
            Err(ReceiveError::NoBuffer) => {
                self.counters.system_calls -= 1;
                self.counters.buffer_shortages += 1;
                Read::NoBuffer
            }
        }
    }

    /// Returns the maximum number of connections that an accept takes in a turn, if it has one.
    pub fn accepts_per_turn(&mut self, token: Token) -> Option<u16> {
        match self.in_flight.get(token)?.op {
            Op::Accept { per_turn, .. } => per_turn.map(Into::into),
            _ => None,
        }
    }

    /// Continues the send, the wait for room or the connect that waits for a socket. Returns `None` if it is not in flight,
    /// or waits for another thread now.
    pub fn write(&mut self, fd: Fd, token: Token) -> Option<Continued> {
        let entry = self.in_flight.remove(token)?;
        self.remove_waiter(fd, token);
        let submitted = match entry.op {
            Op::Connect { .. } => {
                self.counters.system_calls += 1;
                Submitted::Done(match self.system.connected(fd) {
                    Ok(()) => Outcome::Connected,
                    Err(errno) => Outcome::Failed(errno, None),
                })
            }
            Op::Call(call, by) => {
                self.call(token, call, by).expect("it gave up its place in the table")
            }
            op => self.resume(fd, token, op, false),
        };
        match submitted {
            Submitted::Done(outcome) => {
                Some(Continued::Completed(Completion::last(token, outcome)))
            }
            Submitted::InFlight => self.waiting.take().map(|fd| Continued::Waits(fd, token)),
        }
    }

    /// Ends a wait for room, as a poller has found room since it began. Returns `None` for other operations.
    pub(crate) fn found_room(&mut self, fd: Fd, token: Token) -> Option<Completion> {
        let InFlight { op: Op::Writable { .. }, .. } = self.in_flight.get(token)? else {
            return None;
        };
        Some(self.end(fd, token, |_| Outcome::Writable))
    }

    /// Fails an operation that waits for its socket. The completion returns unsent data.
    pub fn fail(&mut self, fd: Fd, token: Token, errno: Errno) -> Completion {
        self.end(fd, token, |op| op.fail(errno))
    }

    fn end(&mut self, fd: Fd, token: Token, outcome: impl FnOnce(Op) -> Outcome) -> Completion {
        let entry = self.in_flight.remove(token);
        self.remove_waiter(fd, token);
        let failed = Outcome::Failed(Errno::CANCELED, None);
        Completion::last(token, entry.map_or(failed, |entry| outcome(entry.op)))
    }

    fn remove_waiter(&mut self, fd: Fd, token: Token) {
        let socket = self.socket(fd);
        for waiter in [&mut socket.reader, &mut socket.writer] {
            if *waiter == Some(token) {
                *waiter = None;
            }
        }
    }

    /// Cancels an operation. Returns its completion, unless it is not in flight, or another thread runs its
    /// job, whose end is its completion.
    pub fn cancel(&mut self, token: Token) -> Option<Completion> {
        let InFlight { op, state, .. } = self.in_flight.get(token)?;
        self.counters.cancels += 1;
        if let Pending::Thread { cancelled, .. } = state {
            if !self.offload.withdraw(token) {
                *cancelled = true;
                return None;
            }
            let entry = self.in_flight.remove(token)?;
            return Some(Completion::last(token, entry.op.fail(Errno::CANCELED)));
        }
        let fd = op.fd()?;
        Some(self.fail(fd, token, Errno::CANCELED))
    }
}

impl<S: System, N, O: Offload> Operations<S, N, O> {
    /// Stops the offload, and drops the operations of its jobs. Jobs that hang keep theirs, and so their files open.
    pub fn stop_offload(&mut self) {
        if self.offload.stop() {
            self.in_flight.retain(|entry| matches!(entry.state, Pending::Socket));
        }
    }
}

impl<S: System, N, O: Offload> Drop for Operations<S, N, O> {
    /// Leaks the operations of jobs that other threads may still run: they use the numbers of files.
    fn drop(&mut self) {
        self.stop_offload();
        for entry in self.in_flight.drain() {
            if let Pending::Thread { .. } = entry.state {
                mem::forget(entry.op);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::offload::OffloadThreads;
    use crate::{Linux, Waker};

    #[test]
    fn socket_kept_its_read_ahead_when_the_end_of_its_file_was_sent_from_memory() {
        let (sender, _receiver) = UnixStream::pair().unwrap();
        sender.set_nonblocking(true).unwrap();
        let fd = Fd::from_raw(sender.as_raw_fd());
        let offload = OffloadThreads::new(Waker::new().unwrap());
        let config = EngineConfig::new(4, 1, 64);
        let mut operations = Operations::<Linux, ()>::new(Linux::default(), &config, offload);
        let other = |n: u32| Fd::from_raw(5_000 + n as i32);
        assert!(operations.read_ahead.begin(fd));
        assert!((1..ReadAhead::MAX_SOCKETS).all(|n| operations.read_ahead.begin(other(n))));
        assert!(!operations.read_ahead.begin(other(0)));
        let mut data = Box::<GatherList>::default();
        data.constant(b"x");
        let sent = operations.submit(Token::new(OpKind::Send, 0, 0), Op::Send { fd, data });
        assert!(matches!(sent, Ok(Submitted::Done(Outcome::Sent(_, 1)))), "{sent:?}");
        assert!(operations.read_ahead.begin(other(0)));
    }
}
