//! The log of all requests, as the load generator writes it.

use std::fs;

use crate::failure::Failure;
use crate::measure::{Conditions, Peer, Trial, Trials};
use crate::outcome;

/// A request.
pub(super) struct Request {
    /// When it was due, from the start of the run.
    pub(super) due_s: f64,
    /// Time until its response, or its failure.
    pub(super) response_ms: f64,
    pub(super) is_answered: bool,
}

/// Runs a trial. Returns its requests, too, in the order in which they ended.
pub(super) fn run_with_log(
    trials: &mut Trials<'_>,
    peer: Peer,
    conditions: &Conditions<'_>,
    file: (&str, usize),
    args: &[&str],
) -> Result<(Trial, Vec<Request>), Failure> {
    let log = outcome::directory()?.join(format!("requests-{}.csv", std::process::id()));
    let path = log.display().to_string();
    let trial = trials.run(peer, conditions, file, &[args, &["--log", &path]].concat());
    let text = fs::read_to_string(&log);
    let _ = fs::remove_file(&log);
    Ok((trial?, requests(&text?).collect()))
}

fn requests(log: &str) -> impl Iterator<Item = Request> {
    let request = |line: &str| {
        let fields: Vec<_> = line.split(',').collect();
        let [due, _, end, failure] = fields[..] else { return None };
        let end_us: f64 = end.parse().ok()?;
        let (due_s, response_ms) = (due.parse().ok()?, end_us / 1e3);
        Some(Request { due_s, response_ms, is_answered: failure.is_empty() })
    };
    log.lines().skip(1).filter_map(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_times_and_whether_they_failed() {
        let log = "due_s,connect_us,end_us,failed\n0.5,1,100,\n1.6,,900,refused\n2.5,1,3,\n";
        let all: Vec<_> = requests(log).map(|r| (r.due_s, r.response_ms, r.is_answered)).collect();
        assert_eq!(all, [(0.5, 0.1, true), (1.6, 0.9, false), (2.5, 0.003, true)]);
    }
}
