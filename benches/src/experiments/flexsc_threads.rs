//! Green threads and threads of the kernel, one for each connection (FlexSC-Threads).

use super::{Context, Experiment};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, Sample, Site, Subject, UnderLoad, raise_descriptors};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "flexsc-threads",
    title: "a thread for each of up to 10,000 connections: green threads, whose calls are posted, and \
            threads of the kernel",
    source: "FlexSC, section 1 (FlexSC-Threads); goal of this project: at 10,000 connections at most \
             two thirds of the CPU time",
    own_network: false,
    run,
};

/// The floors that are compared: green threads first.
const SERVERS: [&str; 2] = ["green", "os-threads"];
/// Numbers of connections. Ratios are taken at the last.
const FULL: [usize; 3] = [100, 1_000, 10_000];
const QUICK: [usize; 2] = [10, 200];
const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 2;
/// Requests in a slice, after which the other server runs, and slices of a round.
const SLICE: u64 = 10_000;
const QUICK_SLICE: u64 = 500;
const SLICES: usize = 6;

const FIGURE: &str = "CPU time of a request against connections";

const NOTES: [&str; 2] = [
    "Each server echoes on core 0; the client has core 1, and one request at a time on each connection. \
     Stacks have 256 KiB. CPU time is that of all threads of the server, those for system calls included.",
    "In each round both servers are new processes, loaded in turn; the order of the numbers of \
     connections is shuffled. Ratios are taken within a round.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    raise_descriptors();
    let site = Site::bare(b"")?;
    let others = OtherPrograms::watch()?;
    let (numbers, rounds) = if cx.quick { (&QUICK[..], QUICK_ROUNDS) } else { (&FULL[..], ROUNDS) };
    let mut costs = vec![[const { Vec::new() }; 2]; numbers.len()];
    cx.progress.set_length((rounds * numbers.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for i in round.order(numbers.len()) {
            cx.progress.set_message(format!("{} connections", numbers[i]));
            let each = measure(cx, &site, numbers[i], round.number)?;
            costs[i].iter_mut().zip(each).for_each(|(costs, cost)| costs.push(cost));
            cx.progress.inc(1);
        }
    }
    for (connections, costs) in numbers.iter().zip(&costs) {
        for (server, costs) in SERVERS.iter().zip(costs) {
            if let Some(y) = spread(costs) {
                outcome.point(FIGURE, "ns", server, X::Number(*connections as f64), y);
            }
        }
    }
    if let Some([green, os]) = costs.last() {
        outcome.ratio("green_over_os", "green", ratios(os, green));
    }
    if let Some(ratio) = outcome.median("green_over_os") {
        let connections = numbers.last().copied().unwrap_or(0);
        outcome.shows.push(format!(
            "With {connections} connections, a request costs threads of the kernel {ratio:.2} times the \
             CPU time that it costs green threads."
        ));
    }
    outcome.paper(
        FIGURE,
        "FlexSC, section 1: FlexSC-Threads, an M-on-N thread package, improved unmodified multi-threaded \
         servers (Apache by up to 116 %, MySQL by 40 %, BIND by 105 %); the measurements are in an earlier \
         paper.",
    );
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Measures both servers with a number of connections, in turn. Returns the CPU time of a request.
fn measure(
    cx: &Context,
    site: &Site,
    connections: usize,
    round: usize,
) -> Result<[f64; 2], Failure> {
    let (slice, slices) = if cx.quick { (QUICK_SLICE, 2) } else { (SLICE, SLICES) };
    let start = |mechanism: &str| {
        let mechanism = mechanism.to_owned();
        let subject = Subject { what: ServerKind::Floor, mechanism, work: Workload::Echo };
        UnderLoad::start(&subject, site, connections, slice.max(2 * connections as u64))
    };
    let mut servers = [start(SERVERS[0])?, start(SERVERS[1])?];
    let mut samples = [Sample::default(); 2];
    for number in 0..slices {
        // The order first, second, second, first cancels a steady drift.
        let first = (round + number) % 2;
        for server in [first, 1 - first] {
            samples[server] += servers[server].measure(slice)?;
        }
    }
    for server in servers {
        server.stop()?;
    }
    Ok(samples.map(|sample| sample.cpu_ns()))
}
