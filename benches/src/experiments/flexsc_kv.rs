//! Our cache and memcached (FlexSC, section 6.1).

use super::servers::{DEFAULT, available};
use super::system_call::null_call_ns;
use super::{Context, Experiment};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::measure::{
    Callgrind, ClientWork, Load, OtherPrograms, Perf, Sample, Server, Site, Subject,
    raise_descriptors,
};
use crate::outcome::{Outcome, X};
use crate::serve;
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "flexsc-kv",
    title: "a cache on epoll, io_uring and posted calls, and memcached: replies by connections, 90 % get",
    source: "FlexSC, figure 5 and table 1; goal of this project: with 256 connections at least as many \
             replies per second of CPU time as memcached, 1.5 times as many with 16 requests at once",
    own_network: false,
    run,
};

/// The mechanisms of our cache.
const MECHANISMS: [&str; 3] = ["epoll", "uring", "flexsc"];
const MEMCACHED: &str = "memcached";

/// Numbers of connections with one request at a time.
const FULL: [usize; 6] = [1, 4, 16, 64, 256, 1024];
const QUICK: [usize; 2] = [16, CONNECTIONS];
/// The number of connections of the ratios, and of the other workloads.
const CONNECTIONS: usize = 256;
const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 5;
/// Batches of a slice, after which another server runs, and slices of a round.
const SLICE: u64 = 10_000;
const QUICK_SLICE: u64 = 2_000;
const SLICES: usize = 6;
const QUICK_SLICES: usize = 2;

const NOTES: [&str; 5] = [
    "Each server has one worker thread and 64 MiB on core 0; the client has core 1. CPU time is that of \
     all threads of the server, including kernel workers. Where the client is busy all the time, it \
     limits the rate, so ratios are those of CPU time. 10,000 keys of 16 to 48 bytes, all stored, with \
     values of 10 to 500 bytes.",
    "In each round all servers are new processes, loaded in turn, in a shuffled order that is reversed \
     after each slice. The order of the workloads is shuffled too. Ratios are taken within a round.",
    "kv: nine get, one set, one at a time on each connection. kv-gets: 16 lines `get KEY` are sent at \
     once. kv-multiget: a line `get` with 16 keys, which count as 16. memcached sends each reply to a \
     `get` line by itself; our server sends all replies to one read at once.",
    "System calls are counted by perf while a server replies to one more slice. Instructions are those \
     outside the kernel, counted under valgrind, where batches are larger.",
    "The ratio of the default mechanism is `kv_over_memcached`; the others are named by theirs.",
];

/// A workload.
#[derive(Clone, Copy, Debug)]
struct Cell {
    work: Workload,
    connections: usize,
}

impl Cell {
    /// Returns every workload.
    fn all(connections: &[usize]) -> Vec<Cell> {
        let kv = connections.iter().map(|n| Cell { work: Workload::Kv, connections: *n });
        let batches = [Workload::KvGets, Workload::KvMultiget];
        kv.chain(batches.map(|work| Cell { work, connections: CONNECTIONS })).collect()
    }

    /// Returns whether ratios are taken here.
    fn is_compared(&self) -> bool {
        self.connections == CONNECTIONS
    }

    /// Returns the end of the names of its ratios.
    fn suffix(&self) -> &'static str {
        match self.work {
            Workload::KvGets => "_16",
            Workload::KvMultiget => "_multiget",
            _ => "",
        }
    }
}

/// The measurements of a server under a workload, one per round.
#[derive(Clone, Debug, Default)]
struct Measured {
    samples: Vec<Sample>,
    system_calls: Vec<f64>,
}

impl Measured {
    fn of(&self, figure: fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(figure).collect()
    }
}

/// Returns the replies per second of the server's CPU time.
fn per_cpu_second(sample: &Sample) -> f64 {
    1e9 / sample.cpu_ns()
}

fn subject(server: &str, work: Workload) -> Subject {
    let (what, mechanism) = match server {
        MEMCACHED => (ServerKind::Memcached, "epoll"),
        mechanism => (ServerKind::App, mechanism),
    };
    Subject { what, mechanism: mechanism.to_owned(), work }
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    if let Some(memcached) = serve::named(ServerKind::Memcached) {
        outcome.machine.versions.insert(MEMCACHED.to_owned(), memcached.find(false)?);
    }
    raise_descriptors();
    let site = Site::bare(b"")?;
    let mut servers = available(&MECHANISMS);
    servers.push(MEMCACHED);
    let cells = Cell::all(if cx.quick { &QUICK } else { &FULL });
    let perf = Perf::find().map_err(|failure| outcome.notes.push(format!("{failure}."))).ok();
    let others = OtherPrograms::watch()?;
    let all = measure_all(cx, &site, &servers, &cells, perf.as_ref(), &mut outcome)?;
    outcome.notes.extend(others.note()?);
    for (cell, all) in cells.iter().zip(&all) {
        report(cell, &servers, all, &mut outcome);
    }
    let calls = cells.iter().zip(&all).find(|(cell, _)| cell.is_compared()).map(|(_, all)| all);
    if let (false, Some(all)) = (cx.quick, calls) {
        count_instructions(cx, &site, &servers, all, &mut outcome);
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
            let Cell { work, connections } = cells[i];
            cx.progress.set_message(format!("{}, {connections} connections", work.name()));
            let order = round.order(servers.len());
            let perf = perf.filter(|_| cells[i].is_compared() && refused.is_none());
            for (measured, run) in
                all[i].iter_mut().zip(measure(cx, site, servers, cells[i], &order, perf)?)
            {
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

/// The cost of a server in one round.
struct Run {
    sample: Sample,
    /// System calls per reply, if they were counted.
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
    let (batches, slices) = if cx.quick { (QUICK_SLICE, QUICK_SLICES) } else { (SLICE, SLICES) };
    let batch = cell.work.batch() as u64;
    let slice = batches * batch;
    let start = |name: &&str| {
        let server = Server::start(&subject(name, cell.work), site)?;
        let mut load =
            Load::start(server.address(), &ClientWork::new(cell.work, cell.connections, 0))?;
        load.requests(slice.max(2 * cell.connections as u64 * batch))?;
        Ok(Running { load, server, sample: Sample::default() })
    };
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

const RATE: &str = "Replies, nine get and one set";
const CPU_RATE: &str = "Replies in a second of the server's CPU time, nine get and one set";
const CPU: &str = "Server CPU per reply, 256 connections";
const CALLS: &str = "System calls per reply, 256 connections";
const INSTRUCTIONS: &str = "User instructions per reply, 256 connections";
const BETWEEN: &str = "User instructions per system call, nine get and one set, 256 connections";

/// Adds the figures and ratios of a cell.
fn report(cell: &Cell, servers: &[&str], all: &[Measured], outcome: &mut Outcome) {
    for (server, measured) in servers.iter().zip(all) {
        let mut add = |figure: &str, unit, series: &str, x: X, values: &[f64]| {
            if let Some(y) = spread(values) {
                outcome.point(figure, unit, series, x, y);
            }
        };
        if cell.work == Workload::Kv {
            let x = || X::Number(cell.connections as f64);
            add(RATE, "per second", server, x(), &measured.of(Sample::rate));
            add(CPU_RATE, "per second", server, x(), &measured.of(per_cpu_second));
        }
        if cell.is_compared() {
            let (name, x) = (cell.work.name(), || X::Name((*server).to_owned()));
            add(CPU, "ns", name, x(), &measured.of(Sample::cpu_ns));
            add(CALLS, "", name, x(), &measured.system_calls);
            let busy = "Busy, 256 connections";
            let (ours, client) = (format!("{name}: server"), format!("{name}: client"));
            add(busy, "part of a core", &ours, x(), &measured.of(Sample::server_busy));
            add(busy, "part of a core", &client, x(), &measured.of(Sample::client_busy));
        }
    }
    if !cell.is_compared() {
        return;
    }
    let rates = |name: &str| {
        let i = servers.iter().position(|server| *server == name)?;
        Some(all[i].of(per_cpu_second))
    };
    let suffix = cell.suffix();
    let mut compare = |name: String, above: &str, below: &str| {
        if let (Some(rate), Some(other)) = (rates(above), rates(below)) {
            outcome.ratio(name + suffix, above, ratios(&rate, &other));
        }
    };
    for mechanism in MECHANISMS {
        let name = if mechanism == DEFAULT { "kv" } else { mechanism };
        compare(format!("{name}_over_memcached"), mechanism, MEMCACHED);
    }
    compare("flexsc_over_epoll".to_owned(), "flexsc", "epoll");
    compare("flexsc_over_uring".to_owned(), "flexsc", "uring");
}

/// Adds instructions per reply, and per system call.
fn count_instructions(
    cx: &Context,
    site: &Site,
    servers: &[&str],
    compared: &[Measured],
    outcome: &mut Outcome,
) {
    let callgrind = match Callgrind::find() {
        Ok(callgrind) => callgrind,
        Err(failure) => return outcome.notes.push(format!("{failure}.")),
    };
    let works = [Workload::Kv, Workload::KvGets, Workload::KvMultiget];
    cx.progress.set_length((works.len() * servers.len()) as u64);
    cx.progress.set_position(0);
    for work in works {
        for (server, measured) in servers.iter().zip(compared) {
            cx.progress.set_message(format!("instructions of {server}, {}", work.name()));
            cx.progress.inc(1);
            let x = || X::Name((*server).to_owned());
            let count = match callgrind.count(&subject(server, work), site, CONNECTIONS) {
                Ok(count) => count,
                Err(failure) => {
                    let what = format!("instructions of {server}, {}: {failure}", work.name());
                    outcome.notes.push(what);
                    continue;
                }
            };
            if let Some(y) = spread(&[count]) {
                outcome.point(INSTRUCTIONS, "", work.name(), x(), y);
            }
            let between: Vec<_> = measured.system_calls.iter().map(|calls| count / calls).collect();
            if let (Workload::Kv, Some(y)) = (work, spread(&between)) {
                outcome.point(BETWEEN, "", work.name(), x(), y);
            }
        }
    }
}

/// Adds the cost of a mode switch, the findings, and the paper's results.
fn summary(outcome: &mut Outcome) {
    outcome.ratio("null_call_ns", "direct", null_call_ns(ROUNDS));
    let median = |name: &str| outcome.median(name);
    let compared = [("one at a time", ""), ("16 lines at once", "_16"), ("16 keys", "_multiget")];
    let compared: Vec<_> = compared
        .iter()
        .filter_map(|(what, suffix)| {
            let ratio = median(&format!("kv_over_memcached{suffix}"))?;
            Some(format!("{ratio:.2} ({what})"))
        })
        .collect();
    let mut shows = vec![format!(
        "Replies of the default mechanism in a second of CPU time over those of memcached, 256 \
         connections: {}.",
        compared.join(", ")
    )];
    if let (Some(ratio), Some(null_ns)) = (median("flexsc_over_epoll"), median("null_call_ns")) {
        shows.push(format!(
            "Posted calls give {ratio:.2} times the replies of epoll in a second of CPU time; the paper: \
             up to 1.25 to 1.35. A null call, which switches to the kernel and back, takes {null_ns:.0} \
             ns here."
        ));
    }
    outcome.shows.extend(shows);
    outcome.paper(
        RATE,
        "FlexSC, figure 5: memcached 1.4.5 under memslap, 1 to 1024 connections, 90 % get. From 64 \
         connections on, posted calls beat epoll, by 25 to 35 % at most, depending on the number of cores.",
    );
    outcome.paper(CALLS, "FlexSC, table 1: memcached makes 2 system calls per request.");
    outcome.paper(
        BETWEEN,
        "FlexSC, table 1: memcached executes 3,750 user instructions per system call, at 0.80 \
         instructions per cycle, and the kernel 5,420, at 0.59.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_cache_sends_the_expected_replies() {
        let site = Site::bare(b"").unwrap();
        for work in [Workload::Kv, Workload::KvGets, Workload::KvMultiget] {
            let server = Server::start(&subject("epoll", work), &site).unwrap();
            let of = ClientWork::new(work, 8, 0);
            let mut load = Load::start(server.address(), &of).unwrap();
            // More than there are batches.
            let count = 12_000 * work.batch() as u64;
            let sample = Sample::take(&server, &mut load, count).unwrap();
            assert!(sample.cpu_ns() > 0.0, "{work:?}");
        }
    }
}
