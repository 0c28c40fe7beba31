//! The ways and the policies for sending files, by size of the file, state of the page cache, and speed of the clients.

use super::super::servers::DEFAULT;
use super::super::{Context, Experiment};
use super::results::Figure;
use super::{COMPARED, Cache, Case, Files, Run, Runner, Speed, unsent, ways};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, Peer, Site, Trial};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratio, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "file-delivery",
    title: "sendfile, reads of the ring and pipes compared, by size of the file and state of the page cache; the policies \
            for sending files, also by speed of the clients; limits of a socket's unsent bytes",
    source: "goal of this project: `auto` is what measured best",
    own_network: false,
    run,
};

const ROUNDS: usize = 3;

const AUTO: Peer = Peer::Delivery(DEFAULT, "auto");
const OTHERS: [Peer; 3] = [
    Peer::Delivery(DEFAULT, "plain"),
    Peer::Delivery(DEFAULT, "ded"),
    Peer::Delivery(DEFAULT, "dns"),
];

/// Files, and how many of them are not cached: more than servers send in a run, at 1.5 to 3.4 GB per second. The server
/// keeps smaller ones in its own cache.
const ALL: [Files; 3] = [
    Files { name: "100k", bytes: 100 << 10, cold: 14_000 },
    Files { name: "1m", bytes: 1 << 20, cold: 2_500 },
    super::FILES,
];
const QUICK: [Files; 1] = [Files { name: "1m", bytes: 1 << 20, cold: 500 }];

const NOTES: [&str; 2] = [
    "120 clients; on the default mechanism; the server runs on core 0, the load generator on core 1. `SO_SNDBUF` is \
     64 KiB. Clients with a limited rate receive 400 KB per second each.",
    "`auto` is `dns` for files that the server sends as they are, so the two differ by noise only.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let others = OtherPrograms::watch()?;
    let site = Site::bare(b"")?;
    if let Err(failure) = ways::run(cx, &site, &mut outcome) {
        outcome.notes.push(format!("The ways of one sender failed: {failure}."));
    }
    let (all, rounds) = if cx.quick { (&QUICK[..], 1) } else { (&ALL[..], ROUNDS) };
    all.iter().try_for_each(|files| files.create(&site))?;
    let cases = [
        Case::new(COMPARED, Cache::Cached, Speed::Fast),
        Case::new(COMPARED, Cache::Cold, Speed::Fast),
        Case::new(COMPARED, Cache::Cached, Speed::Limited),
        Case::new(COMPARED, Cache::Cold, Speed::Limited),
    ];
    let peers = [&[AUTO][..], &OTHERS].concat();
    let mut runner = Runner::new(cx, &site);
    let mut runs: Vec<(usize, Run)> = Vec::new();
    let runs_of_policies = rounds * all.len() * cases.len() * peers.len();
    cx.progress.set_length((runs_of_policies + unsent::RUNS) as u64);
    for mut round in cx.rounds(rounds) {
        runner.seed = round.load_seed;
        for (at, files) in all.iter().enumerate() {
            runner.files = *files;
            for case in cases {
                for i in round.order(peers.len()) {
                    cx.progress.inc(1);
                    let peer = peers[i];
                    cx.progress.set_message(format!("{peer}: {}, {case}", files.name));
                    match runner.run(peer, case) {
                        Ok(trial) => {
                            runs.push((at, Run { peer, round: round.number, case, trial }));
                        }
                        Err(failure) => {
                            let what =
                                format!("{peer}, {}, {case}, failed: {failure}.", files.name);
                            outcome.notes.push(what);
                        }
                    }
                }
            }
        }
    }
    report(&runs, all, &cases, &peers, &mut outcome);
    // Of the last length.
    unsent::run(cx, &mut runner, &mut outcome);
    outcome.notes.extend(others.note()?);
    runner.trials.report(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn report(
    runs: &[(usize, Run)],
    all: &[Files],
    cases: &[Case],
    peers: &[Peer],
    outcome: &mut Outcome,
) {
    let (cpu, rate): (Figure, Figure) =
        (Trial::cpu_us_per_megabyte, |trial| Some(trial.received_megabytes()));
    let (mut cpu_worst, mut rate_worst) = (None::<f64>, None::<f64>);
    for (at, files) in all.iter().enumerate() {
        for case in cases {
            let name = format!("{}{}", files.name, case.suffix());
            let median = |peer: Peer, of: Figure| {
                let these = runs
                    .iter()
                    .filter(|(of_files, run)| (*of_files, run.peer, run.case) == (at, peer, *case));
                let values: Vec<_> = these.filter_map(|(_, run)| of(&run.trial)).collect();
                spread(&values)
            };
            let is_fast = case.speed == Speed::Fast;
            for peer in peers {
                let mut add = |figure: &str, unit: &str, of: Figure| {
                    if let Some(y) = median(*peer, of) {
                        outcome.point(figure, unit, &peer.to_string(), X::Name(name.clone()), y);
                    }
                };
                add("Server CPU", "us per MB", cpu);
                if is_fast {
                    add("Rate", "MB/s", rate);
                }
            }
            let of = |peer, figure| median(peer, figure).map(|spread| spread.median);
            let best_cpu = OTHERS.iter().filter_map(|peer| of(*peer, cpu)).reduce(f64::min);
            let best_rate = OTHERS.iter().filter_map(|peer| of(*peer, rate)).reduce(f64::max);
            if let Some((auto, best)) = of(AUTO, cpu).zip(best_cpu) {
                cpu_worst = Some(ratio(auto, best).max(cpu_worst.unwrap_or(0.0)));
            }
            if let Some((auto, best)) = of(AUTO, rate).zip(best_rate).filter(|_| is_fast) {
                rate_worst = Some(ratio(auto, best).min(rate_worst.unwrap_or(f64::MAX)));
            }
        }
    }
    let name = AUTO.to_string();
    if let Some(value) = cpu_worst {
        outcome.count("auto_cpu_over_best_worst", &name, value);
    }
    if let Some(value) = rate_worst {
        outcome.count("auto_rate_over_best_worst", &name, value);
    }
}
