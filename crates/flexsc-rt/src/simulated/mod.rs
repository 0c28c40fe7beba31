//! Pages on a simulated machine, whose steps follow from a seed: what the owner does is the code of the crate, and
//! what the kernel and the syscall threads do happens between its steps. `futures.rs` has tasks that wait for calls, and drop
//! them.
//!
//! `models.rs` checks in every interleaving the few atomic operations that owner and threads share; here millions of
//! posts, cancellations and completions meet, by all executors, while entries and threads run short.

#![allow(dead_code, unreachable_pub, reason = "the tests do not use all of the included modules")]

mod call_ring;
mod clock;
mod epoll_set;
#[path = "../future.rs"]
mod future;
mod futures;
mod machine;
mod notifier;
#[path = "../pages/mod.rs"]
mod pages;
mod raw;
#[path = "../readiness.rs"]
mod readiness;
#[path = "../ring.rs"]
mod ring;
mod threads;

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use crate::call::{Call, Direction, Executor, Waits};
use crate::error::Busy;
use machine::{CLOSED, DESCRIPTORS, machine};
use pages::{Config, EntryId, Pages};

/// A run: the pages, and the calls whose completions were not taken.
struct Run {
    pages: Pages,
    live: HashMap<EntryId, Posted>,
    ids: Vec<EntryId>,
    next_call: usize,
    taken: u64,
    interrupted: u64,
    not_open: u64,
    busy: u64,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    call: usize,
    id: EntryId,
    cancelled: bool,
    uncancellable: bool,
    needs_the_closed_one: bool,
}

fn random(below: u64) -> u64 {
    machine(|machine| machine.random(below))
}

/// Returns any call, of this number.
fn random_call(of: usize) -> Call {
    let fd = if random(32) == 0 { CLOSED } else { random(DESCRIPTORS as u64) as i32 };
    let direction = if random(2) == 0 { Direction::Read } else { Direction::Write };
    let args = [of, fd as usize, direction as usize, 0, 0, 0];
    let number = 1_000 + random(3) as libc::c_long;
    let call = match random(8) {
        0..=3 => Call::bounded(number, args),
        4 => Call::new(number + 10, args).waits(Waits::Ready(fd, direction)),
        5 => Call::new(number + 10, args).waits(Waits::AfterReady(fd, direction)),
        6 => match random(2) {
            0 => Call::until_ready(fd, direction),
            _ => Call::new(number + 20, args).waits(Waits::ReadyThenBlocks(fd, direction)),
        },
        _ => Call::new(number + 30, args),
    };
    let bounded = call.waits == Waits::Bounded;
    // A pinned call that finds its descriptor not ready reports that.
    let repeats = matches!(call.waits, Waits::Ready(..) | Waits::AfterReady(..));
    let call = match random(6) {
        0 => call.pinned(Executor::Ring),
        1 if bounded => call.pinned(Executor::InPlace),
        2 if bounded => call.pinned(Executor::Shared),
        3 if !repeats => call.pinned(Executor::Threads),
        4..=5 if bounded || repeats => {
            let mut call = call.in_batches();
            // In the ring it does not wait.
            call.args[3] = random(2) as usize;
            call
        }
        _ => call,
    };
    if random(16) == 0 { call.uncancellable() } else { call }
}

/// Returns whether a call needs the descriptor that is closed.
fn needs_the_closed_one(call: &Call) -> bool {
    call.waits.descriptor().is_some_and(|(fd, _)| fd == CLOSED)
}

impl Run {
    fn new(seed: u64, config: &Config) -> Self {
        machine(|machine| machine.reset(seed));
        let pages = Pages::register(config).unwrap();
        Run {
            pages,
            live: HashMap::new(),
            ids: Vec::new(),
            next_call: 0,
            taken: 0,
            interrupted: 0,
            not_open: 0,
            busy: 0,
        }
    }

    fn post(&mut self) {
        let call = random_call(self.next_call);
        let number = self.next_call;
        machine(|machine| machine.lend(number));
        // SAFETY: the machine has no memory.
        match unsafe { self.pages.post(&call) } {
            Ok(id) => {
                self.next_call += 1;
                let posted = Posted {
                    call: number,
                    id,
                    cancelled: false,
                    uncancellable: call.uncancellable,
                    needs_the_closed_one: needs_the_closed_one(&call),
                };
                machine(|machine| machine.makes_no_call(number, call.waits));
                assert!(self.live.insert(id, posted).is_none(), "the entry was in use");
                self.ids.push(id);
            }
            Err(Busy) => {
                machine(|machine| machine.take_back(number));
                self.busy += 1;
                let is_full = self.pages.outstanding() == self.pages.entries();
                assert!(call.waits != Waits::Bounded || is_full, "a bounded call was refused");
            }
        }
        if self.ids.len() > 4 * self.pages.entries() {
            self.ids.drain(..self.pages.entries());
        }
    }

    /// Cancels a call, or one that has completed.
    fn cancel(&mut self) {
        if self.ids.is_empty() {
            return;
        }
        let id = self.ids[random(self.ids.len() as u64) as usize];
        self.pages.cancel(id);
        if let Some(posted) = self.live.get_mut(&id) {
            posted.cancelled = true;
        }
    }

    /// Takes completions, so many at most.
    fn take(&mut self, most: u64) {
        for _ in 0..most {
            let Some(completion) = self.pages.next() else { return };
            let posted = self.live.remove(&completion.id).expect("a completion of a posted call");
            assert_eq!(posted.id, completion.id);
            self.taken += 1;
            let effects = machine(|machine| machine.take_back(posted.call));
            match completion.result {
                Ok(result) => {
                    assert!(!posted.needs_the_closed_one, "{posted:?} ended with {result}");
                    let expected =
                        effects.is_none_or(|effects| effects == 1 && result == posted.call);
                    assert!(expected, "{posted:?} ended with {result}, after {effects:?} effects");
                }
                Err(error) => {
                    assert!(
                        effects.is_none_or(|effects| effects == 0),
                        "{posted:?} had its effect"
                    );
                    if error.raw_os_error() == Some(libc::EBADF) {
                        assert!(posted.needs_the_closed_one, "{posted:?}");
                        self.not_open += 1;
                        continue;
                    }
                    assert_eq!(error.raw_os_error(), Some(libc::EINTR), "{posted:?}");
                    assert!(posted.cancelled && !posted.uncancellable, "{posted:?}");
                    self.interrupted += 1;
                }
            }
        }
    }

    fn step(&mut self) -> io::Result<()> {
        match random(16) {
            0..=5 => self.post(),
            6..=7 => self.cancel(),
            8..=10 => self.take(1 + random(8)),
            11..=12 => machine(|machine| machine.step()),
            13 => self.pages.submit().map_err(io::Error::other)?,
            14 => {
                let timeout = Duration::from_nanos([0, 300, 5_000][random(3) as usize]);
                self.pages.wait(Some(timeout)).map_err(io::Error::other)?;
            }
            // The machine panics if nothing could end the wait.
            _ => {
                self.pages.wait(None).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Ends all calls, and checks that nothing is lost.
    fn end(mut self) -> [u64; 4] {
        let mut posted: Vec<_> = self.live.values_mut().collect();
        posted.sort_by_key(|posted| posted.call);
        for posted in posted {
            self.pages.cancel(posted.id);
            posted.cancelled = true;
        }
        while self.pages.outstanding() > 0 {
            self.pages.wait(None).unwrap();
            self.take(u64::MAX);
        }
        assert!(self.live.is_empty(), "lost: {:?}", self.live);
        machine(|machine| machine.assert_idle());
        // Every entry can be used again.
        for number in 0..self.pages.entries() {
            let number = self.next_call + number;
            let call = Call::bounded(1_000, [number, 0, 0, 0, 0, 0]);
            machine(|machine| machine.lend(number));
            // SAFETY: the machine has no memory.
            unsafe { self.pages.post(&call.pinned(Executor::InPlace)) }.unwrap();
        }
        self.pages.wait(None).unwrap();
        let taken = std::iter::from_fn(|| self.pages.next()).count();
        assert_eq!(taken, self.pages.entries());
        [self.taken, self.interrupted, self.not_open, self.busy]
    }
}

fn configurations() -> [Config; 4] {
    let few = |sleep_in_ring, threads, ring| {
        let mut config = Config::with_entries(64);
        (config.reserve, config.threads, config.active_threads) = (8, threads, 2);
        (config.sleep_in_ring, config.ring) = (sleep_in_ring, ring);
        config
    };
    let mut more = few(false, 5, true);
    more.entries = 192;
    [few(false, 3, true), few(true, 3, true), few(false, 2, false), more]
}

fn run_seeds(seeds: std::ops::Range<u64>, steps: u64) {
    for (n, config) in configurations().iter().enumerate() {
        let mut total = [0; 4];
        for seed in seeds.clone() {
            let mut run = Run::new(seed, config);
            for _ in 0..steps {
                run.step().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            run.end().iter().zip(&mut total).for_each(|(count, total)| *total += count);
        }
        // Each outcome has occurred.
        assert!(total.iter().all(|count| *count > seeds.end - seeds.start), "{n}: {total:?}");
    }
}

/// A call is made once, or not at all if its result is `EINTR`, or `EBADF` as its descriptor is closed; no completion is
/// lost, and none is reported twice; the kernel and the threads use no memory whose completion was taken; a wait ends.
#[test]
fn cancels_completions_and_throttling_race_for_millions_of_steps() {
    run_seeds(0..25, 20_000);
}

/// The same for more seeds: `FLEXSC_SEEDS=10000 cargo test -p flexsc-rt --lib more_seeds -- --ignored`.
#[test]
#[ignore = "runs until all of FLEXSC_SEEDS are done; cancels_completions_and_throttling_race_for_millions_of_steps runs by default"]
fn more_seeds() {
    let seeds = std::env::var("FLEXSC_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    run_seeds(1_000..1_000 + seeds.unwrap_or(100), 20_000);
}

#[test]
fn runs_are_repeatable() {
    let run = |seed| {
        let mut run = Run::new(seed, &configurations()[3]);
        (0..5_000).for_each(|_| run.step().unwrap());
        let counters = run.pages.counters();
        (run.end(), counters)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}
