//! Compares `lab load` with other load generators: agreement and maximum rate.

use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{
    Conditions, H2load, H2loadObservation, OtherPrograms, Peer, Requests, Server, Site, Trial,
    Trials, Wrk, WrkObservation,
};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "load-check",
    title: "the load generator compared with h2load and wrk: rate and latency of the same work, and \
                connections per second from one core",
    source: "goal of this project: rate and median latency within 5 % of theirs, and at least 1.5 \
             times the connections of h2load",
    own_network: true,
    run,
};

const ROUNDS: usize = 12;
/// A workload limited by the server, on which all generators must agree.
const WORK: (&str, usize) = ("/spin?us=100", 4);
const CLIENTS: usize = 16;
/// A workload that the generator may limit.
const HELLO: (&str, usize) = ("/hello", 12);
/// The reply of the `null` server.
const REPLY: &[u8] =
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 12\r\n\r\nHello world\n";
/// Number of concurrent connections.
const CONNECTIONS: usize = 64;

const NOTES: [&str; 4] = [
    "Server on core 0, generators on core 1, one thread each, in their own network namespace. Each run \
     has a new server; a round is one run of each generator.",
    "`rate_vs_h2load` and `latency_p50_vs_wrk` are of requests that keep the server busy for 100 us \
     each, on 16 connections in a closed loop: the server is the limit, so the generators must agree. \
     Where the generator is the limit (`hello`), each measures mostly itself.",
    "`conn_rate_over_h2load`: a new connection for each request, 64 at a time, against a server that \
     only replies and closes. Nearly all of the work is TCP in the kernel, for both. With `--ending \
     reset` the client resets the connection once it has the reply.",
    "On loopback, the client's core also processes the packets that the server receives.",
];

/// Measurements by one generator, one value per round.
#[derive(Debug, Default)]
struct Observation {
    rate: Vec<f64>,
    p50_us: Vec<f64>,
    /// CPU time of the generator per request.
    own_us: Vec<f64>,
}

/// The measurements of all generators for one workload.
#[derive(Debug, Default)]
struct GeneratorRuns {
    ours: Observation,
    resetting: Observation,
    h2load: Observation,
    wrk: Observation,
}

struct Lab<'a> {
    site: &'a Site,
    h2load: H2load,
    wrk: Wrk,
    seconds: &'static str,
    wrk_seconds: u32,
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let (h2load, wrk) = (H2load::find()?, Wrk::find()?);
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let versions = [("h2load", h2load.version.clone()), ("wrk", wrk.version.clone())];
    outcome.machine.versions.extend(versions.map(|(name, version)| (name.to_owned(), version)));
    let site = Site::bare(REPLY)?;
    let (seconds, wrk_seconds) = if cx.quick { ("1", 1) } else { ("3", 3) };
    let lab = Lab { site: &site, h2load, wrk, seconds, wrk_seconds };
    let (mut spin, mut hello, mut connections) =
        (GeneratorRuns::default(), GeneratorRuns::default(), GeneratorRuns::default());
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 3 });
    let others = OtherPrograms::watch()?;
    let rounds = if cx.quick { 3 } else { ROUNDS };
    cx.progress.set_length(rounds as u64 * 3);
    for _ in 0..rounds {
        for what in ["100 us of work for each request", "hello", "connections"] {
            if cx.is_late() {
                trials.note_skipped();
                continue;
            }
            cx.progress.set_message(what);
            match what {
                "hello" => lab.keep_alive(&mut hello, &mut trials, HELLO, CONNECTIONS)?,
                "connections" => lab.close(&mut connections, &mut trials)?,
                _ => lab.keep_alive(&mut spin, &mut trials, WORK, CLIENTS)?,
            }
            cx.progress.inc(1);
        }
    }
    figures("100 us of work for each request", &spin, &mut outcome);
    figures("hello, keep-alive", &hello, &mut outcome);
    figures("a new connection for each request", &connections, &mut outcome);
    let goals = [
        ("rate_vs_h2load", ratios(&spin.ours.rate, &spin.h2load.rate)),
        ("latency_p50_vs_wrk", ratios(&spin.ours.p50_us, &spin.wrk.p50_us)),
        ("conn_rate_over_h2load", ratios(&connections.ours.rate, &connections.h2load.rate)),
        (
            "conn_rate_reset_over_h2load",
            ratios(&connections.resetting.rate, &connections.h2load.rate),
        ),
        ("hello_rate_over_h2load", ratios(&hello.ours.rate, &hello.h2load.rate)),
    ];
    for (name, ratios) in goals {
        outcome.ratio(name, "lab load", ratios);
    }
    let ratio = |name| outcome.median(name).map_or("?".to_owned(), |r| format!("{r:.3}"));
    outcome.shows.push(format!(
        "Where the server is the limit, `lab load` measures {} of the rate that h2load measures and {} \
         of the median latency that wrk measures. From one core it opens {} times as many connections per \
         second as h2load, {} times with resets; the remaining cost is TCP. (Goals: 0.95 to 1.05, the \
         same, and 1.5.)",
        ratio("rate_vs_h2load"),
        ratio("latency_p50_vs_wrk"),
        ratio("conn_rate_over_h2load"),
        ratio("conn_rate_reset_over_h2load"),
    ));
    outcome.notes.extend(others.note()?);
    trials.report(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

impl Lab<'_> {
    /// Runs one round on kept-alive connections.
    fn keep_alive(
        &self,
        runs: &mut GeneratorRuns,
        trials: &mut Trials<'_>,
        file: (&str, usize),
        clients: usize,
    ) -> Result<(), Failure> {
        let peer = Peer::Ours("epoll");
        let client_count = clients.to_string();
        let args = ["--connections", &client_count, "--warm-up", "0.2", "--duration", self.seconds];
        let trial = trials.run(peer, &Conditions::default(), file, &args)?;
        runs.ours.note(&trial);

        let mut server = Server::start(&peer.subject(), self.site)?;
        server.check_reply(file.0, file.1)?;
        // A number of requests that takes about as long.
        let requests = trial.observed.replies.max(clients as u64);
        let url = format!("http://{}{}", server.address(), file.0);
        runs.h2load.note_h2load(self.h2load.run(&url, clients, requests, false)?);

        let mut server = Server::start(&peer.subject(), self.site)?;
        server.check_reply(file.0, file.1)?;
        let address = server.address();
        let requests = Requests::KeepAlive;
        runs.wrk.note_wrk(self.wrk.run(address, file.0, requests, clients, self.wrk_seconds)?);
        Ok(())
    }

    /// Runs one round with a new connection for each request.
    fn close(&self, runs: &mut GeneratorRuns, trials: &mut Trials<'_>) -> Result<(), Failure> {
        let null = Peer::Floor("null");
        let usual = ["--connections", "64", "--requests", "1", "--warm-up", "0.2"];
        let mut ours = |ending| {
            let args = [&usual[..], &["--duration", self.seconds, "--ending", ending]].concat();
            trials.run(null, &Conditions::default(), HELLO, &args)
        };
        let trial = ours("server")?;
        runs.ours.note(&trial);
        runs.resetting.note(&ours("reset")?);
        let server = Server::start(&null.subject(), self.site)?;
        let url = format!("http://{}{}", server.address(), HELLO.0);
        let requests = trial.observed.replies.max(CONNECTIONS as u64);
        runs.h2load.note_h2load(self.h2load.run(&url, CONNECTIONS, requests, true)?);
        let server = Server::start(&null.subject(), self.site)?;
        let (address, close) = (server.address(), Requests::Close);
        runs.wrk.note_wrk(self.wrk.run(address, HELLO.0, close, CONNECTIONS, self.wrk_seconds)?);
        Ok(())
    }
}

impl Observation {
    fn note(&mut self, trial: &Trial) {
        self.rate.push(trial.goodput());
        self.p50_us.push(trial.observed.response_us.p50);
        self.own_us.push(trial.observed.generator_us);
    }

    fn note_h2load(&mut self, observed: H2loadObservation) {
        self.rate.push(observed.rate);
        self.own_us.push(observed.own_seconds * 1e6 / observed.requests as f64);
    }

    fn note_wrk(&mut self, observed: WrkObservation) {
        self.rate.push(observed.requests as f64 / observed.seconds);
        self.p50_us.extend(observed.p50_us);
        self.own_us.push(observed.busy * observed.seconds * 1e6 / observed.requests as f64);
    }
}

fn figures(work: &str, runs: &GeneratorRuns, outcome: &mut Outcome) {
    let all = [
        ("lab load", &runs.ours),
        ("lab load, resetting", &runs.resetting),
        ("h2load", &runs.h2load),
        ("wrk", &runs.wrk),
    ];
    for (name, observed) in all {
        let mut add = |figure: &str, unit: &str, values: &[f64]| {
            if let Some(y) = spread(values) {
                outcome.point(&format!("{figure}, {work}"), unit, "", X::Name(name.to_owned()), y);
            }
        };
        add("Requests", "per second", &observed.rate);
        add("Median latency", "us", &observed.p50_us);
        add("Generator CPU for each request", "us", &observed.own_us);
    }
}
