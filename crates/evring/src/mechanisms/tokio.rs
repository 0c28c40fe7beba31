//! tokio: a task for each socket on a current-thread runtime.
//!
//! The task of a socket waits for readiness, executes the operations posted for the socket and calls the
//! application in place, like a hand-written tokio server.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::mem::{self, ManuallyDrop};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker as TaskWaker};
use std::time::Instant;

use shared_ring::nonblocking::{self, Blocking, ReceiveError, SendAttempt};
use shared_ring::{
    Completion, Counters, FileResult, Errno, Fd, Host, OpKind, Linux, Op, Outcome, BufferPool, Submitted, SubmitErrorKind, SubmitError,
    Socket, Submit, System, Table, Token, Waker, FileJob, file_outcome,
};
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_blocking, spawn_local};

use crate::driver::{Driver, Io, open_listeners, open_roots};
use crate::{Application, Commands, Config, Family, KernelError, Multiplexer, RemoteHandle, StartError, Stats, Unavailable};

/// A task per connection on tokio's current-thread runtime.
pub struct Tokio {
    runtime: Unjoined,
    io: Io<TokioSubmit>,
    addresses: Vec<SocketAddr>,
    remote: RemoteHandle,
}

/// A runtime that is dropped without waiting for its threads, also in a panic: they may hang in the file
/// system.
struct Unjoined(Option<Runtime>);

impl Drop for Unjoined {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Maximum number of threads that wait for the disk.
const DISK_THREADS: usize = 4;

/// Maximum number of rounds of a task before it yields to the others.
const MAX_POLL_ROUNDS: u32 = 16;

impl Multiplexer for Tokio {
    const NAME: &'static str = "tokio";
    const FAMILY: Family = Family::Completion;
    const SUMMARY: &'static str = "tokio, a task for each connection";

    fn available() -> Result<(), Unavailable> {
        Ok(())
    }

    fn new(config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let system = |error| StartError::System("cannot set up the event loop", error);
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(DISK_THREADS)
            .build()
            .map_err(system)?;
        let runtime = Unjoined(Some(runtime));
        let mut submit = TokioSubmit::new(config).map_err(system)?;
        let roots = open_roots(submit.host_mut(), config)?;
        let (listeners, addresses) = open_listeners(submit.host_mut(), config)?;
        let remote = RemoteHandle::new(submit.waker());
        // Without turns there are no load estimates.
        let config = Config { admission: None, ..config.clone() };
        Ok(Tokio { runtime, io: Io::new(submit, &config, roots, listeners), addresses, remote })
    }

    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn remote(&self) -> RemoteHandle {
        self.remote.clone()
    }

    fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError> {
        let driver = RefCell::new(Driver::new(app, self.io, self.remote));
        let (changed, panic) = (Notify::new(), Cell::new(None));
        let server = Rc::new(Server { driver, changed, panic });
        let runtime = self.runtime.0.as_ref().expect("the runtime is taken only on drop");
        let result = LocalSet::new().block_on(runtime, server.serve());
        drop(self.runtime);
        if let Some(panic) = server.panic.take() {
            resume_unwind(panic);
        }
        let result = result.map_err(|error| KernelError { context: "waiting for events", error });
        let mut driver = server.driver.borrow_mut();
        driver.abandon(result.as_ref().err());
        result.map(|()| driver.io.stats())
    }
}

/// Operations posted for each socket, and those that completed on submission.
struct TokioSubmit {
    host: Linux,
    pool: Rc<BufferPool>,
    sockets: Table<Posting>,
    /// Descriptors of connections and of listeners, by the slots of their tokens.
    slots: [Table<Option<RawFd>>; 2],
    done: VecDeque<Completion>,
    spawn_requests: Vec<SpawnRequest>,
    /// Sockets whose tasks wait for a receive buffer, in order.
    starved: VecDeque<RawFd>,
    waker: Waker,
    now: Instant,
    counters: Counters,
}

/// Operations posted for a socket, and the task that executes them.
#[derive(Default)]
struct Posting {
    reader: Option<(Token, Op)>,
    writer: Option<(Token, Op)>,
    /// A file send whose data is being read on a thread, and whether it was cancelled.
    prefetching: Option<(Token, bool)>,
    closing: Option<(Token, Socket)>,
    has_task: bool,
    task: Option<TaskWaker>,
    /// The socket is in the list of those that wait for a buffer.
    is_starved: bool,
}

/// Result of an attempt to read.
enum ReadAttempt {
    Done(Completion, MoreData),
    /// The socket has no data.
    Empty,
    /// No receive buffer is free; the task retries when one is returned.
    NoBuffer,
    /// No result; the task retries later.
    Later,
}

/// Availability of more data on the socket.
#[derive(PartialEq)]
enum MoreData {
    None,
    Maybe,
}

/// Next step of a task after an attempt to read.
enum Read {
    More,
    Empty,
    NoBuffer,
    Later,
}

/// A task to be spawned.
enum SpawnRequest {
    Socket(Fd),
    File(Token, Op),
}

impl TokioSubmit {
    fn new(config: &Config) -> std::io::Result<Self> {
        Ok(TokioSubmit {
            host: Linux::default(),
            pool: BufferPool::new(config.buffers, config.buffer_size),
            sockets: Table::default(),
            slots: Default::default(),
            done: VecDeque::new(),
            spawn_requests: Vec::new(),
            starved: VecDeque::new(),
            waker: Waker::new()?,
            now: Instant::now(),
            counters: Counters::default(),
        })
    }

    fn socket(&mut self, fd: RawFd) -> &mut Posting {
        self.sockets.at(fd as usize)
    }

    fn complete(&mut self, token: Token, outcome: Outcome) {
        self.done.push_back(Completion { token, outcome, last: true });
    }

    /// Records the descriptor of a token, so that its operation can be cancelled.
    fn note_slot(&mut self, fd: Fd, token: Token) {
        let slots = &mut self.slots[usize::from(token.kind() == OpKind::Accept)];
        *slots.at(token.slot() as usize) = Some(fd.raw());
    }

    /// Posts an operation for the socket's task.
    fn post(&mut self, fd: Fd, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        self.note_slot(fd, token);
        let reads = matches!(op, Op::Accept { .. } | Op::Receive { .. });
        let socket = self.socket(fd.raw());
        let place = if reads { &mut socket.reader } else { &mut socket.writer };
        if place.is_some() {
            return Err(SubmitError { op, kind: SubmitErrorKind::TokenInUse });
        }
        *place = Some((token, op));
        if let Some(task) = &socket.task {
            task.wake_by_ref();
        } else if !mem::replace(&mut socket.has_task, true) {
            self.spawn_requests.push(SpawnRequest::Socket(fd));
        }
        Ok(Submitted::InFlight)
    }

    /// Sends as much as the socket takes; posts the remaining bytes for its task.
    fn send(&mut self, fd: Fd, token: Token, op: Op, disk: Blocking) -> Result<Submitted, SubmitError> {
        self.counters.system_calls += 1;
        match nonblocking::try_to_send(&mut self.host, op, disk) {
            SendAttempt::Full(op) => self.post(fd, token, op),
            SendAttempt::Cold(op) => {
                self.counters.cold_file_reads += 1;
                self.note_slot(fd, token);
                self.socket(fd.raw()).prefetching = Some((token, false));
                Ok(self.offload(token, op))
            }
            SendAttempt::Done(outcome) => {
                self.counters.note_send(&outcome);
                Ok(Submitted::Done(outcome))
            }
        }
    }

    /// Spawns a task that waits for the file work of an operation on another thread.
    fn offload(&mut self, token: Token, op: Op) -> Submitted {
        self.counters.offloaded_file_ops += 1;
        self.spawn_requests.push(SpawnRequest::File(token, op));
        Submitted::InFlight
    }

    /// Retries a posted send. Returns false if it was posted again.
    fn resume_send(&mut self, fd: Fd, token: Token, op: Op, disk: Blocking) -> bool {
        match self.send(fd, token, op, disk) {
            Ok(Submitted::Done(outcome)) => self.complete(token, outcome),
            Ok(Submitted::InFlight) => return false,
            Err(refused) => unreachable!("the writer slot was just taken: {refused:?}"),
        }
        true
    }

    /// Does file work at once if it does not block, otherwise on another thread.
    fn file_work(&mut self, token: Token, op: Op) -> Submitted {
        self.counters.system_calls += 1;
        // SAFETY: the operation outlives the call.
        let work = unsafe { FileJob::of(&op) };
        match work.run(Blocking::NoBlock) {
            Err(errno) if FileJob::would_block(errno) => self.offload(token, op),
            result => Submitted::Done(file_outcome(result)),
        }
    }

    /// Completes an operation whose work on another thread is done.
    fn offload_done(&mut self, token: Token, op: Op, result: Result<FileResult, Errno>) {
        let Op::SendFile { fd, .. } = op else {
            return self.complete(token, file_outcome(result));
        };
        match self.socket(fd.raw()).prefetching.take() {
            Some((_, false)) => {
                self.resume_send(fd, token, op, Blocking::MayBlock);
            }
            _ => self.complete(token, Outcome::Failed(Errno::CANCELED, None)),
        }
    }

    /// Receives or accepts once.
    fn try_to_read(&mut self, fd: RawFd) -> ReadAttempt {
        self.counters.system_calls += 1;
        let tried = match self.socket(fd).reader {
            Some((token, Op::Receive { fd })) => self.receive(fd, token),
            Some((token, Op::Accept { listener, .. })) => self.accept(listener, token),
            _ => return ReadAttempt::Later,
        };
        if matches!(&tried, ReadAttempt::Done(completion, _) if completion.last) {
            self.socket(fd).reader = None;
        }
        tried
    }

    fn receive(&mut self, fd: Fd, token: Token) -> ReadAttempt {
        let (outcome, last, more) = match nonblocking::receive(&mut self.host, fd, &self.pool) {
            Ok(bytes) => {
                let filled = bytes.len() == self.pool.size();
                let more = if filled { MoreData::Maybe } else { MoreData::None };
                (Outcome::Received(bytes), false, more)
            }
            Err(ReceiveError::End) => (Outcome::Eof, true, MoreData::Maybe),
            Err(ReceiveError::Failed(Errno::AGAIN)) => return ReadAttempt::Empty,
            Err(ReceiveError::Failed(errno)) => (Outcome::Failed(errno, None), true, MoreData::Maybe),
            Err(ReceiveError::NoBuffer) => {
                self.counters.buffer_shortages += 1;
                return self.starve(fd.raw());
            }
        };
        ReadAttempt::Done(Completion { token, outcome, last }, more)
    }

    /// Makes a socket's task wait until a buffer is returned.
    fn starve(&mut self, fd: RawFd) -> ReadAttempt {
        if !mem::replace(&mut self.socket(fd).is_starved, true) {
            self.starved.push_back(fd);
        }
        ReadAttempt::NoBuffer
    }

    /// Wakes one waiting task per free buffer. Buffers are returned only within steps, and this runs after
    /// each step. A task that no longer needs its buffer does no harm.
    fn wake_starved(&mut self) {
        let free = self.pool.count() - self.pool.lent();
        for _ in 0..self.starved.len().min(free.into()) {
            let Some(fd) = self.starved.pop_front() else { break };
            let socket = self.socket(fd);
            socket.is_starved = false;
            if let Some(task) = &socket.task {
                task.wake_by_ref();
            }
        }
    }

    fn accept(&mut self, fd: Fd, token: Token) -> ReadAttempt {
        let (outcome, last) = match nonblocking::accept(&mut self.host, fd) {
            Ok(peer) => (Outcome::Accepted(peer), false),
            Err(Errno::AGAIN) => return ReadAttempt::Empty,
            Err(errno) if nonblocking::is_aborted_accept(errno) => {
                self.counters.accepts_aborted += 1;
                return ReadAttempt::Later;
            }
            Err(errno) => {
                self.counters.fd_limit_hits += u64::from(nonblocking::is_fd_limit(errno));
                (Outcome::Failed(errno, None), true)
            }
        };
        ReadAttempt::Done(Completion { token, outcome, last }, MoreData::Maybe)
    }

    /// Retries a send or a connect. Returns false if the socket is full.
    fn try_to_write(&mut self, fd: RawFd) -> bool {
        let Some((token, op)) = self.socket(fd).writer.take() else { return true };
        match op {
            Op::Connect { fd, .. } => {
                let outcome = match self.host.connected(fd) {
                    Ok(()) => Outcome::Connected,
                    Err(errno) => Outcome::Failed(errno, None),
                };
                self.complete(token, outcome);
                true
            }
            Op::Send { fd, .. } | Op::SendFile { fd, .. } => {
                self.resume_send(fd, token, op, Blocking::NoBlock)
            }
            op => unreachable!("not a write operation: {op:?}"),
        }
    }
}

// SAFETY: an operation is tried when it is posted, and by the task that owns it; its last completion
// removes it. Threads use only descriptors of files, which their operations own.
unsafe impl Submit for TokioSubmit {
    type Host = Linux;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        match op {
            Op::Accept { listener: fd, .. } | Op::Receive { fd } => self.post(fd, token, op),
            Op::Send { fd, .. } | Op::SendFile { fd, .. } => {
                self.send(fd, token, op, Blocking::NoBlock)
            }
            Op::Connect { fd, to } => {
                self.counters.system_calls += 1;
                match self.host.connect(fd, to) {
                    Ok(()) => Ok(Submitted::Done(Outcome::Connected)),
                    Err(Errno::INPROGRESS) => self.post(fd, token, op),
                    Err(errno) => Ok(Submitted::Done(Outcome::Failed(errno, None))),
                }
            }
            Op::Close { socket } => {
                let fd = socket.as_raw_fd();
                let posting = self.socket(fd);
                posting.closing = Some((token, socket));
                match &posting.task {
                    Some(task) => task.wake_by_ref(),
                    None if posting.has_task => {}
                    None => self.close(fd),
                }
                Ok(Submitted::InFlight)
            }
            Op::List { .. } => Ok(self.offload(token, op)),
            Op::Open { .. } | Op::Stat { .. } | Op::Read { .. } => {
                Ok(self.file_work(token, op))
            }
        }
    }

    fn cancel(&mut self, token: Token) {
        let slots = &self.slots[usize::from(token.kind() == OpKind::Accept)];
        let Some(fd) = slots.get(token.slot() as usize).copied().flatten() else { return };
        let socket = self.socket(fd);
        if let Some((prefetching, cancelled)) = &mut socket.prefetching {
            *cancelled |= *prefetching == token;
        }
        let posted = [&mut socket.reader, &mut socket.writer]
            .into_iter()
            .find_map(|place| place.take_if(|(posted, _)| *posted == token));
        if let Some((token, op)) = posted {
            self.counters.cancels += 1;
            let data = if let Op::Send { data, .. } = op { Some(data) } else { None };
            self.complete(token, Outcome::Failed(Errno::CANCELED, data));
        }
    }

    /// No operation is in flight in the kernel, but sockets that tasks were to close are still open.
    fn finish(&mut self) {
        let closing = (0..self.sockets.len()).filter_map(|fd| self.sockets[fd].closing.take());
        let closing: Vec<Socket> = closing.map(|(_, socket)| socket).collect();
        let accepted = self.done.drain(..).filter_map(|completion| match completion.outcome {
            Outcome::Accepted(socket) => Some(socket),
            _ => None,
        });
        for socket in closing.into_iter().chain(accepted) {
            self.host.close_unused(socket);
        }
    }

    fn host(&self) -> &Linux {
        &self.host
    }

    fn host_mut(&mut self) -> &mut Linux {
        &mut self.host
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn landed(&self) -> u32 {
        self.done.len() as u32
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl TokioSubmit {
    /// Closes a socket whose task has ended or never existed.
    fn close(&mut self, fd: RawFd) {
        let state = mem::take(self.socket(fd));
        if state.is_starved {
            self.starved.retain(|starved| *starved != fd);
        }
        let Some((token, socket)) = state.closing else { return };
        self.counters.system_calls += 1;
        self.host.close_unused(socket);
        self.complete(token, Outcome::Closed);
    }

    /// Returns the pending work of a socket's task, and registers the task to be woken for more.
    fn todo(&mut self, fd: RawFd, task: &TaskWaker) -> Todo {
        let socket = self.socket(fd);
        if !socket.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            socket.task = Some(task.clone());
        }
        Todo {
            read: socket.reader.is_some(),
            write: socket.writer.is_some(),
            close: socket.closing.is_some(),
        }
    }

    /// Fails the operations posted for a socket that cannot be registered.
    fn fail_all(&mut self, fd: RawFd, errno: Errno) {
        let socket = self.socket(fd);
        for (token, op) in [socket.reader.take(), socket.writer.take()].into_iter().flatten() {
            let data = if let Op::Send { data, .. } = op { Some(data) } else { None };
            self.complete(token, Outcome::Failed(errno, data));
        }
    }
}

/// Pending work of a socket's task.
struct Todo {
    read: bool,
    write: bool,
    close: bool,
}

/// State shared by the tasks.
struct Server<A: Application> {
    driver: RefCell<Driver<TokioSubmit, A>>,
    /// Notifies the main task of an earlier deadline, or of the end.
    changed: Notify,
    /// Panic of the application in another task.
    panic: Cell<Option<Box<dyn Any + Send>>>,
}

impl<A: Application + 'static> Server<A> {
    /// Executes a step in the task of a socket and notifies the main task of changes.
    fn with<T>(self: &Rc<Self>, step: impl FnOnce(&mut Driver<TokioSubmit, A>) -> T) -> T {
        let before = self.driver.borrow().until(None);
        let result = self.step(step);
        let driver = self.driver.borrow();
        if driver.io.stopping || driver.until(None) != before {
            self.changed.notify_one();
        }
        result
    }

    /// Executes a step, processes its completions, and spawns the requested tasks.
    fn step<T>(self: &Rc<Self>, step: impl FnOnce(&mut Driver<TokioSubmit, A>) -> T) -> T {
        let mut driver = self.driver.borrow_mut();
        driver.io.kernel.now = Instant::now();
        let result = step(&mut driver);
        loop {
            driver.service_listeners();
            let Some(completion) = driver.io.kernel.done.pop_front() else { break };
            driver.io.kernel.counters.completions += 1;
            driver.complete(completion);
        }
        driver.io.kernel.wake_starved();
        let spawn_requests = mem::take(&mut driver.io.kernel.spawn_requests);
        drop(driver);
        for request in spawn_requests {
            match request {
                SpawnRequest::Socket(fd) => self.spawn(Rc::clone(self).socket(fd)),
                SpawnRequest::File(token, op) => self.spawn(Rc::clone(self).file(token, op)),
            }
        }
        result
    }

    /// Spawns a task; its panic ends the main task.
    fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let server = Rc::clone(self);
        drop(spawn_local(async move {
            let mut task = pin!(task);
            let step = |cx: &mut Context<'_>| {
                catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx)))
                    .map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok))
            };
            if let Err(panic) = poll_fn(step).await {
                server.panic.set(Some(panic));
                server.changed.notify_one();
            }
        }));
    }

    /// The main task: handles deadlines, wake-ups and the stop.
    async fn serve(self: &Rc<Self>) -> std::io::Result<()> {
        let waker = self.driver.borrow().io.kernel.waker();
        // SAFETY: `waker` is dropped after the registration, and keeps its descriptor open.
        let woken = unsafe { AsyncFd::register(waker.as_raw_fd()) }?;
        let mut drain_ends = None;
        loop {
            self.step(|driver| {
                driver.end_turn();
                driver.drain(&mut drain_ends);
            });
            let until = {
                let driver = self.driver.borrow();
                if driver.is_done() {
                    return Ok(());
                }
                driver.until(drain_ends)
            };
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.changed.notified() => {
                    let panic = self.panic.take();
                    if panic.is_some() {
                        self.panic.set(panic);
                        return Ok(());
                    }
                }
                ready = woken.readable() => {
                    ready?.clear_ready();
                    self.step(|driver| {
                        driver.io.kernel.waker.drain();
                        let token = Token::new(OpKind::Wake, 0, 0);
                        driver.complete(Completion { token, outcome: Outcome::Woken, last: false });
                    });
                }
            }
        }
    }

    /// The task of one socket.
    async fn socket(self: Rc<Self>, fd: Fd) {
        // SAFETY: the socket is open until this task closes it below, after the registration.
        match unsafe { AsyncFd::register(fd.raw()) } {
            Ok(ready) => poll_fn(|cx| self.poll(&ready, cx)).await,
            Err(error) => {
                let errno = Errno::from_io_error(&error.into()).unwrap_or(Errno::NOMEM);
                poll_fn(|cx| self.poll_broken(fd.raw(), errno, cx)).await;
            }
        }
        self.with(|driver| driver.io.kernel.close(fd.raw()));
    }

    /// Executes the operations posted for a socket while it is ready. Completes when the socket should be
    /// closed.
    fn poll(self: &Rc<Self>, ready: &AsyncFd<RawFd>, cx: &mut Context<'_>) -> Poll<()> {
        let fd = *ready.get_ref();
        let mut starved = false;
        for _ in 0..MAX_POLL_ROUNDS {
            let todo = self.driver.borrow_mut().io.kernel.todo(fd, cx.waker());
            if todo.close {
                return Poll::Ready(());
            }
            let mut is_pending = true;
            let reads = todo.read && !starved;
            if reads && let Poll::Ready(Ok(mut guard)) = ready.poll_read_ready(cx) {
                is_pending = false;
                match self.with(|driver| driver.read(fd)) {
                    Read::More => {}
                    Read::Empty => guard.clear_ready(),
                    // The socket stays readable.
                    Read::NoBuffer => starved = true,
                    Read::Later => break,
                }
            }
            if todo.write && let Poll::Ready(Ok(mut guard)) = ready.poll_write_ready(cx) {
                is_pending = false;
                if !self.with(|driver| driver.io.kernel.try_to_write(fd)) {
                    guard.clear_ready();
                }
            }
            if is_pending {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_broken(self: &Rc<Self>, fd: RawFd, errno: Errno, cx: &Context<'_>) -> Poll<()> {
        let close = self.with(|driver| {
            let todo = driver.io.kernel.todo(fd, cx.waker());
            driver.io.kernel.fail_all(fd, errno);
            todo.close
        });
        if close { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits for file work on another thread.
    async fn file(self: Rc<Self>, token: Token, op: Op) {
        // The thread uses the file even if this task is dropped first.
        let op = ManuallyDrop::new(op);
        // SAFETY: the operation is dropped after the work is done, or never.
        let work = unsafe { FileJob::of(&op) };
        let result = spawn_blocking(move || work.run(Blocking::MayBlock)).await;
        let result = result.unwrap_or(Err(Errno::IO));
        let op = ManuallyDrop::into_inner(op);
        self.with(|driver| driver.io.kernel.offload_done(token, op, result));
    }
}

impl<A: Application> Driver<TokioSubmit, A> {
    /// Reads once and processes the result.
    fn read(&mut self, fd: RawFd) -> Read {
        match self.io.kernel.try_to_read(fd) {
            ReadAttempt::Done(completion, more) => {
                self.io.kernel.counters.completions += 1;
                self.complete(completion);
                if more == MoreData::Maybe { Read::More } else { Read::Empty }
            }
            ReadAttempt::Empty => Read::Empty,
            ReadAttempt::NoBuffer => Read::NoBuffer,
            ReadAttempt::Later => Read::Later,
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        // The timer would take a millisecond for a deadline that has passed.
        Some(at) if at <= Instant::now() => tokio::task::yield_now().await,
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use shared_ring::{File, RxBuf};

    use super::*;
    use crate::{Chunk, Close, Cx, FileOutcome, FileOp, FilePath, Listener, Root, Rx};

    /// Holds all receive buffers and releases them some time after a connection was accepted.
    struct HoldsAllBuffers(Vec<RxBuf>);

    impl Application for HoldsAllBuffers {
        type State = ();
        const MAX_UNCONSUMED: usize = 64;

        fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
            let deadline = x.io.now() + Duration::from_millis(100);
            x.io.set_deadline(x.id, Some(deadline));
        }

        fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
            assert!(self.0.is_empty(), "no buffer should be free");
            x.io.send(x.id, Chunk::Received(rx.take()));
            x.io.close(x.id, Close::Flush);
        }

        fn expired(&mut self, _x: Cx<'_, impl Commands, ()>) {
            self.0.clear();
        }
    }

    #[test]
    fn task_without_a_buffer_retried_in_a_busy_loop() {
        const BUFFERS: u16 = 4;
        const CLIENTS: u64 = 3;
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let config = Config { listen, buffers: BUFFERS, ..Config::default() };
        let server = Tokio::new(&config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let buffers = (0..BUFFERS).map(|_| {
            peer.write_all(b"x").unwrap();
            socket.peek(&mut [0]).unwrap();
            // SAFETY: the socket is open until the test ends.
            let fd = unsafe { Fd::lent(socket.as_fd()) };
            nonblocking::receive(&mut Linux::default(), fd, &server.io.kernel.pool).ok().unwrap()
        });
        let buffers = buffers.collect();
        let (at, remote) = (server.addresses()[0], server.remote());
        let clients = thread::spawn(move || {
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(at).unwrap()).collect();
            for client in &mut clients {
                client.write_all(b"hello").unwrap();
            }
            for client in &mut clients {
                let mut reply = Vec::new();
                client.read_to_end(&mut reply).unwrap();
                assert_eq!(reply, b"hello");
            }
            remote.stop();
        });
        let stats = server.run(HoldsAllBuffers(buffers)).unwrap();
        clients.join().unwrap();
        let shortages = stats.kernel.buffer_shortages;
        assert!((1..=2 * CLIENTS).contains(&shortages), "{shortages} attempts");
    }

    /// Lists a directory for each client, then panics in the main task.
    struct PanicsLate;

    impl Application for PanicsLate {
        type State = ();
        const MAX_UNCONSUMED: usize = 64;

        fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
            x.io.file_op(x.id, 0, FileOp::List(Root(0), FilePath::new("task")));
        }

        fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, _done: FileOutcome) {
            let now = x.io.now();
            x.io.set_deadline(x.id, Some(now));
        }

        fn received(&mut self, _x: Cx<'_, impl Commands, ()>, _rx: &mut Rx<'_>) {}

        fn expired(&mut self, _x: Cx<'_, impl Commands, ()>) {
            panic!("on purpose");
        }
    }

    #[test]
    fn panic_of_the_main_task_waited_for_hung_file_work() {
        let (read, write) = std::io::pipe().unwrap();
        let (sender, receiver) = mpsc::channel();
        let server = thread::spawn(move || {
            let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
            let config = Config { listen, roots: vec!["/proc/self".into()], ..Config::default() };
            let mut server = Tokio::new(&config).unwrap();
            let file = File::from(OwnedFd::from(read));
            // At this offset preadv2(2) reads a pipe at its current position: the thread blocks until the
            // pipe is closed.
            let op = Op::Read { file, offset: u64::MAX, len: 1 };
            let token = Token::new(OpKind::File, 200, 0);
            assert!(matches!(server.io.kernel.submit(token, op), Ok(Submitted::InFlight)));
            sender.send(server.addresses()[0]).unwrap();
            let panic = catch_unwind(AssertUnwindSafe(|| server.run(PanicsLate))).unwrap_err();
            sender.send(SocketAddr::from(([0; 4], 0))).unwrap();
            resume_unwind(panic);
        });
        let _client = TcpStream::connect(receiver.recv().unwrap()).unwrap();
        let ended = receiver.recv_timeout(Duration::from_secs(10));
        drop(write);
        assert!(ended.is_ok(), "the server waits for the thread");
        assert_eq!(server.join().unwrap_err().downcast_ref(), Some(&"on purpose"));
    }
}
