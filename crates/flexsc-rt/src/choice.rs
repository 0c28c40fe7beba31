//! Chooses the executor of a bounded call from the costs that were measured.
//!
//! Costs are kept for each call number, object (a kind, or files of one file system) and batch depth. A cost is the
//! time that passes for the owner, for each call; that of a batch on threads, in the ring or on owner and threads is
//! shared out when the last call has ended (`pages/measurements.rs`). All calls of one row in one batch have the same
//! executor. Of the calls in place one in 64 is measured, with those of its row that follow it in the batch, of the
//! other batches one in 16. A trial gives a few batches to another executor, and takes the least of its costs: other
//! programs make costs larger, not smaller. For the same reason one measurement raises a known cost by little.

use std::time::Instant;

use crate::call::Executor;
use crate::object::Object;

/// Numbers with rows of their own; others share one.
const NUMBERS: usize = 512;

/// Rows; calls beyond share the first one.
const MAX_ROWS: usize = 255;

/// Depths of a batch: 1, from 2, 4, 8, ... calls on.
const DEPTHS: usize = 10;

/// A call that takes longer keeps the owner from its other work.
const MAX_IN_PLACE_NS: f32 = 50_000.0;

/// So many slow calls in a row move to another executor. One may be the scheduler's doing.
const MAX_SLOW_CALLS: u8 = 3;

/// One call in place in so many is measured: two readings of the clock cost half a null call.
const MEASURE_CALLS: u32 = 64;

/// One batch on threads or in the ring in so many is measured.
const MEASURE_BATCHES: u32 = 16;

/// Calls between two trials of another executor: at first, and at most.
const TRIAL_EVERY: (u32, u32) = (1 << 10, 1 << 20);

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
const TRIAL_BATCHES: u32 = 4;

/// A trial ends early if its executor costs so many times as much as the present one.
const HOPELESS: f32 = 2.0;

/// An executor that cannot make the calls of a row.
const IMPOSSIBLE: f32 = f32::INFINITY;

/// The executors, in the order of trials.
const EXECUTORS: [Executor; 4] =
    [Executor::InPlace, Executor::Ring, Executor::Threads, Executor::Shared];

/// How deep a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth(u8);

impl Depth {
    #[inline]
    pub(crate) fn of(calls: usize) -> Self {
        Depth((calls.max(1).ilog2() as usize).min(DEPTHS - 1) as u8)
    }
}

/// How a call is to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) executor: Executor,
    /// Its time is to be reported.
    pub(crate) measured: bool,
    /// Further calls of the batch have another executor.
    pub(crate) once: bool,
}

/// Identifies the costs of a kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row(u8);

/// The costs of all calls.
#[derive(Debug)]
pub(crate) struct Choices {
    /// For each number and object its row plus one, or 0.
    rows: Box<[u8]>,
    costs: Vec<[Costs; DEPTHS]>,
    unknown: [Costs; DEPTHS],
    /// Time of a reading of the clock, which the measured time of one call contains.
    clock_ns: u64,
}

/// The known costs of one kind of call at one depth.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// By executor; 0 if it is not known.
    ns: [f32; EXECUTORS.len()],
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

impl Choices {
    /// Creates a table without costs. Without threads, no call is given to them; with one active thread, no batch
    /// is shared.
    pub(crate) fn new(active_threads: usize) -> Self {
        let mut unknown = [Costs::UNKNOWN; DEPTHS];
        for (depth, costs) in unknown.iter_mut().enumerate() {
            if active_threads < 1 {
                costs.ns[Executor::Threads as usize] = IMPOSSIBLE;
            }
            if active_threads < 2 || depth == 0 {
                costs.ns[Executor::Shared as usize] = IMPOSSIBLE;
            }
        }
        let mut costs = Vec::with_capacity(MAX_ROWS);
        costs.push(unknown);
        let rows = vec![0; (NUMBERS + 1) * Object::COUNT].into_boxed_slice();
        Choices { rows, costs, unknown, clock_ns: clock_ns() }
    }

    /// Returns the row of a call.
    #[inline]
    pub(crate) fn row(&mut self, number: u32, object: Object) -> Row {
        let place = (number as usize).min(NUMBERS) * Object::COUNT + object.number();
        match self.rows[place] {
            0 => self.add_row(place),
            row => Row(row - 1),
        }
    }

    #[cold]
    fn add_row(&mut self, place: usize) -> Row {
        if self.costs.len() == MAX_ROWS {
            return Row::default();
        }
        self.costs.push(self.unknown);
        self.rows[place] = self.costs.len() as u8;
        Row(self.rows[place] - 1)
    }

    /// Returns how many rows there are with costs of their own.
    pub(crate) fn rows(&self) -> usize {
        self.costs.len() - 1
    }

    /// Counts a call that is a batch of its own if it is to be made in place, and neither measured nor on trial.
    /// Returns whether it was counted; otherwise the caller chooses.
    #[inline]
    pub(crate) fn pass_in_place(&mut self, row: Row) -> bool {
        self.costs(row, Depth(0)).pass(1)
    }

    /// Chooses an executor for the next call of a batch of so many. Batches have different numbers.
    #[inline]
    pub(crate) fn choose(&mut self, row: Row, depth: Depth, batch: u32, calls: u32) -> Choice {
        let costs = self.costs(row, depth);
        if costs.batch != batch {
            costs.batch = batch;
            costs.begin_batch(calls);
        }
        if costs.on_trial {
            // In place one call is enough; more could keep the owner for long.
            let once = costs.trial == Executor::InPlace;
            costs.on_trial = !once;
            return Choice { executor: costs.trial, measured: true, once };
        }
        let (executor, mut measured) = (costs.best, costs.batch_measured);
        if executor == Executor::InPlace {
            measured |= costs.slow > 0;
            costs.batch_measured = false;
        }
        Choice { executor, measured, once: false }
    }

    /// Reports the time of a measured call in place. Returns whether to measure the next one, too.
    pub(crate) fn report_in_place(&mut self, row: Row, depth: Depth, time_ns: u64) -> bool {
        let time_ns = time_ns.saturating_sub(self.clock_ns).max(1);
        let costs = self.costs(row, depth);
        costs.report(Executor::InPlace, time_ns as f32);
        costs.slow > 0
    }

    /// Reports the time of a run of calls in place, in which the clock was also read after the first one.
    pub(crate) fn report_run(&mut self, row: Row, depth: Depth, time_ns: u64, calls: u32) {
        let time_ns = time_ns.saturating_sub(2 * self.clock_ns).max(1);
        self.costs(row, depth).report(Executor::InPlace, time_ns as f32 / calls as f32);
    }

    /// Returns whether a call in place keeps the owner from its other work.
    pub(crate) fn is_slow(time_ns: u64) -> bool {
        time_ns as f32 > MAX_IN_PLACE_NS
    }

    /// Reports the time of a measured batch by another executor, for each call.
    pub(crate) fn report(&mut self, row: Row, depth: Depth, executor: Executor, time_ns: u64) {
        self.costs(row, depth).report(executor, time_ns.max(1) as f32);
    }

    /// Reports that an executor cannot make a call. The calls of a row are alike, except for
    /// arguments that the ring has no operation for.
    #[cold]
    pub(crate) fn report_refused(&mut self, row: Row, depth: Depth, executor: Executor) {
        let costs = self.costs(row, depth);
        (costs.trial_left, costs.on_trial) = (0, false);
        let cost = &mut costs.ns[executor as usize];
        if *cost == 0.0 {
            *cost = IMPOSSIBLE;
        }
    }

    #[inline]
    fn costs(&mut self, row: Row, depth: Depth) -> &mut Costs {
        &mut self.costs[usize::from(row.0)][usize::from(depth.0)]
    }
}

/// Returns the time of a reading of the clock: the least of some.
fn clock_ns() -> u64 {
    let read = |_| {
        let began = Instant::now();
        began.elapsed().as_nanos() as u64
    };
    (0..8).map(read).min().unwrap_or(0)
}

impl Costs {
    const UNKNOWN: Costs = Costs {
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

    /// Returns whether a batch is for nothing else than to make its calls, in place.
    #[inline]
    fn pass(&mut self, calls: u32) -> bool {
        let passed = self.passed.saturating_add(calls);
        let is_early = passed < self.due;
        if is_early {
            self.passed = passed;
        }
        is_early
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
    fn report(&mut self, executor: Executor, ns: f32) {
        if matches!(executor, Executor::InPlace | Executor::Shared) {
            self.slow = if ns > MAX_IN_PLACE_NS { self.slow.saturating_add(1) } else { 0 };
            if self.slow > 0 {
                self.due = 0;
            }
        }
        self.learn(executor, ns);
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
    use crate::object::{FileSystem, Kind};

    /// Calls of one kind in batches, which cost so much by each executor.
    struct Run {
        choices: Choices,
        row: Row,
        batch: u32,
        ns: [u64; 4],
    }

    impl Run {
        fn new(in_place: u64, threads: u64, ring: u64) -> Self {
            Run::with_shared(in_place, threads, ring, None)
        }

        fn with_shared(in_place: u64, threads: u64, ring: u64, shared: Option<u64>) -> Self {
            let mut choices = Choices::new(if shared.is_some() { 2 } else { 1 });
            choices.clock_ns = 0;
            let row = choices.row(0, Kind::Disk.into());
            Run { choices, row, batch: 0, ns: [in_place, threads, ring, shared.unwrap_or(0)] }
        }

        /// Returns the number of calls that each executor has made.
        fn batches(&mut self, batches: u32, calls: u32) -> [u32; 4] {
            let mut made = [0; 4];
            let depth = Depth::of(calls as usize);
            for _ in 0..batches {
                self.batch += 1;
                let mut batch_measured = None;
                for _ in 0..calls {
                    let Choice { executor, measured, .. } =
                        self.choices.choose(self.row, depth, self.batch, calls);
                    made[executor as usize] += 1;
                    if measured && executor == Executor::InPlace {
                        let ns = self.ns[executor as usize];
                        self.choices.report_in_place(self.row, depth, ns);
                    } else if measured {
                        batch_measured = Some(executor);
                    }
                }
                if let Some(executor) = batch_measured {
                    self.choices.report(self.row, depth, executor, self.ns[executor as usize]);
                }
            }
            made
        }
    }

    #[test]
    fn call_alone_passes_without_a_choice_after_one_that_is_not_slow() {
        for (ns, passes) in [(MAX_IN_PLACE_NS as u64, true), (MAX_IN_PLACE_NS as u64 + 1, false)] {
            let mut run = Run::new(ns, 1, 1);
            assert!(!run.choices.pass_in_place(run.row));
            run.batches(1, 1);
            assert_eq!(run.choices.pass_in_place(run.row), passes, "{ns}");
        }
    }

    #[test]
    fn trial_that_costs_twice_as_much_is_not_hopeless() {
        let [_, threads, ..] = Run::new(100, 200, 1_000_000).batches(1 << 12, 1);
        let [_, hopeless, ..] = Run::new(100, 201, 1_000_000).batches(1 << 12, 1);
        assert_eq!((threads, hopeless), (TRIAL_BATCHES, 1));
    }

    #[test]
    fn cheap_calls_stay_in_place_and_trials_become_rare() {
        let [_, threads, ring, _] = Run::new(100, 5_000, 1_000).batches(1 << 14, 64);
        assert_eq!((threads, ring), (5 * 64, 5 * 64));
        // A call alone costs more everywhere else.
        let [_, threads, ring, _] = Run::new(100, 5_000, 300).batches(1 << 20, 1);
        assert_eq!((threads, ring), (5, 5));
    }

    #[test]
    fn calls_that_are_cheapest_in_the_ring_go_there() {
        let mut run = Run::new(100, 5_000, 60);
        run.batches(100, 32);
        let [in_place, threads, ring, _] = run.batches(1 << 14, 32);
        assert!(in_place <= 16 && threads <= 16 * 32 && ring > 500_000, "{in_place} {threads}");
        // They return when it has become slower.
        run.ns[2] = 400;
        run.batches(100, 32);
        let [_, threads, ring, _] = run.batches(100, 32);
        assert!(threads + ring <= 2 * 32, "{threads} {ring}");
        // At another depth nothing was learnt yet.
        assert_eq!(run.batches(100, 1), [100, 0, 0, 0]);
    }

    #[test]
    fn slow_calls_move_to_threads_and_return() {
        let mut run = Run::new(1_000_000, 1_000_000, 2_000_000);
        assert_eq!(run.batches(10, 32), [3, 317, 0, 0]);
        // The disk has got faster.
        run.ns = [100, 5_000, 1_000, 0];
        run.batches(1 << 12, 32);
        let [in_place, ..] = run.batches(100, 32);
        assert!(in_place >= 98 * 32, "{in_place}");
    }

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
    fn batches_are_shared_with_the_threads_where_that_costs_less() {
        let mut run = Run::with_shared(1_000, 5_000, 1_000, Some(600));
        run.batches(1 << 8, 64);
        let [in_place, _, _, shared] = run.batches(1 << 10, 64);
        assert!(in_place < 64 && shared > 60_000, "{in_place} {shared}");
        // The other cores have other work.
        run.ns[3] = 1_500;
        run.batches(1 << 8, 64);
        let [in_place, ..] = run.batches(100, 64);
        assert!(in_place >= 98 * 64, "{in_place}");
        // A call alone cannot be shared.
        run.ns[3] = 1;
        assert_eq!(run.batches(1 << 13, 1)[3], 0);
        // Calls that keep the owner for long are not shared.
        let mut run = Run::with_shared(1_000_000, 1_000_000, 2_000_000, Some(1));
        assert_eq!(run.batches(1 << 10, 32)[3], 0);
    }

    #[test]
    fn executor_that_was_left_after_a_disturbance_waited_for_the_trials_of_all_others() {
        let mut run = Run::with_shared(130, 5_000, 158, Some(1_000));
        run.batches(1 << 10, 32);
        // Another program is in the way for two measurements in a row.
        run.ns[0] = 1_000;
        run.batches(4, 32);
        run.ns[0] = 130;
        let [in_place, _, ring, _] = run.batches(1 << 10, 32);
        assert!(ring > 0 && ring <= 2 * TRIAL_EVERY.0, "{in_place} {ring}");
    }

    #[test]
    fn one_slow_batch_does_not_move_the_others() {
        let mut run = Run::new(100, 5_000, 60);
        run.batches(1 << 8, 32);
        run.ns[2] = 100_000;
        run.batches(MEASURE_BATCHES, 32);
        run.ns[2] = 60;
        let [in_place, ..] = run.batches(1 << 10, 32);
        assert!(in_place <= 16, "{in_place}");
    }

    #[test]
    fn time_of_the_clock_belongs_to_no_call_in_place() {
        let mut run = Run::new(130, 0, 0);
        run.choices.clock_ns = 30;
        run.batches(1, 1);
        let depth = Depth::of(1);
        assert_eq!(run.choices.costs(run.row, depth).ns[Executor::InPlace as usize], 100.0);
        // A batch of the ring reads the clock for all of its calls.
        run.choices.report(run.row, depth, Executor::Shared, 130);
        assert_eq!(run.choices.costs(run.row, depth).ns[Executor::Shared as usize], 130.0);
        // A clock that was slower when it was timed does not make calls free.
        run.choices.clock_ns = 1_000;
        let mut other = Run { choices: run.choices, row: Row::default(), batch: 9, ns: [5; 4] };
        other.batches(1, 1);
        assert_eq!(other.choices.costs(other.row, depth).ns[Executor::InPlace as usize], 1.0);
    }

    #[test]
    fn run_of_calls_in_place_has_the_cost_of_their_mean() {
        let mut run = Run::new(0, 0, 0);
        (run.choices.clock_ns, run.batch) = (30, 1);
        let depth = Depth::of(4);
        run.choices.choose(run.row, depth, 1, 4);
        run.choices.report_run(run.row, depth, 460, 4);
        assert_eq!(run.choices.costs(run.row, depth).ns[Executor::InPlace as usize], 100.0);
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
    fn depths_learn_apart() {
        let mut run = Run::new(100, 5_000, 60);
        run.batches(1 << 10, 64);
        // The executor that is cheapest for 64 calls is not given 8 before a trial.
        assert_eq!(run.batches(100, 8), [800, 0, 0, 0]);
        let depths = [1, 2, 3, 4, 127, 128, 256, 511, 512, 9_999].map(Depth::of);
        assert_eq!(depths, [0, 1, 1, 2, 6, 7, 8, 8, 9, 9].map(Depth));
    }

    #[test]
    fn file_systems_of_one_kind_learn_apart() {
        let mut run = Run::new(100, 5_000, 60);
        let on = |number| Object::new(Kind::Disk, FileSystem::from_number(number));
        let [first, second] = [1, 2].map(|number| run.choices.row(0, on(number)));
        assert_eq!(run.choices.rows(), 3, "one of the kind, and two of file systems");
        run.row = first;
        run.batches(1 << 10, 64);
        let [in_place, _, ring, _] = run.batches(100, 64);
        assert!(in_place <= 16 && ring > 6_300, "{in_place} {ring}");
        run.row = second;
        assert_eq!(run.batches(10, 64), [640, 0, 0, 0]);
        // Their calls have rows of their own for each number, too.
        assert_ne!(run.choices.row(1, on(1)), first);
        assert_eq!(run.choices.row(0, on(1)), first);
    }

    #[test]
    fn one_slow_call_does_not_move_the_others() {
        let mut run = Run::new(1_000_000, 5_000, 5_000);
        run.batches(1, 1);
        run.ns[0] = 100;
        assert_eq!(run.batches(500, 1), [500, 0, 0, 0]);
    }

    #[test]
    fn slow_calls_move_to_the_ring_if_it_costs_least() {
        let mut run = Run::new(1_000_000, 1_000_000, 10_000);
        run.batches(100, 32);
        assert_eq!(run.batches(10, 32), [0, 0, 320, 0]);
        // Without threads, too.
        let mut run = Run::new(1_000_000, 1, 10_000);
        run.choices = Choices { clock_ns: 0, ..Choices::new(0) };
        run.row = run.choices.row(0, Kind::Disk.into());
        run.batches(100, 32);
        assert_eq!(run.batches(10, 32), [0, 0, 320, 0]);
    }

    #[test]
    fn executor_that_refuses_a_call_is_not_tried_again() {
        let mut run = Run::new(100, 5_000, 1);
        let mut refused = 0;
        for batch in 1..1 << 14 {
            for _ in 0..64 {
                let choice = run.choices.choose(run.row, Depth::of(64), batch, 64);
                if choice.executor == Executor::Ring {
                    refused += 1;
                    run.choices.report_refused(run.row, Depth::of(64), Executor::Ring);
                } else if choice.measured {
                    let ns = run.ns[choice.executor as usize];
                    run.choices.report(run.row, Depth::of(64), choice.executor, ns);
                }
            }
        }
        assert_eq!(refused, 1);
    }

    #[test]
    fn calls_beyond_the_rows_share_one() {
        let mut choices = Choices::new(1);
        let first = choices.row(0, Kind::Disk.into());
        assert_ne!(first, choices.row(0, Kind::Memory.into()));
        assert_eq!(
            choices.row(u32::MAX, Kind::Other.into()),
            choices.row(100_000, Kind::Other.into())
        );
        for number in 0..NUMBERS as u32 {
            choices.row(number, Kind::Socket.into());
        }
        assert_eq!(choices.row(511, Kind::Pipe.into()), Row::default());
        assert_eq!(choices.row(0, Kind::Disk.into()), first);
        assert_eq!(choices.costs.len(), MAX_ROWS);
    }

    #[test]
    fn each_number_and_kind_has_a_row_of_its_own() {
        let mut choices = Choices::new(1);
        let kinds = [Kind::Disk, Kind::Memory, Kind::Socket, Kind::Pipe, Kind::Other];
        let mut rows = Vec::new();
        for number in 0..20 {
            rows.extend(kinds.map(|kind| choices.row(number, kind.into())));
        }
        assert_eq!(choices.rows(), rows.len());
        assert!((1..).zip(rows).all(|(number, row)| row == Row(number)));
    }

    #[test]
    fn call_alone_that_the_ring_makes_does_not_pass_in_place() {
        let mut run = Run::new(1_000, 5_000, 60);
        run.batches(1 << 12, 1);
        let [_, _, ring, _] = run.batches(10 * MEASURE_BATCHES, 1);
        assert!(ring >= 9 * MEASURE_BATCHES, "{ring}");
        for _ in 0..2 * MEASURE_BATCHES {
            assert!(!run.choices.pass_in_place(run.row));
            run.batches(1, 1);
        }
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
