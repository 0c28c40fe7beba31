//! A run of a server under `lab load`, and its cost.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use load_generator::RunEvent;

use super::server::program;
use super::{
    CLIENT_CORE, Conditions, CpuTime, Peer, Perf, Server, Site, Switches, TcpCounts, online_cores,
};
use crate::failure::Failure;
use crate::load::{Observation, parse_mark};
use crate::outcome::{self, Outcome, UNRELIABLE_RUNS};

/// Options that make clients connect from several addresses in turn, for more ports.
pub(crate) const SOURCES: [&str; 2] = ["--sources", "127.0.0.2-127.0.0.17"];

/// Maximum number of unreliable runs that are listed individually.
const MAX_LISTED: usize = 4;

/// The results of one run.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) observed: Observation,
    /// CPU time of the server during the measurement.
    pub(crate) server_ns: u64,
    pub(crate) switches: Switches,
    pub(crate) tcp: TcpCounts,
    /// Growth of the memory of the server's processes, from its start to the peak, without pages of files.
    pub(crate) memory_bytes: u64,
}

impl Trial {
    /// Returns the good replies per second.
    pub(crate) fn goodput(&self) -> f64 {
        self.observed.replies_per_second
    }

    /// Returns the bodies of good replies, in megabytes per second.
    pub(crate) fn megabytes(&self) -> f64 {
        self.observed.body_bytes as f64 / 1e6 / self.observed.seconds
    }

    /// Returns the megabytes received per second, also of replies that ended later.
    pub(crate) fn received_megabytes(&self) -> f64 {
        self.observed.received_bytes as f64 / 1e6 / self.observed.seconds
    }

    /// Returns a value per good reply, if there was one.
    fn per_reply(&self, of: f64) -> Option<f64> {
        (self.observed.replies > 0).then(|| of / self.observed.replies as f64)
    }

    /// Returns the CPU time of the server per good reply.
    pub(crate) fn cpu_us_per_reply(&self) -> Option<f64> {
        self.per_reply(self.server_ns as f64 / 1e3)
    }

    /// Returns the context switches of the server per good reply.
    pub(crate) fn switches_per_reply(&self) -> Option<f64> {
        self.per_reply((self.switches.voluntary + self.switches.involuntary) as f64)
    }

    /// Returns a value per megabyte received, if there was one.
    fn per_megabyte(&self, of: f64) -> Option<f64> {
        (self.observed.received_bytes > 0).then(|| of * 1e6 / self.observed.received_bytes as f64)
    }

    /// Returns the CPU time of the server per megabyte.
    pub(crate) fn cpu_us_per_megabyte(&self) -> Option<f64> {
        self.per_megabyte(self.server_ns as f64 / 1e3)
    }

    /// Returns the context switches of the server per megabyte.
    pub(crate) fn switches_per_megabyte(&self) -> Option<f64> {
        self.per_megabyte((self.switches.voluntary + self.switches.involuntary) as f64)
    }

    /// Returns the context switches of the server to wait, per megabyte.
    pub(crate) fn voluntary_per_megabyte(&self) -> Option<f64> {
        self.per_megabyte(self.switches.voluntary as f64)
    }

    /// Returns the context switches of the server by preemption, per megabyte.
    pub(crate) fn involuntary_per_megabyte(&self) -> Option<f64> {
        self.per_megabyte(self.switches.involuntary as f64)
    }

    /// Returns the mean time of good replies, in milliseconds.
    pub(crate) fn mean_ms(&self) -> Option<f64> {
        self.per_reply(0.0).map(|_| self.observed.response_us.mean / 1e3)
    }

    /// Returns the 99th percentile of the times of good replies, in milliseconds.
    pub(crate) fn p99_ms(&self) -> Option<f64> {
        self.per_reply(0.0).map(|_| self.observed.response_us.p99 / 1e3)
    }

    /// Returns the connections dropped in the listen backlog, per second.
    pub(crate) fn dropped(&self) -> f64 {
        self.tcp.listen_drops as f64 / self.observed.seconds
    }
}

/// Runs servers under load, each in a new process, and repeats runs that the generator reports as
/// unreliable.
#[derive(Debug)]
pub(crate) struct Trials<'a> {
    site: &'a Site,
    /// Seed of the load.
    seed: u64,
    /// Maximum number of attempts at a run.
    attempts: usize,
    /// Whether requests may fail, as the load is more than a server can take.
    may_fail: bool,
    /// Number of discarded runs.
    discarded: usize,
    /// Number of runs skipped for lack of time.
    skipped: usize,
    /// Runs whose last attempt was unreliable too.
    unreliable: Vec<String>,
    /// Runs in which the server closed idle connections.
    lost: Vec<String>,
}

impl<'a> Trials<'a> {
    pub(crate) fn new(site: &'a Site, attempts: usize) -> Self {
        Trials {
            site,
            seed: 1,
            attempts,
            may_fail: false,
            discarded: 0,
            skipped: 0,
            unreliable: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Accepts runs in which requests fail, as the load is more than a server can take. Otherwise times would be those of the
    /// requests that did not fail.
    pub(crate) fn may_fail(self) -> Self {
        Trials { may_fail: true, ..self }
    }

    /// Sets the seed of the load of the next runs.
    pub(crate) fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Runs `peer` under `lab load` with the options `args`, on a path whose body has `bytes` bytes.
    pub(crate) fn run(
        &mut self,
        peer: Peer,
        conditions: &Conditions<'_>,
        (path, bytes): (&str, usize),
        args: &[&str],
    ) -> Result<Trial, Failure> {
        let mut attempt = 1;
        let seed = self.seed.to_string();
        let args = [args, &["--seed", &seed]].concat();
        loop {
            let mut server = Server::start_under(&peer.subject(), self.site, conditions)?;
            server.check_reply(path, bytes)?;
            if conditions.evict {
                self.site.evict()?;
            }
            let (resident, private) = (server.unmapped()?, server.private()?);
            let mut trial = run(&server, path, &args)?;
            let peak = server.unmapped_peak()?.saturating_sub(resident);
            // The resident memory of a forked process does not grow when it copies a page.
            trial.memory_bytes = peak.max(server.private()?.saturating_sub(private));
            if let Some(reason) = &trial.observed.partial {
                return Err(Failure::Run(format!("{peer}: {reason}")));
            }
            if trial.observed.idle_lost > 0 {
                let Observation { load, idle, idle_lost, .. } = &trial.observed;
                self.lost.push(format!(
                    "{peer}, {load}: the server closed {idle_lost} of {idle} idle connections."
                ));
            }
            let doubt = trial.observed.doubts.first();
            if doubt.is_some() && attempt < self.attempts {
                self.discarded += 1;
                attempt += 1;
                continue;
            }
            if !self.may_fail && trial.observed.failures() > 0 {
                let failed = &trial.observed.failed;
                return Err(Failure::Run(format!("{peer}: requests failed: {failed:?}")));
            }
            let load = &trial.observed.load;
            self.unreliable.extend(doubt.map(|doubt| format!("{peer}, {load}: {doubt}")));
            return Ok(trial);
        }
    }

    /// Counts the system calls of `peer` for each megabyte received, in a run like those of [`run`](Self::run).
    pub(crate) fn system_calls(
        &mut self,
        perf: &Perf,
        peer: Peer,
        conditions: &Conditions<'_>,
        (path, bytes): (&str, usize),
        args: &[&str],
    ) -> Result<f64, Failure> {
        let mut server = Server::start_under(&peer.subject(), self.site, conditions)?;
        server.check_reply(path, bytes)?;
        if conditions.evict {
            self.site.evict()?;
        }
        let mut counting = perf.count_system_calls(server.family())?;
        let url = format!("http://{}{path}", server.address());
        let observed = load(&url, args, |moment| match moment {
            RunEvent::MeasurementStart => counting.start(),
            _ => counting.pause(),
        })?;
        let calls = counting.end()? as f64;
        match observed.received_bytes {
            0 => Err(Failure::Run("nothing was received".to_owned())),
            bytes => Ok(calls * 1e6 / bytes as f64),
        }
    }

    /// Counts a run skipped for lack of time.
    pub(crate) fn note_skipped(&mut self) {
        self.skipped += 1;
    }

    /// Adds notes on unreliable, discarded and skipped runs.
    pub(crate) fn report(&self, outcome: &mut Outcome) {
        let notes = &mut outcome.notes;
        if !self.unreliable.is_empty() {
            outcome.shows.push(format!("{UNRELIABLE_RUNS}{}.", self.unreliable.len()));
        }
        if self.discarded > 0 {
            notes.push(format!(
                "Discarded and repeated, as the generator was late or at its limit: {} runs.",
                self.discarded
            ));
        }
        if self.skipped > 0 {
            let n = self.skipped;
            notes.push(format!("Skipped for lack of time: {n} runs."));
        }
        notes.extend(self.lost.iter().cloned());
        for what in self.unreliable.iter().take(MAX_LISTED) {
            notes.push(format!("Unreliable at every attempt: {what}."));
        }
        if let Some(more @ 1..) = self.unreliable.len().checked_sub(MAX_LISTED) {
            notes.push(format!("Likewise: {more} further runs."));
        }
    }
}

/// Counters of a server and of the network.
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

fn run(server: &Server, path: &str, args: &[&str]) -> Result<Trial, Failure> {
    let mut readings = Vec::new();
    let url = format!("http://{}{path}", server.address());
    let observed = load(&url, args, |_| {
        readings.push(Reading::of(server)?);
        Ok(())
    })?;
    let [before, after] = &readings[..] else {
        let reason = observed.partial.unwrap_or_else(|| "the run ended early".to_owned());
        return Err(Failure::Run(reason));
    };
    Ok(Trial {
        observed,
        server_ns: after.cpu.since(&before.cpu),
        switches: Switches {
            voluntary: after.switches.voluntary.saturating_sub(before.switches.voluntary),
            involuntary: after.switches.involuntary.saturating_sub(before.switches.involuntary),
        },
        tcp: after.tcp.since(before.tcp),
        memory_bytes: 0,
    })
}

/// Returns the option that keeps the generator from sleeping, if it has its own core. Waking a
/// sleeping core is expensive on a virtual machine, and more frequent at low load.
pub(crate) fn busy_option() -> &'static [&'static str] {
    let has_core = online_cores().is_ok_and(|cores| cores > CLIENT_CORE);
    if has_core { &["--busy-poll"] } else { &[] }
}

/// Runs `lab load` on the client core. Calls `at` at the start and at the end of the measurement.
pub(crate) fn load(
    url: &str,
    args: &[&str],
    mut at: impl FnMut(RunEvent) -> Result<(), Failure>,
) -> Result<Observation, Failure> {
    let file = outcome::directory()?.join(format!("observation-{}.json", std::process::id()));
    let cores = online_cores()?;
    let child = Command::new(program()?)
        .args(["load", url, "--core", &(CLIENT_CORE % cores).to_string(), "--mark", "--json"])
        .arg(&file)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::new("cannot start the load generator", e))?;
    let mut generator = Generator { child, file };
    let stderr = generator.child.stderr.take().expect("standard error is a pipe");
    let mut messages = Vec::new();
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        match parse_mark(&line) {
            Some(moment) => at(moment)?,
            None => messages.push(line),
        }
    }
    generator.child.wait()?;
    serde_json::from_slice(&fs::read(&generator.file).unwrap_or_default())
        .map_err(|_| Failure::Run(format!("the load generator failed: {}", messages.join(" "))))
}

/// A running load generator and its output file; both are removed on drop.
struct Generator {
    child: Child,
    file: PathBuf,
}

impl Drop for Generator {
    fn drop(&mut self) {
        // These calls fail only if they are unnecessary.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}
