//! All servers that take part in one kind of work.

use super::CONNECTIONS;
use super::work::PeerWork;
use crate::failure::Failure;
use crate::measure::{Peer, Requests, Server, Site, Wrk};
use crate::statistics::{self, spread};

/// One server under load for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Processor time of the server for each request.
    pub(super) cpu_ns: f64,
    /// Requests in a second.
    pub(super) rate: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// Which part of its core the server used, and wrk of its.
    pub(super) server_busy: f64,
    pub(super) client_busy: f64,
}

/// One server and its runs, one for each round.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) peer: Peer,
    pub(super) runs: Vec<Run>,
    /// Why it was given up.
    pub(super) failed: Option<String>,
}

impl Entry {
    /// A figure of each run.
    pub(super) fn of(&self, figure: fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(figure).collect()
    }
}

/// All servers that take part in one kind of work.
#[derive(Debug)]
pub(super) struct Contest {
    pub(super) work: &'static PeerWork,
    pub(super) entries: Vec<Entry>,
}

impl Contest {
    /// Without those who are missing.
    pub(super) fn new(work: &'static PeerWork, missing: &[Peer]) -> Self {
        let side = |peer: &Peer| Entry { peer: *peer, runs: Vec::new(), failed: None };
        let peers = work.peers.iter().filter(|peer| !missing.contains(peer));
        Contest { work, entries: peers.map(side).collect() }
    }

    /// What the floors of this work reply, if there are any: what our server does.
    pub(super) fn site(&self) -> Result<Site, Failure> {
        if !self.work.peers.iter().any(|peer| matches!(peer, Peer::Floor(_))) {
            return Site::bare(b"");
        }
        let times = if let Requests::Pipelined(n) = self.work.requests { n } else { 1 };
        Site::asking(&Peer::Ours("epoll").subject(), self.work.path, times)
    }

    /// One run of one server, in a new process.
    pub(super) fn run(&mut self, side: usize, site: &Site, wrk: &Wrk, seconds: u32) {
        let (work, side) = (self.work, &mut self.entries[side]);
        match run(side.peer, work, site, wrk, seconds) {
            Ok(run) => side.runs.push(run),
            Err(failure) => side.failed = Some(failure.to_string()),
        }
    }

    /// The side of `peer`.
    pub(super) fn side(&self, peer: Peer) -> Option<&Entry> {
        self.entries.iter().find(|s| s.peer == peer)
    }

    /// Of the sides that `who` names the one with the least median of a figure.
    pub(super) fn least(&self, who: fn(Peer) -> bool, figure: fn(&Run) -> f64) -> Option<&Entry> {
        let entries = self.entries.iter().filter(|s| who(s.peer));
        let median = |s: &&Entry| spread(&s.of(figure)).map_or(f64::INFINITY, |s| s.median);
        entries.min_by(|a, b| median(a).total_cmp(&median(b)))
    }
}

/// The ratios of a figure of two sides, one for each round.
pub(super) fn ratios(above: &Entry, below: &Entry, figure: fn(&Run) -> f64) -> Vec<f64> {
    statistics::ratios(&above.of(figure), &below.of(figure))
}

fn run(peer: Peer, work: &PeerWork, site: &Site, wrk: &Wrk, seconds: u32) -> Result<Run, Failure> {
    let mut server = Server::start(&peer.subject(), site)?;
    server.ask(work.path, work.bytes)?;
    let before = server.cpu()?;
    let seen = wrk.run(server.address(), work.path, work.requests, CONNECTIONS, seconds)?;
    let spent = server.cpu()?.since(&before) as f64;
    Ok(Run {
        cpu_ns: spent / seen.requests as f64,
        rate: seen.requests as f64 / seen.seconds,
        p50_us: seen.p50_us,
        p99_us: seen.p99_us,
        server_busy: spent / 1e9 / seen.seconds,
        client_busy: seen.busy,
    })
}
