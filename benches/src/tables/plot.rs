//! The plot of README: goodput against the rate of requests.

use crate::failure::Failure;
use crate::outcome::{Outcome, Series};
use crate::report;

/// The file of the plot.
pub(super) const FILE: &str = "docs/overload.svg";

const EXPERIMENT: &str = "overload";
const FIGURE: &str = "Goodput against request rate";
/// The series that are drawn; a plot with all of them cannot be read.
const SERIES: [&str; 4] = ["uring", "nginx shipped", "nginx tuned", "send (no admission)"];

/// Draws the plot. There is none if the experiment was not run.
pub(super) fn svg(results: &[Outcome]) -> Result<Option<String>, Failure> {
    let Some(run) = results.iter().find(|run| run.id == EXPERIMENT) else { return Ok(None) };
    let find = |name: &&str| run.series.iter().find(|s| s.figure == FIGURE && s.name == **name);
    let series: Vec<&Series> = SERIES.iter().filter_map(find).collect();
    if series.is_empty() {
        return Err(Failure::Run(format!("the results of `{EXPERIMENT}` lack `{FIGURE}`")));
    }
    report::standalone(FIGURE, &series).map(Some)
}
