//! One server under one load of `lab load`, and what it cost.

use std::process::{Command, Stdio};

use super::server::program;
use super::{CLIENT_CORE, Conditions, Peer, Server, Site, Switches, TcpCounts};
use crate::failure::Failure;
use crate::load::Seen;

/// Has clients connect from addresses in turn, each with ports of its own.
pub(crate) const SOURCES: [&str; 2] = ["--sources", "127.0.0.2-127.0.0.17"];

/// What one run came to.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) seen: Seen,
    /// Processor time of the server from the beginning of the load to its end.
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

    /// Processor time of the server for each good reply, those of the warm-up included.
    pub(crate) fn cpu_us_per_reply(&self) -> f64 {
        self.server_ns as f64 / 1e3 / self.all_replies()
    }

    /// Context switches of the server for each good reply.
    pub(crate) fn switches_per_reply(&self) -> f64 {
        (self.switches.voluntary + self.switches.involuntary) as f64 / self.all_replies()
    }

    /// Good replies, those of the warm-up included; one at least.
    fn all_replies(&self) -> f64 {
        let replies: u64 = self.seen.series.iter().map(|interval| interval.replies).sum();
        replies.max(1) as f64
    }

    /// Connections that were dropped in the listener's queue, per second.
    pub(crate) fn dropped(&self) -> f64 {
        let seconds = self.seen.series.last().map_or(1.0, |interval| interval.until_s);
        self.tcp.listen_drops as f64 / seconds
    }
}

/// Runs servers under load, a new process each, and discards what the generator spoiled.
#[derive(Debug)]
pub(crate) struct Trials<'a> {
    site: &'a Site,
    /// How often a run is tried that the generator spoils.
    attempts: usize,
    /// Runs that were discarded, each with the reason.
    discarded: Vec<String>,
    /// Runs for which there was no time.
    left_out: usize,
    /// Runs that were kept though they were spoiled, as all attempts were.
    spoiled: Vec<String>,
}

impl<'a> Trials<'a> {
    pub(crate) fn new(site: &'a Site, attempts: usize) -> Self {
        Trials { site, attempts, discarded: Vec::new(), left_out: 0, spoiled: Vec::new() }
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
            let Some(doubt) = trial.seen.doubts.first() else { return Ok(trial) };
            let what = format!("{peer}, {}: {doubt}", trial.seen.load);
            if attempt >= self.attempts {
                self.spoiled.push(what);
                return Ok(trial);
            }
            self.discarded.push(what);
            attempt += 1;
        }
    }

    /// There is no time for a run.
    pub(crate) fn note_late(&mut self) {
        self.left_out += 1;
    }

    /// Sentences for whoever reads the figures.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.discarded.is_empty() {
            notes.push(format!(
                "{} runs were discarded and made again, as the generator was late or out of room.",
                self.discarded.len()
            ));
        }
        if self.left_out > 0 {
            let n = self.left_out;
            notes.push(format!(
                "{n} runs were left out, as the time was over; the machine was slow."
            ));
        }
        for what in &self.spoiled {
            notes.push(format!("Kept though spoiled {} times: {what}.", self.attempts));
        }
        notes
    }
}

fn run(server: &Server, path: &str, words: &[&str]) -> Result<Trial, Failure> {
    let (cpu, switches, tcp) = (server.cpu()?, server.switches()?, TcpCounts::now()?);
    let seen = load(&format!("http://{}{path}", server.address()), words)?;
    let after = server.switches()?;
    Ok(Trial {
        seen,
        server_ns: server.cpu()?.since(&cpu),
        switches: Switches {
            voluntary: after.voluntary.saturating_sub(switches.voluntary),
            involuntary: after.involuntary.saturating_sub(switches.involuntary),
        },
        tcp: TcpCounts::now()?.since(tcp),
    })
}

/// Has `lab load` make load from the client's core.
pub(crate) fn load(url: &str, words: &[&str]) -> Result<Seen, Failure> {
    let output = Command::new(program()?)
        .args(["load", url, "--core", &CLIENT_CORE.to_string(), "--json", "-"])
        .args(words)
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| Failure::new("can't start the load generator", e))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        Failure::Run(format!("the load generator says: {}", said.trim()))
    })
}
