//! Whether `lab load` says what other load generators say, and how much it can do.

use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{
    Conditions, H2load, H2loadSeen, Others, Peer, Requests, Server, Site, Trial, Trials, Wrk,
    WrkSeen,
};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "load-check",
    title: "the load generator beside h2load and wrk: rate and latency of the same work, and \
            connections per second from one core",
    source: "goal of this project: rate and median latency within 5 % of theirs, and at least 1.5 \
             times the connections of h2load",
    own_network: true,
    run,
};

const ROUNDS: usize = 12;
/// Where the server is the limit: with so much to do for each request all tools see the same.
const WORK: (&str, usize) = ("/spin?us=100", 4);
const CLIENTS: usize = 16;
/// Where the tool may be the limit.
const HELLO: (&str, usize) = ("/hello", 12);
/// What the server says that does nothing else.
const REPLY: &[u8] =
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 12\r\n\r\nHello world\n";
/// Connections at a time.
const CONNECTIONS: usize = 64;

const NOTES: [&str; 4] = [
    "Server on core 0, generators on core 1, one thread each, alone in a network of their own. Each \
     run has a new server; a round is one run of each generator.",
    "`rate_vs_h2load` and `latency_p50_vs_wrk` are of requests that keep the server busy for 100 us \
     each, on 16 connections in a closed loop: the server is the limit, so that the generators must \
     agree. Where the generator is the limit (`hello`) each sees mostly itself.",
    "`conn_rate_over_h2load`: a new connection for each request, 64 at a time, against a server that \
     does nothing but reply and close. Nearly all of the work is TCP's in the kernel, for both. \
     With `--ending reset` the client resets the connection when it has the reply.",
    "On loopback the client's core does what the server's side of the kernel does with packets, too.",
];

/// What one generator saw in each round.
#[derive(Debug, Default)]
struct Observation {
    rate: Vec<f64>,
    p50_us: Vec<f64>,
    /// Processor time of the generator for each request.
    own_us: Vec<f64>,
}

/// The generators, for one kind of work.
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
    let others = Others::watch()?;
    let rounds = if cx.quick { 3 } else { ROUNDS };
    cx.progress.set_length(rounds as u64 * 3);
    for _ in 0..rounds {
        for what in ["100 us of work for each request", "hello", "connections"] {
            if cx.is_late() {
                trials.note_late();
                continue;
            }
            cx.progress.set_message(what);
            match what {
                "hello" => lab.kept(&mut hello, &mut trials, HELLO, CONNECTIONS)?,
                "connections" => lab.new_ones(&mut connections, &mut trials)?,
                _ => lab.kept(&mut spin, &mut trials, WORK, CLIENTS)?,
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
        if let Some(ratio) = spread(&ratios) {
            outcome.point("Ratios", "", name, X::Name("lab load".to_owned()), ratio);
            outcome.ratios.insert(name.to_owned(), ratio.median);
        }
    }
    let ratio = |name| outcome.ratios.get(name).map_or("?".to_owned(), |r| format!("{r:.3}"));
    outcome.shows.push(format!(
        "Where the server is the limit, `lab load` sees {} of the rate that h2load sees and {} of the \
         median latency that wrk sees. From one core it opens {} times as many connections per \
         second as h2load, {} times if it may reset them; the rest is TCP's own work. (Goals: 0.95 to \
         1.05, the same, and 1.5.)",
        ratio("rate_vs_h2load"),
        ratio("latency_p50_vs_wrk"),
        ratio("conn_rate_over_h2load"),
        ratio("conn_rate_reset_over_h2load"),
    ));
    outcome.notes.extend(others.note()?);
    trials.tell(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

impl Lab<'_> {
    /// One round on connections that are kept.
    fn kept(
        &self,
        side: &mut GeneratorRuns,
        trials: &mut Trials<'_>,
        file: (&str, usize),
        clients: usize,
    ) -> Result<(), Failure> {
        let peer = Peer::Ours("epoll");
        let clients_word = clients.to_string();
        let words =
            ["--connections", &clients_word, "--warm-up", "0.2", "--duration", self.seconds];
        let trial = trials.run(peer, &Conditions::default(), file, &words)?;
        side.ours.note(&trial);

        let mut server = Server::start(&peer.subject(), self.site)?;
        server.ask(file.0, file.1)?;
        // As many as take about as long.
        let requests = trial.seen.replies.max(clients as u64);
        let url = format!("http://{}{}", server.address(), file.0);
        side.h2load.note_h2load(self.h2load.run(&url, clients, requests, false)?);

        let mut server = Server::start(&peer.subject(), self.site)?;
        server.ask(file.0, file.1)?;
        let address = server.address();
        let keep = Requests::KeepAlive;
        side.wrk.note_wrk(self.wrk.run(address, file.0, keep, clients, self.wrk_seconds)?);
        Ok(())
    }

    /// One round with a new connection for each request.
    fn new_ones(&self, side: &mut GeneratorRuns, trials: &mut Trials<'_>) -> Result<(), Failure> {
        let null = Peer::Floor("null");
        let usual = ["--connections", "64", "--requests", "1", "--warm-up", "0.2"];
        let mut ours = |ending| {
            let words = [&usual[..], &["--duration", self.seconds, "--ending", ending]].concat();
            trials.run(null, &Conditions::default(), HELLO, &words)
        };
        let trial = ours("server")?;
        side.ours.note(&trial);
        side.resetting.note(&ours("reset")?);
        let server = Server::start(&null.subject(), self.site)?;
        let url = format!("http://{}{}", server.address(), HELLO.0);
        let requests = trial.seen.replies.max(CONNECTIONS as u64);
        side.h2load.note_h2load(self.h2load.run(&url, CONNECTIONS, requests, true)?);
        let server = Server::start(&null.subject(), self.site)?;
        let (address, close) = (server.address(), Requests::Close);
        side.wrk.note_wrk(self.wrk.run(address, HELLO.0, close, CONNECTIONS, self.wrk_seconds)?);
        Ok(())
    }
}

impl Observation {
    fn note(&mut self, trial: &Trial) {
        self.rate.push(trial.goodput());
        self.p50_us.push(trial.seen.response_us.p50);
        self.own_us.push(trial.seen.generator_us);
    }

    fn note_h2load(&mut self, seen: H2loadSeen) {
        self.rate.push(seen.rate);
        self.own_us.push(seen.own_seconds * 1e6 / seen.requests as f64);
    }

    fn note_wrk(&mut self, seen: WrkSeen) {
        self.rate.push(seen.requests as f64 / seen.seconds);
        self.p50_us.extend(seen.p50_us);
        self.own_us.push(seen.busy * seen.seconds * 1e6 / seen.requests as f64);
    }
}

fn figures(work: &str, side: &GeneratorRuns, outcome: &mut Outcome) {
    let all = [
        ("lab load", &side.ours),
        ("lab load, resetting", &side.resetting),
        ("h2load", &side.h2load),
        ("wrk", &side.wrk),
    ];
    for (name, seen) in all {
        let mut add = |figure: &str, unit: &str, values: &[f64]| {
            if let Some(y) = spread(values) {
                outcome.point(&format!("{figure}, {work}"), unit, "", X::Name(name.to_owned()), y);
            }
        };
        add("Requests", "per second", &seen.rate);
        add("Median latency", "us", &seen.p50_us);
        add("Generator CPU for each request", "us", &seen.own_us);
    }
}
