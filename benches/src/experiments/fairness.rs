//! Whether a server that is asked for too much treats all alike.

use std::fs;

use super::{Context, Experiment, contestants};
use crate::failure::Failure;
use crate::measure::{Conditions, Others, Peer, Quota, SOURCES, Site, Trials};
use crate::outcome::{self, Outcome, X};
use crate::statistics::spread;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "fairness",
    title: "the response time of every connection, in the order in which they were answered",
    source: "SEND, section 4.6, figure 4.10",
    own_network: true,
    run,
};

/// The share of a core that a server has, in percent.
const SHARE: u32 = 10;
/// Rates, as multiples of what the server does in a closed loop.
const MULTIPLES: [f64; 2] = [0.9, 1.5];
/// At 1.5 times saturation it takes two seconds until those who are served have waited as long as
/// clients wait.
const WARM_UP: &str = "2.5";
/// Points of a curve, at most.
const POINTS: usize = 300;

const NOTES: [&str; 2] = [
    "Files of 1 KB, a new connection for each request; 10 % of a core for the server. A client gives \
     up after one second. Each curve shows at most 300 of the connections that were answered, in \
     the order of their ends, at the same distance from each other.",
    "The ratios `NAME_p99_over_p50_at_15` are of the times of good replies at 1.5 times saturation: \
     near 1 all who were served waited alike.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let quota = Quota::new(SHARE)?;
    let conditions = Conditions { quota: Some(&quota), ..Conditions::default() };
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = Site::bare(b"")?;
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 });
    let others = Others::watch()?;
    let peers = contestants::all(cx, &mut outcome)?;
    cx.progress.set_length((peers.len() * (1 + MULTIPLES.len())) as u64);
    for peer in peers {
        if cx.is_late() {
            trials.note_late();
            continue;
        }
        cx.progress.set_message(peer.to_string());
        if let Err(failure) = one(cx, peer, &conditions, &mut trials, &mut outcome) {
            outcome.notes.push(format!("{peer} failed: {failure}"));
        }
    }
    shows(&mut outcome);
    outcome.notes.extend(others.note()?);
    trials.tell(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// What it shows.
fn shows(outcome: &mut Outcome) {
    let suffix = "_p99_over_p50_at_15";
    let all = outcome.ratios.iter();
    let words = all.filter_map(|(name, r)| Some(format!("{} {r:.2}", name.strip_suffix(suffix)?)));
    let words: Vec<_> = words.collect();
    outcome.shows.push(format!(
        "At 1.5 times saturation, of those who are answered, the slowest in a hundred waits so many \
         times as long as the median: {}. That says nothing of those who are not answered; see \
         overload.",
        words.join(", ")
    ));
    for multiple in MULTIPLES {
        outcome.paper(
            &format!("Response time in order of completion, at {multiple} times saturation"),
            "SEND, figure 4.10, 3,000 requests per second of 1 KB: the times of the SEND server rise \
             and fall smoothly, as in one queue; those of the /dev/poll server scatter from nearly \
             nothing to much more.",
        );
    }
}

fn one(
    cx: &Context,
    peer: Peer,
    conditions: &Conditions<'_>,
    trials: &mut Trials<'_>,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let file = ("/1k.txt", 1 << 10);
    let seconds = if cx.quick { "1.5" } else { "3" };
    let usual = ["--deadline", "1", "--requests", "1", "--duration", seconds];
    let usual = [&usual[..], &SOURCES].concat();
    let closed = [&usual[..], &["--connections", "256", "--warm-up", "1"]].concat();
    let saturation = trials.run(peer, conditions, file, &closed)?.goodput();
    cx.progress.inc(1);
    for multiple in MULTIPLES {
        let log = outcome::directory()?.join(format!("fairness-{}.csv", std::process::id()));
        let (rate, path) = (format!("{:.0}", saturation * multiple), log.display().to_string());
        let words = [&usual[..], &["--rate", &rate, "--log", &path, "--warm-up", WARM_UP]].concat();
        let trial = trials.run(peer, conditions, file, &words);
        let text = fs::read_to_string(&log);
        let _ = fs::remove_file(&log);
        let (trial, text) = (trial?, text?);
        let warm_up = WARM_UP.parse().unwrap_or(0.0);
        let times = answered(&text, warm_up, warm_up + trial.seen.seconds);
        let apart = times.len().div_ceil(POINTS).max(1);
        let figure =
            format!("Response time in order of completion, at {multiple} times saturation");
        for (i, ms) in times.iter().enumerate().step_by(apart) {
            if let Some(y) = spread(&[*ms]) {
                outcome.point(&figure, "ms", &peer.to_string(), X::Number(i as f64), y);
            }
        }
        let of = &trial.seen.response_us;
        if multiple > 1.0 && of.p50 > 0.0 {
            let name = format!("{}_p99_over_p50_at_15", peer.short_name());
            outcome.ratios.insert(name, of.p99 / of.p50);
        }
        cx.progress.inc(1);
    }
    Ok(())
}

/// The response times in milliseconds of the requests that were due between two times, in seconds,
/// and answered.
fn answered(log: &str, from: f64, until: f64) -> Vec<f64> {
    let line = |line: &str| {
        let fields: Vec<_> = line.split(',').collect();
        let [due, _, end, ""] = fields[..] else { return None };
        let (due, end): (f64, f64) = (due.parse().ok()?, end.parse().ok()?);
        (due >= from && due < until).then_some(end / 1e3)
    };
    log.lines().skip(1).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::answered;

    #[test]
    fn those_that_count_and_were_answered_are_taken() {
        let log =
            "due_s,connect_us,end_us,failed\n0.5,1,100,\n1.5,1,200,\n1.6,,900,refused\n2.5,1,3,\n";
        assert_eq!(answered(log, 1.0, 2.0), [0.2]);
    }
}
