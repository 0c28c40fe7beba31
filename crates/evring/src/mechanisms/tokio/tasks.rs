//! The tasks: one for each socket and job, and the main task, which has the deadlines.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use shared_ring::{Completion, Errno, Fd, Submit, Token};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::{spawn_blocking, spawn_local};

use super::submit::{ReadAttempt, TokioSubmit};
use crate::Application;
use crate::driver::Driver;

/// Maximum number of rounds of a task before it yields to the others.
const MAX_POLL_ROUNDS: u32 = 16;

/// The kinds of readiness that the task of a socket waits for.
const STATES: Interest = Interest::READABLE.add(Interest::WRITABLE).add(Interest::PRIORITY);

/// State shared by the tasks.
pub(super) struct TokioServer<A: Application, I> {
    pub(super) driver: RefCell<Driver<TokioSubmit, A>>,
    /// Notifies the main task of an earlier deadline, or of the end.
    changed: Notify,
    /// When the main task wakes up, at the latest.
    wakes_at: Cell<Option<Instant>>,
    /// Panic of the application in another task.
    pub(super) panic: Cell<Option<Box<dyn Any + Send>>>,
    /// The application and the driver must not be called again.
    has_panicked: Cell<bool>,
    /// Called after each completion and each step.
    inspect: I,
}

/// The next step of a task after an attempt to read.
enum AfterRead {
    ReadAgain,
    /// The read has emptied the socket, unless more follows an urgent byte.
    WaitUnlessUrgent,
    WaitUntilReady,
    WaitForBuffer,
    Yield,
}

impl<A: Application + 'static, I: Fn(&Driver<TokioSubmit, A>) + 'static> TokioServer<A, I> {
    pub(super) fn new(driver: Driver<TokioSubmit, A>, inspect: I) -> Rc<Self> {
        Rc::new(TokioServer {
            driver: RefCell::new(driver),
            changed: Notify::new(),
            wakes_at: Cell::new(None),
            panic: Cell::new(None),
            has_panicked: Cell::new(false),
            inspect,
        })
    }

    /// Executes a step in the task of a socket, and notifies the main task if that has to wake up earlier.
    fn with<T>(self: &Rc<Self>, step: impl FnOnce(&mut Driver<TokioSubmit, A>) -> T) -> T {
        let result = self.step(step);
        let driver = self.driver.borrow();
        let wakes_at = self.wakes_at.get();
        let is_earlier = |until| wakes_at.is_none_or(|wakes_at| until < wakes_at);
        if driver.io.is_ending() || driver.until(None).is_some_and(is_earlier) {
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
            driver.io.kernel.operations.counters.completions += 1;
            driver.complete(completion);
            (self.inspect)(&driver);
        }
        (self.inspect)(&driver);
        driver.io.kernel.wake_starved();
        let sockets = mem::take(&mut driver.io.kernel.without_task);
        let jobs = driver.io.kernel.jobs().take_posted();
        drop(driver);
        for fd in sockets {
            self.spawn(Rc::clone(self).socket(fd));
        }
        for token in jobs {
            self.spawn(Rc::clone(self).job(token));
        }
        result
    }

    /// Spawns a task; its panic ends the main task.
    fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let server = Rc::clone(self);
        drop(spawn_local(async move {
            let mut task = pin!(task);
            let step = |cx: &mut Context<'_>| {
                if server.has_panicked.get() {
                    return Poll::Pending;
                }
                catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx)))
                    .map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok))
            };
            if let Err(panic) = poll_fn(step).await {
                server.has_panicked.set(true);
                server.panic.set(Some(panic));
                server.changed.notify_one();
            }
        }));
    }

    /// The main task: handles deadlines, wake-ups and the stop.
    pub(super) async fn serve(self: &Rc<Self>) -> std::io::Result<()> {
        let waker = self.driver.borrow().io.kernel.waker();
        // SAFETY: `waker` is dropped after the registration, and keeps its descriptor open.
        let woken = unsafe { AsyncFd::register(waker.as_raw_fd()) }?;
        let mut drain_ends = None;
        self.step(|driver| driver.set_backlogs());
        while !self.has_panicked.get() {
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
            self.wakes_at.set(until);
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.changed.notified() => {}
                ready = woken.readable() => {
                    ready?.clear_ready();
                    if self.has_panicked.get() {
                        break;
                    }
                    self.step(|driver| {
                        driver.io.kernel.waker.drain();
                        driver.complete(Completion::woken());
                    });
                }
            }
        }
        Ok(())
    }

    /// The task of one socket.
    async fn socket(self: Rc<Self>, fd: Fd) {
        // SAFETY: the socket is open until this task closes it below, after the registration.
        match unsafe { AsyncFd::register_with_interest(fd.raw(), STATES) } {
            Ok(ready) => poll_fn(|cx| self.poll(fd, &ready, cx)).await,
            Err(error) => {
                let errno = Errno::from_io_error(&error.into()).unwrap_or(Errno::NOMEM);
                poll_fn(|cx| self.poll_broken(fd, errno, cx)).await;
            }
        }
        self.with(|driver| driver.io.kernel.close(fd));
    }

    /// Runs the posted operations of a socket as it becomes ready. Returns when the socket is to be closed.
    fn poll(self: &Rc<Self>, fd: Fd, ready: &AsyncFd<RawFd>, cx: &mut Context<'_>) -> Poll<()> {
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
                    AfterRead::ReadAgain => {}
                    AfterRead::WaitUnlessUrgent if had_urgent_byte(ready) => {}
                    AfterRead::WaitUnlessUrgent | AfterRead::WaitUntilReady => guard.clear_ready(),
                    // It stays ready.
                    AfterRead::WaitForBuffer => starved = true,
                    AfterRead::Yield => break,
                }
            }
            if todo.write
                && let Poll::Ready(Ok(mut guard)) = ready.poll_write_ready(cx)
            {
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

    fn poll_broken(self: &Rc<Self>, fd: Fd, errno: Errno, cx: &Context<'_>) -> Poll<()> {
        let close = self.with(|driver| {
            let todo = driver.io.kernel.todo(fd, cx.waker());
            driver.io.kernel.fail_all(fd, errno);
            todo.close
        });
        if close { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits for a job on another thread.
    async fn job(self: Rc<Self>, token: Token) {
        let queue = self.driver.borrow().io.kernel.jobs().queue();
        let result = spawn_blocking(move || queue.run(token)).await;
        let Some(result) = result.unwrap_or(Some(Err(Errno::IO))) else { return };
        self.with(|driver| {
            // SAFETY: the thread has ended the job.
            unsafe { driver.io.kernel.jobs().ended(token, result) };
            driver.io.kernel.continue_offloaded();
        });
    }
}

impl<A: Application> Driver<TokioSubmit, A> {
    /// Reads once and uses the completion.
    fn read(&mut self, fd: Fd) -> AfterRead {
        match self.io.kernel.try_to_read(fd) {
            ReadAttempt::Done(completion, may_have_more) => {
                self.io.kernel.operations.counters.completions += 1;
                self.complete(completion);
                if may_have_more { AfterRead::ReadAgain } else { AfterRead::WaitUnlessUrgent }
            }
            ReadAttempt::Empty => AfterRead::WaitUntilReady,
            ReadAttempt::NoBuffer => AfterRead::WaitForBuffer,
            ReadAttempt::Later => AfterRead::Yield,
        }
    }
}

/// Returns whether the peer has ever sent an urgent byte, at which a read ends (tcp(7)).
fn had_urgent_byte(socket: &AsyncFd<RawFd>) -> bool {
    socket.try_io(Interest::PRIORITY, |_| Ok(())).is_ok()
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        // The timer would take a millisecond for a deadline that has passed.
        Some(at) if at <= Instant::now() => tokio::task::yield_now().await,
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}
