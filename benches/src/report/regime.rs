//! The regime map: the mechanisms for each workload on this machine, the default one first.

use crate::experiments::{DEFAULT, is_external};
use crate::outcome::{Outcome, X};

use super::markup::escape;

/// A workload, and the location of its figure.
struct Row {
    workload: &'static str,
    unit: &'static str,
    experiment: &'static str,
    figure: &'static str,
    place: Place,
    best: Best,
}

/// The location of the candidates in a figure.
enum Place {
    /// Each is a position on the axis of this series.
    Series(&'static str),
    /// Each is a series, read at this number or name.
    Number(f64),
    Name(&'static str),
}

enum Best {
    Highest,
    Lowest,
}

use Best::{Highest, Lowest};
use Place::{Name, Number, Series};

const CPU: &str = "us of CPU per request";

const fn peers(workload: &'static str, figure: &'static str) -> Row {
    let place = Series("server");
    Row { workload, unit: CPU, experiment: "peers", figure, place, best: Lowest }
}

const ROWS: [Row; 12] = [
    peers("a short reply, keep-alive", "Server CPU per request, 12 bytes from a handler"),
    peers("a file of 1 KiB", "Server CPU per request, a file of 1 KiB"),
    peers("a file of 64 KiB", "Server CPU per request, a file of 64 KiB"),
    peers("a file of 1 MiB", "Server CPU per request, a file of 1 MiB"),
    peers(
        "pipelined requests",
        "Server CPU per request, 12 bytes from a handler, 16 requests at once",
    ),
    peers(
        "a new connection for each request",
        "Server CPU per request, 12 bytes from a handler, a new connection for each request",
    ),
    Row {
        workload: "20 requests on each connection",
        unit: "requests per second at saturation",
        experiment: "http-sessions",
        figure: "Saturation",
        place: Series("one core"),
        best: Highest,
    },
    Row {
        workload: "twice saturation",
        unit: "goodput over saturation",
        experiment: "overload",
        figure: "Goodput over saturation, against the rate as a multiple of it",
        place: Number(2.0),
        best: Highest,
    },
    Row {
        workload: "three times saturation",
        unit: "goodput over saturation",
        experiment: "overload",
        figure: "Goodput over saturation, against the rate as a multiple of it",
        place: Number(3.0),
        best: Highest,
    },
    Row {
        workload: "2,000 idle connections, a proxy",
        unit: "replies per second",
        experiment: "cold",
        figure: "Throughput against idle connections",
        place: Number(2_000.0),
        best: Highest,
    },
    Row {
        workload: "18,000 idle connections, a proxy",
        unit: "replies per second",
        experiment: "cold",
        figure: "Throughput against idle connections",
        place: Number(18_000.0),
        best: Highest,
    },
    Row {
        workload: "low load with 750 idle connections",
        unit: "idle share of a core, in %",
        experiment: "cpu-profile",
        figure: "Share of the core at 400 requests per second, 750 idle connections",
        place: Name("idle"),
        best: Highest,
    },
];

impl Row {
    /// Returns the value of each server, best first.
    fn ranking(&self, runs: &[Outcome]) -> Vec<(String, f64)> {
        let Some(run) = runs.iter().find(|run| run.id == self.experiment) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for series in run.series.iter().filter(|s| s.figure == self.figure) {
            for point in &series.points {
                let name = match (&self.place, &point.x) {
                    (Series(axis), X::Name(name)) if series.name == *axis => name.clone(),
                    (Number(at), X::Number(x)) if at == x => series.name.clone(),
                    (Name(at), X::Name(x)) if at == x => series.name.clone(),
                    _ => continue,
                };
                // Floors are baselines, and the papers used other machines.
                if !name.ends_with(" floor") && !name.starts_with("paper") {
                    all.push((name, point.y.median));
                }
            }
        }
        match self.best {
            Highest => all.sort_by(|a, b| b.1.total_cmp(&a.1)),
            Lowest => all.sort_by(|a, b| a.1.total_cmp(&b.1)),
        }
        all
    }
}

/// Formats a value with enough digits to distinguish two servers.
fn short(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 1_000.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Returns the map of the measured workloads as HTML.
pub(super) fn map(runs: &[Outcome]) -> String {
    let mut rows = String::new();
    for row in &ROWS {
        let ranking = row.ranking(runs);
        let list = |filter: fn(&str) -> bool| {
            let some = ranking.iter().filter(|(name, _)| filter(name));
            let some =
                some.map(|(name, value)| format!("<b>{}</b> {}", escape(name), short(*value)));
            some.collect::<Vec<_>>().join(", ")
        };
        let default = list(|name| name == DEFAULT);
        let others = list(|name| name != DEFAULT && !is_external(name));
        if default.is_empty() && others.is_empty() {
            continue;
        }
        rows += &format!(
            "<tr><td><a href=\"#{}\">{}</a><td>{}<td>{default}<td>{others}<td>{}\n",
            row.experiment,
            escape(row.workload),
            escape(row.unit),
            list(is_external),
        );
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<h2 id=\"map\">The mechanisms by workload</h2>\n\
         <p>Medians of the last runs on this machine, best first. Differences of a few percent are noise; \
         the figures below show the spread.</p>\n\
         <table class=\"map\"><tr><th>workload<th>measured in<th>{DEFAULT}, the default<th>others\
         <th>other servers\n{rows}</table>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::spread;

    #[test]
    fn map_has_the_default_first_and_excludes_floors() {
        let mut run = Outcome::new("peers");
        let figure = "Server CPU per request, a file of 1 KiB";
        let all = [
            ("send", 7.0),
            ("epoll", 6.0),
            ("uring", 5.5),
            ("epoll floor", 4.0),
            ("nginx shipped", 12.0),
        ];
        for (name, us) in all {
            run.point(figure, "us", "server", X::Name(name.into()), spread(&[us]).unwrap());
        }
        let map = map(&[run]);
        let row = map.lines().find(|line| line.contains("a file of 1 KiB")).unwrap();
        let cells =
            "<td><b>uring</b> 5.50<td><b>epoll</b> 6.00, <b>send</b> 7.00<td><b>nginx shipped</b>";
        assert!(row.contains(cells), "{row}");
        assert!(!map.contains("floor") && !map.contains("a file of 1 MiB"));
    }
}
