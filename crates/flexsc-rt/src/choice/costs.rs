//! The costs of one kind of call at one depth, and the executor that they choose.
//!
//! A cost is the time that passes for the owner, for each call; that of a batch on threads, in the ring or on owner and
//! threads is shared out when the owner has seen that the last call has ended (`pages/measurements.rs`). The owner looks
//! before it runs callbacks, so only callbacks of calls that it saw before the last one count. All calls of one row in one
//! batch have the same executor. Of the calls in place one in 64 is measured, with those of its row that follow it in the
//! batch, of the other batches one in 16. A trial gives a few batches to another executor, and takes the least of its
//! costs: other programs make costs larger, not smaller. For the same reason one measurement raises a known cost by
//! little, and an executor whose cost has risen is soon tried again.

use crate::call::Executor;

/// A call that takes longer keeps the owner from its other work.
pub(super) const MAX_IN_PLACE_NS: f32 = 50_000.0;

/// So many slow calls in a row move to another executor. One may be the scheduler's doing.
const MAX_SLOW_CALLS: u8 = 3;

/// One call in place in so many is measured: two readings of the clock cost half a null call.
const MEASURE_CALLS: u32 = 64;

/// One batch on threads or in the ring in so many is measured.
pub(super) const MEASURE_BATCHES: u32 = 16;

/// Calls between two trials of another executor: at first, and at most.
pub(super) const TRIAL_EVERY: (u32, u32) = (1 << 10, 1 << 20);

/// Returns which part of the present executor's cost another one must cost, so that two equal ones do not alternate.
/// Calls return in place as soon as that costs less; for a small gain, they take no time of other cores.
fn switch_below(executor: Executor) -> f32 {
    match executor {
        Executor::InPlace => 1.0,
        Executor::Ring | Executor::Threads => 0.9,
        Executor::Shared => 0.8,
    }
}

/// A measurement raises the known cost by this factor at most, and the next ones in a row by the second.
const RAISED: (f32, f32) = (1.25, 2.0);

/// Batches of a trial, unless the first ones cost too much.
pub(super) const TRIAL_BATCHES: u32 = 4;

/// A trial ends early if its executor costs so many times as much as the present one.
const HOPELESS: f32 = 2.0;

/// An executor that cannot make the calls of a row.
const IMPOSSIBLE: f32 = f32::INFINITY;

/// The executors, in the order of trials.
const EXECUTORS: [Executor; 4] =
    [Executor::InPlace, Executor::Ring, Executor::Threads, Executor::Shared];

/// How a call is to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) executor: Executor,
    /// Its time is to be reported.
    pub(crate) measured: bool,
    /// Further calls of the batch have another executor.
    pub(crate) once: bool,
}

/// The known costs of one kind of call at one depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// By executor; 0 if it is not known.
    pub(super) ns: [f32; EXECUTORS.len()],
    best: Executor,
    /// The executor on trial, how many batches it gets yet, and whether this is one.
    trial: Executor,
    trial_left: u32,
    on_trial: bool,
    /// A measurement of the trial was reported.
    trial_known: bool,
    /// The executor that was left as its own cost had risen. It gets the next trial.
    left: Option<Executor>,
    /// Slow calls in place in a row.
    slow: u8,
    /// The last measurement has raised a cost.
    raised: bool,
    /// The batch, and whether it is to be measured.
    batch: u32,
    batch_measured: bool,
    until_measured: u32,
    calls_since_trial: u32,
    trial_every: u32,
    /// Calls in place since the last decision of a batch, and those before the next one.
    passed: u32,
    due: u32,
}

impl Costs {
    pub(super) const UNKNOWN: Costs = Costs {
        ns: [0.0; EXECUTORS.len()],
        best: Executor::InPlace,
        trial: Executor::InPlace,
        trial_left: 0,
        on_trial: false,
        trial_known: false,
        left: None,
        slow: 0,
        raised: false,
        batch: 0,
        batch_measured: false,
        until_measured: 1,
        calls_since_trial: 0,
        trial_every: TRIAL_EVERY.0,
        passed: 0,
        due: 0,
    };

    /// Notes that an executor cannot make these calls.
    pub(super) fn exclude(&mut self, executor: Executor) {
        self.ns[executor as usize] = IMPOSSIBLE;
    }

    /// Returns whether a batch is for nothing else than to make its calls, in place.
    #[inline]
    pub(super) fn pass(&mut self, calls: u32) -> bool {
        let passed = self.passed.saturating_add(calls);
        let is_early = passed < self.due;
        if is_early {
            self.passed = passed;
        }
        is_early
    }

    /// Chooses an executor for the next call of a batch of so many. Batches have different numbers.
    #[inline]
    pub(super) fn choose(&mut self, batch: u32, calls: u32) -> Choice {
        if self.batch != batch {
            self.batch = batch;
            self.begin_batch(calls);
        }
        if self.on_trial {
            // In place one call is enough; more could keep the owner for long.
            let once = self.trial == Executor::InPlace;
            self.on_trial = !once;
            return Choice { executor: self.trial, measured: true, once };
        }
        let (executor, mut measured) = (self.best, self.batch_measured);
        if executor == Executor::InPlace {
            measured |= self.measures_next();
            self.batch_measured = false;
        }
        Choice { executor, measured, once: false }
    }

    /// Returns whether to measure the next call in place, too: the last one was slow.
    pub(super) fn measures_next(&self) -> bool {
        self.slow > 0
    }

    /// Decides what this batch is for: a trial, a measurement, or nothing else.
    fn begin_batch(&mut self, calls: u32) {
        (self.on_trial, self.batch_measured) = (false, false);
        if !self.pass(calls) {
            let passed = std::mem::take(&mut self.passed).saturating_add(calls);
            self.decide(passed);
            let is_quiet = self.best == Executor::InPlace && self.trial_left == 0 && self.slow == 0;
            let until_trial = self.trial_every.saturating_sub(self.calls_since_trial);
            self.due = if is_quiet { until_trial.min(self.until_measured) } else { 0 };
        }
    }

    /// Decides it, for so many calls since the last decision.
    fn decide(&mut self, calls: u32) {
        self.calls_since_trial = self.calls_since_trial.saturating_add(calls);
        if self.trial_left == 0 && self.calls_since_trial >= self.trial_every {
            self.begin_trial();
        }
        if self.trial_left > 0 {
            self.trial_left -= 1;
            self.on_trial = true;
            return;
        }
        let (passed, every) = match self.best {
            Executor::InPlace => (calls, MEASURE_CALLS),
            _ => (1, MEASURE_BATCHES),
        };
        self.until_measured = self.until_measured.saturating_sub(passed);
        if self.until_measured == 0 {
            (self.until_measured, self.batch_measured) = (every, true);
        }
    }

    fn begin_trial(&mut self) {
        self.calls_since_trial = 0;
        let left = self.left.take().filter(|left| self.may_try(*left));
        if let Some(trial) = left.or_else(|| self.next_trial()) {
            (self.trial, self.trial_known) = (trial, false);
            self.trial_left = TRIAL_BATCHES;
        }
    }

    /// Returns the executor whose turn it is, if there is another one.
    fn next_trial(&mut self) -> Option<Executor> {
        // If this one changes nothing, the next one comes later.
        self.trial_every = (self.trial_every * 2).min(TRIAL_EVERY.1);
        let last = EXECUTORS.iter().position(|other| *other == self.trial).unwrap_or(0);
        let mut others = EXECUTORS.into_iter().cycle().skip(last + 1).take(EXECUTORS.len());
        others.find(|other| self.may_try(*other))
    }

    /// Returns whether an executor is another one that can make the calls, and does not keep the owner for long.
    fn may_try(&self, executor: Executor) -> bool {
        let is_slow =
            self.slow >= MAX_SLOW_CALLS || self.ns[Executor::InPlace as usize] > MAX_IN_PLACE_NS;
        executor != self.best
            && self.ns[executor as usize] != IMPOSSIBLE
            && (executor != Executor::Shared || !is_slow)
    }

    /// Notes the cost of a call.
    pub(super) fn report(&mut self, executor: Executor, ns: f32) {
        if matches!(executor, Executor::InPlace | Executor::Shared) {
            self.slow = if ns > MAX_IN_PLACE_NS { self.slow.saturating_add(1) } else { 0 };
            if self.slow > 0 {
                self.due = 0;
            }
        }
        self.learn(executor, ns);
    }

    /// Notes that an executor has refused a call. It is not tried again if it has not made any.
    pub(super) fn report_refused(&mut self, executor: Executor) {
        (self.trial_left, self.on_trial) = (0, false);
        if self.ns[executor as usize] == 0.0 {
            self.exclude(executor);
        }
    }

    fn learn(&mut self, executor: Executor, ns: f32) {
        let known = self.ns[executor as usize];
        let is_trial = executor == self.trial && executor != self.best;
        let max_factor = if self.raised { RAISED.1 } else { RAISED.0 };
        self.ns[executor as usize] = match known {
            // A trial replaces what was known.
            _ if is_trial && !self.trial_known => ns,
            _ if is_trial => known.min(ns),
            0.0 => ns,
            _ if executor != self.best => known.min(ns),
            _ => measured_again(known, ns, max_factor),
        };
        if is_trial {
            self.trial_known = true;
            let best = self.ns[self.best as usize];
            if best > 0.0 && ns > best * HOPELESS {
                self.trial_left = 0;
            }
        } else {
            self.raised = known > 0.0 && ns > known;
        }
        let best = self.cheapest();
        if best != self.best {
            self.trial_every = (self.trial_every / 8).max(TRIAL_EVERY.0);
            self.calls_since_trial = 0;
            if executor == self.best && self.slow < MAX_SLOW_CALLS {
                // Perhaps other programs were in its way, and are no more.
                self.left = Some(executor);
                self.calls_since_trial = self.trial_every - TRIAL_EVERY.0;
            }
            self.best = best;
            (self.until_measured, self.due) = (1, 0);
            (self.trial_left, self.raised) = (0, false);
        }
    }

    /// Returns the executor that has to make the next calls.
    fn cheapest(&self) -> Executor {
        let cost = |executor: Executor| match self.ns[executor as usize] {
            0.0 => f32::INFINITY,
            ns => ns,
        };
        if self.slow >= MAX_SLOW_CALLS {
            // The owner must not make them, whatever the others cost.
            let has_threads = self.ns[Executor::Threads as usize] != IMPOSSIBLE;
            let has_ring = cost(Executor::Ring).is_finite();
            let ring_below = cost(Executor::Threads) * switch_below(Executor::Ring);
            return match cost(Executor::Ring) < ring_below {
                true if has_ring => Executor::Ring,
                _ if has_threads => Executor::Threads,
                _ => Executor::InPlace,
            };
        }
        let switch = |best, other| match cost(other) < cost(best) * switch_below(other) {
            true => other,
            false => best,
        };
        EXECUTORS.into_iter().fold(self.best, switch)
    }
}

/// Returns a known cost after another measurement, which raises it by a factor at most.
fn measured_again(known: f32, ns: f32, max_factor: f32) -> f32 {
    if ns > known { ns.min(known * max_factor) } else { (known + ns) / 2.0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn calls_leave_for_a_gain_and_return_for_any() {
        let best = |best, in_place, ring, shared| {
            let mut costs = Costs { best, ..Costs::UNKNOWN };
            costs.ns = [in_place, 0.0, ring, shared];
            costs.cheapest()
        };
        assert_eq!(best(Executor::InPlace, 100.0, 90.0, 0.0), Executor::InPlace);
        assert_eq!(best(Executor::InPlace, 100.0, 89.0, 0.0), Executor::Ring);
        assert_eq!(best(Executor::Ring, 99.0, 100.0, 0.0), Executor::InPlace);
        assert_eq!(best(Executor::Ring, 100.0, 100.0, 0.0), Executor::Ring);
        assert_eq!(best(Executor::InPlace, 100.0, 0.0, 80.0), Executor::InPlace);
        assert_eq!(best(Executor::InPlace, 100.0, 0.0, 79.0), Executor::Shared);
    }

    #[test]
    fn second_high_measurement_in_a_row_raises_the_cost_more() {
        let mut costs = Costs::UNKNOWN;
        let cost = |costs: &Costs| costs.ns[Executor::InPlace as usize];
        costs.report(Executor::InPlace, 100.0);
        costs.report(Executor::InPlace, 1_000.0);
        assert_eq!(cost(&costs), 125.0);
        costs.report(Executor::InPlace, 1_000.0);
        assert_eq!(cost(&costs), 250.0);
        // A low one ends the row, and lowers the cost by half of the difference.
        costs.report(Executor::InPlace, 50.0);
        assert_eq!(cost(&costs), 150.0);
        costs.report(Executor::InPlace, 1_000.0);
        assert_eq!(cost(&costs), 187.5);
    }

    #[test]
    fn trials_become_more_frequent_with_a_change_by_a_factor() {
        let mut costs = Costs::UNKNOWN;
        costs.report(Executor::InPlace, 100.0);
        for (before, after) in [(TRIAL_EVERY.1, TRIAL_EVERY.1 / 8), (TRIAL_EVERY.0, TRIAL_EVERY.0)]
        {
            let other =
                if costs.best == Executor::InPlace { Executor::Shared } else { Executor::InPlace };
            costs.trial_every = before;
            costs.ns[costs.best as usize] = 100.0;
            costs.ns[other as usize] = 100.0;
            costs.report(other, 50.0);
            assert_eq!((costs.best, costs.trial_every), (other, after));
        }
    }
}
