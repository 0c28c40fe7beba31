//! Runs the servers on a simulated machine until the deadline or the first failure.

mod coverage;
mod trace;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evring_sim::Fault;
use rustix::time::{ClockId, clock_gettime};
use simulate::{Case, Mechanism, Program, Report, run as simulate, shrink};

use super::{Context, Experiment};
use crate::failure::Failure;
use crate::outcome::{self, Outcome, X};
use crate::statistics::spread;
use coverage::Coverage;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "simulate",
    title: "the servers on a simulated machine with injected faults: failures and their seeds",
    source: "goal of this project: no failure, at least 20 million completions a minute",
    own_network: false,
    run,
};

/// Default length of a run.
const STEPS: u64 = 2_000;

/// Rounds: equal parts of the time, each with its own rate.
const ROUNDS: u32 = 10;

/// Maximum number of runs to shrink a failing case.
const SHRINK_RUNS: usize = 400;

/// Totals over all runs.
#[derive(Default)]
struct Sum {
    runs: u64,
    steps: u64,
    completions: u64,
    faults: [u64; Fault::COUNT],
    /// Runs and completions by program and mechanism.
    by_case: [[(u64, u64); Mechanism::ALL.len()]; Program::ALL.len()],
}

impl Sum {
    fn add(&mut self, case: &Case, report: &Report) {
        let completions = report.stats.kernel.completions;
        self.runs += 1;
        self.steps += report.verdict.steps;
        self.completions += completions;
        for (sum, count) in self.faults.iter_mut().zip(report.verdict.faults) {
            *sum += count;
        }
        let of = &mut self.by_case[case.program as usize][number(case.mechanism)];
        *of = (of.0 + 1, of.1 + completions);
    }
}

/// Returns the number of a mechanism in the list of all.
fn number(mechanism: Mechanism) -> usize {
    Mechanism::ALL.iter().position(|each| *each == mechanism).unwrap_or_default()
}

/// The beginning of a round.
struct Round {
    start: Instant,
    cpu: Duration,
    completions: u64,
}

impl Round {
    fn begin(sum: &Sum) -> Self {
        Round { start: Instant::now(), cpu: cpu_time(), completions: sum.completions }
    }

    /// Returns the completions since, in millions per minute of CPU time.
    fn rate(&self, sum: &Sum) -> f64 {
        let minutes = (cpu_time() - self.cpu).as_secs_f64() / 60.0;
        (sum.completions - self.completions) as f64 / 1e6 / minutes
    }
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    if let Some(path) = &cx.simulation.trace {
        return trace::repeat(path).map(|()| Outcome::new(EXPERIMENT.id));
    }
    let steps = cx.simulation.steps.unwrap_or(STEPS);
    let first = cx.simulation.seed.unwrap_or_else(any_seed);
    Case::of(first, steps).check().map_err(Failure::Request)?;
    let coverage = cx.simulation.seed.is_none().then(Coverage::begin);
    let mut sum = Sum::default();
    let start = Instant::now();
    let round_length = (cx.deadline - start) / ROUNDS;
    let (mut rates, mut round) = (Vec::new(), Round::begin(&sum));
    cx.progress.set_length((cx.deadline - start).as_secs());
    for seed in first.. {
        let case = Case::of(seed, steps);
        let report = simulate(&case);
        sum.add(&case, &report);
        if let Some(failure) = report.verdict.failure {
            cx.progress.finish_and_clear();
            return Err(explain(&case, &failure)?);
        }
        cx.progress.set_position(start.elapsed().as_secs());
        cx.progress.set_message(format!("seed {seed}, {} completions", sum.completions));
        let is_over = cx.is_late() || cx.simulation.seed.is_some();
        if is_over || round.start.elapsed() >= round_length {
            rates.push(round.rate(&sum));
            round = Round::begin(&sum);
        }
        if is_over {
            break;
        }
    }
    let mut outcome = Outcome::new(EXPERIMENT.id);
    outcome.ratio("completions_per_min_millions", "every mechanism", rates);
    report(&sum, first, &mut outcome);
    if cx.simulation.seed.is_some() {
        outcome.notes.push(format!("the run: {}", Case::of(first, steps)));
    }
    if let Some(coverage) = coverage {
        cx.progress.set_message("measuring line coverage");
        let timeout = Duration::from_secs(if cx.quick { 14 } else { 300 });
        outcome.notes.push(coverage.end(cx.deadline.max(Instant::now()) + timeout));
    }
    Ok(outcome)
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns a seed that is probably new.
fn any_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() * 100_000
}

fn report(sum: &Sum, first: u64, outcome: &mut Outcome) {
    outcome.notes.push(format!(
        "{} seeds from {first} on, {} completions, {} steps of peers and network; no failure",
        sum.runs, sum.completions, sum.steps
    ));
    let faults = Fault::ALL.iter().zip(sum.faults);
    let faults: Vec<_> = faults.map(|(fault, n)| format!("{} {n}", fault.name())).collect();
    outcome.notes.push(format!("injected faults: {}", faults.join(", ")));
    for program in Program::ALL {
        for mechanism in Mechanism::ALL {
            let (_, completions) = sum.by_case[*program as usize][number(mechanism)];
            let at = X::Name(mechanism.name().to_owned());
            let name = program.name();
            if let Some(count) = spread(&[completions as f64]) {
                outcome.point("completions", "", name, at, count);
            }
        }
    }
}

/// Shrinks a failing case, and describes it.
fn explain(case: &Case, failure: &str) -> Result<Failure, Failure> {
    eprintln!("seed {} fails; shrinking the case", case.plan.seed);
    let mut small = shrink(case, failure, SHRINK_RUNS);
    small.plan.trace_steps = true;
    let report = simulate(&small);
    let again = report.verdict.failure.unwrap_or_else(|| "the failure did not recur".to_owned());
    let path = outcome::directory()?.join(format!("simulate-{}.trace", case.plan.seed));
    trace::write(&path, &small, &report.verdict.trace)?;
    let lines = &report.verdict.trace;
    let last = lines.len().saturating_sub(40);
    Ok(Failure::Run(format!(
        "{}\n\nThe smallest failing case:\n  {small}\nThe end of its trace (complete in {}):\n{}\n\n\
         {again}\nTo repeat it: cargo lab run simulate --trace {}",
        format_args!("seed {} fails, as {case}\n{failure}", case.plan.seed),
        path.display(),
        lines[last..].join("\n"),
        path.display(),
    )))
}
