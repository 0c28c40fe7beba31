//! Every ratio that has a goal, and whether it was met.

use super::cells::{of, row, rule};
use crate::experiments;
use crate::goals;
use crate::outcome::Outcome;
use crate::ratio::Met;
use crate::say::number;

pub(super) fn table(results: &[Outcome]) -> String {
    let mut text =
        row(&["experiment", "ratio", "median (95 % interval)", "rounds", "goal", "met"]) + &rule(6);
    for experiment in experiments::ALL {
        let run = of(results, experiment.id);
        let id = format!("`{}`", experiment.id);
        for (name, ratio) in run.iter().flat_map(|run| &run.ratios) {
            // Older results have no goals. Without rounds, none was met or missed.
            let Some(goal) = ratio.goal.or_else(|| goals::of(experiment.id, name)) else {
                continue;
            };
            let mut met = match ratio.met.unwrap_or(Met::Open) {
                Met::No => "**no**".to_owned(),
                met => met.to_string(),
            };
            if run.is_some_and(Outcome::is_dirty) {
                met += ", dirty";
            }
            let interval = match ratio.interval() {
                interval if interval.is_empty() => interval,
                interval => format!(" ({interval})"),
            };
            let rounds = match ratio.per_round.len() {
                0 => "unknown".to_owned(),
                rounds => rounds.to_string(),
            };
            let value = number(ratio.value) + &interval;
            let name = format!("`{name}`");
            text += &row(&[&id, &name, &value, &rounds, &goal.to_string(), &met]);
        }
        for (name, goal) in goals::unmeasured(experiment.id, run) {
            let name = format!("`{name}`");
            text += &row(&[&id, &name, "not measured", "", &goal.to_string(), ""]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the row of a ratio.
    fn row_of(run: &Outcome, ratio: &str) -> String {
        let table = table(std::slice::from_ref(run));
        let row = table.lines().find(|line| line.contains(&format!("`{ratio}`")));
        row.unwrap_or_default().to_owned()
    }

    #[test]
    fn goal_was_met_by_a_program_that_no_commit_has() {
        let mut run = Outcome::new("preempt");
        run.ratio("wait_mode_over_send", "send", vec![12.0; 5]);
        run.machine.versions.insert("commit".to_owned(), "ff84e1d".to_owned());
        assert!(row_of(&run, "wait_mode_over_send").ends_with("| yes |"));
        run.machine.versions.insert("commit".to_owned(), "ff84e1d-dirty".to_owned());
        assert!(row_of(&run, "wait_mode_over_send").ends_with("| yes, dirty |"));
    }
}
