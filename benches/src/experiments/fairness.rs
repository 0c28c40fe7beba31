//! Fairness of servers under overload.

use super::request_log::run_with_log;
use super::{Context, Experiment, servers};
use crate::failure::Failure;
use crate::measure::{Conditions, OtherPrograms, Peer, Quota, SOURCES, Site, Trials};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "fairness",
    title: "the response time of every connection, in order of completion",
    source: "SEND, section 4.6, figure 4.10",
    own_network: true,
    run,
};

/// CPU share of a server, in percent of a core.
const SHARE: u32 = 10;
/// Rates, as multiples of the goodput in a closed loop.
const MULTIPLES: [f64; 2] = [0.9, 1.5];
const ROUNDS: usize = 5;
/// Seconds of load before the measurement. At 1.5 times saturation, queueing delay reaches the
/// clients' deadline after two seconds.
const WARM_UP: &str = "2.5";
/// Maximum number of points of a curve.
const MAX_POINTS: usize = 300;

const NOTES: [&str; 2] = [
    "Files of 1 KB, a new connection for each request; 10 % of a core for the server. A client gives \
     up after one second. Each curve shows at most 300 of the answered connections, in order of \
     completion, at equal intervals.",
    "The ratios `NAME_p99_over_p50_at_15` are of the times of good replies at 1.5 times saturation: \
     near 1, all served clients waited about equally long. A round has all servers, in a shuffled order, \
     with saturation measured just before; the curves are those of the first round.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let quota = Quota::new(SHARE)?;
    let conditions = Conditions { quota: Some(&quota), ..Conditions::default() };
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = Site::bare(b"")?;
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 }).may_fail();
    let others = OtherPrograms::watch()?;
    let peers = servers::all(cx, &mut outcome)?;
    let rounds = if cx.quick { 1 } else { ROUNDS };
    cx.progress.set_length((peers.len() * rounds) as u64);
    let mut ratios = vec![Vec::new(); peers.len()];
    for mut round in cx.rounds(rounds) {
        trials.set_seed(round.load_seed);
        for i in round.order(peers.len()) {
            cx.progress.set_message(peers[i].to_string());
            if cx.is_late() {
                trials.note_skipped();
                continue;
            }
            let is_first = round.number == 0;
            match measure(cx, peers[i], is_first, &conditions, &mut trials, &mut outcome) {
                Ok(ratio) => ratios[i].push(ratio),
                Err(failure) => outcome.notes.push(format!("{} failed: {failure}", peers[i])),
            }
            cx.progress.inc(1);
        }
    }
    for (peer, ratios) in peers.iter().zip(ratios) {
        let name = format!("{}_p99_over_p50_at_15", peer.short_name());
        outcome.ratio(name, &peer.to_string(), ratios);
    }
    findings(&mut outcome);
    outcome.notes.extend(others.note()?);
    trials.report(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn findings(outcome: &mut Outcome) {
    let suffix = "_p99_over_p50_at_15";
    let all = outcome.ratios.iter();
    let ratios =
        all.filter_map(|(name, r)| Some(format!("{} {:.2}", name.strip_suffix(suffix)?, r.value)));
    let ratios: Vec<_> = ratios.collect();
    outcome.shows.push(format!(
        "99th percentile over median of the response times at 1.5 times saturation: {}. Unanswered \
         requests are not included; see overload.",
        ratios.join(", ")
    ));
    for multiple in MULTIPLES {
        outcome.paper(
            &format!("Response time in order of completion, at {multiple} times saturation"),
            "SEND, figure 4.10, 3,000 requests per second of 1 KB: the times of the SEND server rise \
                         and fall smoothly, as in one queue; those of the /dev/poll server scatter widely from \
                         near zero.",
        );
    }
}

/// Measures a server once, adds its curves in the first round, and returns the ratio of its times
/// beyond saturation.
fn measure(
    cx: &Context,
    peer: Peer,
    is_first: bool,
    conditions: &Conditions<'_>,
    trials: &mut Trials<'_>,
    outcome: &mut Outcome,
) -> Result<f64, Failure> {
    let file = ("/1k.txt", 1 << 10);
    let seconds = if cx.quick { "1.5" } else { "3" };
    let usual = ["--timeout", "1", "--requests", "1", "--duration", seconds];
    let usual = [&usual[..], &SOURCES].concat();
    let closed = [&usual[..], &["--connections", "256", "--warm-up", "1"]].concat();
    let saturation = trials.run(peer, conditions, file, &closed)?.goodput();
    // Without a reply, the last ones waited infinitely longer than the first.
    let mut ratio = f64::INFINITY;
    for multiple in MULTIPLES {
        if multiple < 1.0 && !is_first {
            continue;
        }
        let rate = format!("{:.0}", saturation * multiple);
        let args = [&usual[..], &["--rate", &rate, "--warm-up", WARM_UP]].concat();
        let (trial, requests) = run_with_log(trials, peer, conditions, file, &args)?;
        let warm_up = WARM_UP.parse().unwrap_or(0.0);
        let period = warm_up..warm_up + trial.observed.seconds;
        let answered = requests.iter().filter(|r| r.is_answered && period.contains(&r.due_s));
        let times: Vec<_> = answered.map(|request| request.response_ms).collect();
        let step = times.len().div_ceil(MAX_POINTS).max(1);
        let figure =
            format!("Response time in order of completion, at {multiple} times saturation");
        for (i, ms) in times.iter().enumerate().step_by(step).filter(|_| is_first) {
            if let Some(y) = spread(&[*ms]) {
                outcome.point(&figure, "ms", &peer.to_string(), X::Number(i as f64), y);
            }
        }
        let of = &trial.observed.response_us;
        if multiple > 1.0 && of.p50 > 0.0 {
            ratio = of.p99 / of.p50;
        }
    }
    Ok(ratio)
}
