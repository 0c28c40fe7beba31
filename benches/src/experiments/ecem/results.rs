//! The runs of an experiment, its figures and ratios.

use super::{Case, FILE_BYTES, Speed};
use crate::measure::{Peer, Trial};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// A figure of a run.
pub(super) type Figure = fn(&Trial) -> Option<f64>;

/// One run of a server.
pub(super) struct Run {
    pub(super) peer: Peer,
    pub(super) round: usize,
    pub(super) case: Case,
    pub(super) trial: Trial,
}

/// The runs of all servers.
pub(super) struct Downloads {
    pub(super) runs: Vec<Run>,
    pub(super) rounds: usize,
    pub(super) outcome: Outcome,
}

/// Returns the mean response time, where at least one download for each client was measured.
fn measured_seconds(run: &Run) -> Option<f64> {
    let enough = run.trial.observed.replies >= run.case.clients.into();
    let mean = run.trial.mean_ms().map(|ms| ms / 1e3);
    mean.filter(|_| run.case.measures_responses() && enough)
}

/// Returns the mean response time of fast clients by Little's law, where it is not measured.
fn calculated_seconds(run: &Run) -> Option<f64> {
    let rate = run.trial.received_megabytes();
    let of_all = f64::from(run.case.clients) * FILE_BYTES as f64 / 1e6;
    let is_fast = run.case.speed == Speed::Fast;
    (is_fast && !run.case.measures_responses() && rate > 0.0).then(|| of_all / rate)
}

/// Returns the memory of a download, in KiB.
fn memory_kib(run: &Run) -> f64 {
    run.trial.memory_bytes as f64 / 1024.0 / f64::from(run.case.clients)
}

impl Downloads {
    /// Returns the server and the case of each series and point, in the order of the numbers of clients.
    fn points(&self) -> Vec<(Peer, Case)> {
        let mut points: Vec<(Peer, Case)> = Vec::new();
        for run in &self.runs {
            if !points.contains(&(run.peer, run.case)) {
                points.push((run.peer, run.case));
            }
        }
        points.sort_by_key(|(_, case)| case.clients);
        points
    }

    fn of(&self, peer: Peer, case: Case) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| (run.peer, run.case) == (peer, case))
    }

    /// Adds a point.
    fn point(&mut self, figure: &str, unit: &str, (peer, case): (Peer, Case), values: &[f64]) {
        if let Some(y) = spread(values) {
            let figure = format!("{figure} against concurrent downloads{}", case.suffix());
            let x = X::Number(f64::from(case.clients));
            self.outcome.point(&figure, unit, &peer.to_string(), x, y);
        }
    }

    /// Adds the figures.
    pub(super) fn figures(&mut self) {
        for (peer, case) in self.points() {
            let mut add = |figure: &str, unit: &str, of: fn(&Run) -> Option<f64>| {
                let values: Vec<_> = self.of(peer, case).filter_map(of).collect();
                self.point(figure, unit, (peer, case), &values);
            };
            add("Mean response time", "s", measured_seconds);
            add("Mean response time, calculated by Little's law,", "s", calculated_seconds);
            add("Rate", "MB/s", |run| Some(run.trial.received_megabytes()));
            add("Voluntary context switches", "per MB", |run| run.trial.voluntary_per_megabyte());
            add("Involuntary context switches", "per MB", |run| {
                run.trial.involuntary_per_megabyte()
            });
            add("Server CPU", "us per MB", |run| run.trial.cpu_us_per_megabyte());
            add("Peak memory", "KiB per download", |run| Some(memory_kib(run)));
        }
    }

    pub(super) fn add_system_calls(&mut self, peer: Peer, case: Case, per_megabyte: f64) {
        self.point("System calls", "per MB", (peer, case), &[per_megabyte]);
    }

    /// Returns a figure of a server in a round.
    fn value(&self, peer: Peer, case: Case, round: usize, of: Figure) -> Option<f64> {
        self.of(peer, case).find(|run| run.round == round).and_then(|run| of(&run.trial))
    }

    /// Adds the ratio of a figure of two servers in a case.
    pub(super) fn ratio(
        &mut self,
        name: &str,
        (above, below): (Peer, Peer),
        case: Case,
        of: Figure,
    ) {
        let value = |peer, round| self.value(peer, case, round, of);
        let pairs = (0..self.rounds).filter_map(|r| value(above, r).zip(value(below, r)));
        let (over, under): (Vec<_>, Vec<_>) = pairs.unzip();
        self.outcome.ratio(name, &above.to_string(), ratios(&over, &under));
    }

    /// Returns the server with the lowest median of a figure.
    pub(super) fn lowest(&self, peers: &[Peer], case: Case, of: Figure) -> Option<Peer> {
        let median = |peer: Peer| {
            let values: Vec<_> = self.of(peer, case).filter_map(|run| of(&run.trial)).collect();
            spread(&values).map(|spread| (peer, spread.median))
        };
        let medians = peers.iter().copied().filter_map(median);
        medians.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(peer, _)| peer)
    }

    /// Adds the memory of a download, that of the case with most in each round.
    pub(super) fn memory(&mut self, name: &str, peer: Peer, cases: &[Case]) {
        let max = |round| {
            let values = cases.iter().filter_map(|case| {
                self.of(peer, *case).find(|run| run.round == round).map(memory_kib)
            });
            values.reduce(f64::max)
        };
        let values = (0..self.rounds).filter_map(max).collect();
        self.outcome.ratio(name, &peer.to_string(), values);
    }
}
