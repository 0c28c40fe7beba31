//! The effect of slow clients on another client of the web server, by mechanism.

use super::cells::{highest, median, names, of, row, rule, short};
use crate::outcome::Outcome;

const LATENCY: &str = "99th percentile of another client";
const LEFT: &str = "Slow clients left";
const GONE: &str = "Time until the last slow client is gone";
/// The operations that the slow clients perform slowly.
const KINDS: [&str; 4] = ["head", "body", "response", "handshake"];

/// Returns a value of a figure, a series and a point.
type Of = fn(&Outcome, &str, &str, &str) -> Option<f64>;

pub(super) fn table(results: &[Outcome]) -> String {
    let Some(run) = of(results, "slow-clients") else { return String::new() };
    let heads = ["mechanism", "another client, p99, ms: median, worst", "slow clients left, most"];
    let kinds = KINDS.map(|kind| format!("{kind}: gone after, s"));
    let heads: Vec<_> = heads.into_iter().chain(kinds.iter().map(String::as_str)).collect();
    let mut text = row(&heads) + &rule(heads.len());
    for mechanism in names(run, LATENCY) {
        // The kinds of clients, and TLS, are series.
        let all = |figure: &str, of: Of| -> Vec<f64> {
            let series = run.series.iter().filter(|s| s.figure == figure);
            series.filter_map(|s| of(run, figure, &s.name, &mechanism)).collect()
        };
        let worst = |of| short(all(LATENCY, of).into_iter().fold(0.0, f64::max));
        let latency = format!("{}, {}", worst(median), worst(highest));
        // Of each kind the round with most, which may be different rounds.
        let left: f64 = all(LEFT, highest).into_iter().sum();
        let mut cells = vec![format!("`{mechanism}`"), latency, format!("{left}")];
        cells.extend(
            KINDS.map(|kind| median(run, GONE, kind, &mechanism).map_or(String::new(), short)),
        );
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
    fn row_has_the_worst_latency_and_all_that_are_left() {
        let mut run = Outcome::new("slow-clients");
        for (figure, series, value) in [
            (LATENCY, "without TLS", 3.0),
            (LATENCY, "with TLS", 4.5),
            (LEFT, "head", 1.0),
            (LEFT, "response", 2.0),
            (GONE, "head", 2.5),
            (GONE, "handshake", 5.0),
        ] {
            let x = X::Name("epoll".to_owned());
            run.point(figure, "", series, x, spread(&[value]).unwrap());
        }
        let table = table(&[run]);
        assert_eq!(
            table.lines().last(),
            Some("| `epoll` | 4.50, 4.50 | 3 | 2.50 |  |  | 5.00 |"),
            "{table}"
        );
    }

    #[test]
    fn clients_that_were_left_in_fewer_than_half_of_the_rounds_were_not_shown() {
        let mut run = Outcome::new("slow-clients");
        for (figure, series, rounds) in [
            (LATENCY, "without TLS", [2.0, 2.0, 2.0, 40.0, 2.0]),
            (LEFT, "head", [0.0, 0.0, 0.0, 7.0, 7.0]),
        ] {
            let x = X::Name("epoll".to_owned());
            run.point(figure, "", series, x, spread(&rounds).unwrap());
        }
        let table = table(&[run]);
        assert_eq!(
            table.lines().last(),
            Some("| `epoll` | 2.00, 40.0 | 7 |  |  |  |  |"),
            "{table}"
        );
    }
}
