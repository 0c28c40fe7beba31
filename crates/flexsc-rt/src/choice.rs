//! Chooses the executor of a bounded call from the costs that were measured.
//!
//! Costs are kept for each call number, kind of object and batch depth. A cost is the time that
//! passes for the owner, for each call; that of a batch on threads is shared out. Of the calls in place one in 64 is measured; those on
//! threads are measured while they are tried.

use crate::call::{Executor, Kind};

/// Numbers with costs of their own; others share one row.
const NUMBERS: usize = 512;

/// A call that takes longer keeps the owner from its other work, and moves to a thread.
const MAX_IN_PLACE_NS: f32 = 50_000.0;

/// One call in place in so many is measured: two readings of the clock cost half a null call.
const MEASURE_EVERY: u32 = 64;

/// Calls of a trial of threads, which show what they can do only with several. In place one call
/// is enough; more could keep the owner for long.
const TRIAL_CALLS: u32 = 64;

/// Calls between two trials of the other executor: at first, and at most.
const TRIAL_EVERY: (u32, u32) = (1 << 10, 1 << 20);

/// How deep a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    Single,
    Few,
    Many,
}

impl Depth {
    pub(crate) fn of(calls: usize) -> Self {
        match calls {
            0..=1 => Depth::Single,
            2..=15 => Depth::Few,
            _ => Depth::Many,
        }
    }
}

/// What is known of one kind of call.
#[derive(Clone, Copy, Debug)]
struct Costs {
    in_place_ns: f32,
    threads_ns: f32,
    until_trial: u32,
    trial_left: u32,
    trial_every: u32,
    until_measured: u32,
    best: Executor,
}

/// How a call is to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) executor: Executor,
    /// Its time is to be reported.
    pub(crate) measured: bool,
}

/// The costs of all calls.
#[derive(Debug)]
pub(crate) struct Choices {
    costs: Box<[Costs]>,
}

/// Identifies the costs of a kind of call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Key(u16);

impl Key {
    pub(crate) fn new(number: u32, kind: Kind) -> Self {
        let number = (number as usize).min(NUMBERS);
        Key((number * Kind::COUNT + kind as usize) as u16)
    }
}

impl Choices {
    pub(crate) fn new() -> Self {
        let costs = Costs {
            in_place_ns: 0.0,
            threads_ns: 0.0,
            until_trial: TRIAL_EVERY.0,
            trial_left: 0,
            trial_every: TRIAL_EVERY.0,
            until_measured: 1,
            best: Executor::InPlace,
        };
        Choices { costs: vec![costs; (NUMBERS + 1) * Kind::COUNT * 3].into_boxed_slice() }
    }

    /// Chooses an executor for the next call.
    #[inline]
    pub(crate) fn choose(&mut self, key: Key, depth: Depth) -> Choice {
        let costs = self.costs(key, depth);
        if costs.trial_left > 0 {
            costs.trial_left -= 1;
            let executor = match costs.best {
                Executor::InPlace => Executor::Threads,
                _ => Executor::InPlace,
            };
            return Choice { executor, measured: true };
        }
        costs.until_trial -= 1;
        if costs.until_trial == 0 {
            costs.trial_left = if costs.best == Executor::InPlace { TRIAL_CALLS } else { 1 };
            // If this one changes nothing, the next one comes later.
            costs.trial_every = (costs.trial_every * 2).min(TRIAL_EVERY.1);
            costs.until_trial = costs.trial_every;
        }
        if costs.best == Executor::Threads {
            return Choice { executor: Executor::Threads, measured: false };
        }
        costs.until_measured -= 1;
        let measured = costs.until_measured == 0;
        if measured {
            costs.until_measured = MEASURE_EVERY;
        }
        Choice { executor: Executor::InPlace, measured }
    }

    /// Reports the time of a measured call.
    pub(crate) fn report(&mut self, key: Key, depth: Depth, executor: Executor, time_ns: u64) {
        let costs = self.costs(key, depth);
        let cost = match executor {
            Executor::Threads => &mut costs.threads_ns,
            _ => &mut costs.in_place_ns,
        };
        // A trial replaces what was known.
        let replaced = *cost == 0.0 || executor != costs.best;
        *cost = if replaced { time_ns as f32 } else { *cost * 0.75 + time_ns as f32 * 0.25 };
        let slow = costs.in_place_ns > MAX_IN_PLACE_NS;
        // A fifth less, so that two equal executors do not alternate.
        let dearer = costs.threads_ns > 0.0 && costs.threads_ns < costs.in_place_ns * 0.8;
        let best = if slow || dearer { Executor::Threads } else { Executor::InPlace };
        if best != costs.best {
            costs.best = best;
            costs.trial_left = 0;
            costs.trial_every = TRIAL_EVERY.0;
            costs.until_trial = TRIAL_EVERY.0;
        }
    }

    #[inline]
    fn costs(&mut self, key: Key, depth: Depth) -> &mut Costs {
        &mut self.costs[usize::from(key.0) * 3 + depth as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const KEY: Key = Key(0);

    fn run(choices: &mut Choices, calls: u32, in_place_ns: u64, threads_ns: u64) -> u32 {
        let mut on_threads = 0;
        for _ in 0..calls {
            let choice = choices.choose(KEY, Depth::Many);
            on_threads += u32::from(choice.executor == Executor::Threads);
            if choice.measured {
                let time_ns = match choice.executor {
                    Executor::Threads => threads_ns,
                    _ => in_place_ns,
                };
                choices.report(KEY, Depth::Many, choice.executor, time_ns);
            }
        }
        on_threads
    }

    #[test]
    fn cheap_calls_stay_in_place_and_trials_become_rare() {
        let mut choices = Choices::new();
        assert_eq!(run(&mut choices, 1 << 20, 100, 5_000), 10 * TRIAL_CALLS);
    }

    #[test]
    fn slow_calls_move_to_threads_and_return() {
        let mut choices = Choices::new();
        assert!(run(&mut choices, 100, 1_000_000, 1_000_000) > 90);
        // The disk has got faster.
        run(&mut choices, 1 << 20, 100, 5_000);
        // A trial may be among them.
        assert!(run(&mut choices, 1_000, 100, 5_000) <= TRIAL_CALLS);
    }

    #[test]
    fn calls_that_overlap_on_threads_go_there() {
        let mut choices = Choices::new();
        run(&mut choices, 2_000, 10_000, 5_000);
        assert!(run(&mut choices, 1_000, 10_000, 5_000) >= 999);
    }

    #[test]
    fn numbers_beyond_the_table_share_a_row() {
        let mut choices = Choices::new();
        let key = Key::new(u32::MAX, Kind::Other);
        assert_eq!(choices.choose(key, Depth::Many).executor, Executor::InPlace);
        assert_eq!(key.0, Key::new(100_000, Kind::Other).0);
    }
}
