//! What load came to, for people and for spreadsheets.

use std::fmt::Write;

use load_generator::{Log, Tally};

use super::seen::{Observation, Times};
use crate::run::number;

/// The summary.
pub(super) fn summary(seen: &Observation) -> String {
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        writeln!(text, "{words}").expect("a string takes everything");
    };
    line(format_args!("{}\n{}, by {}", seen.url, seen.load, seen.kernel));
    let per_second = |count: u64| number(count as f64 / seen.seconds.max(1e-9));
    line(format_args!(
        "  due      {:>10} requests, {:>9} per second",
        seen.due,
        per_second(seen.due)
    ));
    line(format_args!(
        "  replies  {:>10} good,     {:>9} per second, {} MB/s",
        seen.replies,
        per_second(seen.replies),
        number(seen.body_bytes as f64 / 1e6 / seen.seconds.max(1e-9))
    ));
    let failures: Vec<_> = seen.failed.iter().map(|(why, n)| format!("{why} {n}")).collect();
    line(format_args!("  failed   {:>10} {}", seen.failures(), failures.join(", ")));
    for (status, n) in &seen.statuses {
        line(format_args!("           {n:>10} with status {status}"));
    }
    if seen.due == 0 {
        line(format_args!("  nothing was due while it counted"));
    }
    if seen.skipped > 0 {
        line(format_args!(
            "  skipped  {:>10} requests of sessions that failed before",
            seen.skipped
        ));
    }
    if seen.cold > 0 {
        let lost = seen.cold_lost;
        line(format_args!(
            "  cold     {:>10} idle connections, {lost} ended by the server",
            seen.cold
        ));
    }
    if seen.slow > 0 {
        let (replies, lost) = (seen.slow_replies, seen.slow_lost);
        line(format_args!(
            "  slow     {:>10} slow clients, {replies} replies, {lost} ended by the server",
            seen.slow
        ));
    }
    line(format_args!(
        "              count       p50       p90       p99     p99.9       max      mean  [us]"
    ));
    let times = [("connect", &seen.connect_us), ("response", &seen.response_us)];
    for (name, times) in times.into_iter().chain([("lag", &seen.lag_us)]) {
        if times.count > 0 {
            line(format_args!("  {name:9}{:>8}{}", times.count, quantiles(times)));
        }
    }
    for doubt in &seen.doubts {
        line(format_args!("not to be trusted: {doubt}"));
    }
    if let Some(why) = &seen.partial {
        line(format_args!("partial: {why} after {} s that count", number(seen.seconds)));
    }
    text
}

fn quantiles(times: &Times) -> String {
    let all = [times.p50, times.p90, times.p99, times.p999, times.max, times.mean];
    all.map(|us| format!("{:>10}", format!("{us:.0}"))).concat()
}

/// What the display says after an interval.
pub(super) fn progress(tally: &Tally, seconds: f64) -> String {
    let Some(slice) = tally.series.last() else { return String::new() };
    let mean_us = slice.response.as_micros() as f64 / slice.replies.max(1) as f64;
    format!(
        "due {}/s, replies {}/s, failed {}/s, open {}, response {} us on average, at most {} us",
        number(slice.due as f64 / seconds),
        number(slice.replies as f64 / seconds),
        number(slice.failures.total() as f64 / seconds),
        slice.open,
        number(mean_us),
        slice.longest.as_micros()
    )
}

/// The time series, with a line for each interval.
pub(super) fn csv(seen: &Observation) -> String {
    let mut text = String::from(
        "until_s,due,connects,replies,body_bytes,failed,open,response_mean_us,response_max_us\n",
    );
    for i in &seen.series {
        writeln!(
            text,
            "{:.3},{},{},{},{},{},{},{:.1},{:.1}",
            i.until_s,
            i.due,
            i.connects,
            i.replies,
            i.body_bytes,
            i.failed,
            i.open,
            i.mean_us,
            i.max_us
        )
        .expect("a string takes everything");
    }
    text
}

/// A line for each request.
pub(super) fn log(log: &[Log]) -> String {
    let mut text = String::from("due_s,connect_us,end_us,failed\n");
    for each in log {
        let connect = each.connect.map(|time| time.as_micros().to_string()).unwrap_or_default();
        let failed = each.failed.map_or("", |why| why.name());
        let (due, end) = (each.due.as_secs_f64(), each.end.as_micros());
        writeln!(text, "{due:.6},{connect},{end},{failed}").expect("a string takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use load_generator::Failed;
    use std::time::Duration;

    #[test]
    fn a_request_is_a_line_of_the_log() {
        let (due, end) = (Duration::from_millis(1_500), Duration::from_micros(70));
        let good = Log { due, connect: Some(Duration::from_micros(20)), end, failed: None };
        let bad = Log { due, connect: None, end, failed: Some(Failed::Refused) };
        let lines = "due_s,connect_us,end_us,failed\n1.500000,20,70,\n1.500000,,70,refused\n";
        assert_eq!(log(&[good, bad]), lines);
    }
}
