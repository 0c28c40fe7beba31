//! The lines of the README: the default mechanism, the others beside it, other servers.

use super::cells::{median, names, of, row, rule, short};
use crate::experiments::{DEFAULT, is_external};
use crate::outcome::Outcome;

/// A measured quantity: the name and value of each server.
struct Line {
    measured: &'static str,
    values: Vec<(String, f64)>,
    /// Whether a larger value is better.
    is_rate: bool,
    format: fn(f64) -> String,
    /// The reference with which the value is compared, if not other servers.
    against: &'static str,
    command: &'static str,
}

pub(super) fn table(results: &[Outcome]) -> String {
    let default = format!("`{DEFAULT}`, the default");
    let columns = ["measured", &default, "other mechanisms", "compared with", "command"];
    let mut text = row(&columns) + &rule(columns.len());
    let empty = Vec::new;
    let overload = of(results, "overload").map_or_else(empty, goodput);
    let peers = of(results, "peers");
    let figure = |figure: &str, series| peers.map_or_else(empty, |run| values(run, figure, series));
    let floors = peers.map_or_else(empty, over_floors);
    let us = |value: f64| format!("{} us", short(value));
    for line in [
        Line {
            measured: "goodput at twice saturation",
            values: overload,
            is_rate: true,
            format: |ratio| format!("{:.0} %", ratio * 100.0),
            against: "",
            command: "`cargo lab run overload` (root)",
        },
        Line {
            measured: "99 of 100 good replies at twice saturation, within",
            values: of(results, "overload").map_or_else(empty, reply_times),
            is_rate: false,
            format: |ms| format!("{ms:.0} ms"),
            against: "",
            command: "`cargo lab run overload` (root)",
        },
        Line {
            measured: "CPU time per request, file of 1 KiB",
            values: figure("Server CPU per request, a file of 1 KiB", "server"),
            is_rate: false,
            format: us,
            against: "",
            command: "`cargo lab run peers`",
        },
        Line {
            measured: "CPU time per request, 12 bytes from a handler",
            values: figure("Server CPU per request, 12 bytes from a handler", "server"),
            is_rate: false,
            format: us,
            against: "",
            command: "`cargo lab run peers`",
        },
        Line {
            measured: "files of 64 KiB per second",
            values: figure("Requests, a file of 64 KiB", "rate"),
            is_rate: true,
            format: |rate| format!("{:.1} k", rate / 1e3),
            against: "",
            command: "`cargo lab run peers`",
        },
        Line {
            measured: "CPU time over that of a hard-coded loop with the same replies, 1 KiB",
            values: floors,
            is_rate: false,
            format: |ratio| format!("{ratio:.2}"),
            against: "a loop without parser or connections: 1",
            command: "`cargo lab run peers`",
        },
    ] {
        text += &line.row();
    }
    text
}

impl Line {
    fn row(&self) -> String {
        let of = |name: &str| self.values.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
        let Some(ours) = of(DEFAULT) else { return String::new() };
        let (theirs, others): (Vec<_>, Vec<_>) = self
            .values
            .iter()
            .filter(|(name, _)| name != DEFAULT)
            .partition(|(n, _)| is_external(n));
        let list = |all: &[&(String, f64)]| {
            let one = |(name, value): &(String, f64)| {
                let is_ours = !is_external(name);
                let wins = if self.is_rate { *value > ours } else { *value < ours };
                let name = if is_ours { format!("`{name}`") } else { name.clone() };
                let value = (self.format)(*value);
                let is_equal = value == (self.format)(ours);
                let note = if wins && !is_ours && !is_equal { ": we lose" } else { "" };
                format!("{name} {value}{note}")
            };
            all.iter().map(|entry| one(entry)).collect::<Vec<_>>().join(", ")
        };
        let against = match self.against {
            "" => list(&theirs),
            against => against.to_owned(),
        };
        row(&[self.measured, &(self.format)(ours), &list(&others), &against, self.command])
    }
}

/// Returns the servers of a figure, without the floors.
fn values(run: &Outcome, figure: &str, series: &str) -> Vec<(String, f64)> {
    let names = names(run, figure).into_iter().filter(|name| !name.ends_with(" floor"));
    names.filter_map(|name| Some((name.clone(), median(run, figure, series, &name)?))).collect()
}

/// Returns the CPU time for a file of 1 KiB over that of the floors.
fn over_floors(run: &Outcome) -> Vec<(String, f64)> {
    let ratio = |(name, ratio): (&String, &crate::ratio::Ratio)| {
        let name = name.strip_prefix("file1k_")?.strip_suffix("_vs_floor_cpu")?;
        Some((name.to_owned(), ratio.value))
    };
    run.ratios.iter().filter_map(ratio).collect()
}

/// Returns the goodput at twice saturation of the usual servers, over that at saturation.
fn goodput(run: &Outcome) -> Vec<(String, f64)> {
    let ratio = |(name, ratio): (&String, &crate::ratio::Ratio)| {
        let name = name.strip_suffix("_r2")?;
        let is_usual = !name.contains("no_admission") && !name.contains("spin");
        is_usual.then(|| (ratio.mechanism.clone(), ratio.value))
    };
    run.ratios.iter().filter_map(ratio).collect()
}

/// Returns the 99th percentile of the times of good replies at twice saturation.
fn reply_times(run: &Outcome) -> Vec<(String, f64)> {
    let of = |name: &str, figure: &str| {
        run.series
            .iter()
            .find(|s| s.name == name && s.figure == format!("{figure} against request rate"))
    };
    let time = |(name, _): (String, f64)| {
        // Twice saturation is the last rate but one.
        let twice = &of(&name, "Goodput")?.points.iter().rev().nth(1)?.x;
        let times = of(&name, "99th percentile of the times of good replies")?;
        let point = times.points.iter().find(|p| p.x == *twice)?;
        Some((name, point.y.median))
    };
    goodput(run).into_iter().filter_map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::X;
    use crate::statistics::spread;

    #[test]
    fn default_mechanism_has_its_own_column_and_losses_are_named() {
        let mut run = Outcome::new("peers");
        let figure = "Server CPU per request, 12 bytes from a handler";
        for (name, us) in [
            ("epoll", 7.2),
            ("uring", 6.9),
            ("epoll floor", 4.0),
            ("hyper", 6.6),
            ("nginx tuned", 6.95),
        ] {
            run.point(figure, "us", "server", X::Name(name.into()), spread(&[us]).unwrap());
        }
        let table = table(&[run]);
        let line = table.lines().find(|line| line.contains("from a handler")).unwrap();
        assert!(
            line.contains(
                "| 6.90 us | `epoll` 7.20 us | hyper 6.60 us: we lose, nginx tuned 6.95 us |"
            ),
            "{line}"
        );
        // Quantities that were not measured have no line.
        assert_eq!(table.lines().count(), 3);
    }

    #[test]
    fn reply_times_are_those_at_twice_saturation() {
        let mut run = Outcome::new("overload");
        run.ratio("uring_r2", "uring", vec![1.0]);
        for (rate, ms) in [(900.0, 5.0), (2000.0, 80.0), (3000.0, f64::NAN)] {
            let mut add = |figure: &str, unit, y: f64| {
                let y = spread(&[y]).filter(|_| y.is_finite());
                if let Some(y) = y {
                    run.point(
                        &format!("{figure} against request rate"),
                        unit,
                        "uring",
                        X::Number(rate),
                        y,
                    );
                }
            };
            add("Goodput", "replies/s", 1000.0);
            add("99th percentile of the times of good replies", "ms", ms);
        }
        assert_eq!(reply_times(&run), [("uring".to_owned(), 80.0)]);
    }
}
