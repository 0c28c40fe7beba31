//! One server under one load of `lab load`, and what it cost.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::available_parallelism;

use load_generator::RunEvent;

use super::server::program;
use super::{CLIENT_CORE, Conditions, CpuTime, Peer, Server, Site, Switches, TcpCounts};
use crate::failure::Failure;
use crate::load::{Observation, parse_mark};
use crate::outcome::{self, Outcome};

/// Has clients connect from addresses in turn, each with ports of its own.
pub(crate) const SOURCES: [&str; 2] = ["--sources", "127.0.0.2-127.0.0.17"];

/// Spoiled runs that are told of one by one.
const SPOILED_TOLD: usize = 4;

/// What one run came to.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) seen: Observation,
    /// Processor time of the server while what became due counted.
    pub(crate) server_ns: u64,
    pub(crate) switches: Switches,
    pub(crate) tcp: TcpCounts,
}

impl Trial {
    /// Good replies per second.
    pub(crate) fn goodput(&self) -> f64 {
        self.seen.replies_per_second
    }

    /// Bodies of good replies, in megabytes per second.
    pub(crate) fn megabytes(&self) -> f64 {
        self.seen.body_bytes as f64 / 1e6 / self.seen.seconds
    }

    /// So much for each good reply, if there was one.
    fn per_reply(&self, of: f64) -> Option<f64> {
        (self.seen.replies > 0).then(|| of / self.seen.replies as f64)
    }

    /// Processor time of the server for each good reply.
    pub(crate) fn cpu_us_per_reply(&self) -> Option<f64> {
        self.per_reply(self.server_ns as f64 / 1e3)
    }

    /// Context switches of the server for each good reply.
    pub(crate) fn switches_per_reply(&self) -> Option<f64> {
        self.per_reply((self.switches.voluntary + self.switches.involuntary) as f64)
    }

    /// The mean of the times of good replies.
    pub(crate) fn mean_ms(&self) -> Option<f64> {
        self.per_reply(0.0).map(|_| self.seen.response_us.mean / 1e3)
    }

    /// The time that one good reply in a hundred took, or longer.
    pub(crate) fn p99_ms(&self) -> Option<f64> {
        self.per_reply(0.0).map(|_| self.seen.response_us.p99 / 1e3)
    }

    /// Connections that were dropped in the listener's queue, per second.
    pub(crate) fn dropped(&self) -> f64 {
        self.tcp.listen_drops as f64 / self.seen.seconds
    }
}

/// Runs servers under load, a new process each, and discards what the generator spoiled.
#[derive(Debug)]
pub(crate) struct Trials<'a> {
    site: &'a Site,
    /// How often a run is tried that the generator spoils.
    attempts: usize,
    /// Runs that were discarded.
    discarded: usize,
    /// Runs for which there was no time.
    left_out: usize,
    /// Runs that were kept though they were spoiled, as all attempts were.
    spoiled: Vec<String>,
    /// Runs in which the server did not hold its idle connections.
    lost: Vec<String>,
}

impl<'a> Trials<'a> {
    pub(crate) fn new(site: &'a Site, attempts: usize) -> Self {
        Trials { site, attempts, discarded: 0, left_out: 0, spoiled: Vec::new(), lost: Vec::new() }
    }

    /// Runs `peer` under the load that `words` ask `lab load` for, on a path whose body has so many
    /// bytes.
    pub(crate) fn run(
        &mut self,
        peer: Peer,
        conditions: &Conditions<'_>,
        (path, bytes): (&str, usize),
        words: &[&str],
    ) -> Result<Trial, Failure> {
        let mut attempt = 1;
        loop {
            let mut server = Server::start_under(&peer.subject(), self.site, conditions)?;
            server.ask(path, bytes)?;
            let trial = run(&server, path, words)?;
            if let Some(why) = &trial.seen.partial {
                return Err(Failure::Run(format!("{peer}: {why}")));
            }
            if trial.seen.cold_lost > 0 {
                let Observation { load, cold, cold_lost, .. } = &trial.seen;
                self.lost.push(format!(
                    "{peer}, {load}: the server ended {cold_lost} of {cold} idle connections."
                ));
            }
            let Some(doubt) = trial.seen.doubts.first() else { return Ok(trial) };
            let what = format!("{peer}, {}: {doubt}", trial.seen.load);
            if attempt >= self.attempts {
                self.spoiled.push(what);
                return Ok(trial);
            }
            self.discarded += 1;
            attempt += 1;
        }
    }

    /// There is no time for a run.
    pub(crate) fn note_late(&mut self) {
        self.left_out += 1;
    }

    /// Tells whoever reads the figures.
    pub(crate) fn tell(&self, outcome: &mut Outcome) {
        let notes = &mut outcome.notes;
        if !self.spoiled.is_empty() {
            outcome.shows.push(format!(
                "Runs behind these figures that were spoiled, as the notes say: {}.",
                self.spoiled.len()
            ));
        }
        if self.discarded > 0 {
            notes.push(format!(
                "Discarded and made again, as the generator was late or out of room: {} runs.",
                self.discarded
            ));
        }
        if self.left_out > 0 {
            let n = self.left_out;
            notes.push(format!("Left out, as the time was over: {n} runs."));
        }
        notes.extend(self.lost.iter().cloned());
        for what in self.spoiled.iter().take(SPOILED_TOLD) {
            notes.push(format!("Kept though spoiled at every attempt: {what}."));
        }
        if let Some(more @ 1..) = self.spoiled.len().checked_sub(SPOILED_TOLD) {
            notes.push(format!("Likewise in {more} further runs."));
        }
    }
}

/// Counts of a server, and of the network.
#[derive(Clone, Debug)]
struct Reading {
    cpu: CpuTime,
    switches: Switches,
    tcp: TcpCounts,
}

impl Reading {
    fn of(server: &Server) -> Result<Self, Failure> {
        Ok(Reading { cpu: server.cpu()?, switches: server.switches()?, tcp: TcpCounts::now()? })
    }
}

fn run(server: &Server, path: &str, words: &[&str]) -> Result<Trial, Failure> {
    let mut readings = Vec::new();
    let url = format!("http://{}{path}", server.address());
    let seen = load(&url, words, |_| {
        readings.push(Reading::of(server)?);
        Ok(())
    })?;
    let [before, after] = &readings[..] else {
        let why = seen.partial.unwrap_or_else(|| "it ended early".to_owned());
        return Err(Failure::Run(why));
    };
    Ok(Trial {
        seen,
        server_ns: after.cpu.since(&before.cpu),
        switches: Switches {
            voluntary: after.switches.voluntary.saturating_sub(before.switches.voluntary),
            involuntary: after.switches.involuntary.saturating_sub(before.switches.involuntary),
        },
        tcp: after.tcp.since(before.tcp),
    })
}

/// Words that keep the generator awake, where it has a core of its own. To wake a core that sleeps is dear
/// on a virtual machine, and there is the more of it the less there is to do.
pub(crate) fn awake() -> &'static [&'static str] {
    let has_core = available_parallelism().is_ok_and(|cores| cores.get() > CLIENT_CORE);
    if has_core { &["--busy"] } else { &[] }
}

/// Has `lab load` make load from the client's core, and calls `at` when what becomes due begins to
/// count, and when it ends to.
pub(crate) fn load(
    url: &str,
    words: &[&str],
    mut at: impl FnMut(RunEvent) -> Result<(), Failure>,
) -> Result<Observation, Failure> {
    // Not by standard output, which nobody reads before the end.
    let file = outcome::directory()?.join(format!("seen-{}.json", std::process::id()));
    let cores = available_parallelism().map_or(1, usize::from);
    let child = Command::new(program()?)
        .args(["load", url, "--core", &(CLIENT_CORE % cores).to_string(), "--mark", "--json"])
        .arg(&file)
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::new("can't start the load generator", e))?;
    let mut making = Making { child, file };
    let stderr = making.child.stderr.take().expect("standard error is a pipe");
    let mut said = Vec::new();
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        match parse_mark(&line) {
            Some(moment) => at(moment)?,
            None => said.push(line),
        }
    }
    making.child.wait()?;
    serde_json::from_slice(&fs::read(&making.file).unwrap_or_default())
        .map_err(|_| Failure::Run(format!("the load generator says: {}", said.join(" "))))
}

/// A load generator at work, and the file that it will write. Both are gone when this is dropped.
struct Making {
    child: Child,
    file: PathBuf,
}

impl Drop for Making {
    fn drop(&mut self) {
        // Nothing of this fails but when it is done already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}
