//! The web server on posted calls, without a cache of files (FlexSC, section 6.2).

use std::thread;
use std::time::Duration;

use super::servers::{self, available};
use super::system_call::null_call_ns;
use super::{Context, Experiment};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::measure::{
    ClientWork, Load, OtherPrograms, Perf, Sample, Server, Site, Subject, fetch, raise_descriptors,
};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "flexsc-web",
    title: "the web server on epoll, io_uring and posted calls, and nginx, all without a cache of files: \
            requests and latency by connections",
    source: "FlexSC, figures 7 and 8; goal of this project: with 256 connections 1.4 times the requests \
             per second of CPU time of nginx, 0.95 of those of io_uring",
    own_network: false,
    run,
};

/// The mechanisms of our server.
const MECHANISMS: [&str; 3] = ["epoll", "uring", "flexsc"];
const NGINX: &str = "nginx";
/// The setting of our server, and the configuration of nginx.
const UNCACHED: &str = "uncached";

const PATH: &str = "/1k.txt";
const BODY_BYTES: usize = 1 << 10;

/// Numbers of connections.
const FULL: [usize; 6] = [1, 4, 16, 64, CONNECTIONS, 1024];
const QUICK: [usize; 2] = [16, CONNECTIONS];
/// The number of connections of the ratios.
const CONNECTIONS: usize = 256;
const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 5;
/// Requests of a slice, after which another server runs, and slices of a round.
const SLICE: u64 = 6_000;
const QUICK_SLICE: u64 = 2_000;
const SLICES: usize = 6;
const QUICK_SLICES: usize = 2;

/// Time until the entity tags of new files are settled.
const SETTLED: Duration = Duration::from_millis(2_100);

const NOTES: [&str; 5] = [
    "Each server has one worker thread on core 0; the client has core 1. CPU time is that of all threads \
     of the server, including kernel workers. Where the client is busy all the time, it limits the rate, \
     so ratios are those of CPU time.",
    "In each round all servers are new processes, loaded in turn, in a shuffled order that is reversed \
     after each slice. Ratios are taken within a round.",
    "Each request is for the same file of 1 KiB. For each request, every server opens the file, queries \
     its metadata, reads it, sends it and closes it: nginx is tuned as in `peers`, but without \
     `open_file_cache`; our server has a cache of 0 bytes (`--cache-size 0`).",
    "The latency is the mean: connections over the rate, as each connection has one request at a time. \
     The paper's second core is the client's here.",
    "System calls are counted by perf while a server replies to one more slice: an entry into io_uring is \
     one, whatever it submits.",
];

/// A workload.
#[derive(Clone, Copy, Debug)]
struct Cell {
    connections: usize,
    /// Whether each request has its own connection.
    close: bool,
}

impl Cell {
    /// Returns every workload.
    fn all(connections: &[usize]) -> Vec<Cell> {
        let open = connections.iter().map(|n| Cell { connections: *n, close: false });
        open.chain([Cell { connections: CONNECTIONS, close: true }]).collect()
    }

    /// Returns whether ratios are taken here.
    fn is_compared(&self) -> bool {
        self.connections == CONNECTIONS
    }

    fn name(&self) -> &'static str {
        if self.close { "a connection for each request" } else { "open connections" }
    }
}

/// The measurements of a server under a workload, one per round.
#[derive(Clone, Debug, Default)]
struct Measured {
    samples: Vec<Sample>,
    system_calls: Vec<f64>,
}

impl Measured {
    fn of(&self, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(figure).collect()
    }
}

/// Returns the requests per second of the server's CPU time.
fn per_cpu_second(sample: &Sample) -> f64 {
    1e9 / sample.cpu_ns()
}

fn subject(server: &str) -> Subject {
    let (what, mechanism) = match server {
        NGINX => (ServerKind::Nginx, UNCACHED.to_owned()),
        mechanism => (ServerKind::Variant, format!("{mechanism}/{UNCACHED}")),
    };
    Subject { what, mechanism, work: Workload::File }
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    servers::note(servers::NGINX, false, &mut outcome)?;
    raise_descriptors();
    let site = Site::bare(b"")?;
    thread::sleep(SETTLED);
    let mut servers = available(&MECHANISMS);
    servers.push(NGINX);
    let cells = Cell::all(if cx.quick { &QUICK } else { &FULL });
    let perf = Perf::find().map_err(|failure| outcome.notes.push(format!("{failure}."))).ok();
    let others = OtherPrograms::watch()?;
    let all = measure_all(cx, &site, &servers, &cells, perf.as_ref(), &mut outcome)?;
    outcome.notes.extend(others.note()?);
    for (cell, all) in cells.iter().zip(&all) {
        report(cell, &servers, all, &mut outcome);
    }
    summary(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Measures every server in every cell: the outer list has the cells, the inner one the servers.
fn measure_all(
    cx: &Context,
    site: &Site,
    servers: &[&'static str],
    cells: &[Cell],
    perf: Option<&Perf>,
    outcome: &mut Outcome,
) -> Result<Vec<Vec<Measured>>, Failure> {
    let mut all = vec![vec![Measured::default(); servers.len()]; cells.len()];
    let mut refused = None;
    let rounds = if cx.quick { QUICK_ROUNDS } else { ROUNDS };
    cx.progress.set_length((rounds * cells.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for i in round.order(cells.len()) {
            let cell = cells[i];
            cx.progress.set_message(format!("{}, {} connections", cell.name(), cell.connections));
            let order = round.order(servers.len());
            let perf = perf.filter(|_| cell.is_compared() && refused.is_none());
            let runs = measure(cx, site, servers, cell, &order, perf)?;
            for (measured, run) in all[i].iter_mut().zip(runs) {
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
    Ok(all)
}

/// A server with its client. The client is dropped first.
struct Running {
    load: Load,
    server: Server,
    sample: Sample,
}

impl Running {
    fn start(name: &str, site: &Site, cell: Cell, warm_up: u64) -> Result<Self, Failure> {
        let mut server = Server::start(&subject(name), site)?;
        server.check_reply(PATH, BODY_BYTES)?;
        let reply_bytes = fetch(&server, PATH)?.len();
        let new = ClientWork::new(Workload::File, cell.connections, reply_bytes);
        let work = ClientWork { path: PATH, close: cell.close, ..new };
        let mut load = Load::start(server.address(), &work)?;
        load.requests(warm_up)?;
        Ok(Running { load, server, sample: Sample::default() })
    }
}

/// The cost of a server in one round.
struct Run {
    sample: Sample,
    /// System calls per request, if they were counted.
    system_calls: Option<Result<f64, Failure>>,
}

/// Measures all servers in one cell, in turn.
fn measure(
    cx: &Context,
    site: &Site,
    servers: &[&str],
    cell: Cell,
    order: &[usize],
    perf: Option<&Perf>,
) -> Result<Vec<Run>, Failure> {
    let (slice, slices) = if cx.quick { (QUICK_SLICE, QUICK_SLICES) } else { (SLICE, SLICES) };
    let warm_up = slice.max(2 * cell.connections as u64);
    let start = |name: &&str| Running::start(name, site, cell, warm_up);
    let mut running = servers.iter().map(start).collect::<Result<Vec<_>, Failure>>()?;
    for number in 0..slices {
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

const RATE: &str = "Requests";
const CPU_RATE: &str = "Requests in a second of the server's CPU time";
const LATENCY: &str = "Mean latency";
const CPU: &str = "Server CPU per request, 256 connections";
const CALLS: &str = "System calls per request, 256 connections";
const BUSY: &str = "Busy, 256 connections";

/// Adds the figures and ratios of a cell.
fn report(cell: &Cell, servers: &[&str], all: &[Measured], outcome: &mut Outcome) {
    let connections = cell.connections as f64;
    for (server, measured) in servers.iter().zip(all) {
        let mut add = |figure: &str, unit, series: &str, x: X, values: &[f64]| {
            if let Some(y) = spread(values) {
                outcome.point(figure, unit, series, x, y);
            }
        };
        if !cell.close {
            let x = || X::Number(connections);
            add(RATE, "per second", server, x(), &measured.of(Sample::rate));
            add(CPU_RATE, "per second", server, x(), &measured.of(per_cpu_second));
            add(LATENCY, "ms", server, x(), &measured.of(|s| connections * 1e3 / s.rate()));
        }
        if cell.is_compared() {
            let (name, x) = (cell.name(), || X::Name((*server).to_owned()));
            add(CPU, "ns", name, x(), &measured.of(Sample::cpu_ns));
            add(CALLS, "", name, x(), &measured.system_calls);
            let (ours, client) = (format!("{name}: server"), format!("{name}: client"));
            add(BUSY, "part of a core", &ours, x(), &measured.of(Sample::server_busy));
            add(BUSY, "part of a core", &client, x(), &measured.of(Sample::client_busy));
        }
    }
    if !cell.is_compared() {
        return;
    }
    let rates = |name: &str| {
        let i = servers.iter().position(|server| *server == name)?;
        Some(all[i].of(per_cpu_second))
    };
    let suffix = if cell.close { "_conn" } else { "" };
    for (below, name) in [(NGINX, "nginx_uncached"), ("uring", "uring"), ("epoll", "epoll")] {
        if let (Some(rate), Some(other)) = (rates("flexsc"), rates(below)) {
            let name = format!("flexsc_over_{name}{suffix}");
            outcome.ratio(name, "flexsc", ratios(&rate, &other));
        }
    }
}

/// Adds the cost of a mode switch, the findings, and the paper's results.
fn summary(outcome: &mut Outcome) {
    outcome.ratio("null_call_ns", "direct", null_call_ns(ROUNDS));
    let median = |name: &str| outcome.median(name);
    if let (Some(ratio), Some(null_ns)) = (median("flexsc_over_epoll"), median("null_call_ns")) {
        outcome.shows.push(format!(
            "Posted calls give {ratio:.2} times the requests of epoll in a second of CPU time, with 256 \
             connections; the paper: up to 1.70. A null call, which switches to the kernel and back, takes \
             {null_ns:.0} ns here."
        ));
    }
    outcome.paper(
        RATE,
        "FlexSC, figure 7: nginx 0.9.2 under ApacheBench. With 256 connections posted calls give up to \
         1.70 times the requests of epoll on one core, and up to 2.2 times on two.",
    );
    outcome.paper(
        LATENCY,
        "FlexSC, figure 8: with 256 connections posted calls reduce the mean latency by 42 % on one core, \
         by 58 % on two.",
    );
    outcome.paper(CALLS, "FlexSC, table 1: nginx makes 12 system calls per request.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_opens_the_file_for_each_request() {
        let site = Site::bare(b"").unwrap();
        for name in available(&MECHANISMS) {
            let mut server = Server::start(&subject(name), &site).unwrap();
            server.check_reply(PATH, BODY_BYTES).unwrap();
            site.add("1k.txt", 100).unwrap();
            server.check_reply(PATH, 100).unwrap();
            site.add("1k.txt", BODY_BYTES).unwrap();
            server.check_reply(PATH, BODY_BYTES).unwrap();
        }
    }
}
