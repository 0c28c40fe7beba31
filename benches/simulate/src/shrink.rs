//! From a run that fails to a smaller one that fails.

use shared_ring::sim::Plan;

use super::case::Case;
use super::run::run;

/// Makes a case smaller as long as it fails in the same way as `failure` tells, in at most `runs`
/// runs: fewer steps, fewer clients, fewer kinds of faults, fewer faults.
pub fn shrink(case: &Case, failure: &str, mut runs: usize) -> Case {
    let mut best = case.clone();
    let same = |other: &str| kind(other) == kind(failure);
    loop {
        let before = best.clone();
        for smaller in candidates(&before) {
            if runs == 0 {
                return best;
            }
            runs -= 1;
            if smaller.check().is_ok() && run(&smaller).verdict.failure.is_some_and(|f| same(&f)) {
                best = smaller;
                break;
            }
        }
        if best == before {
            return best;
        }
    }
}

/// What a failure is about: its words, without numbers and what was sent.
fn kind(failure: &str) -> String {
    let words = failure.split(['"', '(']).next().unwrap_or_default();
    words.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Smaller cases, those first that are much smaller.
fn candidates(case: &Case) -> Vec<Case> {
    let with = |change: &dyn Fn(&mut Case)| {
        let mut smaller = case.clone();
        change(&mut smaller);
        smaller
    };
    let mut all = Vec::new();
    for divisor in [8, 2] {
        all.push(with(&|c| c.plan.steps /= divisor));
        all.push(with(&|c| c.clients = (c.clients / divisor as usize).max(1)));
    }
    all.push(with(&|c| c.plan.steps = c.plan.steps * 9 / 10));
    for fault in case.plan.faults.kinds() {
        all.push(with(&|c| c.plan.faults = c.plan.faults.without(fault)));
    }
    if case.plan.max_faults == u64::MAX {
        all.push(with(&|c| c.plan.max_faults = 64));
    } else {
        all.push(with(&|c| c.plan.max_faults /= 2));
        all.push(with(&|c| c.plan.max_faults = c.plan.max_faults.saturating_sub(1)));
    }
    // The same with a seed of another kind of luck.
    for seed in 1..4 {
        let plan =
            Plan { seed: case.plan.seed ^ seed, steps: case.plan.steps / 2, ..case.plan.clone() };
        all.push(with(&|c| c.plan = plan.clone()));
    }
    all.retain(|smaller| smaller != case);
    all
}
