//! Syscall threads (section 3.2.1): they execute what may block.
//!
//! At most one thread per core is active, of all pages of the process (`active.rs`). `heartbeat.rs` finds those that are
//! blocked. A thread holds a page while it executes the page's entries, so two threads do not share the page's cache
//! lines.

mod heartbeat;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use shared_ring::sync::{AtomicBool, AtomicU64, Ordering};

#[cfg(all(test, loom))]
mod models;

// A simulated machine includes this file with modules of its own.
use super::active;
use super::clock::Instant;
use super::cores::{Applied, Cores};
use super::interrupt::{self, Serving};
use super::tasks::{Condvar, Mutex, MutexGuard};
use super::{processors, raw};
use crate::page::ENTRIES;
use crate::shared::Shared;
use crate::specialization::Specialization;

/// Stack of a syscall thread: it makes system calls and handles one signal.
const STACK_BYTES: usize = 64 * 1024;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    /// It has no submitted entry.
    Idle,
    /// It waits for a thread.
    Queued,
    /// A thread executes its entries.
    Held(u16),
}

/// A syscall thread, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Thread {
    serving: Serving,
    /// Number of calls that it has made.
    served: AtomicU64,
    /// The heartbeat found it blocked, and it holds no page any more.
    blocked: AtomicBool,
    /// The calls that it had made before the one in which it was found blocked.
    #[cfg(all(test, not(loom)))]
    blocked_in: AtomicU64,
}

/// A call of a syscall thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadCall {
    /// Number of calls that the thread had made before.
    served: u64,
    /// The entry, unless the thread makes no call.
    entry: Option<u32>,
}

impl Thread {
    fn call(&self) -> ThreadCall {
        let entry = self.serving.entry();
        ThreadCall { served: self.served.load(Ordering::Relaxed), entry }
    }
}

/// The state under the lock, which is taken once for a page of calls.
#[derive(Debug)]
struct PoolState {
    pages: Box<[PageState]>,
    queue: VecDeque<u32>,
    /// Threads that execute a page and are not known to be blocked.
    active: usize,
    /// Threads that wait for a page.
    idle: usize,
    /// Threads that were started and have not come to the queue yet.
    starting: usize,
    /// Numbers of threads that are not running.
    unused: Vec<u16>,
    heartbeat_runs: bool,
    heartbeat_sleeps: bool,
    stop: bool,
    counters: ThreadCounters,
}

/// Counters of the syscall threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadCounters {
    pub(crate) started: u64,
    pub(crate) blocked: u64,
    pub(crate) died: u64,
    pub(crate) max_active: usize,
    pub(crate) cores_given: u64,
    pub(crate) cores_taken_back: u64,
}

#[derive(Debug)]
struct Pool {
    shared: Arc<Shared>,
    threads: Box<[Thread]>,
    state: Mutex<PoolState>,
    /// A page was queued.
    queued: Condvar,
    /// A thread became active, or the pool stops.
    beat: Condvar,
    /// A thread ended.
    ended: Condvar,
    max_active: usize,
    /// Active threads of the process from which on no further one begins.
    max_in_process: usize,
    period: Duration,
    cores: Cores,
    /// Pages wait, every thread that runs is blocked, and the kernel starts no other.
    stranded: AtomicBool,
}

/// Minimum period of the heartbeat, which reads files of proc(5).
const MIN_PERIOD: Duration = Duration::from_micros(100);

/// The syscall threads of some pages. Their number is bounded; they start on demand.
#[derive(Debug)]
pub(crate) struct Threads(Arc<Pool>);

impl Threads {
    pub(crate) fn new(
        shared: Arc<Shared>,
        threads: u16,
        active: usize,
        period: Duration,
        specialization: Specialization,
    ) -> Self {
        let pages = shared.pages();
        let state = PoolState {
            pages: vec![PageState::Idle; pages].into_boxed_slice(),
            queue: VecDeque::with_capacity(pages),
            active: 0,
            idle: 0,
            starting: 0,
            unused: (0..threads).rev().collect(),
            heartbeat_runs: false,
            heartbeat_sleeps: false,
            stop: false,
            counters: ThreadCounters::default(),
        };
        Threads(Arc::new(Pool {
            shared,
            threads: (0..threads).map(|_| Thread::default()).collect(),
            state: Mutex::new(state),
            queued: Condvar::new(),
            beat: Condvar::new(),
            ended: Condvar::new(),
            max_active: active,
            max_in_process: active.max(processors::allowed().map_or(1, |all| all.count() as usize)),
            period: period.max(MIN_PERIOD),
            cores: Cores::new(specialization),
            stranded: AtomicBool::new(false),
        }))
    }

    /// Submits entries of pages, each a mask, and sets the masks to 0. An owner that makes calls itself meanwhile
    /// counts as an active thread. Returns false if no thread will execute them, as none can be started, and those that
    /// run are blocked; the owner has to claim them then.
    pub(crate) fn submit(
        &self,
        pages: &mut Vec<u32>,
        masks: &mut [u64],
        owner_works: bool,
    ) -> bool {
        self.0.cores.note_owner();
        let mut state = self.0.lock();
        for page in pages.drain(..) {
            let mask = std::mem::take(&mut masks[page as usize]);
            self.0.shared.submitted[page as usize].submit(mask);
            state.queue_page(page);
        }
        Pool::wake(&self.0, state, usize::from(owner_works)) || !self.take_stranded_pages()
    }

    /// Returns whether pages wait that no thread will execute.
    #[inline]
    pub(crate) fn are_stranded(&self) -> bool {
        self.0.stranded.load(Ordering::Relaxed)
    }

    /// Takes the pages that no thread will execute from the queue. Returns whether the owner has to claim the submitted
    /// entries.
    #[cold]
    pub(crate) fn take_stranded_pages(&self) -> bool {
        let mut state = self.0.lock();
        if !self.0.stranded.swap(false, Ordering::Relaxed) {
            return false;
        }
        if state.has_thread() {
            // A blocked thread came back. If it blocks again, the heartbeat finds the pages again.
            return false;
        }
        while let Some(page) = state.queue.pop_front() {
            state.pages[page as usize] = PageState::Idle;
        }
        true
    }

    /// Interrupts the call of an entry, of which the status is `Cancel`.
    pub(crate) fn interrupt(&self, entry: u32) {
        let cancelled = self.0.shared.entry(entry);
        let thread = &self.0.threads[usize::from(cancelled.thread())];
        thread.serving.interrupt(entry, cancelled);
        // The heartbeat repeats it, if it came too early.
        self.0.wake_heartbeat(&mut self.0.lock());
    }

    pub(crate) fn counters(&self) -> ThreadCounters {
        self.0.lock().counters
    }

    /// Panics if two threads that are not known to be blocked make calls of one page, or if one that was found blocked makes
    /// a further call of the page that it has lost.
    #[cfg(all(test, not(loom)))]
    #[allow(dead_code, reason = "the simulation asserts it")]
    pub(crate) fn assert_pages_are_locked(&self) {
        let not_blocked = self.0.threads.iter().filter(|own| !own.blocked.load(Ordering::Relaxed));
        let mut served: Vec<_> =
            not_blocked.filter_map(|own| Some(own.serving.entry()? / ENTRIES as u32)).collect();
        served.sort_unstable();
        assert!(served.is_sorted_by(|a, b| a < b), "pages with several threads: {served:?}");
        let is_blocked = |own: &&Thread| own.blocked.load(Ordering::Relaxed);
        for own in self.0.threads.iter().filter(is_blocked) {
            let ThreadCall { served, entry } = own.call();
            let is_that_call = served == own.blocked_in.load(Ordering::Relaxed);
            assert!(entry.is_none() || is_that_call, "{entry:?} is of a page of another thread");
        }
    }

    /// Lets the threads end after their present call. Returns whether they have before a deadline.
    pub(crate) fn stop(&self, deadline: Instant) -> bool {
        let mut state = self.0.lock();
        state.stop = true;
        self.0.queued.notify_all();
        self.0.beat.notify_all();
        while state.unused.len() < self.0.threads.len() || state.heartbeat_runs {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                self.0.leave_active(&mut state);
                return false;
            }
            let waited = self.0.ended.wait_timeout(state, remaining);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl PoolState {
    /// Queues a page, unless a thread has it or will have it.
    fn queue_page(&mut self, page: u32) {
        let page_state = &mut self.pages[page as usize];
        if *page_state == PageState::Idle {
            *page_state = PageState::Queued;
            self.queue.push_back(page);
        }
    }

    /// Counts a thread as active no more.
    fn end_active(&mut self) {
        self.active -= 1;
        active::end(1);
    }

    /// Returns whether a thread executes a page, or will take one: it is not known to be blocked.
    fn has_thread(&self) -> bool {
        self.active + self.idle + self.starting > 0
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes or starts threads for the pages that wait, as far as threads may be active beside `others`. Returns false
    /// if none can be started and all that run are blocked: the pages are stranded.
    fn wake<'a>(pool: &'a Arc<Pool>, mut state: MutexGuard<'a, PoolState>, others: usize) -> bool {
        let room = pool.active_threads(others).saturating_sub(state.active).min(pool.room(&state));
        let wanted = state.queue.len().min(room);
        for _ in 0..wanted.min(state.idle) {
            pool.queued.notify_one();
        }
        let mut missing = wanted.saturating_sub(state.idle + state.starting);
        // Without the heartbeat, no thread would replace one that blocks.
        let mut can_start = missing == 0 || Pool::has_heartbeat(pool, &mut state);
        while missing > 0 && can_start {
            let Some(number) = state.unused.pop() else { break };
            state.starting += 1;
            drop(state);
            let started = Pool::start(pool, number);
            state = pool.lock();
            if !started {
                state.starting -= 1;
                state.unused.push(number);
                can_start = false;
                break;
            }
            state.counters.started += 1;
            missing -= 1;
        }
        if wanted > 0 {
            pool.wake_heartbeat(&mut state);
        }
        // While it had no lock, a thread or the owner may have taken the pages.
        let is_stranded = !can_start && !state.has_thread() && !state.queue.is_empty();
        pool.stranded.store(is_stranded, Ordering::Relaxed);
        !is_stranded
    }

    /// Returns how many threads may be active beside `others`.
    fn active_threads(&self, others: usize) -> usize {
        self.cores.active_threads(self.max_active.saturating_sub(others))
    }

    /// Returns how many further threads the process may have active. The first one of the pages is never refused.
    fn room(&self, state: &PoolState) -> usize {
        let room = self.max_in_process.saturating_sub(active::count());
        if state.active == 0 { room.max(1) } else { room }
    }

    /// Counts a thread as active, if a page waits and the thread may be. Returns the page. If too many of other pages are
    /// active, the heartbeat tries again.
    fn begin_active(&self, state: &mut PoolState) -> Option<u32> {
        let limit = if state.active == 0 { usize::MAX } else { self.max_in_process };
        let begins = !state.queue.is_empty()
            && state.active < self.active_threads(0)
            && active::begin(limit);
        if !begins {
            return None;
        }
        state.active += 1;
        state.queue.pop_front()
    }

    /// Gives up the threads that are active while their pages end: they may be so without end.
    fn leave_active(&self, state: &mut PoolState) {
        for page in &mut state.pages {
            if let PageState::Held(number) = *page {
                *page = PageState::Idle;
                self.threads[usize::from(number)].blocked.store(true, Ordering::Relaxed);
            }
        }
        active::end(std::mem::take(&mut state.active));
    }

    fn start(pool: &Arc<Pool>, number: u16) -> bool {
        let pool = Arc::clone(pool);
        let builder = thread::Builder::new().name(format!("flexsc {number}"));
        let body = move || {
            // A thread that dies in a call leaves its reference to `Pool::end_dead`.
            let pool = ManuallyDrop::new(pool);
            pool.serve(number);
            drop(ManuallyDrop::into_inner(pool));
        };
        interrupt::spawn(builder.stack_size(STACK_BYTES), body).is_ok()
    }

    /// The body of a syscall thread.
    fn serve(&self, number: u16) {
        // SAFETY: the thread holds a reference to the pool until this returns.
        unsafe { self.threads[usize::from(number)].serving.enter_thread() };
        let mut applied = Applied::default();
        let mut state = self.lock();
        state.starting -= 1;
        while !state.stop {
            let Some(page) = self.begin_active(&mut state) else {
                state.idle += 1;
                state = self.queued.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            state = self.serve_page(number, page, state, &mut applied);
        }
        // The next thread of this number uses the same counters.
        Serving::leave_thread();
        state.unused.push(number);
        self.ended.notify_all();
    }

    /// Holds a page, and executes its entries, in a thread that was counted as active.
    fn serve_page<'a>(
        &'a self,
        number: u16,
        page: u32,
        mut state: MutexGuard<'a, PoolState>,
        applied: &mut Applied,
    ) -> MutexGuard<'a, PoolState> {
        let own = &self.threads[usize::from(number)];
        state.pages[page as usize] = PageState::Held(number);
        state.counters.max_active = state.counters.max_active.max(state.active);
        // It sleeps if the thread was blocked when the page was queued, and no other could be started.
        self.wake_heartbeat(&mut state);
        drop(state);
        self.cores.apply(applied);
        self.execute(own, number, page);
        state = self.lock();
        if own.blocked.swap(false, Ordering::Relaxed) {
            return state;
        }
        state.end_active();
        state.pages[page as usize] = PageState::Idle;
        // The owner submits under the lock, so nothing is overlooked.
        if !self.shared.submitted[page as usize].is_empty() {
            state.queue_page(page);
        }
        state
    }

    /// Executes submitted entries of a page, until another thread has taken it over; as many as a page has, as the owner
    /// may submit more all the time while other pages wait.
    fn execute(&self, own: &Thread, number: u16, page: u32) {
        for _ in 0..ENTRIES {
            if own.blocked.load(Ordering::Relaxed) {
                break;
            }
            let Some(place) = self.shared.submitted[page as usize].claim() else { break };
            let index = page * ENTRIES as u32 + place as u32;
            let entry = self.shared.entry(index);
            entry.begin(number);
            own.serving.begin(index);
            // SAFETY: the thread has claimed the entry; the caller of `Pages::post` vouches for it.
            unsafe {
                let (call, args) = entry.call();
                let result = raw::system_call(call, &args);
                own.serving.end(index);
                entry.finish_on_thread(result);
            }
            own.served.store(own.served.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            self.shared.complete(index);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tasks::yield_now;
    use super::*;
    use crate::entry::Status;

    fn threads_of(pages: usize) -> Threads {
        let shared = Arc::new(Shared::new(pages).unwrap());
        Threads::new(shared, 1, 1, Duration::from_secs(60), Specialization::Off)
    }

    #[test]
    fn no_thread_was_started_beside_the_owner_while_cores_were_given() {
        let shared = Arc::new(Shared::new(1).unwrap());
        let threads =
            Threads::new(shared, 2, 2, Duration::from_secs(60), Specialization::WhileBusy);
        let pool = &threads.0;
        let mut state = pool.lock();
        pool.set_given(&mut state, true);
        state.queue_page(0);
        assert!(Pool::wake(pool, state, 1));
        assert_eq!(pool.lock().counters.started, 1);
        assert!(threads.stop(Instant::now() + Duration::from_secs(10)));
    }

    #[test]
    fn thread_whose_call_had_ended_was_counted_as_blocked() {
        let threads = threads_of(1);
        let pool = &threads.0;
        let mut state = pool.lock();
        (state.pages[0], state.active) = (PageState::Held(0), 1);
        // The thread has no identity, so proc(5) does not say that it runs.
        let thread = &pool.threads[0];
        thread.serving.begin(3);
        let call = thread.call();
        thread.serving.end(3);
        pool.take_over(&mut state, 0, call);
        assert_eq!((state.counters.blocked, state.active), (0, 1));
        // It is in the same entry again, for the next call.
        thread.served.store(1, Ordering::Relaxed);
        thread.serving.begin(3);
        pool.take_over(&mut state, 0, call);
        assert_eq!((state.counters.blocked, state.active), (0, 1));
    }

    #[test]
    fn calls_behind_a_thread_that_was_back_ended_as_if_no_thread_ran() {
        let threads = threads_of(2);
        let pool = &*threads.0;
        // The heartbeat found two pages stranded. The blocked thread came back before the owner looked, and executes
        // one of them.
        let mut state = pool.lock();
        state.pages[0] = PageState::Held(0);
        state.queue_page(1);
        state.active = 1;
        drop(state);
        pool.stranded.store(true, Ordering::Relaxed);
        assert!(!threads.take_stranded_pages(), "a thread runs");
        assert!(!threads.are_stranded());
        assert_eq!(pool.lock().queue, [1]);
        // It blocks again.
        pool.lock().active = 0;
        pool.stranded.store(true, Ordering::Relaxed);
        assert!(threads.take_stranded_pages());
        assert!(pool.lock().queue.is_empty());
    }

    #[test]
    fn heartbeat_slept_while_a_thread_that_was_back_executed_a_page() {
        let threads = threads_of(1);
        let mut state = threads.0.lock();
        state.queue_page(0);
        (state.starting, state.heartbeat_sleeps) = (1, true);
        let number = state.unused.pop().unwrap();
        drop(state);
        assert!(Pool::start(&threads.0, number));
        while threads.0.lock().idle == 0 {
            yield_now();
        }
        let state = threads.0.lock();
        assert_eq!(state.counters.max_active, 1);
        assert!(!state.heartbeat_sleeps);
        drop(state);
        assert!(threads.stop(Instant::now() + Duration::from_secs(10)));
    }

    #[test]
    fn thread_that_died_after_it_was_counted_as_blocked_was_not_noticed() {
        let shared = Arc::new(Shared::new(1).unwrap());
        let threads = Threads::new(shared, 1, 1, Duration::from_micros(100), Specialization::Off);
        let pool = &threads.0;
        // SAFETY: the entry is free.
        unsafe { pool.shared.entry(0).fill(libc::SYS_exit as u32, &[0; 6]) };
        pool.shared.submitted[0].submit(1);
        let mut state = pool.lock();
        state.queue_page(0);
        state.starting = 1;
        let number = state.unused.pop().unwrap();
        drop(state);
        assert!(Pool::start(pool, number));
        let thread = &pool.threads[0];
        while thread.serving.entry().is_none() || !thread.serving.is_dead() {
            yield_now();
        }
        // A beat has come between the begin of its call and its death.
        let mut state = pool.lock();
        assert_eq!((state.pages[0], state.active), (PageState::Held(number), 1));
        state.pages[0] = PageState::Idle;
        state.end_active();
        thread.blocked.store(true, Ordering::Relaxed);
        assert!(Pool::has_heartbeat(pool, &mut state));
        drop(state);
        let deadline = Instant::now() + Duration::from_secs(10);
        while pool.shared.entry(0).status() != Status::Done {
            assert!(Instant::now() < deadline, "its call has not ended");
            yield_now();
        }
        // SAFETY: it is done.
        assert_eq!(unsafe { pool.shared.entry(0).take() }, -(libc::EOWNERDEAD as isize));
        assert_eq!(threads.counters().died, 1);
        assert!(threads.stop(deadline));
        // The heartbeat ends after it has said so.
        while Arc::strong_count(pool) > 1 {
            assert!(Instant::now() < deadline, "the thread that died has a reference");
            yield_now();
        }
    }
}
