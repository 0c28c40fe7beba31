//! FlexSC-Threads: green threads that switch where a call waits.
//!
//! A call that looks blocking posts an entry, and another green thread runs. When all are blocked,
//! the OS thread waits for the pages. A program needs no callbacks and no `async`.
//!
//! ```
//! use std::os::unix::net::UnixStream;
//!
//! use flexsc_rt::Descriptor;
//! use flexsc_rt::green::{self, Config, Threads};
//! use flexsc_rt::operations::{receive, send};
//!
//! let threads = Threads::new(&Config::default())?;
//! let (ours, theirs) = UnixStream::pair()?;
//! let (ours, theirs) = (Descriptor::new(ours), Descriptor::new(theirs));
//! let reader = threads.spawn(move || green::call(receive(&ours, Vec::with_capacity(16))).1)?;
//! threads.spawn(move || green::call(send(&theirs, b"hello".to_vec())))?;
//! threads.run()?;
//! assert_eq!(reader.join().unwrap(), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Decisions
//!
//! - **The bound**: [`Config::threads`] threads, each with a stack of [`Config::stack_bytes`] above a
//!   guard page. Beyond it, [`spawn`] fails. Stacks are reused, and freed with [`Threads`].
//! - **A stack overflow** reaches the guard page, and the kernel ends the process (`SIGSEGV`).
//! - **A panic** ends its thread; [`JoinHandle::join`] returns it.
//! - **Cancellation**: the call in flight of the thread and all later ones end with `EINTR`.
//! - **A drop of [`Threads`]** unwinds the threads that have not ended: the destructors of their
//!   variables run. Calls in flight are cancelled, and keep their memory until they have ended. With
//!   `panic = "abort"`, the process is aborted instead.
//! - **While a thread unwinds**, its destructors' calls do not switch: the OS thread waits for them. One for which no
//!   entry or syscall thread is free ends with `EINTR`, as the threads that have them do not run.
//! - **While the OS thread unwinds**, no green thread runs, as it would seem to panic, too: [`Threads::run`], called by a
//!   destructor, ends with [`Error::Unwinding`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use std::{fmt, io, mem, thread};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use shared_ring::__private::catch_panic;

use crate::error::Error;
use crate::future::Runtime;
use crate::operation::Operation;
use crate::pages::{Config as PagesConfig, Counters, MAX_ENTRIES};

/// The maximum number of green threads, and their size.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Maximum number of threads that have not ended. The kernel permits about 32,000: each takes two
    /// of `vm.max_map_count`. More than 2^24 count as 2^24, the maximum of entries.
    pub threads: u32,
    /// Size of each stack, without its guard page. Only pages that were used occupy memory.
    pub stack_bytes: usize,
    /// The pages. They have at least one entry for each thread, and `reserve` ones.
    pub pages: PagesConfig,
}

impl Default for Config {
    fn default() -> Self {
        Config { threads: 16_384, stack_bytes: 256 << 10, pages: PagesConfig::default() }
    }
}

/// Green threads, all on the OS thread that runs them.
///
/// They start to run with [`Threads::run`].
pub struct Threads(Rc<Scheduler>);

struct Scheduler {
    runtime: Runtime,
    max_threads: usize,
    stack_bytes: usize,
    places: RefCell<Vec<ThreadPlace>>,
    /// Places without a thread.
    free: RefCell<Vec<u32>>,
    /// Stacks without a thread.
    stacks: RefCell<Vec<DefaultStack>>,
    /// Threads that can run.
    ready: Arc<ReadyQueue>,
    /// The memory of the list of threads that run in a turn.
    turn: RefCell<Vec<u32>>,
    current: RefCell<Option<Rc<Thread>>>,
    /// Threads that have not ended.
    live: Cell<usize>,
    switches: Cell<u64>,
    stopping: Cell<bool>,
}

/// A place for a thread.
struct ThreadPlace {
    waker: Arc<Ready>,
    /// A thread that does not run now.
    suspended: Option<(Coroutine<(), (), ()>, Rc<Thread>)>,
}

/// A thread, as its handles see it.
struct Thread {
    /// Where it suspends; null before it has started.
    yielder: Cell<*const Yielder<(), ()>>,
    waker: Waker,
    cancelled: Cell<bool>,
    /// It was unwound, as the threads are being dropped.
    unwound: Cell<bool>,
    ended: Cell<bool>,
    joiner: RefCell<Option<Waker>>,
}

/// Places of threads that can run, in order. Each is in the queue once at most. Only the OS thread of the scheduler uses
/// it, so the lock is never contended; `Waker` requires `Send` and `Sync`.
struct ReadyQueue(Mutex<Vec<u32>>);

impl ReadyQueue {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a place into the queue of those that can run.
struct Ready {
    place: u32,
    queued: AtomicBool,
    queue: Arc<ReadyQueue>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.queue.lock().push(self.place);
        }
    }
}

thread_local! {
    /// The scheduler that runs on this OS thread, until [`Running`] takes it out. It has no destructor, so it exists as
    /// long as the OS thread: destructors of other thread-local values may drop [`Threads`].
    static RUNNING: RefCell<ManuallyDrop<Option<Rc<Scheduler>>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Makes a scheduler the running one.
struct Running(Option<Rc<Scheduler>>);

impl Running {
    fn enter(scheduler: &Rc<Scheduler>) -> Self {
        Running(Running::replace(Some(Rc::clone(scheduler))))
    }

    /// Returns the former one.
    fn replace(scheduler: Option<Rc<Scheduler>>) -> Option<Rc<Scheduler>> {
        RUNNING.with(|running| mem::replace(&mut **running.borrow_mut(), scheduler))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(Running::replace(self.0.take()));
    }
}

/// Returns the running green thread and its scheduler.
fn running() -> (Rc<Scheduler>, Rc<Thread>) {
    let scheduler = RUNNING.with(|running| Option::clone(&running.borrow()));
    let thread = scheduler.as_ref().and_then(|scheduler| scheduler.current.borrow().clone());
    scheduler.zip(thread).expect("this can be called by a green thread only")
}

/// Makes a system call. Other green threads run until it has ended.
///
/// # Panics
/// If no green thread calls it; and if the kernel refuses to wait for it, or to enter the ring, while the thread unwinds. A
/// panic while it unwinds from another one aborts the process.
pub fn call<O: Operation>(operation: O) -> O::Output {
    let (scheduler, thread) = running();
    scheduler.unwind_if_stopping(&thread);
    let mut future = scheduler.runtime.call(operation);
    if thread::panicking() || scheduler.stopping.get() {
        // Those that wait for an entry do not run.
        future.pass_others();
    }
    let mut context = Context::from_waker(&thread.waker);
    let mut cancelled = false;
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut context) {
            return output;
        }
        if !cancelled && (thread.cancelled.get() || scheduler.stopping.get()) {
            cancelled = true;
            future.cancel();
        } else if (thread::panicking() || scheduler.stopping.get()) && future.is_throttled() {
            // Those that could free what it waits for do not run.
            future.cancel();
        } else if thread::panicking() || scheduler.stopping.get() {
            // No other thread may run while this one unwinds: it would seem to panic, too.
            let Err(error) = scheduler.runtime.wait(None) else { continue };
            // The next wait would fail, too. In a child of fork(2), the call has ended with an error.
            match Pin::new(&mut future).poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => panic!("a system call in flight cannot end: {error}"),
            }
        } else {
            scheduler.suspend(&thread);
        }
    }
}

/// Lets the other green threads run that can.
///
/// # Panics
/// If no green thread calls it.
pub fn yield_now() {
    let (scheduler, thread) = running();
    scheduler.unwind_if_stopping(&thread);
    if !(thread::panicking() || scheduler.stopping.get()) {
        thread.waker.wake_by_ref();
        scheduler.suspend(&thread);
    }
}

/// Starts a green thread beside the one that calls this.
///
/// # Errors
/// As [`Threads::spawn`].
///
/// # Panics
/// If no green thread calls it.
pub fn spawn<T: 'static>(
    function: impl FnOnce() -> T + 'static,
) -> Result<JoinHandle<T>, SpawnError> {
    running().0.spawn(function)
}

impl Threads {
    /// Registers pages for green threads.
    ///
    /// # Errors
    /// As [`Pages::register`](crate::Pages::register).
    pub fn new(config: &Config) -> Result<Self, Error> {
        let mut pages = config.pages.clone();
        pages.entries = pages.entries.max(config.threads.saturating_add(pages.reserve));
        let runtime = Runtime::driven_by_owner(&pages)?;
        let max_threads = config.threads.min(MAX_ENTRIES) as usize;
        let ready = Arc::new(ReadyQueue(Mutex::new(Vec::with_capacity(max_threads))));
        Ok(Threads(Rc::new(Scheduler {
            runtime,
            max_threads,
            stack_bytes: config.stack_bytes,
            places: RefCell::default(),
            free: RefCell::default(),
            stacks: RefCell::default(),
            ready,
            turn: RefCell::new(Vec::with_capacity(max_threads)),
            current: RefCell::default(),
            live: Cell::new(0),
            switches: Cell::new(0),
            stopping: Cell::new(false),
        })))
    }

    /// Starts a green thread. It runs when the threads do.
    ///
    /// # Errors
    /// If there are as many threads as there may be, or the kernel gives no stack.
    pub fn spawn<T: 'static>(
        &self,
        function: impl FnOnce() -> T + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        self.0.spawn(function)
    }

    /// Runs the threads until all have ended. It can be called again.
    ///
    /// # Errors
    /// If each thread waits for another one, if the kernel refuses to wait, in a child of fork(2), or while the OS thread
    /// unwinds.
    ///
    /// # Panics
    /// If a green thread calls it.
    pub fn run(&self) -> Result<(), Error> {
        while self.0.live.get() > 0 {
            self.turn(None)?;
        }
        Ok(())
    }

    /// Lets each thread run that can, and has their calls executed. If all threads wait, the OS thread
    /// waits for a completion, at most for a timeout.
    ///
    /// # Errors
    /// As [`Threads::run`].
    ///
    /// # Panics
    /// If a green thread calls it.
    pub fn turn(&self, timeout: Option<Duration>) -> Result<(), Error> {
        if thread::panicking() {
            return Err(Error::Unwinding);
        }
        let in_thread = RUNNING.with(|running| running.borrow().is_some());
        assert!(!in_thread, "green threads cannot be run by a green thread");
        let _running = Running::enter(&self.0);
        self.0.turn(timeout)
    }

    /// Returns the number of threads that have not ended.
    pub fn live(&self) -> usize {
        self.0.live.get()
    }

    /// Returns how often a thread began to run or went on.
    pub fn switches(&self) -> u64 {
        self.0.switches.get()
    }

    /// Returns the counters of the pages.
    pub fn counters(&self) -> Counters {
        self.0.runtime.counters()
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("live", &self.live())
            .field("switches", &self.switches())
            .finish_non_exhaustive()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let _running = Running::enter(&self.0);
        self.0.stopping.set(true);
        let places = self.0.places.borrow().len() as u32;
        for place in 0..places {
            self.0.resume(place);
        }
    }
}

impl Scheduler {
    fn spawn<T: 'static>(
        &self,
        function: impl FnOnce() -> T + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        if self.stopping.get() {
            return Err(SpawnError::Stopping);
        }
        if self.live.get() >= self.max_threads {
            return Err(SpawnError::TooMany(self.max_threads));
        }
        let kept = self.stacks.borrow_mut().pop();
        // The crate panics at sizes that overflow.
        let bytes = self.stack_bytes.min(isize::MAX as usize);
        let stack = kept.map_or_else(|| DefaultStack::new(bytes), Ok);
        let stack = stack.map_err(SpawnError::Stack)?;
        let place = self.free_place();
        let mut places = self.places.borrow_mut();
        let ThreadPlace { waker, suspended } = &mut places[place as usize];
        let thread = Rc::new(Thread {
            yielder: Cell::new(ptr::null()),
            waker: Waker::from(Arc::clone(waker)),
            cancelled: Cell::new(false),
            unwound: Cell::new(false),
            ended: Cell::new(false),
            joiner: RefCell::default(),
        });
        // A coroutine takes a function of 1,024 bytes at most.
        let function = Box::new(function);
        let result = Rc::new(Cell::new(None));
        let (of_thread, of_result) = (Rc::clone(&thread), Rc::clone(&result));
        let body = move |yielder: &Yielder<(), ()>, ()| {
            of_thread.yielder.set(yielder);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let function = function;
                let (scheduler, thread) = running();
                scheduler.unwind_if_stopping(&thread);
                function()
            }));
            of_result.set(Some(outcome));
            of_thread.ended.set(true);
            // A result that nothing joins is dropped here; its panic, too.
            catch_panic(|| drop(of_result));
            if let Some(joiner) = of_thread.joiner.take() {
                joiner.wake();
            }
        };
        *suspended = Some((Coroutine::with_stack(stack, body), Rc::clone(&thread)));
        thread.waker.wake_by_ref();
        self.live.set(self.live.get() + 1);
        Ok(JoinHandle { thread, result })
    }

    fn free_place(&self) -> u32 {
        self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut places = self.places.borrow_mut();
            let place = places.len() as u32;
            let queue = Arc::clone(&self.ready);
            let waker = Arc::new(Ready { place, queued: AtomicBool::new(false), queue });
            places.push(ThreadPlace { waker, suspended: None });
            place
        })
    }

    fn turn(&self, timeout: Option<Duration>) -> Result<(), Error> {
        // Threads that these wake run in the next turn, after their calls were executed.
        let mut turn = self.turn.take();
        mem::swap(&mut turn, &mut *self.ready.lock());
        let waits = turn.is_empty();
        for place in turn.drain(..) {
            self.resume(place);
        }
        self.turn.replace(turn);
        if waits && self.live.get() > 0 && self.runtime.outstanding() == 0 {
            return Err(Error::Deadlock);
        }
        self.runtime.wait(if waits { timeout } else { Some(Duration::ZERO) })
    }

    /// Lets a thread run until it waits or ends.
    fn resume(&self, place: u32) {
        let suspended = {
            let place = &mut self.places.borrow_mut()[place as usize];
            place.waker.queued.store(false, Ordering::Relaxed);
            place.suspended.take()
        };
        // A thread may have ended before its last waker was used.
        let Some((mut coroutine, thread)) = suspended else { return };
        self.switches.set(self.switches.get() + 1);
        self.current.replace(Some(Rc::clone(&thread)));
        let result = coroutine.resume(());
        self.current.replace(None);
        match result {
            CoroutineResult::Yield(()) => {
                self.places.borrow_mut()[place as usize].suspended = Some((coroutine, thread));
            }
            CoroutineResult::Return(()) => {
                self.stacks.borrow_mut().push(coroutine.into_stack());
                self.free.borrow_mut().push(place);
                self.live.set(self.live.get() - 1);
            }
        }
    }

    /// Lets other threads run, until the thread is woken.
    fn suspend(&self, thread: &Thread) {
        // SAFETY: the yielder lies on the stack of the thread, below all that it calls. The thread is
        // the one that runs, so it suspends itself.
        unsafe { &*thread.yielder.get() }.suspend(());
        self.unwind_if_stopping(thread);
    }

    /// Unwinds a thread once, if the threads are being dropped.
    fn unwind_if_stopping(&self, thread: &Thread) {
        if self.stopping.get() && !thread.unwound.replace(true) {
            resume_unwind(Box::new(Stopped));
        }
    }
}

/// A green thread, for the one that waits for its result. Dropping it lets the thread go on.
pub struct JoinHandle<T> {
    thread: Rc<Thread>,
    result: Rc<Cell<Option<thread::Result<T>>>>,
}

impl<T> JoinHandle<T> {
    /// Waits until the thread has ended. Other green threads run meanwhile.
    ///
    /// # Errors
    /// The payload of the thread's panic. [`Stopped`], if the threads were dropped before it had ended, or
    /// if this thread unwinds and cannot wait.
    ///
    /// # Panics
    /// If the thread has not ended, and no green thread calls this; see [`Threads::run`].
    pub fn join(self) -> thread::Result<T> {
        while !self.thread.ended.get() {
            let (scheduler, joiner) = running();
            scheduler.unwind_if_stopping(&joiner);
            if thread::panicking() || scheduler.stopping.get() {
                return Err(Box::new(Stopped) as Box<dyn Any + Send>);
            }
            self.thread.joiner.replace(Some(joiner.waker.clone()));
            scheduler.suspend(&joiner);
        }
        self.result.take().unwrap_or_else(|| Err(Box::new(Stopped)))
    }

    /// Requests cancellation (section 4.2): the call in flight of the thread, and each later one, ends
    /// with `EINTR`, or with its result if that comes first. The thread decides what follows.
    pub fn cancel(&self) {
        self.thread.cancelled.set(true);
        self.thread.waker.wake_by_ref();
    }

    /// Returns whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.ended.get()
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}

/// The error of a join: the thread has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// The reason why a green thread was not started.
#[derive(Debug)]
#[non_exhaustive]
pub enum SpawnError {
    /// So many threads have not ended, as many as there may be.
    TooMany(usize),
    /// The kernel gave no memory for the stack.
    Stack(io::Error),
    /// The threads are being dropped.
    Stopping,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::TooMany(threads) => write!(
                f,
                "all {threads} green threads are in use; wait until one ends, or permit more"
            ),
            SpawnError::Stack(error) => write!(
                f,
                "cannot map a stack: {error}; permit fewer threads, or raise vm.max_map_count"
            ),
            SpawnError::Stopping => write!(f, "the green threads are being dropped"),
        }
    }
}

impl std::error::Error for SpawnError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SpawnError::Stack(error) => Some(error),
            _ => None,
        }
    }
}
