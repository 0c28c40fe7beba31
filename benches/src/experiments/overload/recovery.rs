//! How soon a server is itself again after a burst.

use super::super::Context;
use super::super::sweep::{Setting, Sweep};
use super::{SEND, of};
use crate::failure::Failure;
use crate::load::Interval;
use crate::measure::{Peer, SOURCES, Trials};
use crate::outcome::{Outcome, X};
use crate::statistics::{Spread, spread};

/// How often, in a full run.
pub(super) const ROUNDS: usize = 2;
/// What is asked for after the burst, and in it, as multiples of saturation.
const AFTER: f64 = 0.9;
const BURST: f64 = 3.0;
/// The share of what is asked for that has to be answered, and for how many intervals together.
const SHARE: f64 = 0.95;
const INTERVALS: usize = 5;
const INTERVAL: &str = "0.1";

/// Asks for three times what the server can do for a while, then for a little less than it can do.
pub(super) fn run(
    cx: &Context,
    trials: &mut Trials<'_>,
    usual: &Setting<'_>,
    all: &[Sweep<'_>],
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let Some(saturation) = of(all, SEND, "").and_then(|sweep| spread(&sweep.saturation())) else {
        return Ok(());
    };
    let rate = format!("{:.1}", saturation.median * AFTER);
    let burst = (BURST / AFTER).to_string();
    let (long, counted) = if cx.quick { ("1.5", "2") } else { ("3", "4") };
    let words = [
        &["--rate", &rate, "--burst", &burst, "--warm-up", long, "--duration", counted][..],
        &["--deadline", "1", "--interval", INTERVAL],
        &SOURCES,
        &usual.session,
        usual.generator,
    ]
    .concat();
    let mut times = Vec::new();
    for round in 0..if cx.quick { 1 } else { ROUNDS } {
        cx.progress.set_message("send: a burst");
        let trial = trials.run(Peer::Ours(SEND), &usual.conditions, usual.file, &words)?;
        cx.progress.inc(1);
        let ended: f64 = long.parse().unwrap_or(0.0);
        if round == 0 {
            tell(&trial.seen.series, ended, outcome);
        }
        times.extend(recovered(&trial.seen.series, ended));
    }
    if let Some(times) = spread(&times) {
        outcome.ratios.insert("recovery_s".to_owned(), times.median);
    } else {
        outcome.notes.push("After a burst send did not come to itself again.".to_owned());
    }
    Ok(())
}

/// Seconds from the end of the burst to the first intervals that have nearly as many good replies as
/// requests.
fn recovered(series: &[Interval], burst_ended: f64) -> Option<f64> {
    let length: f64 = INTERVAL.parse().ok()?;
    let after: Vec<_> = series.iter().filter(|i| i.until_s > burst_ended + length / 2.0).collect();
    let is_well = |some: &[&Interval]| {
        let due: u64 = some.iter().map(|i| i.due).sum();
        let replies: u64 = some.iter().map(|i| i.replies).sum();
        replies as f64 >= SHARE * due as f64
    };
    let first = after.windows(INTERVALS).position(is_well)?;
    Some(first as f64 * length)
}

fn tell(series: &[Interval], burst_ended: f64, outcome: &mut Outcome) {
    let figure = "A burst of three times saturation, which ends at 0 s";
    for interval in series {
        let x = X::Number(((interval.until_s - burst_ended) * 100.0).round() / 100.0);
        let length = INTERVAL.parse().unwrap_or(1.0);
        for (name, count) in [("asked for", interval.due), ("good replies", interval.replies)] {
            let y = count as f64 / length;
            let y = Spread { median: y, low: y, high: y };
            outcome.point(figure, "per second", name, x.clone(), y);
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
    fn a_server_has_recovered_when_it_answers_nearly_all_for_a_while() {
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
