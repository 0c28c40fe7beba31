//! Each mechanism compared with its floor.

use super::cells::{grouped, median, names, of, row, rule};
use crate::outcome::{Outcome, X};

const COLUMNS: [&str; 9] = [
    "mechanism",
    "file: ns, baseline",
    "ns, server",
    "ratio (rounds)",
    "echo: ns, baseline",
    "ns, server",
    "ratio (rounds)",
    "system calls",
    "instructions: file, echo",
];

pub(super) fn table(results: &[Outcome]) -> String {
    let mut text = row(&COLUMNS) + &rule(COLUMNS.len());
    let Some(run) = of(results, "floors") else { return text };
    for mechanism in names(run, "CPU per request, file") {
        let mut cells = vec![format!("`{mechanism}`")];
        let cell = |figure: String, series: &str, format: fn(f64) -> String| {
            median(run, &figure, series, &mechanism).map_or(String::new(), format)
        };
        for work in ["file", "echo"] {
            for program in ["floor", "app"] {
                cells.push(cell(format!("CPU per request, {work}"), program, grouped));
            }
            cells.push(ratio(run, work, &mechanism));
        }
        let calls = "System calls per request, file".to_owned();
        cells.push(cell(calls, "app", |calls| format!("{calls:.2}")));
        let instructions = |work| cell(format!("Instructions per request, {work}"), "app", grouped);
        let both = [instructions("file"), instructions("echo")];
        let or_none = |one: &String| if one.is_empty() { "-".to_owned() } else { one.clone() };
        cells.push(both.each_ref().map(or_none).join(", "));
        text += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// Returns the ratio with the smallest and the largest round.
fn ratio(run: &Outcome, work: &str, mechanism: &str) -> String {
    let is_figure = |figure: &str| figure == "CPU over that of the floor";
    let series = run.series.iter().find(|s| is_figure(&s.figure) && s.name == work);
    let point = series.and_then(|s| s.points.iter().find(|p| p.x == X::Name(mechanism.to_owned())));
    point.map_or(String::new(), |p| {
        format!("**{:.2}** ({:.2} to {:.2})", p.y.median, p.y.low, p.y.high)
    })
}
