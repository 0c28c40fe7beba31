//! Shrinking of a failing case.

use super::case::Case;
use super::run::run;

/// Shrinks a case while it fails in the same way as in `failure`, with at most `runs` runs: fewer
/// steps, clients and faults.
pub fn shrink(case: &Case, failure: &str, mut runs: usize) -> Case {
    let mut best = case.clone();
    let same = |other: &str| failure_kind(other) == failure_kind(failure);
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

/// Returns the constant part of a failure: without numbers and quoted data.
fn failure_kind(failure: &str) -> String {
    let text = failure.split(['"', '(']).next().unwrap_or_default();
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Returns smaller cases, the smallest first.
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
    // Another seed may fail after fewer steps.
    for seed in 1..4 {
        let plan = case.plan.clone().with(|p| {
            p.seed ^= seed;
            p.steps /= 2;
        });
        all.push(with(&|c| c.plan = plan.clone()));
    }
    all.retain(|smaller| smaller != case);
    all
}
