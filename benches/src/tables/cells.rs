//! The cells of tables: values of results, and their formats.

use crate::outcome::{Outcome, X};
use crate::statistics::Spread;

/// Returns the results of an experiment.
pub(super) fn of<'a>(results: &'a [Outcome], id: &str) -> Option<&'a Outcome> {
    results.iter().find(|run| run.id == id)
}

/// Returns the median of a named point.
pub(super) fn median(run: &Outcome, figure: &str, series: &str, name: &str) -> Option<f64> {
    Some(point(run, figure, series, name)?.median)
}

/// Returns the highest round of a named point.
pub(super) fn highest(run: &Outcome, figure: &str, series: &str, name: &str) -> Option<f64> {
    Some(point(run, figure, series, name)?.high)
}

fn point(run: &Outcome, figure: &str, series: &str, name: &str) -> Option<Spread> {
    let series = run.series.iter().find(|s| s.figure == figure && s.name == series)?;
    let point = series.points.iter().find(|p| p.x == X::Name(name.to_owned()))?;
    Some(point.y)
}

/// Returns the names of a figure's points.
pub(super) fn names(run: &Outcome, figure: &str) -> Vec<String> {
    let series = run.series.iter().find(|s| s.figure == figure);
    series.map_or(Vec::new(), |s| s.points.iter().map(|p| p.x.to_string()).collect())
}

pub(super) fn row(cells: &[&str]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

pub(super) fn rule(columns: usize) -> String {
    format!("|{}\n", "---|".repeat(columns))
}

/// Formats a count with three digits and its thousands: 126k, 1,204k, 4.1k.
pub(super) fn thousands(value: f64) -> String {
    let thousands = value / 1e3;
    if thousands < 10.0 { format!("{thousands:.1}k") } else { grouped(thousands) + "k" }
}

/// Formats a number without decimals, in groups of three digits.
pub(super) fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with three digits.
pub(super) fn short(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => grouped(v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([4_100.0, 126_000.0, 1_204_000.0].map(thousands), ["4.1k", "126k", "1,204k"]);
        assert_eq!([0.814, 15.72, 154.0, 12_345.6].map(short), ["0.81", "15.7", "154", "12,346"]);
    }
}
