//! The time until a server recovers from a burst.

use super::super::Context;
use super::super::sweep::Setting;
use super::SEND;
use crate::failure::Failure;
use crate::load::Interval;
use crate::measure::{Peer, SOURCES, Trials};
use crate::outcome::{Outcome, X};
use crate::statistics::Spread;

/// Rounds in a full run.
pub(super) const ROUNDS: usize = 5;
/// Rates after the burst and during it, as multiples of saturation.
const AFTER: f64 = 0.9;
const BURST: f64 = 3.0;
/// The share of due requests to be answered for a recovery, and the number of intervals that count.
const SHARE: f64 = 0.95;
const INTERVALS: usize = 5;
const INTERVAL: &str = "0.1";

/// In each round, measures saturation, then loads the server with three times as much for a while,
/// then with 0.9 times.
pub(super) fn run(
    cx: &Context,
    trials: &mut Trials<'_>,
    usual: &Setting<'_>,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let burst = (BURST / AFTER).to_string();
    let (long, counted) = if cx.quick { ("1.5", "2") } else { ("3", "4") };
    let mut times = Vec::new();
    for round in cx.rounds(if cx.quick { 1 } else { ROUNDS }) {
        trials.set_seed(round.load_seed);
        cx.progress.set_message("send: saturation");
        let saturation = usual.saturation(Peer::Ours(SEND), trials)?;
        cx.progress.inc(1);
        let rate = format!("{:.1}", saturation * AFTER);
        let args = [
            &["--rate", &rate, "--burst", &burst, "--warm-up", long, "--duration", counted][..],
            &["--timeout", "1", "--interval", INTERVAL],
            &SOURCES,
            &usual.session,
            usual.generator,
        ]
        .concat();
        cx.progress.set_message("send: a burst");
        let trial = trials.run(Peer::Ours(SEND), &usual.conditions, usual.file, &args)?;
        cx.progress.inc(1);
        let burst_end: f64 = long.parse().unwrap_or(0.0);
        if round.number == 0 {
            figure(&trial.observed.series, burst_end, outcome);
        }
        // A round without a recovery counts.
        times.push(recovered(&trial.observed.series, burst_end).unwrap_or(f64::INFINITY));
    }
    outcome.ratio("recovery_s", SEND, times);
    Ok(())
}

/// Returns the seconds from the end of the burst to the first intervals with nearly as many good
/// replies as requests.
fn recovered(series: &[Interval], burst_end: f64) -> Option<f64> {
    let length: f64 = INTERVAL.parse().ok()?;
    let after: Vec<_> = series.iter().filter(|i| i.until_s > burst_end + length / 2.0).collect();
    let is_recovered = |some: &[&Interval]| {
        let due: u64 = some.iter().map(|i| i.due).sum();
        let replies: u64 = some.iter().map(|i| i.replies).sum();
        replies as f64 >= SHARE * due as f64
    };
    let first = after.windows(INTERVALS).position(is_recovered)?;
    Some(first as f64 * length)
}

fn figure(series: &[Interval], burst_end: f64, outcome: &mut Outcome) {
    let name = "A burst of three times saturation, which ends at 0 s";
    for interval in series {
        let x = X::Number(((interval.until_s - burst_end) * 100.0).round() / 100.0);
        let length = INTERVAL.parse().unwrap_or(1.0);
        for (series, count) in [("requests due", interval.due), ("good replies", interval.replies)]
        {
            let y = count as f64 / length;
            let y = Spread { median: y, low: y, high: y };
            outcome.point(name, "per second", series, x.clone(), y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(until_s: f64, due: u64, replies: u64) -> Interval {
        Interval { until_s, due, replies, ..Interval::default() }
    }

    #[test]
    fn recovery_requires_several_intervals_with_nearly_all_replies() {
        let mut series: Vec<_> =
            (1..=15).map(|i| interval(f64::from(i) / 10.0, 300, 100)).collect();
        series.extend((16..=18).map(|i| interval(f64::from(i) / 10.0, 90, 50)));
        series.extend((19..=35).map(|i| interval(f64::from(i) / 10.0, 90, 89)));
        let time = recovered(&series, 1.5).unwrap();
        assert!((time - 0.3).abs() < 1e-9, "{time}");
        series.truncate(20);
        assert_eq!(recovered(&series, 1.5), None);
    }
}
