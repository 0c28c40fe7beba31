//! The cost of idle connections for busy ones.

use std::time::{Duration, Instant};

use super::{Context, Experiment, servers};
use crate::failure::Failure;
use crate::measure::{
    Conditions, OtherPrograms, Peer, Quota, SOURCES, Server, Site, Trial, Trials,
};
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

/// CPU share of the proxy, in percent of a core.
const SHARE: u32 = 20;
/// Numbers of idle connections: those of the ratios, in every round, and all, in the first one.
const COMPARED: [u32; 3] = [0, 2_000, 18_000];
const FULL: [u32; 7] = [0, 500, 1_000, 2_000, 5_000, 10_000, 18_000];
/// Maximum number of idle connections for mechanisms that scan all descriptors at every turn.
const MAX_SCANNED: u32 = 2_000;
const ROUNDS: usize = 6;
/// Time limits of figure 8.
const QUICK_TIME: Duration = Duration::from_secs(40);
const TIME: Duration = Duration::from_secs(1_200);
/// Idle connections in figure 9.
const COLD: &str = "750";
/// Rates, as multiples of the goodput of the proxy on epoll in a closed loop.
const RATES: [f64; 5] = [0.25, 0.5, 0.75, 0.9, 1.0];

const FILE: (&str, usize) = ("/1k.txt", 1 << 10);

const NOTES: [&str; 3] = [
    "The example proxy, with 20 % of core 0, in front of a web server on core 1, which also runs the \
     load generator. It connects to the web server after a client's request. 32 clients in a closed \
     loop, a new connection for each request, a file of 1 KB.",
    "select and poll are measured with at most 2,000 idle connections.",
    "A round covers all mechanisms with 0, 2,000 and 18,000 idle connections, of which the ratios are, the first one also \
     the other numbers. The order of the mechanisms is shuffled, and that of the numbers of each. Ratios are taken within a \
     round.",
];

/// A mechanism and its runs.
struct ServerRuns {
    mechanism: &'static str,
    runs: Vec<ColdRun>,
}

/// A run with a number of idle connections.
struct ColdRun {
    round: usize,
    cold: u32,
    trial: Trial,
}

impl ServerRuns {
    fn goodput(&self, round: usize, cold: u32) -> Option<f64> {
        let run = self.runs.iter().find(|run| (run.round, run.cold) == (round, cold));
        run.map(|run| run.trial.goodput())
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
    let others = OtherPrograms::watch()?;
    let names: &[&str] = if cx.quick {
        &["select", "epoll", "interest", "uring", "send"]
    } else {
        &["select", "poll", "epoll", "interest", "uring", "send"]
    };
    let (numbers, rounds) = if cx.quick { (&COMPARED[..], 3) } else { (&FULL[..], ROUNDS) };
    let (start, limit) = (Instant::now(), if cx.quick { QUICK_TIME } else { TIME });
    let seconds = if cx.quick { "1" } else { "2" };
    let server = |mechanism| ServerRuns { mechanism, runs: Vec::new() };
    let mut servers: Vec<_> = servers::available(names).into_iter().map(server).collect();
    let steps = numbers.len() + (rounds - 1) * COMPARED.len();
    cx.progress.set_length((steps * servers.len()) as u64);
    for mut round in cx.rounds(rounds) {
        trials.set_seed(round.load_seed);
        let numbers = if round.number == 0 { numbers } else { &COMPARED };
        for i in round.order(servers.len()) {
            let server = &mut servers[i];
            // Next to one another, as ratios of a mechanism compare its numbers.
            for at in round.order(numbers.len()) {
                let cold = &numbers[at];
                cx.progress.inc(1);
                let scans = ["select", "poll"].contains(&server.mechanism);
                if scans && *cold > MAX_SCANNED {
                    continue;
                }
                if start.elapsed() > limit {
                    trials.note_skipped();
                    continue;
                }
                cx.progress.set_message(format!("{}: {cold} idle", server.mechanism));
                let count = cold.to_string();
                let args = ["--connections", "32", "--requests", "1", "--idle-connections", &count];
                let times = ["--warm-up", "1", "--duration", seconds];
                let args = [&args[..], &times, &SOURCES].concat();
                let trial = trials.run(Peer::Proxy(server.mechanism), &conditions, FILE, &args);
                let trial = match trial {
                    Ok(trial) => trial,
                    Err(failure) => {
                        let what = format!("{}, {cold} idle, failed: {failure}.", server.mechanism);
                        outcome.notes.push(what);
                        continue;
                    }
                };
                server.runs.push(ColdRun { round: round.number, cold: *cold, trial });
            }
        }
    }
    for server in &servers {
        figure_8(server, numbers, &mut outcome);
    }
    goals(&servers, rounds, &mut outcome);
    findings(&mut outcome);
    if !cx.quick {
        let mechanisms: Vec<_> = servers.iter().map(|server| server.mechanism).collect();
        let mut near_saturation = Trials::new(&site, 2).may_fail();
        figure_9(cx, &mechanisms, &conditions, &mut near_saturation, &mut outcome);
        near_saturation.report(&mut outcome);
    }
    // The CPU time of a child counts as ours only after it has ended.
    drop(origin);
    outcome.notes.extend(others.note()?);
    trials.report(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn figure_8(server: &ServerRuns, numbers: &[u32], outcome: &mut Outcome) {
    for cold in numbers {
        let runs = server.runs.iter().filter(|run| run.cold == *cold);
        let mut add = |figure: &str, unit: &str, of: fn(&Trial) -> Option<f64>| {
            let values: Vec<_> = runs.clone().filter_map(|run| of(&run.trial)).collect();
            if let Some(y) = spread(&values) {
                outcome.point(figure, unit, server.mechanism, X::Number(f64::from(*cold)), y);
            }
        };
        add("Throughput against idle connections", "replies/s", |t| Some(t.goodput()));
        add("Proxy CPU per reply against idle connections", "us", Trial::cpu_us_per_reply);
    }
}

fn goals(servers: &[ServerRuns], rounds: usize, outcome: &mut Outcome) {
    let select = servers.iter().find(|server| server.mechanism == "select");
    let mut add = |ratio: String, above: (&ServerRuns, u32), below: (&ServerRuns, u32)| {
        let mechanism = above.0.mechanism;
        let goodput = |(server, cold): (&ServerRuns, u32), round| server.goodput(round, cold);
        let pairs = (0..rounds).filter_map(|r| goodput(above, r).zip(goodput(below, r)));
        let (above, below): (Vec<_>, Vec<_>) = pairs.unzip();
        outcome.ratio(ratio, mechanism, ratios(&above, &below));
    };
    for server in servers {
        let name = server.mechanism.replace('-', "_");
        for cold in [2_000, 18_000] {
            add(format!("{name}_{cold}_over_0"), (server, cold), (server, 0));
        }
        if let Some(select) = select.filter(|select| select.mechanism != server.mechanism) {
            add(format!("{name}_over_select_2000"), (server, 2_000), (select, 2_000));
        }
    }
}

fn findings(outcome: &mut Outcome) {
    let (all, some) = (outcome.percentages("_18000_over_0"), outcome.percentages("_2000_over_0"));
    let over = outcome.median("epoll_over_select_2000").map_or(String::new(), |ratio| {
        format!(" At 2,000, epoll has {ratio:.2} times the throughput of select.")
    });
    outcome.shows.push(format!(
        "Throughput relative to that without idle connections, with 18,000 of them: {all}; with 2,000: \
             {some}.{over}"
    ));
    outcome.paper(
        "Throughput against idle connections",
        "Banga et al., figure 8, 0 to 2,000 idle connections: throughput with the new interface is \
             constant; at 2,000 it is 1.28 times that with an improved select().",
    );
    outcome.paper(
        "Mean response time against request rate, 750 idle connections",
        "Banga et al., figure 9: latency is much lower with the new interface; saturation at 1,348 \
         requests per second against 1,291 with an improved select().",
    );
}

/// Measures latency against request rate.
fn figure_9(
    cx: &Context,
    mechanisms: &[&'static str],
    conditions: &Conditions<'_>,
    trials: &mut Trials<'_>,
    outcome: &mut Outcome,
) {
    let usual =
        ["--requests", "1", "--idle-connections", COLD, "--timeout", "2", "--duration", "4"];
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
                trials.note_skipped();
                continue;
            }
            let args = [&usual[..], &["--rate", &rate]].concat();
            let trial = match trials.run(Peer::Proxy(mechanism), conditions, FILE, &args) {
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
