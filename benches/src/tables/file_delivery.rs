//! The ways and the policies for sending files, and the limits of a socket's unsent bytes.

use std::iter;

use super::cells::{median, names, of, row, rule, short};
use crate::outcome::Outcome;

const EXPERIMENT: &str = "file-delivery";
const POLICIES: [&str; 4] = ["auto", "dns", "plain", "ded"];
const WAYS: [&str; 3] = ["sendfile(2)", "reads of the ring", "splice(2) through a pipe"];
const ONE_SENDER: [(&str, &str); 2] = [
    ("CPU time of one sender", "cached"),
    ("CPU time of one sender, files not cached", "not cached"),
];
const CLIENTS: [&str; 2] = ["fast clients", "clients with a limited rate"];

/// A column of a table. A cell has a value of each figure.
struct Column<'a> {
    head: String,
    figures: Vec<&'a str>,
    series: &'a str,
}

/// Returns a table with a row for each point of the first figure.
fn table(
    results: &[Outcome],
    first_head: &str,
    label: fn(&str) -> String,
    columns: &[Column<'_>],
) -> String {
    let heads = columns.iter().map(|column| column.head.as_str());
    let heads: Vec<_> = iter::once(first_head).chain(heads).collect();
    let mut text = row(&heads) + &rule(heads.len());
    let Some(run) = of(results, EXPERIMENT) else { return text };
    for point in names(run, columns[0].figures[0]) {
        let mut cells = vec![label(&point)];
        cells.extend(columns.iter().map(|Column { figures, series, .. }| {
            let values = figures.iter().filter_map(|figure| median(run, figure, series, &point));
            values.map(short).collect::<Vec<_>>().join("; ")
        }));
        text += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// Returns the CPU time and the rate of each policy.
pub(super) fn policies(results: &[Outcome]) -> String {
    let series_of = |policy| {
        let suffix = format!(" {policy}");
        let mut series = of(results, EXPERIMENT).into_iter().flat_map(|run| &run.series);
        series.find(|s| s.name.ends_with(&suffix)).map_or("", |s| s.name.as_str())
    };
    let columns = POLICIES.map(|policy| Column {
        head: format!("`{policy}`"),
        figures: vec!["Server CPU", "Rate"],
        series: series_of(policy),
    });
    table(results, "files, clients", files_and_clients, &columns)
}

/// Describes a case: the files, whether they are cached, and the clients.
fn files_and_clients(case: &str) -> String {
    let size = case.split(',').next().unwrap_or(case);
    let size = size.replace('k', " KiB").replace('m', " MiB");
    let cached = if case.contains("not cached") { "not cached" } else { "cached" };
    let clients = if case.contains("limited") { "400 KB per second" } else { "fast" };
    format!("{size}, {cached}, {clients}")
}

/// Returns the CPU time of each way of one sender.
pub(super) fn ways(results: &[Outcome]) -> String {
    let columns = ONE_SENDER.map(|(figure, state)| {
        WAYS.map(|series| Column {
            head: format!("{series}, {state}"),
            figures: vec![figure],
            series,
        })
    });
    table(results, "file", str::to_owned, columns.as_flattened())
}

/// Returns the context switches and the CPU time with each limit of unsent bytes.
pub(super) fn limits(results: &[Outcome]) -> String {
    let figures = [
        ("Context switches by the limit of unsent bytes", "context switches per MB"),
        ("Server CPU by the limit of unsent bytes", "us per MB"),
    ];
    let columns = CLIENTS.map(|series| {
        figures.map(|(figure, unit)| Column {
            head: format!("{series}: {unit}"),
            figures: vec![figure],
            series,
        })
    });
    table(results, "limit", str::to_owned, columns.as_flattened())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::X;
    use crate::statistics::spread;

    #[test]
    fn rows_have_the_values_of_their_cases() {
        let mut run = Outcome::new(EXPERIMENT);
        let limited = "1m, files not cached, clients with a limited rate";
        for (figure, series, x, value) in [
            ("Server CPU", "uring dns", "10m", 209.4),
            ("Rate", "uring dns", "10m", 3_756.0),
            ("Server CPU", "uring dns", limited, 1_009.0),
            (ONE_SENDER[1].0, WAYS[0], "4 KiB", 6_480.7),
            (ONE_SENDER[0].0, WAYS[0], "4 KiB", 428.0),
            ("Context switches by the limit of unsent bytes", CLIENTS[0], "none", 1.557),
            ("Server CPU by the limit of unsent bytes", CLIENTS[1], "none", 512.0),
        ] {
            run.point(figure, "", series, X::Name(x.to_owned()), spread(&[value]).unwrap());
        }
        let results = [run];
        let policies = policies(&results);
        assert!(policies.contains("| 10 MiB, cached, fast |  | 209; 3,756 |  |  |"), "{policies}");
        let slow = "| 1 MiB, not cached, 400 KB per second |  | 1,009 |  |  |";
        assert!(policies.ends_with(&format!("{slow}\n")), "{policies}");
        let ways = ways(&results);
        assert!(ways.ends_with("| 4 KiB | 428 |  |  | 6,481 |  |  |\n"), "{ways}");
        let limits = limits(&results);
        assert!(limits.ends_with("| none | 1.56 |  |  | 512 |\n"), "{limits}");
    }
}
