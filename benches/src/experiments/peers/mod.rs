//! Compares the web server with common web servers, loaded by wrk.

mod comparison;
mod work;

use super::{Context, Experiment, servers};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, Peer, Site, Wrk};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;
use comparison::{Comparison, Entry, Run, ratios};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "peers",
    title: "the web server compared with nginx, hyper and may_minihttp: small and large files, pipelined \
            requests, new connections",
    source: "goal of this project: CPU time at most 0.75 of nginx's for a file of 1 KiB, at \
             most 0.15 for pipelined requests",
    own_network: false,
    run,
};

/// Number of connections that wrk keeps open.
const CONNECTIONS: usize = 64;
const ROUNDS: usize = 15;

const NOTES: [&str; 5] = [
    "One thread for each server, on core 0; wrk with one thread on core 1; loopback, 64 connections, a \
     closed loop. CPU time is the sum over all threads and children of the server, including kernel \
     workers, divided by wrk's number of requests. The kernel's work for the server in wrk's time or in \
     kernel threads is not included.",
    "Each run has a new process and lasts one second. A round is one run of every server; the order \
     alternates between rounds. Ratios are taken within a round; reported are the median, the minimum \
     and the maximum.",
    "nginx: one worker, `multi_accept on`, no limit of requests per connection, no access log, no \
     gzip. copy-cached is `sendfile off` with `open_file_cache`, sendfile-cached is `sendfile on` with \
     it; shipped is `sendfile on` without it, as in Debian's nginx.conf. The libraries are small programs \
     in `benches/peers`: one thread, a handler that answers at once; hyper on tokio with \
     `pipeline_flush`.",
    "Where neither core is fully busy, the exchange between them is the limit: wrk reads 8 KiB at a \
     time, so with large files wrk determines the rate.",
    "wrk reports no latency for some pipelined requests; their bars are missing.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let wrk = Wrk::find()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    servers::note(Peer::Nginx("shipped"), false, &mut outcome)?;
    outcome.machine.versions.insert("wrk".to_owned(), wrk.version.clone());
    let mut missing = Vec::new();
    for peer in work::LIBRARIES {
        cx.progress.set_message(format!("building {peer}"));
        if let Err(failure) = servers::note(peer, !cx.quick, &mut outcome) {
            outcome.notes.push(format!("{failure}."));
            missing.push(peer);
        }
    }
    let mut comparisons: Vec<_> =
        work::ALL.iter().map(|work| Comparison::new(work, &missing)).collect();
    let sites = comparisons.iter().map(Comparison::site).collect::<Result<Vec<_>, _>>()?;
    let others = OtherPrograms::watch()?;
    measure(cx, &mut comparisons, &sites, &wrk);
    outcome.notes.extend(others.note()?);
    for comparison in &comparisons {
        figures(comparison, &mut outcome);
    }
    goals(&comparisons, &mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Each round covers all comparisons, so they have equal numbers of rounds after an early end.
fn measure(cx: &Context, comparisons: &mut [Comparison], sites: &[Site], wrk: &Wrk) {
    let rounds = if cx.quick { 1 } else { ROUNDS };
    let entries: usize = comparisons.iter().map(|c| c.entries.len()).sum();
    cx.progress.set_length((rounds * entries) as u64);
    for round in 0..rounds {
        for (comparison, site) in comparisons.iter_mut().zip(sites) {
            let last = comparison.entries.len() - 1;
            for i in 0..=last {
                // The first round is never skipped.
                if round > 0 && cx.is_late() {
                    return;
                }
                let i = if round.is_multiple_of(2) { i } else { last - i };
                if comparison.entries[i].failed.is_none() {
                    let (name, peer) = (comparison.work.name, comparison.entries[i].peer);
                    cx.progress.set_message(format!("{name}: {peer}"));
                    comparison.run(i, site, wrk, 1);
                }
                cx.progress.inc(1);
            }
        }
    }
}

fn figures(comparison: &Comparison, outcome: &mut Outcome) {
    for entry in &comparison.entries {
        let x = entry.peer.to_string();
        if let Some(failure) = &entry.failed {
            outcome.notes.push(format!("{}, {x} failed: {failure}", comparison.work.name));
        }
        let mut add = |figure: &str, unit, name, values: &[f64]| {
            if let Some(y) = spread(values) {
                let figure = format!("{figure}, {}", comparison.work.title);
                outcome.point(&figure, unit, name, X::Name(x.clone()), y);
            }
        };
        add("Server CPU per request", "us", "server", &entry.of(|r| r.cpu_ns / 1e3));
        add("Requests", "per second", "rate", &entry.of(|r| r.rate));
        let known_values = |figure: fn(&Run) -> Option<f64>| {
            entry.runs.iter().filter_map(figure).collect::<Vec<_>>()
        };
        add("Latency", "us", "p50", &known_values(|r| r.p50_us));
        add("Latency", "us", "p99", &known_values(|r| r.p99_us));
        add("Busy", "part of a core", "server", &entry.of(|r| r.server_busy));
        add("Busy", "part of a core", "wrk", &entry.of(|r| r.client_busy));
    }
}

/// Adds the ratios that goals refer to.
fn goals(comparisons: &[Comparison], outcome: &mut Outcome) {
    for comparison in comparisons {
        let name = comparison.work.name;
        let mut add = |ratio: String, above: &Entry, below: &Entry, figure: fn(&Run) -> f64| {
            outcome.ratio(ratio, &above.peer.to_string(), ratios(above, below, figure));
        };
        let entry = |peer| comparison.entry(peer);
        if name == "hello" {
            for mechanism in ["epoll", "uring", "tokio"] {
                let ours = entry(Peer::Ours(mechanism));
                if let Some((ours, floor)) = ours.zip(entry(Peer::Floor(mechanism))) {
                    add(format!("{mechanism}_vs_floor_cpu"), ours, floor, cpu);
                }
            }
            if let Some((send, uring)) = entry(Peer::Ours("send")).zip(entry(Peer::Ours("uring"))) {
                add("send_vs_uring_cpu".to_owned(), send, uring, cpu);
            }
            if let Some((hyper, ours)) = entry(Peer::Hyper).zip(entry(Peer::Ours("uring"))) {
                add("hyper_vs_uring_cpu".to_owned(), hyper, ours, cpu);
            }
        }
        for (figure, unit) in [(cpu as fn(&Run) -> f64, "cpu"), (period, "rps")] {
            let best = comparison.lowest(is_ours, figure).zip(comparison.lowest(is_nginx, figure));
            if let Some((ours, theirs)) = best {
                let figure = if unit == "rps" { rate } else { figure };
                add(format!("{name}_vs_nginx_{unit}"), ours, theirs, figure);
            }
        }
        let ours = comparison.lowest(is_ours, cpu);
        if let Some((ours, shipped)) = ours.zip(entry(Peer::Nginx("shipped"))) {
            add(format!("{name}_vs_nginx_sendfile_cpu"), ours, shipped, cpu);
        }
    }
}

fn cpu(run: &Run) -> f64 {
    run.cpu_ns
}

fn rate(run: &Run) -> f64 {
    run.rate
}

/// Returns the inverse rate, lowest where the rate is highest.
fn period(run: &Run) -> f64 {
    1.0 / run.rate
}

fn is_ours(peer: Peer) -> bool {
    matches!(peer, Peer::Ours(_))
}

fn is_nginx(peer: Peer) -> bool {
    matches!(peer, Peer::Nginx(_))
}
