//! Futures on the simulated machine: tasks wait for calls, drop them, move them to other tasks and wait for other tasks
//! or timers at any step, while completions, full pages and the notifier race with them.

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
use super::{
    configurations, has_no_thread, more_seeds, needs_the_closed_one, prepare, random, random_call,
    run_seeds,
};
use crate::call::{Call, Waits};
use crate::operation::Operation;

/// The counts that a run and its operations share.
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
pub(super) struct Memory(pub(super) usize);

impl Memory {
    pub(super) fn lend(call: usize, waits: Waits) -> Self {
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

/// Calls of tasks that do not poll all their futures at most: their entries are not free meanwhile.
const MAX_KEPT: usize = 24;

/// The event for which a task waits while it keeps its futures and polls none of them.
enum Wait {
    /// Nothing: it polls its futures.
    No,
    /// The end of a later task.
    Task(Rc<Cell<bool>>),
    Timer,
}

/// A task that waits for several calls at once, or for one after the other.
struct Task {
    /// Set at its end.
    ended: Rc<Cell<bool>>,
    wait: Wait,
    /// It polls its first future until that has ended.
    one_by_one: bool,
    /// With each, whether it is gone, and whether its call may occupy a thread for long.
    futures: Vec<(CallFuture<Owned>, Rc<Cell<bool>>, bool)>,
    flag: Arc<Flag>,
    waker: Waker,
}

impl Task {
    fn is_woken(&self) -> bool {
        self.flag.0.load(Ordering::Relaxed)
    }

    /// Returns whether it waits for something else than its futures.
    fn waits(&self) -> bool {
        match &self.wait {
            Wait::No => false,
            Wait::Task(ended) => !ended.get(),
            Wait::Timer => true,
        }
    }

    /// Returns how many of its calls keep an entry without being polled, at most.
    fn kept(&self) -> usize {
        if self.waits() || self.one_by_one { self.futures.len() } else { 0 }
    }

    /// Polls the futures, or some of them; may drop one that is pending. Returns whether all have ended.
    fn poll(&mut self, counts: &Counts) -> bool {
        self.flag.0.store(false, Ordering::Relaxed);
        if self.waits() {
            return false;
        }
        let mut context = Context::from_waker(&self.waker);
        if self.one_by_one {
            while let Some((future, ..)) = self.futures.first_mut()
                && Pin::new(future).poll(&mut context).is_ready()
            {
                drop(self.futures.remove(0));
            }
            return self.futures.is_empty();
        }
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
            let (future, is_gone, _) = self.futures.swap_remove(at);
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
            let needs_thread = !matches!(call.waits, Waits::Bounded | Waits::Ready(..));
            futures.push((self.runtime.call(operation), is_gone, needs_thread));
        }
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&flag));
        let ended = Rc::new(Cell::new(false));
        let (wait, one_by_one) = (Wait::No, false);
        self.tasks.push(Task { ended, wait, one_by_one, futures, flag, waker });
    }

    /// Lets a task wait for a later one or for a timer, whether its futures were polled or not. Then it may poll one of
    /// them only.
    fn keep(&mut self) {
        let kept: usize = self.tasks.iter().map(Task::kept).sum();
        if self.tasks.is_empty() || kept > MAX_KEPT {
            return;
        }
        let at = random(self.tasks.len() as u64) as usize;
        let later = self.tasks.len() - at - 1;
        let task = &self.tasks[at];
        // Calls that may wait indefinitely keep threads from others, too.
        let may_keep = task.futures.iter().all(|(_, _, needs_thread)| !needs_thread);
        if !may_keep || task.waits() {
            return;
        }
        let wait = if later == 0 || random(2) == 0 {
            Wait::Timer
        } else {
            let later = at + 1 + random(later as u64) as usize;
            Wait::Task(Rc::clone(&self.tasks[later].ended))
        };
        let task = &mut self.tasks[at];
        (task.wait, task.one_by_one) = (wait, random(2) == 0);
        let others = task.futures.len() as u64;
        task.futures.rotate_left(random(others) as usize);
    }

    /// Ends the wait of a task for a timer. Returns whether there is one.
    fn end_timer(&mut self) -> bool {
        let waits = |task: &Task| matches!(task.wait, Wait::Timer);
        let count = self.tasks.iter().filter(|task| waits(task)).count();
        if count == 0 {
            return false;
        }
        let nth = random(count as u64) as usize;
        let task = self.tasks.iter_mut().filter(|task| waits(task)).nth(nth);
        let task = task.expect("they were counted");
        task.wait = Wait::No;
        task.waker.wake_by_ref();
        true
    }

    /// Ends a task: those wake up that wait for it.
    fn end_task(&mut self, at: usize) {
        // The others stay in their order.
        let ended = self.tasks.remove(at);
        ended.ended.set(true);
        for task in &self.tasks {
            if matches!(&task.wait, Wait::Task(other) if Rc::ptr_eq(other, &ended.ended)) {
                task.waker.wake_by_ref();
            }
        }
        for (future, is_gone, _) in ended.futures {
            is_gone.set(true);
            drop(future);
            count(&self.counts.dropped);
        }
    }

    /// Moves a future to another task, which polls it next.
    fn move_one(&mut self) {
        if self.tasks.len() < 2 {
            return;
        }
        let from = random(self.tasks.len() as u64) as usize;
        let to = random(self.tasks.len() as u64) as usize;
        let is_kept = |task: usize| self.tasks[task].kept() > 0;
        if from == to || is_kept(from) || is_kept(to) {
            return;
        }
        let at = random(self.tasks[from].futures.len() as u64) as usize;
        let moved = self.tasks[from].futures.swap_remove(at);
        self.tasks[to].futures.push(moved);
        self.tasks[to].waker.wake_by_ref();
        if self.tasks[from].futures.is_empty() {
            self.end_task(from);
        }
    }

    /// Polls one of the tasks that were woken. Returns whether there is one.
    fn poll(&mut self) -> bool {
        let woken: Vec<_> = (0..self.tasks.len()).filter(|at| self.tasks[*at].is_woken()).collect();
        if woken.is_empty() {
            return false;
        }
        let at = woken[random(woken.len() as u64) as usize];
        if self.tasks[at].poll(&self.counts) {
            self.end_task(at);
        }
        true
    }

    fn drop_one(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        let at = random(self.tasks.len() as u64) as usize;
        self.tasks[at].drop_one(&self.counts);
        if self.tasks[at].one_by_one {
            // It continues with the next one.
            self.tasks[at].waker.wake_by_ref();
        }
        if self.tasks[at].futures.is_empty() {
            self.end_task(at);
        }
    }

    fn notify() {
        if let Some(waker) = machine(|machine| machine.take_notified()) {
            waker.wake();
        }
    }

    fn tick() {
        machine(|machine| machine.tick()).into_iter().for_each(Waker::wake);
    }

    fn step(&mut self) {
        match random(64) {
            0..=1 => return self.keep(),
            2 => return self.move_one(),
            3 if random(8) == 0 && !self.tasks.is_empty() => {
                let at = random(self.tasks.len() as u64) as usize;
                return self.end_task(at);
            }
            4 => return Run::tick(),
            5 => {
                self.end_timer();
                return;
            }
            6 if random(32) == 0 => return self.end_tasks(),
            _ => {}
        }
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
    fn end_tasks(&mut self) {
        let mut steps = 0;
        while let before @ 1.. = self.tasks.len() {
            let is_idle = !self.poll();
            // Without a notifier, a task is always woken.
            if is_idle || random(8) == 0 {
                step();
                Run::notify();
                if random(64) == 0 {
                    Run::tick();
                }
                if random(16) == 0 {
                    self.end_timer();
                }
            }
            let is_watched = machine(|machine| machine.is_watched());
            let is_woken = self.tasks.iter().any(Task::is_woken);
            let has_timer = self.tasks.iter().any(|task| matches!(task.wait, Wait::Timer));
            let continues = self.tasks.is_empty() || is_watched || is_woken || has_timer;
            assert!(continues, "nothing waits for the calls of tasks");
            steps = if self.tasks.len() < before { 0 } else { steps + 1 };
            assert!(steps < STANDSTILL, "tasks wait and nothing happens");
        }
    }

    /// Lets the tasks and the calls end. Returns how often each outcome occurred.
    fn end(mut self) -> [u64; 4] {
        self.end_tasks();
        // It waits for the calls of which the futures are gone.
        drop(self.runtime);
        machine(|machine| machine.assert_idle());
        let Counts { completed, dropped, interrupted, too_late } = &*self.counts;
        [completed, dropped, interrupted, too_late].map(Cell::get)
    }
}

fn run_futures(seed: u64, config: &Config) -> [u64; 4] {
    let mut run = Run::new(seed, config);
    (0..20_000).for_each(|_| run.step());
    run.end()
}

/// The future of a call gets its result once; a call whose future was dropped is made once or not at all, and its memory
/// is kept until then; each task ends, also while pages are full and without a notifier.
#[test]
fn dropped_futures_race_with_completions() {
    run_seeds(0..10, run_futures);
}

/// A call took the place of one that had ended, and ended at once, as there was no thread for it: the driver slept on. And
/// a driver that slept did not offer the ring again what it had refused.
#[test]
fn driver_slept_while_calls_had_ended_or_were_held_back() {
    for (config, seed) in [(2, 1_173), (0, 1_305)] {
        let mut run = Run::new(seed, &configurations()[config]);
        (0..20_000).for_each(|_| run.step());
        run.end();
    }
}

/// The same for more seeds: `FLEXSC_SEEDS=10000 cargo test -p flexsc-rt --lib more_seeds -- --ignored`.
#[test]
#[ignore = "runs until all of FLEXSC_SEEDS are done; dropped_futures_race_with_completions runs by default"]
fn more_seeds_of_futures() {
    run_seeds(more_seeds(), run_futures);
}
