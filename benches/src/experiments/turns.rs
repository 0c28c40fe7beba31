//! Servers that are loaded in turn, a slice each, so that what slows the machine down slows all of them.

use super::Context;
use crate::failure::Failure;
use crate::measure::{Load, OtherPrograms, Perf, Sample, Server};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;

/// Rounds, and slices of a round.
pub(super) const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 5;
const SLICES: usize = 6;
const QUICK_SLICES: usize = 2;

pub(super) const NOTE: &str = "In each round all servers are new processes, loaded in turn, in a shuffled order that is reversed after each \
     slice. The order of the workloads is shuffled too. Ratios are taken within a round.";

/// A workload of all servers.
pub(super) trait Cell {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Returns the number of connections.
    fn connections(&self) -> usize;

    /// Returns whether ratios are taken here, and system calls are counted.
    fn is_compared(&self) -> bool;

    /// Returns the number of requests of a slice, after which another server runs.
    fn slice(&self, quick: bool) -> u64;

    /// Starts a server and its load, which has made so many requests at least.
    fn start(&self, server: &str, warm_up: u64) -> Result<(Load, Server), Failure>;
}

/// The measurements of a server under a workload, one per round.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub samples: Vec<Sample>,
    /// System calls per request.
    pub system_calls: Vec<f64>,
}

impl Measured {
    pub(super) fn of(&self, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(figure).collect()
    }

    /// Returns the requests in a second of the server's CPU time.
    pub(super) fn rates(&self) -> Vec<f64> {
        self.of(per_cpu_second)
    }
}

/// Returns the requests in a second of the server's CPU time.
fn per_cpu_second(sample: &Sample) -> f64 {
    1e9 / sample.cpu_ns()
}

/// Measures every server in every cell: the outer list has the cells, the inner one the servers.
pub(super) fn measure<C: Cell>(
    cx: &Context,
    servers: &[&'static str],
    cells: &[C],
    outcome: &mut Outcome,
) -> Result<Vec<Vec<Measured>>, Failure> {
    let perf = Perf::find().map_err(|failure| outcome.notes.push(format!("{failure}."))).ok();
    let others = OtherPrograms::watch()?;
    let mut all = vec![vec![Measured::default(); servers.len()]; cells.len()];
    let mut refused = None;
    let rounds = if cx.quick { QUICK_ROUNDS } else { ROUNDS };
    cx.progress.set_length((rounds * cells.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for i in round.order(cells.len()) {
            let cell = &cells[i];
            cx.progress.set_message(format!("{}, {} connections", cell.name(), cell.connections()));
            let order = round.order(servers.len());
            let perf = perf.as_ref().filter(|_| cell.is_compared() && refused.is_none());
            for (measured, run) in all[i].iter_mut().zip(run(cx, servers, cell, &order, perf)?) {
                measured.samples.push(run.sample);
                match run.system_calls {
                    Some(Ok(calls)) => measured.system_calls.push(calls),
                    Some(Err(failure)) => refused = Some(failure),
                    None => {}
                }
            }
            cx.progress.inc(1);
        }
    }
    outcome.notes.extend(refused.map(|failure| format!("{failure}.")));
    outcome.notes.extend(others.note()?);
    Ok(all)
}

/// The cost of a server in one round.
struct Run {
    sample: Sample,
    /// System calls per request, if they were counted.
    system_calls: Option<Result<f64, Failure>>,
}

/// A server with its client. The client is dropped first.
struct Running {
    load: Load,
    server: Server,
    sample: Sample,
}

/// Measures all servers in one cell, in turn.
fn run(
    cx: &Context,
    servers: &[&str],
    cell: &impl Cell,
    order: &[usize],
    perf: Option<&Perf>,
) -> Result<Vec<Run>, Failure> {
    let slice = cell.slice(cx.quick);
    let start = |name: &&str| {
        let (load, server) = cell.start(name, slice)?;
        Ok(Running { load, server, sample: Sample::default() })
    };
    let mut running = servers.iter().map(start).collect::<Result<Vec<_>, Failure>>()?;
    for number in 0..if cx.quick { QUICK_SLICES } else { SLICES } {
        let mut order = order.to_vec();
        if number % 2 == 1 {
            order.reverse();
        }
        for i in order {
            let Running { load, server, sample } = &mut running[i];
            *sample += Sample::take(server, load, slice)?;
        }
    }
    let end = |Running { mut load, server, sample }: Running| {
        let system_calls = perf.map(|perf| {
            let run = || load.requests(slice).map(|_| ());
            Ok(perf.system_calls(server.family(), run)? as f64 / slice as f64)
        });
        Run { sample, system_calls }
    };
    Ok(running.into_iter().map(end).collect())
}

/// Returns the cost of a mode switch, then and now, as sentences.
pub(super) fn mode_switch(null_ns: f64) -> String {
    format!(
        "A null call, which switches to the kernel and back, takes {null_ns:.0} ns here. The paper gives no time of a \
         mode switch. By its figure 1, a pwrite(2) every 1,000 to 2,000 instructions reduces the instructions per \
         cycle of a program from 1.46 to 0.50 to 0.58, mainly by the switch itself: on its Core i7 (Nehalem) of 2.3 GHz, \
         each call cost the program some 1,300 to 2,100 cycles outside the kernel, or 570 to 900 ns."
    )
}

/// Adds a point, unless nothing was measured.
pub(super) fn add(
    outcome: &mut Outcome,
    figure: &str,
    unit: &str,
    (series, x): (&str, X),
    values: &[f64],
) {
    if let Some(y) = spread(values) {
        outcome.point(figure, unit, series, x, y);
    }
}

/// Adds how busy server and client were.
pub(super) fn add_busy(
    outcome: &mut Outcome,
    figure: &str,
    cell: &str,
    server: &str,
    measured: &Measured,
) {
    let (ours, client) = (measured.of(Sample::server_busy), measured.of(Sample::client_busy));
    for (side, parts) in [("server", ours), ("client", client)] {
        let place = (&*format!("{cell}: {side}"), X::Name(server.to_owned()));
        add(outcome, figure, "part of a core", place, &parts);
    }
}

/// Returns the requests of a server in a second of its CPU time, in each round.
pub(super) fn rates(servers: &[&str], all: &[Measured], name: &str) -> Option<Vec<f64>> {
    let i = servers.iter().position(|server| *server == name)?;
    Some(all[i].rates())
}
