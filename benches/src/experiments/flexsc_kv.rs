//! Our cache and memcached (FlexSC, section 6.1).

use super::servers::{DEFAULT, available};
use super::system_call::null_call_ns;
use super::turns::{self, Cell as _, Measured};
use super::{Context, Experiment};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::measure::{
    Callgrind, ClientWork, Load, Sample, Server, Site, Subject, raise_descriptors,
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

/// The servers whose number of system calls for a request hardly depends on batches.
const WITHOUT_BATCHES: [&str; 2] = ["epoll", MEMCACHED];

/// Numbers of connections with one request at a time.
const FULL: [usize; 6] = [1, 4, 16, 64, 256, 1024];
const QUICK: [usize; 2] = [16, CONNECTIONS];
/// The number of connections of the ratios, and of the other workloads.
const CONNECTIONS: usize = 256;
/// Batches of a slice.
const SLICE: u64 = 10_000;
const QUICK_SLICE: u64 = 2_000;

const NOTES: [&str; 6] = [
    "Each server has one worker thread and 64 MiB on core 0; the client has core 1. CPU time is that of \
     all threads of the server, including kernel workers. Where the client is busy all the time, it \
     limits the rate, so ratios are those of CPU time. 10,000 keys of 16 to 48 bytes, all stored, with \
     values of 10 to 500 bytes.",
    turns::NOTE,
    "kv: nine get, one set, one at a time on each connection. kv-gets: 16 lines `get KEY` are sent at \
     once. kv-multiget: a line `get` with 16 keys, which count as 16. memcached sends each reply to a \
     `get` line by itself; our server sends all replies to one read at once.",
    "System calls are counted by perf while a server replies to one more slice. Instructions are those \
     outside the kernel, counted under valgrind, where batches are larger. So they are divided only for servers whose \
     number of system calls hardly depends on batches: `epoll` and memcached.",
    "The paper has results on 2 and 4 cores, too. A worker of our server keeps one core busy, also by posted calls: its \
     calls are pinned to the worker or to the ring.",
    "The ratio of the default mechanism is `kv_over_memcached`; the others are named by theirs.",
];

/// A workload.
struct Cell<'a> {
    site: &'a Site,
    work: Workload,
    connections: usize,
}

impl Cell<'_> {
    /// Returns every workload.
    fn all<'a>(connections: &[usize], site: &'a Site) -> Vec<Cell<'a>> {
        let kv = connections.iter().map(|n| Cell { site, work: Workload::Kv, connections: *n });
        let batches = [Workload::KvGets, Workload::KvMultiget];
        let batches = batches.map(|work| Cell { site, work, connections: CONNECTIONS });
        kv.chain(batches).collect()
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

impl turns::Cell for Cell<'_> {
    fn name(&self) -> &'static str {
        self.work.name()
    }

    fn connections(&self) -> usize {
        self.connections
    }

    fn is_compared(&self) -> bool {
        self.connections == CONNECTIONS
    }

    fn slice(&self, quick: bool) -> u64 {
        self.work.batch() as u64 * if quick { QUICK_SLICE } else { SLICE }
    }

    fn start(&self, server: &str, warm_up: u64) -> Result<(Load, Server), Failure> {
        let server = Server::start(&subject(server, self.work), self.site)?;
        let mut load =
            Load::start(server.address(), &ClientWork::new(self.work, self.connections, 0))?;
        load.requests(warm_up.max((2 * self.connections * self.work.batch()) as u64))?;
        Ok((load, server))
    }
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
    let cells = Cell::all(if cx.quick { &QUICK } else { &FULL }, &site);
    let all = turns::measure(cx, &servers, &cells, &mut outcome)?;
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

const RATE: &str = "Replies, nine get and one set";
const CPU_RATE: &str = "Replies in a second of the server's CPU time, nine get and one set";
const CPU: &str = "Server CPU per reply, 256 connections";
const CALLS: &str = "System calls per reply, 256 connections";
const BUSY: &str = "Busy, 256 connections";
const INSTRUCTIONS: &str = "User instructions per reply, 256 connections";
const BETWEEN: &str = "User instructions per system call, nine get and one set, 256 connections";

/// Adds the figures and ratios of a cell.
fn report(cell: &Cell<'_>, servers: &[&str], all: &[Measured], outcome: &mut Outcome) {
    for (server, measured) in servers.iter().zip(all) {
        if cell.work == Workload::Kv {
            let place = || (*server, X::Number(cell.connections as f64));
            turns::add(outcome, RATE, "per second", place(), &measured.of(Sample::rate));
            turns::add(outcome, CPU_RATE, "per second", place(), &measured.rates());
        }
        if cell.is_compared() {
            let place = || (cell.name(), X::Name((*server).to_owned()));
            turns::add(outcome, CPU, "ns", place(), &measured.of(Sample::cpu_ns));
            turns::add(outcome, CALLS, "", place(), &measured.system_calls);
            turns::add_busy(outcome, BUSY, cell.name(), server, measured);
        }
    }
    if !cell.is_compared() {
        return;
    }
    let rates = |name: &str| turns::rates(servers, all, name);
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
            if work != Workload::Kv || !WITHOUT_BATCHES.contains(server) {
                continue;
            }
            let between: Vec<_> = measured.system_calls.iter().map(|calls| count / calls).collect();
            if let Some(y) = spread(&between) {
                outcome.point(BETWEEN, "", work.name(), x(), y);
            }
        }
    }
}

/// Adds the cost of a mode switch, the findings, and the paper's results.
fn summary(outcome: &mut Outcome) {
    outcome.ratio("null_call_ns", "direct", null_call_ns(turns::ROUNDS));
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
             up to 1.25 to 1.35. {}",
            turns::mode_switch(null_ns)
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
