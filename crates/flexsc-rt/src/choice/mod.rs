//! Chooses the executor of a bounded call from the costs that were measured.
//!
//! Costs are kept for each call number, object (a kind, or files of one file system) and batch depth: a row has those of
//! a number and object. `costs.rs` learns them, and chooses.

mod costs;

use std::time::Instant;

use crate::call::Executor;
use crate::object::Object;
pub(crate) use costs::Choice;
use costs::{Costs, MAX_IN_PLACE_NS};

/// Numbers with rows of their own; others share one.
const NUMBERS: usize = 512;

/// Rows; calls beyond share the first one.
const MAX_ROWS: usize = 255;

/// Depths of a batch: 1, from 2, 4, 8, ... calls on.
const DEPTHS: usize = 10;

/// How deep a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth(u8);

impl Depth {
    #[inline]
    pub(crate) fn of(calls: usize) -> Self {
        Depth((calls.max(1).ilog2() as usize).min(DEPTHS - 1) as u8)
    }
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

impl Choices {
    /// Creates a table without costs. Without threads, no call is given to them; with one active thread, no batch
    /// is shared.
    pub(crate) fn new(active_threads: usize) -> Self {
        let mut unknown = [Costs::UNKNOWN; DEPTHS];
        for (depth, costs) in unknown.iter_mut().enumerate() {
            if active_threads < 1 {
                costs.exclude(Executor::Threads);
            }
            if active_threads < 2 || depth == 0 {
                costs.exclude(Executor::Shared);
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
        self.costs(row, depth).choose(batch, calls)
    }

    /// Reports the time of a measured call in place. Returns whether to measure the next one, too.
    pub(crate) fn report_in_place(&mut self, row: Row, depth: Depth, time_ns: u64) -> bool {
        let time_ns = time_ns.saturating_sub(self.clock_ns).max(1);
        let costs = self.costs(row, depth);
        costs.report(Executor::InPlace, time_ns as f32);
        costs.measures_next()
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
        self.costs(row, depth).report_refused(executor);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::costs::{MEASURE_BATCHES, TRIAL_BATCHES, TRIAL_EVERY};
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
}
