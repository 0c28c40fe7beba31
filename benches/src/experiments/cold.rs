//! Connections that do nothing, and what they cost those that do.

use std::time::{Duration, Instant};

use super::{Context, Experiment, contestants};
use crate::failure::Failure;
use crate::measure::{Conditions, Others, Peer, Quota, SOURCES, Server, Site, Trial, Trials};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "cold",
    title: "a proxy with up to 18,000 idle connections: throughput for 32 busy ones; latency against \
            the rate of requests with 750 idle ones",
    source: "Banga, Mogul and Druschel, section 7.3, figures 8 and 9",
    own_network: true,
    run,
};

/// The share of a core that the proxy has, in percent.
const SHARE: u32 = 20;
/// Numbers of idle connections.
const QUICK: [u32; 3] = [0, 2_000, 18_000];
const FULL: [u32; 7] = [0, 500, 1_000, 2_000, 5_000, 10_000, 18_000];
/// Who looks at each idle connection at every turn takes too long beyond.
const MOST_SCANNED: u32 = 2_000;
const ROUNDS: usize = 5;
/// How long figure 8 may take.
const QUICK_TIME: Duration = Duration::from_secs(40);
const TIME: Duration = Duration::from_secs(660);
/// Of figure 9.
const COLD: &str = "750";
/// Rates, as multiples of what the proxy does on epoll in a closed loop.
const RATES: [f64; 5] = [0.25, 0.5, 0.75, 0.9, 1.0];

const FILE: (&str, usize) = ("/1k.txt", 1 << 10);

const NOTES: [&str; 3] = [
    "The proxy of the examples, with 20 % of core 0, before a web server on core 1, where the load \
     comes from, too. It connects to the web server when a client has asked for something. 32 \
     clients in a closed loop, a new connection for each request, a file of 1 KB.",
    "select and poll are not asked to hold more than 2,000 idle connections.",
    "Rounds go through all mechanisms and numbers; ratios are taken within a round.",
];

/// One mechanism and its runs.
struct ServerRuns {
    mechanism: &'static str,
    runs: Vec<Ran>,
}

/// A run with so many idle connections.
struct Ran {
    round: usize,
    cold: u32,
    trial: Trial,
}

impl ServerRuns {
    fn goodput(&self, round: usize, cold: u32) -> Option<f64> {
        let ran = self.runs.iter().find(|ran| (ran.round, ran.cold) == (round, cold));
        ran.map(|ran| ran.trial.goodput())
    }
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let quota = Quota::new(SHARE)?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = Site::bare(b"")?;
    let on_client_core = Conditions { cores: &[1], ..Conditions::default() };
    let origin = Server::start_under(&Peer::Ours("epoll").subject(), &site, &on_client_core)?;
    let conditions = Conditions {
        quota: Some(&quota),
        upstream: Some(origin.address()),
        ..Conditions::default()
    };
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 });
    let others = Others::watch()?;
    let wanted: &[&str] = if cx.quick {
        &["select", "epoll", "interest", "uring", "send"]
    } else {
        &["select", "poll", "epoll", "interest", "uring", "send"]
    };
    let (numbers, rounds) = if cx.quick { (&QUICK[..], 3) } else { (&FULL[..], ROUNDS) };
    let (begun, time) = (Instant::now(), if cx.quick { QUICK_TIME } else { TIME });
    let seconds = if cx.quick { "1" } else { "2" };
    let side = |mechanism| ServerRuns { mechanism, runs: Vec::new() };
    let mut sides: Vec<_> = contestants::available(wanted).into_iter().map(side).collect();
    cx.progress.set_length((rounds * sides.len() * numbers.len()) as u64);
    for round in 0..rounds {
        for cold in numbers {
            for side in &mut sides {
                cx.progress.inc(1);
                let scans = ["select", "poll"].contains(&side.mechanism);
                if scans && *cold > MOST_SCANNED {
                    continue;
                }
                if begun.elapsed() > time {
                    trials.note_late();
                    continue;
                }
                cx.progress.set_message(format!("{}: {cold} idle", side.mechanism));
                let number = cold.to_string();
                let words = ["--connections", "32", "--requests", "1", "--cold", &number];
                let times = ["--warm-up", "1", "--duration", seconds];
                let words = [&words[..], &times, &SOURCES].concat();
                let trial = trials.run(Peer::Proxy(side.mechanism), &conditions, FILE, &words);
                let trial = match trial {
                    Ok(trial) => trial,
                    Err(failure) => {
                        let what = format!("{}, {cold} idle, failed: {failure}.", side.mechanism);
                        outcome.notes.push(what);
                        continue;
                    }
                };
                side.runs.push(Ran { round, cold: *cold, trial });
            }
        }
    }
    for side in &sides {
        figure_8(side, numbers, &mut outcome);
    }
    goals(&sides, rounds, &mut outcome);
    shows(&mut outcome);
    if !cx.quick {
        let mechanisms: Vec<_> = sides.iter().map(|side| side.mechanism).collect();
        figure_9(cx, &mechanisms, &conditions, &mut trials, &mut outcome);
    }
    // Children count as ours when they have ended.
    drop(origin);
    outcome.notes.extend(others.note()?);
    trials.tell(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn figure_8(side: &ServerRuns, numbers: &[u32], outcome: &mut Outcome) {
    for cold in numbers {
        let runs = side.runs.iter().filter(|ran| ran.cold == *cold);
        let mut add = |figure: &str, unit: &str, of: fn(&Trial) -> Option<f64>| {
            let values: Vec<_> = runs.clone().filter_map(|ran| of(&ran.trial)).collect();
            if let Some(y) = spread(&values) {
                outcome.point(figure, unit, side.mechanism, X::Number(f64::from(*cold)), y);
            }
        };
        add("Throughput against idle connections", "replies/s", |t| Some(t.goodput()));
        add("Proxy CPU per reply against idle connections", "us", Trial::cpu_us_per_reply);
    }
}

fn goals(sides: &[ServerRuns], rounds: usize, outcome: &mut Outcome) {
    let select = sides.iter().find(|side| side.mechanism == "select");
    let mut add = |ratio: String, above: (&ServerRuns, u32), below: (&ServerRuns, u32)| {
        let goodput = |(side, cold): (&ServerRuns, u32), round| side.goodput(round, cold);
        let pairs = (0..rounds).filter_map(|r| goodput(above, r).zip(goodput(below, r)));
        let (above, below): (Vec<_>, Vec<_>) = pairs.unzip();
        if let Some(y) = spread(&ratios(&above, &below)) {
            outcome.point("Ratios", "", &ratio, X::Name("throughput".to_owned()), y);
            outcome.ratios.insert(ratio, y.median);
        }
    };
    for side in sides {
        let name = side.mechanism.replace('-', "_");
        for cold in [2_000, 18_000] {
            add(format!("{name}_{cold}_over_0"), (side, cold), (side, 0));
        }
        if let Some(select) = select.filter(|select| select.mechanism != side.mechanism) {
            add(format!("{name}_over_select_2000"), (side, 2_000), (select, 2_000));
        }
    }
}

/// What it shows.
fn shows(outcome: &mut Outcome) {
    let (all, some) = (outcome.percentages("_18000_over_0"), outcome.percentages("_2000_over_0"));
    let over = outcome.ratios.get("epoll_over_select_2000").map_or(String::new(), |ratio| {
        format!(" There epoll does {ratio:.2} times what select does.")
    });
    outcome.shows.push(format!(
        "Of what it does without idle connections each does with 18,000 of them: {all}; with 2,000: \
         {some}.{over}"
    ));
    outcome.paper(
        "Throughput against idle connections",
        "Banga et al., figure 8, 0 to 2,000 idle connections: with the new interface throughput does \
         not depend on them; at 2,000 it is 1.28 times that with an improved select().",
    );
    outcome.paper(
        "Mean response time against request rate, 750 idle connections",
        "Banga et al., figure 9: latency is much lower with the new interface; saturation at 1,348 \
         requests per second against 1,291 with an improved select().",
    );
}

/// Latency against rate.
fn figure_9(
    cx: &Context,
    mechanisms: &[&'static str],
    conditions: &Conditions<'_>,
    trials: &mut Trials<'_>,
    outcome: &mut Outcome,
) {
    let usual = ["--requests", "1", "--cold", COLD, "--deadline", "2", "--duration", "4"];
    let usual = [&usual[..], &SOURCES].concat();
    let closed = [&usual[..], &["--connections", "32"]].concat();
    let saturation = match trials.run(Peer::Proxy("epoll"), conditions, FILE, &closed) {
        Ok(trial) => trial.goodput(),
        Err(failure) => return outcome.notes.push(format!("Figure 9 failed: {failure}.")),
    };
    for multiple in RATES {
        let rate = format!("{:.0}", saturation * multiple);
        for mechanism in mechanisms {
            cx.progress.set_message(format!("{mechanism}: {rate} requests per second"));
            if cx.is_late() {
                trials.note_late();
                continue;
            }
            let words = [&usual[..], &["--rate", &rate]].concat();
            let trial = match trials.run(Peer::Proxy(mechanism), conditions, FILE, &words) {
                Ok(trial) => trial,
                Err(failure) => {
                    outcome
                        .notes
                        .push(format!("{mechanism}, {rate} per second, failed: {failure}."));
                    continue;
                }
            };
            let x = || X::Number((saturation * multiple).round());
            let figure = "against request rate, 750 idle connections";
            let mut add = |name: &str, ms: Option<f64>| {
                if let Some(y) = ms.and_then(|ms| spread(&[ms])) {
                    outcome.point(&format!("{name} {figure}"), "ms", mechanism, x(), y);
                }
            };
            add("Mean response time", trial.mean_ms());
            add("99th percentile of response times", trial.p99_ms());
        }
    }
}
