//! The web server on posted calls, without a cache of files (FlexSC, section 6.2).

use std::thread;
use std::time::Duration;

use super::servers::{self, available};
use super::system_call::null_call_ns;
use super::turns::{self, Cell as _, Measured};
use super::{Context, Experiment};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::measure::{ClientWork, Load, Sample, Server, Site, Subject, fetch, raise_descriptors};
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
/// nginx in two configurations, with `multi_accept` on and off.
const NGINX: [&str; 2] = ["nginx", "nginx, multi_accept off"];
/// The setting of our server, and the configuration of nginx.
const UNCACHED: &str = "uncached";

const PATH: &str = "/1k.txt";
const BODY_BYTES: usize = 1 << 10;

/// Numbers of connections.
const FULL: [usize; 6] = [1, 4, 16, 64, CONNECTIONS, 1024];
const QUICK: [usize; 2] = [16, CONNECTIONS];
/// The number of connections of the ratios.
const CONNECTIONS: usize = 256;
/// Requests of a slice.
const SLICE: u64 = 6_000;
const QUICK_SLICE: u64 = 2_000;

/// Time until the entity tags of new files are settled.
const SETTLED: Duration = Duration::from_millis(2_100);

const NOTES: [&str; 5] = [
    "Each server has one worker thread on core 0; the client has core 1. CPU time is that of all threads \
     of the server, including kernel workers. Where the client is busy all the time, it limits the rate, \
     so ratios are those of CPU time.",
    turns::NOTE,
    "Each request is for the same file of 1 KiB. For each request, every server opens the file, queries \
     its metadata, reads it, sends it and closes it: nginx is tuned as in `peers`, but without \
     `open_file_cache`, and once more with `multi_accept off`; our server has a cache of 0 bytes and, as nginx by default, does not look for precompressed \
     files (`--cache-size 0 --no-precompressed`).",
    "The latency is the mean: connections over the rate, as each connection has one request at a time. \
     The paper's second core is the client's here.",
    "System calls are counted by perf while a server replies to one more slice: an entry into io_uring is \
     one, whatever it submits.",
];

/// A workload.
struct Cell<'a> {
    site: &'a Site,
    connections: usize,
    /// Whether each request has its own connection.
    close: bool,
}

impl Cell<'_> {
    /// Returns every workload.
    fn all<'a>(connections: &[usize], site: &'a Site) -> Vec<Cell<'a>> {
        let open = connections.iter().map(|n| Cell { site, connections: *n, close: false });
        open.chain([Cell { site, connections: CONNECTIONS, close: true }]).collect()
    }
}

impl turns::Cell for Cell<'_> {
    fn name(&self) -> &'static str {
        if self.close { "a connection for each request" } else { "open connections" }
    }

    fn connections(&self) -> usize {
        self.connections
    }

    fn is_compared(&self) -> bool {
        self.connections == CONNECTIONS
    }

    fn slice(&self, quick: bool) -> u64 {
        if quick { QUICK_SLICE } else { SLICE }
    }

    fn start(&self, server: &str, warm_up: u64) -> Result<(Load, Server), Failure> {
        let mut server = Server::start(&subject(server), self.site)?;
        server.check_reply(PATH, BODY_BYTES)?;
        let reply_bytes = fetch(&server, PATH)?.len();
        let new = ClientWork::new(Workload::File, self.connections, reply_bytes);
        let work = ClientWork { path: PATH, close: self.close, ..new };
        let mut load = Load::start(server.address(), &work)?;
        load.requests(warm_up.max(2 * self.connections as u64))?;
        Ok((load, server))
    }
}

fn subject(server: &str) -> Subject {
    let (what, mechanism) = match server {
        nginx if nginx == NGINX[0] => (ServerKind::Nginx, UNCACHED.to_owned()),
        nginx if nginx == NGINX[1] => (ServerKind::Nginx, format!("{UNCACHED}-one")),
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
    servers.extend(NGINX);
    let cells = Cell::all(if cx.quick { &QUICK } else { &FULL }, &site);
    let all = turns::measure(cx, &servers, &cells, &mut outcome)?;
    for (cell, all) in cells.iter().zip(&all) {
        report(cell, &servers, all, &mut outcome);
    }
    summary(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

const RATE: &str = "Requests";
const CPU_RATE: &str = "Requests in a second of the server's CPU time";
const LATENCY: &str = "Mean latency";
const CPU: &str = "Server CPU per request, 256 connections";
const CALLS: &str = "System calls per request, 256 connections";
const BUSY: &str = "Busy, 256 connections";

/// Adds the figures and ratios of a cell.
fn report(cell: &Cell<'_>, servers: &[&str], all: &[Measured], outcome: &mut Outcome) {
    let connections = cell.connections as f64;
    for (server, measured) in servers.iter().zip(all) {
        if !cell.close {
            let mut add = |figure, unit, values: &[f64]| {
                turns::add(outcome, figure, unit, (server, X::Number(connections)), values);
            };
            add(RATE, "per second", &measured.of(Sample::rate));
            add(CPU_RATE, "per second", &measured.rates());
            add(LATENCY, "ms", &measured.of(|sample| connections * 1e3 / sample.rate()));
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
    let suffix = if cell.close { "_conn" } else { "" };
    let better = better_nginx(rates);
    outcome.notes.push(format!(
        "`flexsc_over_nginx_uncached{suffix}` compares with {better}, the better configuration."
    ));
    for (below, name) in [(better, "nginx_uncached"), ("uring", "uring"), ("epoll", "epoll")] {
        if let (Some(rate), Some(other)) = (rates("flexsc"), rates(below)) {
            let name = format!("flexsc_over_{name}{suffix}");
            outcome.ratio(name, "flexsc", ratios(&rate, &other));
        }
    }
}

/// Returns the configuration of nginx with the highest median rate.
fn better_nginx(rates: impl Fn(&str) -> Option<Vec<f64>>) -> &'static str {
    let median =
        |name: &str| rates(name).and_then(|all| spread(&all)).map_or(0.0, |all| all.median);
    if median(NGINX[1]) > median(NGINX[0]) { NGINX[1] } else { NGINX[0] }
}

/// Adds the cost of a mode switch, the findings, and the paper's results.
fn summary(outcome: &mut Outcome) {
    outcome.ratio("null_call_ns", "direct", null_call_ns(turns::ROUNDS));
    let median = |name: &str| outcome.median(name);
    if let (Some(ratio), Some(null_ns)) = (median("flexsc_over_epoll"), median("null_call_ns")) {
        outcome.shows.push(format!(
            "Posted calls give {ratio:.2} times the requests of epoll in a second of CPU time, with 256 \
             connections; the paper: up to 1.70. {}",
            turns::mode_switch(null_ns)
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
    fn connection_for_each_request_was_compared_with_the_slower_configuration_of_nginx() {
        let rates = |on: f64, off: f64| {
            better_nginx(|name: &str| Some(vec![if name == NGINX[1] { off } else { on }; 5]))
        };
        assert_eq!(rates(40_000.0, 44_000.0), NGINX[1]);
        assert_eq!(rates(70_000.0, 69_000.0), NGINX[0]);
    }

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
