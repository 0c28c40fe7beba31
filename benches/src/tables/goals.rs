//! Every ratio that has a goal, and whether it was met.

use super::cells::{of, row, rule};
use crate::experiments;
use crate::goals;
use crate::outcome::Outcome;
use crate::ratio::{Goal, Met, Ratio};
use crate::say::number;

pub(super) fn table(results: &[Outcome]) -> String {
    let mut text =
        row(&["experiment", "ratio", "median (95 % interval)", "rounds", "goal", "met"]) + &rule(6);
    for experiment in experiments::ALL {
        let run = of(results, experiment.id);
        let id = format!("`{}`", experiment.id);
        for (name, ratio) in run.iter().flat_map(|run| &run.ratios) {
            // A goal may be newer than the results; it is neither met nor missed then.
            let Some(goal) = ratio.goal.or_else(|| goals::of(experiment.id, name)) else {
                continue;
            };
            let harder = run.and_then(|run| over_shipped(run, name, goal));
            let (name, ratio) =
                harder.as_ref().map_or((name, ratio), |(name, ratio)| (name, ratio));
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
            let rounds = ratio.per_round.len().to_string();
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

/// Returns the ratio over nginx as shipped, if it is the better configuration in a work. Results of `peers` without ratios
/// over nginx as tuned call these the ratios over nginx.
fn over_shipped(run: &Outcome, name: &str, goal: Goal) -> Option<(String, Ratio)> {
    let (work, figure) = name.split_once("_vs_nginx_")?;
    if run.ratios.contains_key(&format!("{work}_vs_nginx_tuned_{figure}")) {
        return None;
    }
    let shipped = format!("{work}_vs_nginx_shipped_{figure}");
    let (tuned, ratio) = (run.ratios.get(name)?, run.ratios.get(&shipped)?);
    let is_harder = match goal {
        Goal::AtLeast(_) => ratio.value < tuned.value,
        Goal::AtMost(_) | Goal::Within(..) => ratio.value > tuned.value,
    };
    let judged = Ratio::of_rounds(ratio.per_round.clone(), &ratio.mechanism, Some(goal));
    judged.filter(|_| is_harder).map(|ratio| (shipped, ratio))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an outcome of a clean commit.
    fn outcome(id: &str) -> Outcome {
        let mut run = Outcome::new(id);
        run.machine.versions.insert("commit".to_owned(), "ff84e1d".to_owned());
        run
    }

    /// Returns the row of a ratio.
    fn row_of(run: &Outcome, ratio: &str) -> String {
        let table = table(std::slice::from_ref(run));
        let row = table.lines().find(|line| line.contains(&format!("`{ratio}`")));
        row.unwrap_or_default().to_owned()
    }

    #[test]
    fn result_over_the_slower_configuration_of_nginx_met_the_goal() {
        let mut run = outcome("peers");
        run.ratio("conn_vs_nginx_cpu", "uring", vec![0.85; 6]);
        run.ratio("conn_vs_nginx_shipped_cpu", "uring", vec![0.96; 6]);
        run.ratio("file64k_vs_nginx_rps", "uring", vec![1.02; 6]);
        run.ratio("file64k_vs_nginx_shipped_rps", "uring", vec![1.1; 6]);
        assert_eq!(row_of(&run, "conn_vs_nginx_cpu"), "");
        assert!(row_of(&run, "conn_vs_nginx_shipped_cpu").ends_with("| at most 0.95 | **no** |"));
        assert!(row_of(&run, "file64k_vs_nginx_rps").ends_with("| at least 1 | yes |"));
        // Newer results name both, and the better one is called nginx.
        run.ratio("conn_vs_nginx_tuned_cpu", "uring", vec![0.85; 6]);
        assert!(row_of(&run, "conn_vs_nginx_cpu").ends_with("| yes |"));
    }

    #[test]
    fn goal_was_met_by_a_program_that_no_commit_has() {
        let mut run = outcome("preempt");
        run.ratio("wait_mode_over_send", "send", vec![12.0; 6]);
        assert!(row_of(&run, "wait_mode_over_send").ends_with("| yes |"));
        run.machine.versions.insert("commit".to_owned(), "ff84e1d-dirty".to_owned());
        assert!(row_of(&run, "wait_mode_over_send").ends_with("| yes, dirty |"));
    }
}
