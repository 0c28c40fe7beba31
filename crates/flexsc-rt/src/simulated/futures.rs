//! Futures on the simulated machine: tasks wait for calls and drop them at any step, while completions, full pages and
//! the notifier race with them.

use std::cell::Cell;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::future::{CallFuture, Runtime};
use super::machine::{STANDSTILL, machine, step};
use super::pages::{Config, Scratch};
use super::{configurations, has_no_thread, needs_the_closed_one, prepare, random, random_call};
use crate::call::{Call, Waits};
use crate::operation::Operation;

/// What the runs have in common.
#[derive(Debug, Default)]
struct Counts {
    completed: Cell<u64>,
    dropped: Cell<u64>,
    interrupted: Cell<u64>,
    /// Dropped, and the call was made after all.
    too_late: Cell<u64>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// The memory of a call. The machine panics if a call is made whose memory was dropped.
struct Memory(usize);

impl Memory {
    fn lend(call: usize, waits: Waits) -> Self {
        machine(|machine| {
            machine.lend(call);
            machine.makes_no_call(call, waits);
        });
        Memory(call)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        machine(|machine| machine.take_back(self.0));
    }
}

/// A call that owns its memory.
struct Owned {
    call: Call,
    memory: Memory,
    future_is_gone: Rc<Cell<bool>>,
    counts: Rc<Counts>,
}

// SAFETY: the machine has no memory.
unsafe impl Operation for Owned {
    type Output = ();

    fn prepare(&mut self, _scratch: &mut Scratch) -> Call {
        self.call
    }

    fn finish(self, result: io::Result<usize>, _scratch: &Scratch) {
        let effects = machine(|machine| machine.effects(self.memory.0));
        match result {
            Ok(result) => {
                let expected = effects.is_none_or(|n| n == 1 && result == self.memory.0);
                assert!(
                    expected,
                    "{} ended with {result}, after {effects:?} effects",
                    self.memory.0
                );
                let counts = &self.counts;
                count(if self.future_is_gone.get() { &counts.too_late } else { &counts.completed });
            }
            Err(error) => {
                assert!(effects.is_none_or(|n| n == 0), "it had its effect");
                if error.raw_os_error() == Some(libc::EBADF) {
                    assert!(needs_the_closed_one(&self.call));
                    return;
                }
                if has_no_thread(&self.call, &error) {
                    return;
                }
                assert_eq!(error.raw_os_error(), Some(libc::EINTR));
                assert!(self.future_is_gone.get(), "a call that nothing has cancelled");
                count(&self.counts.interrupted);
            }
        }
    }
}

/// Whether a task was woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A task that waits for several calls at once.
struct Task {
    futures: Vec<(CallFuture<Owned>, Rc<Cell<bool>>)>,
    flag: Arc<Flag>,
    waker: Waker,
}

impl Task {
    fn is_woken(&self) -> bool {
        self.flag.0.load(Ordering::Relaxed)
    }

    /// Polls the futures, or some of them; may drop one that is pending. Returns whether all have ended.
    fn poll(&mut self, counts: &Counts) -> bool {
        self.flag.0.store(false, Ordering::Relaxed);
        let mut context = Context::from_waker(&self.waker);
        let first = random(self.futures.len() as u64) as usize;
        self.futures.rotate_left(first);
        // A task that is woken polls one future at least; it does not know for which it was woken.
        let all = random(4) != 0 || self.futures.len() == 1;
        let mut at = 0;
        while at < self.futures.len() {
            match Pin::new(&mut self.futures[at].0).poll(&mut context) {
                Poll::Ready(()) => drop(self.futures.swap_remove(at)),
                Poll::Pending => at += 1,
            }
            if !all {
                // It polls the others later.
                self.flag.0.store(true, Ordering::Relaxed);
                break;
            }
        }
        if random(8) == 0 {
            self.drop_one(counts);
        }
        self.futures.is_empty()
    }

    fn drop_one(&mut self, counts: &Counts) {
        if !self.futures.is_empty() {
            let at = random(self.futures.len() as u64) as usize;
            let (future, is_gone) = self.futures.swap_remove(at);
            is_gone.set(true);
            drop(future);
            count(&counts.dropped);
            // Those that remain are polled again: one of them may have to go on for the others.
        }
    }
}

struct Run {
    runtime: Runtime,
    tasks: Vec<Task>,
    next_call: usize,
    counts: Rc<Counts>,
}

impl Run {
    fn new(seed: u64, config: &Config) -> Self {
        prepare(seed, config);
        let runtime = Runtime::new(config).unwrap();
        Run { runtime, tasks: Vec::new(), next_call: 0, counts: Rc::default() }
    }

    fn spawn(&mut self) {
        let mut futures = Vec::new();
        for _ in 0..=random(3) {
            let mut call = random_call(self.next_call);
            // A future that is dropped withdraws its call.
            call.uncancellable = false;
            let is_gone = Rc::new(Cell::new(false));
            let operation = Owned {
                memory: Memory::lend(self.next_call, call.waits),
                call,
                future_is_gone: Rc::clone(&is_gone),
                counts: Rc::clone(&self.counts),
            };
            self.next_call += 1;
            futures.push((self.runtime.call(operation), is_gone));
        }
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&flag));
        self.tasks.push(Task { futures, flag, waker });
    }

    /// Polls one of the tasks that were woken. Returns whether there is one.
    fn poll(&mut self) -> bool {
        let woken: Vec<_> = (0..self.tasks.len()).filter(|at| self.tasks[*at].is_woken()).collect();
        if woken.is_empty() {
            return false;
        }
        let at = woken[random(woken.len() as u64) as usize];
        if self.tasks[at].poll(&self.counts) {
            self.tasks.swap_remove(at);
        }
        true
    }

    fn drop_one(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        let at = random(self.tasks.len() as u64) as usize;
        self.tasks[at].drop_one(&self.counts);
        if self.tasks[at].futures.is_empty() {
            self.tasks.swap_remove(at);
        }
    }

    fn notify() {
        if let Some(waker) = machine(|machine| machine.take_notified()) {
            waker.wake();
        }
    }

    fn step(&mut self) {
        match random(16) {
            0..=2 if self.tasks.len() < 60 => self.spawn(),
            0..=9 => {
                self.poll();
            }
            10 => self.drop_one(),
            11 => Run::notify(),
            _ => step(),
        }
    }

    /// Lets the tasks end.
    fn end(mut self) -> [u64; 4] {
        let mut idle = 0;
        while !self.tasks.is_empty() {
            if self.poll() {
                idle = 0;
                continue;
            }
            // Every task sleeps.
            step();
            Run::notify();
            idle += 1;
            let is_watched = machine(|machine| machine.notifier.is_some());
            let is_woken = self.tasks.iter().any(Task::is_woken);
            assert!(is_watched || is_woken, "tasks wait, and nothing waits for their calls");
            assert!(idle < STANDSTILL, "tasks wait and nothing happens");
        }
        // It waits for the calls of which the futures are gone.
        drop(self.runtime);
        machine(|machine| machine.assert_idle());
        let Counts { completed, dropped, interrupted, too_late } = &*self.counts;
        [completed, dropped, interrupted, too_late].map(Cell::get)
    }
}

fn run_seeds(seeds: std::ops::Range<u64>, steps: u64) {
    for (n, config) in configurations().iter().enumerate() {
        let mut total = [0; 4];
        for seed in seeds.clone() {
            let mut run = Run::new(seed, config);
            (0..steps).for_each(|_| run.step());
            run.end().iter().zip(&mut total).for_each(|(count, total)| *total += count);
        }
        // Each outcome has occurred.
        assert!(total.iter().all(|count| *count > seeds.end - seeds.start), "{n}: {total:?}");
    }
}

/// The future of a call gets its result once; a call whose future was dropped is made once or not at all, and its memory
/// is kept until then; each task ends, also while pages are full and without a notifier.
#[test]
fn dropped_futures_race_with_completions() {
    run_seeds(0..10, 20_000);
}

/// The same for more seeds: `FLEXSC_SEEDS=10000 cargo test -p flexsc-rt --lib more_seeds -- --ignored`.
#[test]
#[ignore = "runs until all of FLEXSC_SEEDS are done; dropped_futures_race_with_completions runs by default"]
fn more_seeds_of_futures() {
    let seeds = std::env::var("FLEXSC_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    run_seeds(1_000..1_000 + seeds.unwrap_or(100), 20_000);
}
