//! Output of `lab load`: summary, progress and CSV files.

use std::fmt::Write;

use load_generator::{RequestRecord, Stats};

use super::observation::{Observation, Times};
use crate::say::number;

/// Returns the summary.
pub(super) fn summary(observation: &Observation) -> String {
    let mut text = String::new();
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        writeln!(text, "{arguments}").expect("writing to a string cannot fail");
    };
    line(format_args!(
        "{}
    {}, on {}",
        observation.url, observation.load, observation.kernel
    ));
    let per_second = |count: u64| number(count as f64 / observation.seconds.max(1e-9));
    line(format_args!(
        "  due      {:>10} requests, {:>9} per second",
        observation.due,
        per_second(observation.due)
    ));
    line(format_args!(
        "  replies  {:>10} good,     {:>9} per second, {} MB/s",
        observation.replies,
        per_second(observation.replies),
        number(observation.body_bytes as f64 / 1e6 / observation.seconds.max(1e-9))
    ));
    let failures: Vec<_> =
        observation.failed.iter().map(|(error, n)| format!("{error} {n}")).collect();
    line(format_args!("  failed   {:>10} {}", observation.failures(), failures.join(", ")));
    for (status, n) in &observation.statuses {
        line(format_args!("           {n:>10} with status {status}"));
    }
    if observation.due == 0 {
        line(format_args!("  no request became due in the measurement period"));
    }
    if observation.skipped > 0 {
        line(format_args!(
            "  skipped  {:>10} requests of sessions that failed earlier",
            observation.skipped
        ));
    }
    if observation.idle > 0 {
        let lost = observation.idle_lost;
        line(format_args!(
            "  idle     {:>10} connections, {lost} closed by the server",
            observation.idle
        ));
    }
    if observation.slow > 0 {
        let (replies, lost) = (observation.slow_replies, observation.slow_lost);
        line(format_args!(
            "  slow     {:>10} slow clients, {replies} replies, {lost} closed by the server",
            observation.slow
        ));
    }
    line(format_args!(
        "              count       p50       p90       p99     p99.9       max      mean  [us]"
    ));
    let times = [("connect", &observation.connect_us), ("response", &observation.response_us)];
    for (name, times) in times.into_iter().chain([("lag", &observation.lag_us)]) {
        if times.count > 0 {
            line(format_args!("  {name:9}{:>8}{}", times.count, quantiles(times)));
        }
    }
    for warning in &observation.doubts {
        line(format_args!("unreliable: {warning}"));
    }
    if let Some(reason) = &observation.partial {
        line(format_args!("partial: {reason} after measuring {} s", number(observation.seconds)));
    }
    text
}

fn quantiles(times: &Times) -> String {
    let all = [times.p50, times.p90, times.p99, times.p999, times.max, times.mean];
    all.map(|us| format!("{:>10}", format!("{us:.0}"))).concat()
}

/// Returns the progress message after an interval.
pub(super) fn progress(stats: &Stats, seconds: f64) -> String {
    let Some(interval) = stats.intervals.last() else { return String::new() };
    let mean_us = interval.latency_sum.as_micros() as f64 / interval.replies.max(1) as f64;
    format!(
        "due {}/s, replies {}/s, failed {}/s, open {}, response mean {} us, max {} us",
        number(interval.due as f64 / seconds),
        number(interval.replies as f64 / seconds),
        number(interval.errors.total() as f64 / seconds),
        interval.open,
        number(mean_us),
        interval.max_latency.as_micros()
    )
}

/// Returns the time series as CSV.
pub(super) fn csv(observation: &Observation) -> String {
    let mut text = String::from(
        "until_s,due,connects,replies,body_bytes,failed,open,response_mean_us,response_max_us\n",
    );
    for i in &observation.series {
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
        .expect("writing to a string cannot fail");
    }
    text
}

/// Returns the log of requests as CSV.
pub(super) fn log(log: &[RequestRecord]) -> String {
    let mut text = String::from("due_s,connect_us,end_us,failed\n");
    for request in log {
        let connect = request.connect.map(|time| time.as_micros().to_string()).unwrap_or_default();
        let error = request.error.map_or("", |error| error.name());
        let (due, end) = (request.due.as_secs_f64(), request.latency.as_micros());
        writeln!(text, "{due:.6},{connect},{end},{error}")
            .expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use load_generator::RequestError;
    use std::time::Duration;

    #[test]
    fn log_has_one_line_per_request() {
        let (due, latency) = (Duration::from_millis(1_500), Duration::from_micros(70));
        let connect = Some(Duration::from_micros(20));
        let success = RequestRecord { due, connect, latency, error: None };
        let error = Some(RequestError::Refused);
        let refused = RequestRecord { due, connect: None, latency, error };
        let lines = "due_s,connect_us,end_us,failed\n1.500000,20,70,\n1.500000,,70,refused\n";
        assert_eq!(log(&[success, refused]), lines);
    }
}
