//! The time until a server recovers from a burst.

use super::super::Context;
use super::super::request_log::{Request, run_with_log};
use super::super::sweep::Setting;
use super::SEND;
use crate::failure::Failure;
use crate::load::Interval;
use crate::measure::{Peer, SOURCES, Trials};
use crate::outcome::{Outcome, X};
use crate::statistics::Spread;

/// Rounds in a full run.
pub(super) const ROUNDS: usize = 6;
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
        let (conditions, file) = (&usual.conditions, usual.file);
        let (trial, requests) = run_with_log(trials, Peer::Ours(SEND), conditions, file, &args)?;
        cx.progress.inc(1);
        let burst_end: f64 = long.parse().unwrap_or(0.0);
        if round.number == 0 {
            figure(&trial.observed.series, burst_end, outcome);
        }
        // A round without a recovery counts.
        times.push(recovered(&requests, burst_end).unwrap_or(f64::INFINITY));
    }
    outcome.ratio("recovery_s", SEND, times);
    Ok(())
}

/// Returns the seconds from the end of the burst to the first intervals of which nearly all requests got good replies.
/// The replies to requests of the burst do not count.
fn recovered(requests: &[Request], burst_end: f64) -> Option<f64> {
    let length: f64 = INTERVAL.parse().ok()?;
    let mut after: Vec<(u32, u32)> = Vec::new();
    for request in requests.iter().filter(|request| request.due_s >= burst_end) {
        let n = ((request.due_s - burst_end) / length) as usize;
        after.resize(after.len().max(n + 1), (0, 0));
        after[n].0 += 1;
        after[n].1 += u32::from(request.is_answered);
    }
    let is_recovered = |some: &[(u32, u32)]| {
        let (due, answered) = some.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        f64::from(answered) >= SHARE * f64::from(due)
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

    /// Requests of a tenth of a second, of which so many got replies.
    fn tenth(n: u32, due: u32, answered: u32) -> impl Iterator<Item = Request> {
        let due_s = f64::from(n) / 10.0 + 0.05;
        (0..due).map(move |i| Request { due_s, response_ms: 1.0, is_answered: i < answered })
    }

    #[test]
    fn recovery_requires_several_intervals_with_nearly_all_replies() {
        let mut requests: Vec<_> = (0..15).flat_map(|n| tenth(n, 300, 100)).collect();
        requests.extend((15..18).flat_map(|n| tenth(n, 90, 50)));
        requests.extend((18..35).flat_map(|n| tenth(n, 90, 89)));
        let time = recovered(&requests, 1.5).unwrap();
        assert!((time - 0.3).abs() < 1e-9, "{time}");
        requests.retain(|request| request.due_s < 2.0);
        assert_eq!(recovered(&requests, 1.5), None);
    }

    #[test]
    fn replies_to_requests_of_the_burst_counted_as_recovery() {
        let mut requests: Vec<_> = (0..15).flat_map(|n| tenth(n, 300, 300)).collect();
        requests.extend((15..35).flat_map(|n| tenth(n, 90, 0)));
        assert_eq!(recovered(&requests, 1.5), None);
    }
}
