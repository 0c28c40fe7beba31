//! Callbacks on the simulated machine: they post or delay further calls, cancel others and stop the loop at any step, while
//! completions and full pages race with them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use super::event_loop::{CallId, EventLoop};
use super::futures::Memory;
use super::machine::{machine, step};
use super::pages::{Config, Scratch};
use super::{
    has_no_thread, more_seeds, needs_the_closed_one, prepare, random, random_call, run_seeds,
};
use crate::call::{Call, Waits};
use crate::operation::Operation;

/// Calls whose callbacks have not run, at most: pages and queues are full with fewer.
const MAX_CALLS: usize = 320;

/// A call whose callback has not run.
struct Outstanding {
    id: CallId,
    of: Call,
    /// It waited for room, and then does, until it is posted.
    was_delayed: bool,
    may_be_interrupted: bool,
    /// It was cancelled while it was delayed.
    withdrawn: bool,
}

/// The calls whose callbacks have not run, by number, and how calls have ended. The run and the callbacks share it.
#[derive(Default)]
struct Calls {
    outstanding: RefCell<BTreeMap<usize, Outstanding>>,
    next_call: Cell<usize>,
    completed: Cell<u64>,
    interrupted: Cell<u64>,
    /// Cancelled while they were delayed.
    withdrawn: Cell<u64>,
    /// Posted after they had been delayed, and completed.
    delayed: Cell<u64>,
    /// The same, and interrupted.
    delayed_interrupted: Cell<u64>,
    refused: Cell<u64>,
    stopped: Cell<u64>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// A call that owns its memory.
struct Owned {
    call: Call,
    memory: Memory,
}

// SAFETY: the machine has no memory.
unsafe impl Operation for Owned {
    type Output = io::Result<usize>;

    fn prepare(&mut self, _scratch: &mut Scratch) -> Call {
        self.call
    }

    fn finish(self, result: io::Result<usize>, _scratch: &Scratch) -> io::Result<usize> {
        let number = self.memory.0;
        let effects = machine(|machine| machine.effects(number));
        let expected = match &result {
            Ok(result) => effects.is_none_or(|n| n == 1 && *result == number),
            Err(_) => effects.is_none_or(|n| n == 0),
        };
        assert!(expected, "{number} ended with {result:?}, after {effects:?} effects");
        result
    }
}

/// Posts a call, or delays it.
fn post(events: &mut EventLoop, calls: &Rc<Calls>) {
    if calls.outstanding.borrow().len() >= MAX_CALLS {
        return;
    }
    let number = calls.next_call.replace(calls.next_call.get() + 1);
    let call = random_call(number);
    let operation = Owned { call, memory: Memory::lend(number, call.waits) };
    let own = Rc::clone(calls);
    let callback = move |events: &mut EventLoop, result| ended(events, &own, number, result);
    // Some pass the delayed ones.
    let posted = match random(8) {
        0 => events.post(operation, callback),
        _ => events.post_or_delay(operation, callback),
    };
    match posted {
        Ok(id) => {
            let was_delayed = events.is_delayed(id);
            let (may_be_interrupted, withdrawn) = (false, false);
            let call = Outstanding { id, of: call, was_delayed, may_be_interrupted, withdrawn };
            calls.outstanding.borrow_mut().insert(number, call);
        }
        Err(_) => count(&calls.refused),
    }
}

/// The callback of a call.
fn ended(events: &mut EventLoop, calls: &Rc<Calls>, number: usize, result: io::Result<usize>) {
    let ended = calls.outstanding.borrow_mut().remove(&number).expect("its callback runs once");
    assert!(!events.is_delayed(ended.id));
    match result {
        Ok(_) => {
            assert!(!needs_the_closed_one(&ended.of));
            count(if ended.was_delayed { &calls.delayed } else { &calls.completed });
        }
        Err(error) if error.raw_os_error() == Some(libc::EINTR) => {
            assert!(ended.may_be_interrupted, "a call that nothing has cancelled");
            count(match (ended.withdrawn, ended.was_delayed) {
                (true, _) => &calls.withdrawn,
                (false, true) => &calls.delayed_interrupted,
                (false, false) => &calls.interrupted,
            });
        }
        Err(error) => {
            let not_open = error.raw_os_error() == Some(libc::EBADF);
            let expected = not_open && needs_the_closed_one(&ended.of);
            assert!(expected || has_no_thread(&ended.of, &error), "{error}");
        }
    }
    match random(16) {
        0..=3 => post(events, calls),
        4 => cancel(events, calls),
        5 => {
            count(&calls.stopped);
            events.stop();
        }
        _ => {}
    }
}

/// Cancels a call.
fn cancel(events: &mut EventLoop, calls: &Calls) {
    let mut outstanding = calls.outstanding.borrow_mut();
    let at = random(outstanding.len().max(1) as u64) as usize;
    let Some(call) = outstanding.values_mut().nth(at) else { return };
    call.withdrawn |= events.is_delayed(call.id);
    call.may_be_interrupted |= call.withdrawn || !call.of.uncancellable;
    events.cancel(call.id);
    assert!(!events.is_delayed(call.id));
}

/// Returns a sort of calls that all need the same room.
fn sort(call: &Call) -> Option<usize> {
    match call.waits {
        Waits::Bounded => Some(0),
        Waits::UntilReady(..) => Some(1),
        Waits::Indefinitely if call.pinned.is_none() => Some(2),
        _ => None,
    }
}

/// Panics if a delayed call was passed by a younger one that was delayed, too, although both need the same room, or the
/// first needs only an entry.
fn assert_in_order(events: &EventLoop, calls: &Calls) {
    let mut sorts_delayed = [false; 3];
    for call in calls.outstanding.borrow().values().filter(|call| call.was_delayed) {
        if call.withdrawn {
            continue;
        }
        let is_delayed = events.is_delayed(call.id);
        let sort = sort(&call.of);
        let is_behind = sorts_delayed[0] || sort.is_some_and(|sort| sorts_delayed[sort]);
        assert!(is_delayed || !is_behind, "a call passed an older one");
        if let Some(sort) = sort {
            sorts_delayed[sort] |= is_delayed;
        }
    }
}

struct Run {
    events: EventLoop,
    calls: Rc<Calls>,
}

impl Run {
    fn new(seed: u64, config: &Config) -> Self {
        prepare(seed, config);
        Run { events: EventLoop::new(config).unwrap(), calls: Rc::default() }
    }

    fn step(&mut self) {
        let Run { events, calls } = self;
        // Turns with completions that are there at once are no spinning.
        machine(|machine| machine.at_once = 0);
        match random(16) {
            0..=5 => (0..random(16)).for_each(|_| post(events, calls)),
            6..=8 => cancel(events, calls),
            9..=11 => {
                let timeout = Duration::from_nanos([0, 300, 5_000][random(3) as usize]);
                events.turn(Some(timeout)).unwrap();
            }
            // The machine panics if nothing could end the turn.
            12 => events.turn(None).unwrap(),
            _ => (0..=random(16)).for_each(|_| step()),
        }
        assert_in_order(events, calls);
    }

    /// Ends the loop, at once or when all callbacks have run. Returns how often each outcome occurred.
    fn end(mut self) -> [u64; 7] {
        if random(2) == 0 {
            let mut stopped = None;
            while stopped.replace(self.calls.stopped.get()) != Some(self.calls.stopped.get()) {
                machine(|machine| machine.at_once = 0);
                self.events.run().unwrap();
            }
            assert!(self.calls.outstanding.borrow().is_empty(), "calls are lost");
            assert_eq!(self.events.outstanding(), 0);
        }
        machine(|machine| machine.at_once = 0);
        drop(self.events);
        machine(|machine| machine.assert_idle());
        let Calls { completed, interrupted, withdrawn, .. } = &*self.calls;
        let Calls { delayed, delayed_interrupted, refused, stopped, .. } = &*self.calls;
        [completed, interrupted, withdrawn, delayed, delayed_interrupted, refused, stopped]
            .map(Cell::get)
    }
}

fn run_callbacks(seed: u64, config: &Config) -> [u64; 7] {
    let mut run = Run::new(seed, config);
    (0..2_500).for_each(|_| run.step());
    run.end()
}

/// A callback runs once, with the result of its call, which was made once, or with `EINTR` if the call was cancelled, posted
/// or delayed, and not made; no delayed call is lost, and none is passed by a younger one that waits for the same room; the
/// loop ends.
#[test]
fn callbacks_of_delayed_and_cancelled_calls_race_with_completions() {
    run_seeds(0..8, run_callbacks);
}

/// The same for more seeds: `FLEXSC_SEEDS=10000 cargo test -p flexsc-rt --lib more_seeds -- --ignored`.
#[test]
#[ignore = "runs until all of FLEXSC_SEEDS are done; callbacks_of_delayed_and_cancelled_calls_race_with_completions runs by default"]
fn more_seeds_of_callbacks() {
    run_seeds(more_seeds(), run_callbacks);
}
