//! Compares `lab load` with other load generators: agreement and maximum rate.

use super::rounds::Round;
use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{
    Conditions, H2load, H2loadObservation, OtherPrograms, Peer, Requests, Server, Site, Trial,
    Trials, Wrk, WrkObservation,
};
use crate::outcome::{Outcome, X};
use crate::statistics::{UNMEASURED, ratios, spread};

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
/// A workload for the generators.
struct GeneratorWork {
    peer: Peer,
    /// A path, and the length of its body.
    file: (&'static str, usize),
    /// Concurrent connections.
    clients: usize,
    /// Whether each request has its own connection.
    close: bool,
}

/// A workload limited by the server, on which all generators must agree.
const SPIN: GeneratorWork = GeneratorWork {
    peer: Peer::Ours("epoll"),
    file: ("/spin?us=100", 4),
    clients: 16,
    close: false,
};
/// Workloads that the generator may limit.
const HELLO: GeneratorWork =
    GeneratorWork { peer: Peer::Ours("epoll"), file: ("/hello", 12), clients: 64, close: false };
const CONNECTIONS: GeneratorWork =
    GeneratorWork { peer: Peer::Floor("null"), file: ("/hello", 12), clients: 64, close: true };

/// The contestants of a round.
#[derive(Clone, Copy)]
enum Generator {
    Ours,
    H2load,
    Wrk,
    /// Ours, which resets its connections.
    Resetting,
}

const GENERATORS: [Generator; 4] =
    [Generator::Ours, Generator::H2load, Generator::Wrk, Generator::Resetting];

/// The reply of the `null` server.
const REPLY: &[u8] =
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 12\r\n\r\nHello world\n";

const NOTES: [&str; 4] = [
    "Server on core 0, generators on core 1, one thread each, in their own network namespace. Each run \
     has a new server; a round is one run of each generator, in a shuffled order. h2load makes as many \
     requests as `lab load` made in its last run.",
    "`rate_vs_h2load` and `latency_p50_vs_wrk` are of requests that keep the server busy for 100 us \
     each, on 16 connections in a closed loop: the server is the limit, so the generators must agree. \
     Where the generator is the limit (`hello`), each measures mostly itself.",
    "`conn_rate_over_h2load`: a new connection for each request, 64 at a time, against a server that \
     only replies and closes. Nearly all of the work is TCP in the kernel, for both. With `--close-mode \
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
    /// Requests of our last run.
    last_requests: Option<u64>,
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
    for mut round in cx.rounds(rounds) {
        trials.set_seed(round.load_seed);
        for (name, work, runs) in [
            ("100 us of work for each request", &SPIN, &mut spin),
            ("hello", &HELLO, &mut hello),
            ("connections", &CONNECTIONS, &mut connections),
        ] {
            cx.progress.set_message(name);
            lab.round(work, runs, &mut trials, &mut round)?;
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
    /// Runs one round: each generator once.
    fn round(
        &self,
        work: &GeneratorWork,
        runs: &mut GeneratorRuns,
        trials: &mut Trials<'_>,
        round: &mut Round,
    ) -> Result<(), Failure> {
        // h2load makes a number of requests that takes about as long as our last run.
        let requests = match runs.last_requests {
            Some(requests) => requests,
            None => self.ours(work, trials, "server")?.observed.replies,
        };
        // Without a close, there is no reset.
        let generators = if work.close { &GENERATORS[..] } else { &GENERATORS[..3] };
        for i in round.order(generators.len()) {
            match generators[i] {
                Generator::Ours => {
                    let trial = self.ours(work, trials, "server")?;
                    runs.last_requests = Some(trial.observed.replies);
                    runs.ours.note(&trial);
                }
                Generator::Resetting => runs.resetting.note(&self.ours(work, trials, "reset")?),
                Generator::H2load => {
                    let server = self.server(work)?;
                    let url = format!("http://{}{}", server.address(), work.file.0);
                    let requests = requests.max(work.clients as u64);
                    let run = self.h2load.run(&url, work.clients, requests, work.close)?;
                    runs.h2load.note_h2load(run);
                }
                Generator::Wrk => {
                    let kind = if work.close { Requests::Close } else { Requests::KeepAlive };
                    let (server, path) = (self.server(work)?, work.file.0);
                    let (clients, seconds) = (work.clients, self.wrk_seconds);
                    let run = self.wrk.run(server.address(), path, kind, clients, seconds)?;
                    runs.wrk.note_wrk(run);
                }
            }
        }
        Ok(())
    }

    /// Runs our generator; a close mode applies if each request has its own connection.
    fn ours(
        &self,
        work: &GeneratorWork,
        trials: &mut Trials<'_>,
        close_mode: &str,
    ) -> Result<Trial, Failure> {
        let clients = work.clients.to_string();
        let usual = ["--connections", &clients, "--warm-up", "0.2", "--duration", self.seconds];
        let closing = ["--requests", "1", "--close-mode", close_mode];
        let args = [&usual[..], if work.close { &closing } else { &[] }].concat();
        trials.run(work.peer, &Conditions::default(), work.file, &args)
    }

    /// Starts a server for another generator.
    fn server(&self, work: &GeneratorWork) -> Result<Server, Failure> {
        let mut server = Server::start(&work.peer.subject(), self.site)?;
        server.check_reply(work.file.0, work.file.1)?;
        Ok(server)
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
        self.p50_us.push(observed.p50_us.unwrap_or(UNMEASURED));
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
