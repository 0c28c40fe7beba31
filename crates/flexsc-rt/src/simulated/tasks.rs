//! Threads of the simulated machine: each runs on a stack of its own, in turn, until it waits. So the code of the syscall
//! threads is that of the crate, and the seed decides which one runs next.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::LockResult;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::clock::Instant;
use super::machine::{self, DIES, machine};
use crate::raw::INTERRUPTED;

/// Stack of a thread; those of tests are deep.
const STACK_BYTES: usize = 256 * 1024;

type Switch = Yielder<(), ()>;

#[derive(Default)]
struct Task {
    /// None while it runs, and when it has ended.
    coroutine: Option<ManuallyDrop<Coroutine<(), (), ()>>>,
    signalled: bool,
    is_dead: bool,
    /// The number of the call that it makes.
    calls: Option<u32>,
}

/// The payload of the panic that unwinds the stack of a thread that dies.
struct Death;

thread_local! {
    static TASKS: RefCell<Vec<Task>> = const { RefCell::new(Vec::new()) };
    /// The threads that have not ended.
    static LIVING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
    static SWITCH: Cell<*const Switch> = const { Cell::new(ptr::null()) };
}

fn with<R>(task: usize, access: impl FnOnce(&mut Task) -> R) -> R {
    TASKS.with_borrow_mut(|tasks| access(&mut tasks[task]))
}

/// Begins a run.
pub(super) fn reset() {
    TASKS.take();
    LIVING.take();
}

/// Returns how many threads have not ended.
pub(super) fn living() -> usize {
    LIVING.with_borrow(Vec::len)
}

/// Returns the thread that runs; none if the owner of the pages does.
pub(super) fn current() -> Option<usize> {
    CURRENT.get()
}

pub(super) fn set_signalled(task: usize, signalled: bool) {
    with(task, |task| task.signalled = signalled);
}

pub(super) fn is_dead(task: usize) -> bool {
    TASKS.with_borrow(|tasks| tasks.get(task).is_some_and(|task| task.is_dead))
}

/// Returns how many threads have died.
pub(super) fn dead() -> usize {
    TASKS.with_borrow(|tasks| tasks.iter().filter(|task| task.is_dead).count())
}

pub(super) fn spawn(body: impl FnOnce() + 'static) {
    let stack = DefaultStack::new(STACK_BYTES).expect("memory for a stack");
    let coroutine = Coroutine::with_stack(stack, move |switch: &Switch, ()| {
        SWITCH.set(switch);
        let ended = panic::catch_unwind(AssertUnwindSafe(body));
        if let Err(panic) = ended {
            end_of_panic(&*panic);
        }
    });
    let number = TASKS.with_borrow_mut(|tasks| {
        let coroutine = Some(ManuallyDrop::new(coroutine));
        tasks.push(Task { coroutine, ..Task::default() });
        tasks.len() - 1
    });
    LIVING.with_borrow_mut(|living| living.push(number));
}

/// A panic cannot leave the stack; its message was printed.
fn end_of_panic(panic: &(dyn Any + Send)) {
    if !panic.is::<Death>() {
        std::process::abort();
    }
}

/// Lets a thread go on, if there is one.
pub(super) fn run_any() {
    assert!(CURRENT.get().is_none(), "the owner lets threads go on");
    let count = living();
    if count == 0 {
        return;
    }
    let at = machine(|machine| machine.random(count as u64)) as usize;
    let number = LIVING.with_borrow(|living| living[at]);
    let mut coroutine = with(number, |task| task.coroutine.take()).expect("it does not run");
    CURRENT.set(Some(number));
    let result = coroutine.resume(());
    CURRENT.set(None);
    match result {
        CoroutineResult::Yield(()) => with(number, |task| task.coroutine = Some(coroutine)),
        CoroutineResult::Return(()) => {
            drop(ManuallyDrop::into_inner(coroutine));
            LIVING.with_borrow_mut(|living| living.swap_remove(at));
        }
    }
}

/// Lets others go on.
pub(crate) fn pause() {
    let Some(own) = CURRENT.get() else { return machine::step() };
    let switch = SWITCH.get();
    // SAFETY: it is that of the running coroutine, which `run_any` has resumed, and lives on its stack.
    unsafe { (*switch).suspend(()) };
    debug_assert_eq!(CURRENT.get(), Some(own));
    // Others have run meanwhile.
    SWITCH.set(switch);
}

pub(crate) use pause as yield_now;

/// Makes a call on the running thread, and waits in it.
pub(super) fn call(own: usize, number: u32, args: &[usize; 6]) -> isize {
    with(own, |task| task.calls = Some(number));
    assert_thread_is_left();
    let result = loop {
        pause();
        // Some take a while, without waiting.
        if computes(number) && machine(|machine| machine.random(8)) != 0 {
            continue;
        }
        if dies(number) {
            if machine(|machine| machine.holds_deaths) {
                continue;
            }
            with(own, |task| (task.is_dead, task.calls) = (true, None));
            panic::resume_unwind(Box::new(Death));
        }
        match machine(|machine| machine.waits_no_longer(number).then(|| machine.call(number, args)))
        {
            Some(Some(result)) => break result,
            // A call that does not wait reports that.
            Some(None) if number < 1_020 => break -(libc::EAGAIN as isize),
            _ => {}
        }
        if with(own, |task| std::mem::take(&mut task.signalled)) {
            break INTERRUPTED;
        }
    };
    with(own, |task| task.calls = None);
    result
}

fn dies(number: u32) -> bool {
    (DIES..DIES + 10).contains(&number) || number == libc::SYS_exit as u32
}

fn computes(number: u32) -> bool {
    number == 1_001
}

/// Returns whether a thread computes in its call.
pub(super) fn is_computing(task: usize) -> bool {
    TASKS.with_borrow(|tasks| tasks.get(task).is_some_and(|task| task.calls.is_some_and(computes)))
}

/// Panics if calls that may wait indefinitely have all threads.
fn assert_thread_is_left() {
    let max_threads = machine(|machine| machine.max_threads);
    let waiting = TASKS.with_borrow(|tasks| {
        tasks.iter().filter(|task| task.calls.is_some_and(|number| number >= 1_020)).count()
    });
    assert!(waiting < max_threads.max(1), "no thread is left for bounded calls");
}

/// Panics if a thread makes a call.
pub(super) fn assert_idle() {
    TASKS.with_borrow(|tasks| assert!(tasks.iter().all(|task| task.calls.is_none())));
}

/// As that of the standard library. A thread that waits for it lets others go on.
pub(crate) struct Mutex<T> {
    is_locked: Cell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: the threads of the machine are run by one.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("is_locked", &self.is_locked).finish_non_exhaustive()
    }
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex { is_locked: Cell::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if machine(|machine| machine.random(2)) == 0 {
            pause();
        }
        while self.is_locked.replace(true) {
            pause();
        }
        Ok(MutexGuard(self))
    }
}

pub(crate) struct MutexGuard<'a, T>(&'a Mutex<T>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard has the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.0.is_locked.set(false);
    }
}

/// As that of the standard library, but no wait ends without a reason.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    /// Those that wait.
    tickets: RefCell<Vec<u64>>,
    next: Cell<u64>,
}

// SAFETY: the threads of the machine are run by one.
unsafe impl Send for Condvar {}
// SAFETY: as above.
unsafe impl Sync for Condvar {}

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar::default()
    }

    pub(crate) fn notify_one(&self) {
        let mut tickets = self.tickets.borrow_mut();
        if !tickets.is_empty() {
            let at = machine(|machine| machine.random(tickets.len() as u64));
            tickets.swap_remove(at as usize);
        }
    }

    pub(crate) fn notify_all(&self) {
        self.tickets.borrow_mut().clear();
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_until(guard, None)
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        self.wait_until(guard, Some(Instant::now() + timeout))
            .map(|guard| (guard, ()))
            .map_err(|_| unreachable!("no lock is poisoned"))
    }

    fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        until: Option<Instant>,
    ) -> LockResult<MutexGuard<'a, T>> {
        let ticket = self.next.replace(self.next.get() + 1);
        self.tickets.borrow_mut().push(ticket);
        let mutex = guard.0;
        drop(guard);
        loop {
            pause();
            if !self.tickets.borrow().contains(&ticket) {
                break;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                self.tickets.borrow_mut().retain(|other| *other != ticket);
                break;
            }
        }
        mutex.lock()
    }
}
