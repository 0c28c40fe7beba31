//! Wakers, and operations whose memory is dropped, that use the runtime that calls them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use flexsc_rt::operations::{raw, sleep};
use flexsc_rt::{Call, Config, Operation, Runtime, Waits};

type Boxed = Pin<Box<dyn Future<Output = ()>>>;

fn runtime() -> Runtime {
    Runtime::new(&Config::default()).unwrap()
}

/// A sleep of no time, or of a long one, that owns a value.
fn sleep_with<M: 'static>(seconds: i64, memory: M) -> impl Operation<Output = ()> {
    let time = Box::new([seconds, 0]);
    // SAFETY: the call refers to the boxed time, which the memory owns.
    unsafe {
        raw(
            (time, memory),
            |(time, _), _| {
                let address = time.as_ptr() as usize;
                Call::new(libc::SYS_nanosleep, [address, 0, 0, 0, 0, 0]).waits(Waits::Indefinitely)
            },
            |memory, _, _| drop(memory),
        )
    }
}

/// A future of a call that does not end by itself, polled once.
fn pending(runtime: &Runtime) -> Boxed {
    let call = runtime.call(sleep(Duration::from_secs(1_000)));
    let mut future: Boxed = Box::pin(async { drop(call.await) });
    assert!(poll(&mut future).is_pending());
    future
}

/// The task of the test, which polls its futures in turn. Each of them can be the driver.
struct Test;

impl Wake for Test {
    fn wake(self: Arc<Self>) {}
}

thread_local! {
    static TEST: Waker = Waker::from(Arc::new(Test));
}

fn poll(future: &mut Boxed) -> Poll<()> {
    TEST.with(|waker| future.as_mut().poll(&mut Context::from_waker(waker)))
}

fn block_on(future: impl Future<Output = ()> + 'static) {
    let mut future: Boxed = Box::pin(future);
    while poll(&mut future).is_pending() {
        std::thread::yield_now();
    }
}

/// Says that it was dropped.
struct Flag(Rc<Cell<bool>>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn operation_with_a_future_of_its_runtime_panicked_when_its_result_was_taken() {
    let runtime = runtime();
    let inner = pending(&runtime);
    let call = runtime.call(sleep_with(0, inner));
    block_on(call);
    // One that was not posted.
    drop(runtime.call(sleep_with(0, pending(&runtime))));
}

#[test]
fn operation_with_a_future_of_its_runtime_panicked_when_its_own_future_was_dropped() {
    let runtime = runtime();
    // In flight: the runtime drops it.
    let is_gone = Rc::new(Cell::new(false));
    let memory = (pending(&runtime), Flag(Rc::clone(&is_gone)));
    let mut outer: Boxed = Box::pin(runtime.call(sleep_with(1_000, memory)));
    assert!(poll(&mut outer).is_pending());
    drop(outer);
    while !is_gone.get() {
        block_on(runtime.call(sleep_with(0, ())));
    }
    // Done, and not polled since: the drop of the future finds the result.
    let mut outer: Boxed = Box::pin(runtime.call(sleep_with(0, pending(&runtime))));
    assert!(poll(&mut outer).is_pending());
    block_on(runtime.call(sleep_with(0, ())));
    drop(outer);
}

/// Makes a call when it is dropped, and drops the future of that.
struct Calls(Runtime, Rc<Cell<bool>>);

impl Drop for Calls {
    fn drop(&mut self) {
        let memory = Flag(Rc::clone(&self.1));
        let mut future: Boxed = Box::pin(self.0.call(sleep_with(1_000, memory)));
        assert!(poll(&mut future).is_pending());
    }
}

#[test]
fn operations_were_kept_after_the_drop_of_the_last_future() {
    let runtime = runtime();
    let is_gone = Rc::new(Cell::new(false));
    let calls = Calls(runtime.clone(), Rc::clone(&is_gone));
    let mut outer: Boxed = Box::pin(runtime.call(sleep_with(1_000, calls)));
    assert!(poll(&mut outer).is_pending());
    drop(outer);
    assert!(is_gone.get());
}

thread_local! {
    /// The task that the waker polls.
    static TASK: RefCell<Option<Boxed>> = const { RefCell::new(None) };
}

/// Polls the task at once, as an executor may that is not in a task.
struct PollsAtOnce;

impl Wake for PollsAtOnce {
    fn wake(self: Arc<Self>) {
        let task = TASK.with_borrow_mut(Option::take);
        if let Some(mut task) = task
            && task.as_mut().poll(&mut Context::from_waker(&Waker::from(self))).is_pending()
        {
            TASK.set(Some(task));
        }
    }
}

#[test]
fn waker_that_polled_a_future_at_once_panicked() {
    let runtime = runtime();
    let waker = Waker::from(Arc::new(PollsAtOnce));
    let is_done = Rc::new(Cell::new(false));
    let mut task: Boxed = {
        let (runtime, is_done) = (runtime.clone(), Rc::clone(&is_done));
        Box::pin(async move {
            for _ in 0..3 {
                runtime.call(sleep_with(0, ())).await;
                drop(pending(&runtime));
            }
            is_done.set(true);
        })
    };
    // Another future is the driver, so the calls of the task end in its turns.
    let mut driver = pending(&runtime);
    assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    TASK.set(Some(task));
    while !is_done.get() {
        assert!(poll(&mut driver).is_pending());
    }
    // The drop of the driver wakes the next one.
    let task: Boxed = {
        let runtime = runtime.clone();
        Box::pin(async move { drop(runtime.call(sleep(Duration::from_secs(1_000))).await) })
    };
    TASK.set(Some(task));
    waker.wake_by_ref();
    drop(driver);
    TASK.set(None);
}

/// A waker that owns a task, as those of an executor may: it is dropped with the last waker.
struct OwnsTask;

impl Wake for OwnsTask {
    fn wake(self: Arc<Self>) {}
}

impl Drop for OwnsTask {
    fn drop(&mut self) {
        TASK.set(None);
    }
}

#[test]
fn drop_of_a_waker_that_owns_a_future_panicked() {
    let runtime = runtime();
    let _driver = pending(&runtime);
    for is_driver in [false, true] {
        let runtime = if is_driver { self::runtime() } else { runtime.clone() };
        let owns = || {
            TASK.set(Some(pending(&runtime)));
            Waker::from(Arc::new(OwnsTask))
        };
        let poll_with = |future: &mut Boxed, waker: Waker| {
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        };
        let mut future: Boxed = Box::pin(runtime.call(sleep_with(1_000, ())));
        for _ in 0..2 {
            // The second time, it parks if it is the driver.
            poll_with(&mut future, owns());
            // Another waker takes its place.
            poll_with(&mut future, Waker::noop().clone());
        }
        assert!(TASK.with_borrow(Option::is_none), "is the driver: {is_driver}");
        poll_with(&mut future, owns());
        drop(future);
        TASK.set(None);
    }
}
