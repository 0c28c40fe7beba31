//! The regime map: which mechanism is best for which work on this machine.

use crate::outcome::{Outcome, X};

use super::page::escape;

/// A kind of work, and where its figure is found.
struct Row {
    work: &'static str,
    measured_in: &'static str,
    experiment: &'static str,
    figure: &'static str,
    place: Place,
    best: Best,
}

/// Where in a figure the candidates stand.
enum Place {
    /// Each is a place on the axis of this series.
    Series(&'static str),
    /// Each is a series; at this number, or at this name.
    Number(f64),
    Name(&'static str),
}

enum Best {
    Most,
    Least,
}

use Best::{Least, Most};
use Place::{Name, Number, Series};

const CPU: &str = "us of CPU per request";

const fn peers(work: &'static str, figure: &'static str) -> Row {
    let place = Series("server");
    Row { work, measured_in: CPU, experiment: "peers", figure, place, best: Least }
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
        work: "20 requests on each connection",
        measured_in: "requests per second at saturation",
        experiment: "http-sessions",
        figure: "Saturation",
        place: Series("one core"),
        best: Most,
    },
    Row {
        work: "twice what the server can do",
        measured_in: "goodput over saturation",
        experiment: "overload",
        figure: "Goodput over saturation, against the rate as a multiple of it",
        place: Number(2.0),
        best: Most,
    },
    Row {
        work: "three times what the server can do",
        measured_in: "goodput over saturation",
        experiment: "overload",
        figure: "Goodput over saturation, against the rate as a multiple of it",
        place: Number(3.0),
        best: Most,
    },
    Row {
        work: "2,000 idle connections, a proxy",
        measured_in: "replies per second",
        experiment: "cold",
        figure: "Throughput against idle connections",
        place: Number(2_000.0),
        best: Most,
    },
    Row {
        work: "18,000 idle connections, a proxy",
        measured_in: "replies per second",
        experiment: "cold",
        figure: "Throughput against idle connections",
        place: Number(18_000.0),
        best: Most,
    },
    Row {
        work: "little to do beside 750 idle connections",
        measured_in: "% of a core left idle",
        experiment: "cpu-profile",
        figure: "Share of the core at 400 requests per second, 750 idle connections",
        place: Name("idle"),
        best: Most,
    },
];

impl Row {
    /// Everybody's figure, the best first.
    fn ranking(&self, runs: &[Outcome]) -> Vec<(String, f64)> {
        let Some(run) = runs.iter().find(|run| run.id == self.experiment) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for series in run.series.iter().filter(|s| s.figure == self.figure) {
            for point in &series.points {
                let who = match (&self.place, &point.x) {
                    (Series(name), X::Name(who)) if series.name == *name => who.clone(),
                    (Number(at), X::Number(x)) if at == x => series.name.clone(),
                    (Name(at), X::Name(x)) if at == x => series.name.clone(),
                    _ => continue,
                };
                // The least programs are yardsticks, and papers had other machines.
                if !who.ends_with(" floor") && !who.starts_with("paper") {
                    all.push((who, point.y.median));
                }
            }
        }
        match self.best {
            Most => all.sort_by(|a, b| b.1.total_cmp(&a.1)),
            Least => all.sort_by(|a, b| a.1.total_cmp(&b.1)),
        }
        all
    }
}

/// Whether it is somebody else's server.
fn is_other(who: &str) -> bool {
    ["nginx", "lighttpd", "haproxy", "h2o", "hyper", "may_minihttp"]
        .iter()
        .any(|other| who.starts_with(other))
}

/// As many digits as tell two of them apart.
fn short(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 1_000.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// The map, of the work that was measured.
pub(super) fn map(runs: &[Outcome]) -> String {
    let mut rows = String::new();
    for row in &ROWS {
        let ranking = row.ranking(runs);
        let (others, ours): (Vec<_>, Vec<_>) = ranking.iter().partition(|(who, _)| is_other(who));
        let cell = |found: Option<&&(String, f64)>| {
            found.map_or(String::new(), |(who, value)| {
                format!("<b>{}</b> {}", escape(who), short(*value))
            })
        };
        if ours.is_empty() {
            continue;
        }
        rows += &format!(
            "<tr><td><a href=\"#{}\">{}</a><td>{}<td>{}<td>{}<td>{}\n",
            row.experiment,
            escape(row.work),
            escape(row.measured_in),
            cell(ours.first()),
            cell(ours.get(1)),
            cell(others.first()),
        );
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<h2 id=\"map\">Which mechanism for which work</h2>\n\
         <p>The medians of the last runs on this machine. Differences of a few percent are within \
         the noise; the figures below have the spread.</p>\n\
         <table class=\"map\"><tr><th>work<th>measured in<th>best<th>next<th>best of other servers\n\
         {rows}</table>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::spread;

    #[test]
    fn the_best_comes_first_and_yardsticks_do_not_count() {
        let mut run = Outcome::new("peers");
        let figure = "Server CPU per request, a file of 1 KiB";
        let all = [("epoll", 6.0), ("uring", 5.5), ("epoll floor", 4.0), ("nginx shipped", 12.0)];
        for (who, us) in all {
            run.point(figure, "us", "server", X::Name(who.into()), spread(&[us]).unwrap());
        }
        let map = map(&[run]);
        let row = map.lines().find(|line| line.contains("a file of 1 KiB")).unwrap();
        assert!(row.contains("<td><b>uring</b> 5.50<td><b>epoll</b> 6.00<td><b>nginx shipped</b>"));
        assert!(!map.contains("floor") && !map.contains("a file of 1 MiB"));
    }
}
