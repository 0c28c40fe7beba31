//! The servers compared under one workload.

use super::CONNECTIONS;
use super::work::PeerWork;
use crate::failure::Failure;
use crate::measure::{Callgrind, Peer, PeerRequests, Requests, Server, Site, Wrk};
use crate::statistics;

/// The results of one run of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// CPU time of the server per request.
    pub(super) cpu_ns: f64,
    /// Requests per second.
    pub(super) rate: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// Share of their cores that the server and wrk used.
    pub(super) server_busy: f64,
    pub(super) client_busy: f64,
}

/// A server and its runs, one per round.
#[derive(Debug)]
pub(super) struct PeerRuns {
    pub(super) peer: Peer,
    pub(super) runs: Vec<Run>,
    /// Instructions outside the kernel per request, if they were counted.
    pub(super) instructions: Option<f64>,
    /// The error that ended its measurement.
    pub(super) failed: Option<String>,
}

impl PeerRuns {
    /// Returns one figure of each run.
    pub(super) fn of(&self, figure: fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(figure).collect()
    }
}

/// The servers compared under one workload.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) work: &'static PeerWork,
    pub(super) entries: Vec<PeerRuns>,
}

impl Comparison {
    /// Creates the comparison without the `missing` servers.
    pub(super) fn new(work: &'static PeerWork, missing: &[Peer]) -> Self {
        let entry = |peer: &Peer| PeerRuns {
            peer: *peer,
            runs: Vec::new(),
            instructions: None,
            failed: None,
        };
        let peers = work.peers.iter().filter(|peer| !missing.contains(peer));
        Comparison { work, entries: peers.map(entry).collect() }
    }

    /// Returns the site. If there are floors, its reply is that of our server.
    pub(super) fn site(&self) -> Result<Site, Failure> {
        if !self.work.peers.iter().any(|peer| matches!(peer, Peer::Floor(_))) {
            return Site::bare(b"");
        }
        let times = if let Requests::Pipelined(n) = self.work.requests { n } else { 1 };
        Site::asking(&Peer::Ours("epoll").subject(), self.work.path, times)
    }

    /// Runs one server once, in a new process.
    pub(super) fn run(&mut self, i: usize, site: &Site, wrk: &Wrk, seconds: u32) {
        let (work, entry) = (self.work, &mut self.entries[i]);
        match run(entry.peer, work, site, wrk, seconds) {
            Ok(run) => entry.runs.push(run),
            Err(failure) => entry.failed = Some(failure.to_string()),
        }
    }

    /// Counts the instructions of one server.
    ///
    /// # Errors
    /// If the server does not work under valgrind.
    pub(super) fn count_instructions(
        &mut self,
        i: usize,
        site: &Site,
        callgrind: &Callgrind,
    ) -> Result<(), Failure> {
        let (work, entry) = (self.work, &mut self.entries[i]);
        let subject = entry.peer.subject();
        let requests = PeerRequests {
            path: work.path,
            kind: work.requests,
            connections: CONNECTIONS,
            few: 1_600,
            many: 9_600,
        };
        let count = callgrind.count_requests(&subject, site, &requests)?;
        entry.instructions = Some(count);
        Ok(())
    }

    /// Returns the entry of `peer`.
    pub(super) fn entry(&self, peer: Peer) -> Option<&PeerRuns> {
        self.entries.iter().find(|s| s.peer == peer)
    }
}

/// Returns the ratios of a figure of two entries, one per round. One that failed has the rounds before.
pub(super) fn ratios(above: &PeerRuns, below: &PeerRuns, figure: fn(&Run) -> f64) -> Vec<f64> {
    statistics::ratios_until_failure(&above.of(figure), &below.of(figure))
}

fn run(peer: Peer, work: &PeerWork, site: &Site, wrk: &Wrk, seconds: u32) -> Result<Run, Failure> {
    let mut server = Server::start(&peer.subject(), site)?;
    server.check_reply(work.path, work.bytes)?;
    let before = server.cpu()?;
    let observed = wrk.run(server.address(), work.path, work.requests, CONNECTIONS, seconds)?;
    let spent = server.cpu()?.since(&before) as f64;
    Ok(Run {
        cpu_ns: spent / observed.requests as f64,
        rate: observed.requests as f64 / observed.seconds,
        p50_us: observed.p50_us,
        p99_us: observed.p99_us,
        server_busy: spent / 1e9 / observed.seconds,
        client_busy: observed.busy,
    })
}
