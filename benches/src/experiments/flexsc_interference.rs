//! The direct and indirect costs of system calls to a computation (FlexSC, figure 1).

use std::fs::File;
use std::hint::black_box;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use flexsc_rt::{Config, Kind, Pages};

use super::system_call::{SystemCall, failed};
use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, SERVER_CORE, pin};
use crate::outcome::{self, Outcome, X};
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "flexsc-interference",
    title: "the time that a null call or a pwrite adds to a computation, by the steps between calls: \
            direct and posted",
    source: "FlexSC, section 2, figure 1",
    own_network: false,
    run,
};

/// Steps of the computation between calls.
const FULL: [usize; 7] = [500, 1_000, 2_000, 5_000, 10_000, 50_000, 100_000];
const QUICK: [usize; 3] = [1_000, 10_000, 100_000];
/// The number at which ratios are taken.
const RATIO_STEPS: usize = 1_000;
/// Steps of a measurement.
const STEPS: usize = 10_000_000;
const QUICK_STEPS: usize = 1_000_000;
const ROUNDS: usize = 15;
const QUICK_ROUNDS: usize = 3;
/// Measurements of each time, of which the least counts.
const REPEATS: usize = 3;
/// Words of the table in which the computation walks: 256 KiB, within the second cache.
const WORDS: usize = 32 << 10;
/// Posted calls that are executed together.
const BATCH: usize = 64;
/// Bytes of a pwrite.
const WRITE_BYTES: usize = 4_096;
/// Calls by which their direct cost is measured.
const CALLS: usize = 20_000;

const CALL_NAMES: [&str; 2] = ["null", "pwrite"];
const NULL: usize = 0;
const PWRITE: usize = 1;
const WAYS: [&str; 2] = ["direct", "posted"];

const FIGURE: &str = "Time that a call adds, against steps between calls";
const BEYOND_NULL: &str = "Time that a pwrite adds beyond a null call, against steps between calls";
const DIRECT: &str = "Time of a call without a computation";

const NOTES: [&str; 4] = [
    "The computation follows a table of 256 KiB in an order that the processor cannot predict. Without \
     hardware counters, figure 1 is derived from times: what a call adds is the time of the computation with \
     calls, minus that without, over the number of calls. What exceeds the time of the same call in a \
     loop is the indirect cost. For pwrite, the paper takes the difference to a null call: \
     `pwrite_beyond_null_over_own_time` is that of the times added, over that of the times in a loop.",
    "A pwrite writes 4 KiB to a file in the page cache. Posted calls are executed 64 at a time; their \
     executor is the cheapest one.",
    "Each round has all calls, ways and numbers in a shuffled order, each after the computation alone. \
     Ratios are of the time added, and are taken within a round, with 1,000 steps between calls.",
    "Each time is the least of three in a round, as other programs make times larger. Points are left out where the \
     values of the rounds lie on both sides of 0: what a call adds is less than the noise there.",
];

/// A computation whose data stays in the cache.
struct Computation {
    table: Vec<u32>,
    at: u32,
}

impl Computation {
    /// The table is one cycle through all words.
    fn new(seed: u64) -> Self {
        let mut order: Vec<_> = (0..WORDS as u32 * 2).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        let mut table = vec![0; order.len()];
        for (number, from) in order.iter().enumerate() {
            table[*from as usize] = order[(number + 1) % order.len()];
        }
        Computation { table, at: 0 }
    }

    #[inline]
    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.at = self.table[self.at as usize];
        }
        black_box(self.at);
    }

    /// Returns the time of all steps, with a call after some of them, in nanoseconds.
    fn time(
        &mut self,
        steps: usize,
        between: usize,
        mut call: impl FnMut() -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        let begin = Instant::now();
        for _ in 0..steps / between {
            self.steps(between);
            call()?;
        }
        Ok(begin.elapsed().as_nanos() as f64)
    }
}

/// A call and how it is made.
struct Subject {
    call: usize,
    way: usize,
    between: usize,
    /// Nanoseconds that a call adds, one value per round.
    added: Vec<f64>,
}

/// Makes calls in either way.
struct Calls {
    calls: [SystemCall; 2],
    pages: Pages,
    posted: usize,
    _file: OwnedFd,
}

impl Calls {
    fn new() -> Result<Self, Failure> {
        let path = outcome::directory()?.join(format!("interference-{}", std::process::id()));
        let file = OwnedFd::from(File::create_new(&path)?);
        std::fs::remove_file(&path)?;
        let bytes = vec![b'x'; WRITE_BYTES].leak().as_ptr() as usize;
        let args = [file.as_raw_fd() as usize, bytes, WRITE_BYTES, 0];
        // SAFETY: the bytes are never freed; the file is open as long as the pages, which are dropped
        // first.
        let pwrite = unsafe { SystemCall::new(libc::SYS_pwrite64, args, Kind::Disk) };
        let pages = Pages::register(&Config::default()).map_err(failed)?;
        Ok(Calls { calls: [SystemCall::NULL, pwrite], pages, posted: 0, _file: file })
    }

    #[inline]
    fn make(&mut self, call: usize, way: usize) -> Result<(), Failure> {
        let call = &self.calls[call];
        if way == 0 {
            black_box(call.make()?);
            return Ok(());
        }
        // SAFETY: its memory is never freed, and its file is closed after the pages.
        unsafe { self.pages.post(&call.posted()) }.map_err(|busy| Failure::new("flexsc", busy))?;
        self.posted += 1;
        if self.posted == BATCH { self.finish() } else { Ok(()) }
    }

    /// Has the posted calls executed.
    fn finish(&mut self) -> Result<(), Failure> {
        self.posted = 0;
        while self.pages.outstanding() > 0 {
            self.pages.wait(None).map_err(failed)?;
            while let Some(completion) = self.pages.next() {
                black_box(completion.result?);
            }
        }
        Ok(())
    }
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    pin(&[SERVER_CORE])?;
    let others = OtherPrograms::watch()?;
    let (numbers, steps, rounds) =
        if cx.quick { (&QUICK[..], QUICK_STEPS, QUICK_ROUNDS) } else { (&FULL[..], STEPS, ROUNDS) };
    let (mut calls, mut computation) = (Calls::new()?, Computation::new(cx.seed));
    let mut subjects = Vec::new();
    for call in 0..CALL_NAMES.len() {
        for way in 0..WAYS.len() {
            let each = numbers.iter().map(|&between| Subject { call, way, between, added: vec![] });
            subjects.extend(each);
        }
    }
    let mut direct: [[Vec<f64>; 2]; 2] = Default::default();
    cx.progress.set_length((rounds * subjects.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for (call, direct) in direct.iter_mut().enumerate() {
            for (way, direct) in direct.iter_mut().enumerate() {
                direct.push(time_alone(&mut calls, call, way)?);
            }
        }
        for i in round.order(subjects.len()) {
            let Subject { call, way, between, added } = &mut subjects[i];
            cx.progress.set_message(format!("{} {}: {between}", CALL_NAMES[*call], WAYS[*way]));
            let (mut alone, mut with) = (f64::MAX, f64::MAX);
            for _ in 0..REPEATS {
                alone = alone.min(computation.time(steps, *between, || Ok(()))?);
                with = with.min(computation.time(steps, *between, || calls.make(*call, *way))?);
                calls.finish()?;
            }
            added.push((with - alone) / (steps / *between) as f64);
            cx.progress.inc(1);
        }
    }
    report(&subjects, &direct, &mut outcome);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Returns the time of a call in a loop, in nanoseconds.
fn time_alone(calls: &mut Calls, call: usize, way: usize) -> Result<f64, Failure> {
    let mut min = f64::MAX;
    for _ in 0..REPEATS {
        let begin = Instant::now();
        for _ in 0..CALLS {
            calls.make(call, way)?;
        }
        calls.finish()?;
        min = min.min(begin.elapsed().as_nanos() as f64 / CALLS as f64);
    }
    Ok(min)
}

/// Returns the differences of each round.
fn differences(above: &[f64], below: &[f64]) -> Vec<f64> {
    above.iter().zip(below).map(|(above, below)| above - below).collect()
}

/// Adds a point, unless the values of the rounds lie on both sides of 0.
fn add_point(outcome: &mut Outcome, figure: &str, name: &str, between: usize, values: &[f64]) {
    if let Some(y) = spread(values).filter(|y| y.low > 0.0 || y.high < 0.0) {
        outcome.point(figure, "ns", name, X::Number(between as f64), y);
    }
}

fn report(subjects: &[Subject], direct: &[[Vec<f64>; 2]; 2], outcome: &mut Outcome) {
    let added = |call, way, between| {
        let fits = |s: &&Subject| (s.call, s.way, s.between) == (call, way, between);
        subjects.iter().find(fits).map_or(&[][..], |subject| &subject.added)
    };
    for Subject { call, way, between, added: of_call } in subjects {
        let name = format!("{}, {}", CALL_NAMES[*call], WAYS[*way]);
        add_point(outcome, FIGURE, &name, *between, of_call);
        if *call == PWRITE {
            let beyond = differences(of_call, added(NULL, *way, *between));
            add_point(outcome, BEYOND_NULL, WAYS[*way], *between, &beyond);
        }
    }
    let added = |call, way| added(call, way, RATIO_STEPS);
    for (call, name) in CALL_NAMES.iter().enumerate() {
        for (way, costs) in WAYS.iter().zip(&direct[call]) {
            if let Some(y) = spread(costs) {
                outcome.point(DIRECT, "ns", way, X::Name((*name).to_owned()), y);
            }
        }
        let each = ratios(added(call, 0), added(call, 1));
        outcome.ratio(format!("{name}_direct_over_posted"), "flexsc", each);
        let indirect = ratios(added(call, 0), &direct[call][0]);
        outcome.ratio(format!("{name}_added_over_own_time"), "direct", indirect);
    }
    let beyond = differences(added(PWRITE, 0), added(NULL, 0));
    let own = differences(&direct[PWRITE][0], &direct[NULL][0]);
    outcome.ratio("pwrite_beyond_null_over_own_time", "direct", ratios(&beyond, &own));
    if let Some(ratio) = outcome.ratios.get("pwrite_added_over_own_time") {
        let mut shows = format!(
            "A pwrite every {RATIO_STEPS} steps adds {:.2} times its own time to the computation",
            ratio.value
        );
        if ratio.low > 1.0 {
            shows += "; the part above 1 is the indirect cost";
        }
        outcome.shows.push(shows + ".");
    }
    outcome.paper(
        FIGURE,
        "FlexSC, figure 1, on a Core i7 by hardware counters: with a pwrite every 2,000 to 5,000 \
         instructions the computation runs at less than half its speed, mostly for the indirect cost.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computation_visits_every_word() {
        let mut computation = Computation::new(1);
        let words = computation.table.len();
        computation.steps(words - 1);
        assert_ne!(computation.at, 0);
        computation.steps(1);
        assert_eq!(computation.at, 0);
    }

    #[test]
    fn calls_are_made_in_either_way() {
        let mut calls = Calls::new().unwrap();
        for call in 0..2 {
            for way in 0..2 {
                for _ in 0..2 * BATCH + 1 {
                    calls.make(call, way).unwrap();
                }
                calls.finish().unwrap();
            }
        }
        assert_eq!(calls.pages.counters().posted, 2 * (2 * BATCH as u64 + 1));
    }
}
