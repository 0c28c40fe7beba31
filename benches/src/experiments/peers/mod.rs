//! Compares the web server with common web servers, loaded by wrk.

mod comparison;
mod work;

use super::{Context, Experiment, servers};
use crate::failure::Failure;
use crate::measure::{Callgrind, OtherPrograms, Peer, Site, Wrk, enter_own_network};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;
use comparison::{Comparison, PeerRuns, Run, ratios};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "peers",
    title: "the web server compared with nginx, hyper and may_minihttp: small and large files, pipelined \
            requests, new connections",
    source: "goal of this project: CPU time at most 0.75 of nginx's for a file of 1 KiB, at \
             most 0.15 for pipelined requests; at most 0.75 of hyper's and 1.1 of may_minihttp's for these",
    own_network: false,
    run,
};

/// Number of connections that wrk keeps open.
const CONNECTIONS: usize = 64;
const ROUNDS: usize = 15;

const NOTES: [&str; 6] = [
    "One thread for each server, on core 0; wrk with one thread on core 1; loopback, 64 connections, a \
     closed loop. CPU time is the sum over all threads and children of the server, including kernel \
     workers, divided by wrk's number of requests. The kernel's work for the server in wrk's time or in \
     kernel threads is not included.",
    "Each run has a new process and lasts one second. A round is one run of every server, in a shuffled \
     order. Ratios are taken within a round. The mechanism that is compared with other servers is the \
     default, `uring`; ratios whose names end in another mechanism are of that one. wrk has no seed: it \
     sends the same requests in every round.",
    "nginx: one worker, no access log. `nginx shipped` is otherwise Debian's nginx.conf: 768 connections, \
     `multi_accept off`, `sendfile on`, 1,000 requests per connection. `nginx tuned` has 15,000 \
     connections, `multi_accept on`, `open_file_cache`, no limit of requests, and `sendfile off` but for \
     the file of 1 MiB, whichever is quicker for a file. The libraries are small programs \
     in `benches/peers`: one thread, a handler that answers at once; hyper on tokio with \
     `pipeline_flush`. Our handler gets the parsed head, as theirs do.",
    "Where neither core is fully busy, the exchange between them is the limit: wrk reads 8 KiB at a \
     time, so with large files wrk determines the rate.",
    "Instructions are those outside the kernel, counted by callgrind in one run of each server with 64 \
     connections, as the difference of 9,600 and 1,600 requests. Under valgrind a server on io_uring takes some hundred connections \
     more or less to end, so the counts of `uring` may be wrong by up to 500.",
    "wrk reports no latency for some pipelined requests; their bars are missing.",
];

const OWN_NETWORK: &str = "In a network namespace of its own, with receive buffers of at most 256 KiB. Those that the kernel \
    adjusts grow to 32 MB here, and where wrk's core is the limit, the queues leave its cache and stay long: a server then \
    has one of two rates for large files, by chance.";

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
    // Not before, as cargo may have to download something.
    outcome.notes.push(match enter_own_network() {
        Ok(()) => OWN_NETWORK.to_owned(),
        Err(e) => format!(
            "Without a network namespace of its own ({e}), receive buffers are not bounded."
        ),
    });
    let mut comparisons: Vec<_> =
        work::ALL.iter().map(|work| Comparison::new(work, &missing)).collect();
    let sites = comparisons.iter().map(Comparison::site).collect::<Result<Vec<_>, _>>()?;
    let others = OtherPrograms::watch()?;
    measure(cx, &mut comparisons, &sites, &wrk);
    outcome.notes.extend(others.note()?);
    count_instructions(cx, &mut comparisons, &sites, &mut outcome);
    for comparison in &comparisons {
        figures(comparison, &mut outcome);
    }
    ratios_of(&comparisons, &mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Each round covers all comparisons, so they have equal numbers of rounds after an early end.
fn measure(cx: &Context, comparisons: &mut [Comparison], sites: &[Site], wrk: &Wrk) {
    let rounds = if cx.quick { 1 } else { ROUNDS };
    let entries: usize = comparisons.iter().map(|c| c.entries.len()).sum();
    cx.progress.set_length((rounds * entries) as u64);
    for mut round in cx.rounds(rounds) {
        for (comparison, site) in comparisons.iter_mut().zip(sites) {
            for i in round.order(comparison.entries.len()) {
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

/// Counts the instructions of every server, where valgrind is installed.
fn count_instructions(
    cx: &Context,
    comparisons: &mut [Comparison],
    sites: &[Site],
    outcome: &mut Outcome,
) {
    if cx.quick {
        return outcome.notes.push("A quick run does not count instructions.".to_owned());
    }
    let callgrind = match Callgrind::find() {
        Ok(callgrind) => callgrind,
        Err(failure) => return outcome.notes.push(format!("{failure}.")),
    };
    cx.progress.set_position(0);
    cx.progress.set_length(comparisons.iter().map(|c| c.entries.len() as u64).sum());
    for (comparison, site) in comparisons.iter_mut().zip(sites) {
        for i in 0..comparison.entries.len() {
            let (name, peer) = (comparison.work.name, comparison.entries[i].peer);
            cx.progress.set_message(format!("instructions of {peer}, {name}"));
            if let Err(failure) = comparison.count_instructions(i, site, &callgrind) {
                outcome.notes.push(format!("instructions of {peer}, {name}: {failure}"));
            }
            cx.progress.inc(1);
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
        let instructions: Vec<_> = entry.instructions.into_iter().collect();
        add("Instructions per request", "", "server", &instructions);
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

/// The configurations of nginx. The ratios over nginx are those to the better one.
const NGINX: [Peer; 2] = [servers::NGINX, servers::NGINX_SHIPPED];

/// Returns a server and its name in ratios, for each that ours is compared with. That which is called `nginx` is the better
/// of its configurations.
fn theirs(better_nginx: Option<Peer>) -> impl Iterator<Item = (Peer, String)> {
    let name = |peer| match peer {
        servers::NGINX => "nginx_tuned".to_owned(),
        other => other.short_name(),
    };
    let each = [NGINX[0], NGINX[1], Peer::Hyper, Peer::MayMinihttp].map(|peer| (peer, name(peer)));
    better_nginx.map(|peer| (peer, "nginx".to_owned())).into_iter().chain(each)
}

/// Returns the configuration of nginx with the lowest median of a cost.
fn better_nginx(comparison: &Comparison, cost: fn(&PeerRuns) -> Vec<f64>) -> Option<Peer> {
    let median = |peer| Some((peer, spread(&cost(comparison.entry(peer)?))?.median));
    let medians = NGINX.into_iter().filter_map(median);
    medians.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(peer, _)| peer)
}

/// Adds the ratios.
fn ratios_of(comparisons: &[Comparison], outcome: &mut Outcome) {
    for comparison in comparisons {
        let name = comparison.work.name;
        let nginx = [
            better_nginx(comparison, |entry| entry.of(cpu)),
            better_nginx(comparison, |entry| entry.of(|run| -rate(run))),
            better_nginx(comparison, |entry| entry.instructions.into_iter().collect()),
        ];
        if let [Some(by_cpu), Some(by_rate), by_instructions] = nginx {
            let by_instructions = by_instructions
                .map_or(String::new(), |peer| format!(", by instructions with {peer}"));
            outcome.notes.push(format!(
                "`{name}_vs_nginx_...` compares with the better of nginx's configurations: by CPU time with {by_cpu}, by \
                 rate with {by_rate}{by_instructions}."
            ));
        }
        let [by_cpu, by_rate, by_instructions] = nginx;
        let instructions = |peer| comparison.entry(peer).and_then(|entry| entry.instructions);
        for (other, other_name) in theirs(by_instructions) {
            let ours = instructions(Peer::Ours(servers::DEFAULT));
            if let Some((ours, theirs)) = ours.zip(instructions(other)) {
                let ratio = format!("{name}_vs_{other_name}_instructions");
                outcome.count(ratio, servers::DEFAULT, ours / theirs);
            }
        }
        let mut add = |ratio: String, above: Peer, below: Peer, figure: fn(&Run) -> f64| {
            if let Some((above, below)) = comparison.entry(above).zip(comparison.entry(below)) {
                outcome.ratio(ratio, &above.peer.to_string(), ratios(above, below, figure));
            }
        };
        if name == "file1k" {
            for mechanism in ["epoll", "uring"] {
                let ratio = format!("file1k_{mechanism}_vs_floor_cpu");
                add(ratio, Peer::Ours(mechanism), Peer::Floor(mechanism), cpu);
            }
        }
        if name == "hello" {
            for mechanism in ["epoll", "uring", "tokio"] {
                let ratio = format!("{mechanism}_vs_floor_cpu");
                add(ratio, Peer::Ours(mechanism), Peer::Floor(mechanism), cpu);
            }
            let ours = Peer::Ours(servers::DEFAULT);
            add("send_vs_uring_cpu".to_owned(), Peer::Ours("send"), Peer::Ours("uring"), cpu);
            add(format!("hyper_vs_{}_cpu", servers::DEFAULT), Peer::Hyper, ours, cpu);
        }
        let ours = comparison.entries.iter().map(|entry| entry.peer);
        for peer in ours.filter(|peer| matches!(peer, Peer::Ours(_))) {
            // The default mechanism has the plain names.
            let suffix = match peer {
                Peer::Ours(servers::DEFAULT) => String::new(),
                other => format!("_{}", other.short_name()),
            };
            for (other, other_name) in theirs(by_cpu) {
                add(format!("{name}_vs_{other_name}_cpu{suffix}"), peer, other, cpu);
            }
            for (other, other_name) in theirs(by_rate) {
                add(format!("{name}_vs_{other_name}_rps{suffix}"), peer, other, rate);
            }
        }
    }
}

fn cpu(run: &Run) -> f64 {
    run.cpu_ns
}

fn rate(run: &Run) -> f64 {
    run.rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_was_compared_with_the_slower_configuration_of_nginx() {
        let work = work::ALL.iter().find(|work| work.name == "conn").unwrap();
        let mut comparison = Comparison::new(work, &[]);
        for (peer, cpu_ns, rate) in [
            (Peer::Ours(servers::DEFAULT), 20.0, 900.0),
            (servers::NGINX, 25.0, 1_000.0),
            (servers::NGINX_SHIPPED, 16.0, 800.0),
        ] {
            let entry = comparison.entries.iter_mut().find(|entry| entry.peer == peer).unwrap();
            let (server_busy, client_busy) = (1.0, 1.0);
            let run = Run { cpu_ns, rate, p50_us: None, p99_us: None, server_busy, client_busy };
            entry.runs = vec![run; 5];
        }
        let mut outcome = Outcome::new(EXPERIMENT.id);
        ratios_of(&[comparison], &mut outcome);
        let value = |name| outcome.median(name);
        assert_eq!(value("conn_vs_nginx_cpu"), Some(1.25));
        assert_eq!(value("conn_vs_nginx_tuned_cpu"), Some(0.8));
        assert_eq!(value("conn_vs_nginx_shipped_cpu"), Some(1.25));
        assert_eq!(value("conn_vs_nginx_rps"), Some(0.9));
        let note = "by CPU time with nginx shipped, by rate with nginx tuned.";
        assert!(outcome.notes[0].ends_with(note), "{:?}", outcome.notes);
    }
}
