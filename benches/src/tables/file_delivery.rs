//! The ways and the policies for sending files, and the limits of a socket's unsent bytes.

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

/// Returns the CPU time and the rate of each policy.
pub(super) fn policies(results: &[Outcome]) -> String {
    let heads = POLICIES.map(|policy| format!("`{policy}`"));
    let heads: Vec<_> =
        ["files, clients"].into_iter().chain(heads.iter().map(String::as_str)).collect();
    let mut text = row(&heads) + &rule(heads.len());
    let Some(run) = of(results, EXPERIMENT) else { return text };
    let series = POLICIES.map(|policy| {
        let suffix = format!(" {policy}");
        run.series.iter().find(|s| s.name.ends_with(&suffix)).map_or("", |s| s.name.as_str())
    });
    for case in names(run, "Server CPU") {
        let mut cells = vec![files_and_clients(&case)];
        cells.extend(series.map(|series| {
            let figures = ["Server CPU", "Rate"].map(|figure| median(run, figure, series, &case));
            figures.into_iter().flatten().map(short).collect::<Vec<_>>().join("; ")
        }));
        text += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
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
    let columns = ONE_SENDER.map(|(figure, state)| WAYS.map(|way| (figure, way, state)));
    let columns = columns.as_flattened();
    let heads: Vec<_> = columns.iter().map(|(_, way, state)| format!("{way}, {state}")).collect();
    let heads: Vec<_> = ["file"].into_iter().chain(heads.iter().map(String::as_str)).collect();
    let mut text = row(&heads) + &rule(heads.len());
    let Some(run) = of(results, EXPERIMENT) else { return text };
    for file in names(run, ONE_SENDER[0].0) {
        let mut cells = vec![file.clone()];
        cells.extend(
            columns.iter().map(|(figure, way, _)| {
                median(run, figure, way, &file).map_or(String::new(), short)
            }),
        );
        text += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// Returns the context switches and the CPU time with each limit of unsent bytes.
pub(super) fn limits(results: &[Outcome]) -> String {
    let figures = [
        ("Context switches by the limit of unsent bytes", "context switches per MB"),
        ("Server CPU by the limit of unsent bytes", "us per MB"),
    ];
    let columns = CLIENTS.map(|clients| figures.map(|(figure, unit)| (figure, clients, unit)));
    let columns = columns.as_flattened();
    let heads: Vec<_> =
        columns.iter().map(|(_, clients, unit)| format!("{clients}: {unit}")).collect();
    let heads: Vec<_> = ["limit"].into_iter().chain(heads.iter().map(String::as_str)).collect();
    let mut text = row(&heads) + &rule(heads.len());
    let Some(run) = of(results, EXPERIMENT) else { return text };
    for limit in names(run, figures[0].0) {
        let mut cells = vec![limit.clone()];
        cells.extend(columns.iter().map(|(figure, clients, _)| {
            median(run, figure, clients, &limit).map_or(String::new(), short)
        }));
        text += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
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
