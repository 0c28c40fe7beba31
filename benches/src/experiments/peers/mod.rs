//! The web server beside others that people run, with the load generator that people use.

mod contest;
mod work;

use super::{Context, Experiment, contestants};
use crate::failure::Failure;
use crate::measure::{Others, Peer, Site, Wrk};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;
use contest::{Contest, Entry, Run, ratios};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "peers",
    title: "the web server beside nginx, hyper and may_minihttp: small and large files, pipelined \
            requests, new connections",
    source: "goal of this project: processor time at most 0.75 of nginx's for a file of 1 KiB, at \
             most 0.15 for pipelined requests",
    own_network: false,
    run,
};

/// Connections that wrk holds open.
const CONNECTIONS: usize = 64;
const ROUNDS: usize = 15;

const NOTES: [&str; 5] = [
    "One thread for each server, on core 0; wrk with one thread on core 1; loopback, 64 \
     connections, a closed loop. Processor time is that of all threads and children of the server, \
     kernel workers included, for the requests that wrk counted; what the kernel does for the \
     server on wrk's time, or in threads of its own, is not in it.",
    "Each run has a new process and lasts one second. A round is one run of every server, in one \
     order and then in the other. Ratios are taken within a round; given is the median, with the \
     smallest and the largest.",
    "nginx: one worker, `multi_accept on`, no limit of requests per connection, no access log, no \
     gzip. copy-cached is `sendfile off` with `open_file_cache`, sendfile-cached is `sendfile on` \
     with it; shipped is `sendfile on` without it, as in Debian's nginx.conf. The libraries are small \
     programs in `benches/peers`: one thread, a handler that answers at once; hyper on tokio with \
     `pipeline_flush`.",
    "Where both cores are busy less than all the time, what the two exchange takes its time: wrk \
     reads 8 KiB at a time, so with large files it is wrk that sets the rate.",
    "wrk has no figure for the latency of some pipelined requests; the bars are missing then.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let wrk = Wrk::find()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    contestants::note(Peer::Nginx("shipped"), false, &mut outcome)?;
    outcome.machine.versions.insert("wrk".to_owned(), wrk.version.clone());
    let mut missing = Vec::new();
    for peer in work::LIBRARIES {
        cx.progress.set_message(format!("building {peer}"));
        if let Err(failure) = contestants::note(peer, !cx.quick, &mut outcome) {
            outcome.notes.push(format!("{failure}."));
            missing.push(peer);
        }
    }
    let mut contests: Vec<_> = work::ALL.iter().map(|work| Contest::new(work, &missing)).collect();
    let sites = contests.iter().map(Contest::site).collect::<Result<Vec<_>, _>>()?;
    let others = Others::watch()?;
    measure(cx, &mut contests, &sites, &wrk);
    outcome.notes.extend(others.note()?);
    for contest in &contests {
        figures(contest, &mut outcome);
    }
    goals(&contests, &mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Rounds go around all contests, so that an early end leaves all with as many.
fn measure(cx: &Context, contests: &mut [Contest], sites: &[Site], wrk: &Wrk) {
    let rounds = if cx.quick { 1 } else { ROUNDS };
    let entries: usize = contests.iter().map(|c| c.entries.len()).sum();
    cx.progress.set_length((rounds * entries) as u64);
    for round in 0..rounds {
        for (contest, site) in contests.iter_mut().zip(sites) {
            let last = contest.entries.len() - 1;
            for i in 0..=last {
                // The first round is never left out.
                if round > 0 && cx.is_late() {
                    return;
                }
                let i = if round.is_multiple_of(2) { i } else { last - i };
                if contest.entries[i].failed.is_none() {
                    let (name, peer) = (contest.work.name, contest.entries[i].peer);
                    cx.progress.set_message(format!("{name}: {peer}"));
                    contest.run(i, site, wrk, 1);
                }
                cx.progress.inc(1);
            }
        }
    }
}

fn figures(contest: &Contest, outcome: &mut Outcome) {
    for side in &contest.entries {
        let x = side.peer.to_string();
        if let Some(failure) = &side.failed {
            outcome.notes.push(format!("{}, {x} failed: {failure}", contest.work.name));
        }
        let mut add = |figure: &str, unit, name, values: &[f64]| {
            if let Some(y) = spread(values) {
                let figure = format!("{figure}, {}", contest.work.title);
                outcome.point(&figure, unit, name, X::Name(x.clone()), y);
            }
        };
        add("Server CPU per request", "us", "server", &side.of(|r| r.cpu_ns / 1e3));
        add("Requests", "per second", "rate", &side.of(|r| r.rate));
        let known = |figure: fn(&Run) -> Option<f64>| {
            side.runs.iter().filter_map(figure).collect::<Vec<_>>()
        };
        add("Latency", "us", "p50", &known(|r| r.p50_us));
        add("Latency", "us", "p99", &known(|r| r.p99_us));
        add("Busy", "part of a core", "server", &side.of(|r| r.server_busy));
        add("Busy", "part of a core", "wrk", &side.of(|r| r.client_busy));
    }
}

/// The ratios that goals are stated in.
fn goals(contests: &[Contest], outcome: &mut Outcome) {
    for contest in contests {
        let name = contest.work.name;
        let mut add = |ratio: String, above: &Entry, below: &Entry, figure: fn(&Run) -> f64| {
            let ratios = ratios(above, below, figure);
            let Some(y) = spread(&ratios) else { return };
            let x = X::Name(format!("{} over {}", above.peer, below.peer));
            outcome.point("Ratios", "", &ratio, x, y);
            outcome.ratios.insert(ratio, y.median);
        };
        let side = |peer| contest.side(peer);
        if name == "hello" {
            for mechanism in ["epoll", "uring", "tokio"] {
                let ours = side(Peer::Ours(mechanism));
                if let Some((ours, floor)) = ours.zip(side(Peer::Floor(mechanism))) {
                    add(format!("{mechanism}_vs_floor_cpu"), ours, floor, cpu);
                }
            }
            if let Some((send, uring)) = side(Peer::Ours("send")).zip(side(Peer::Ours("uring"))) {
                add("send_vs_uring_cpu".to_owned(), send, uring, cpu);
            }
            if let Some((hyper, ours)) = side(Peer::Hyper).zip(side(Peer::Ours("uring"))) {
                add("hyper_vs_uring_cpu".to_owned(), hyper, ours, cpu);
            }
        }
        for (figure, unit) in [(cpu as fn(&Run) -> f64, "cpu"), (period, "rps")] {
            let best = contest.least(is_ours, figure).zip(contest.least(is_nginx, figure));
            if let Some((ours, theirs)) = best {
                let figure = if unit == "rps" { rate } else { figure };
                add(format!("{name}_vs_nginx_{unit}"), ours, theirs, figure);
            }
        }
        let ours = contest.least(is_ours, cpu);
        if let Some((ours, shipped)) = ours.zip(side(Peer::Nginx("shipped"))) {
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

/// Least where the rate is highest.
fn period(run: &Run) -> f64 {
    1.0 / run.rate
}

fn is_ours(peer: Peer) -> bool {
    matches!(peer, Peer::Ours(_))
}

fn is_nginx(peer: Peer) -> bool {
    matches!(peer, Peer::Nginx(_))
}
