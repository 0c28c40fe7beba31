//! Servers at several rates, each a multiple of what the server does in a closed loop.

use super::Context;
use crate::failure::Failure;
use crate::measure::{Conditions, Peer, SOURCES, Trial, Trials};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;

/// Under what a server runs, and what it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub(super) conditions: Conditions<'a>,
    /// A path with the length of its body, for a first look.
    pub(super) file: (&'a str, usize),
    /// What makes the sessions: a number of requests, or a file.
    pub(super) session: [&'a str; 2],
    /// Requests of a session.
    pub(super) requests: f64,
    /// For how many seconds load counts.
    pub(super) seconds: &'a str,
}

/// One server at several rates.
#[derive(Debug)]
pub(super) struct Sweep<'a> {
    pub(super) peer: Peer,
    setting: Setting<'a>,
    /// What it did in a closed loop, once for each round.
    pub(super) saturation: Vec<f64>,
    /// The runs at each multiple of it.
    pub(super) points: Vec<Point>,
    /// Why it was given up.
    pub(super) failed: Option<String>,
}

/// The runs at one rate, one for each round.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) multiple: f64,
    /// Requests per second that the load asks for, if all of them are made.
    offered: Vec<f64>,
    trials: Vec<Trial>,
}

/// Clients of the closed loop, many enough for batches.
const CLIENTS: &str = "256";

/// Sweeps for some servers.
pub(super) fn of<'a>(peers: Vec<Peer>, setting: Setting<'a>) -> Vec<Sweep<'a>> {
    peers.into_iter().map(|peer| Sweep::new(peer, setting)).collect()
}

/// Takes all servers through all rates once; at each rate one after the other.
pub(super) fn all(
    cx: &Context,
    trials: &mut Trials<'_>,
    sweeps: &mut [Sweep<'_>],
    multiples: &[f64],
) {
    let closed = [None].into_iter();
    for multiple in closed.chain(multiples.iter().copied().map(Some)) {
        for sweep in sweeps.iter_mut() {
            cx.progress.set_message(match multiple {
                Some(multiple) => format!("{}: {multiple} times saturation", sweep.peer),
                None => format!("{}: saturation", sweep.peer),
            });
            if cx.is_late() {
                trials.note_late();
            } else if sweep.failed.is_none()
                && let Err(failure) = sweep.run(trials, multiple)
            {
                sweep.failed = Some(failure.to_string());
            }
            cx.progress.inc(1);
        }
    }
}

impl<'a> Sweep<'a> {
    fn new(peer: Peer, setting: Setting<'a>) -> Self {
        Sweep { peer, setting, saturation: Vec::new(), points: Vec::new(), failed: None }
    }

    /// One run: in a closed loop, or at a multiple of what was done there.
    fn run(&mut self, trials: &mut Trials<'_>, multiple: Option<f64>) -> Result<(), Failure> {
        let Setting { conditions, file, session, requests, seconds } = self.setting;
        let usual = [&["--deadline", "1", "--warm-up", "1"], &SOURCES[..], &session].concat();
        let Some(multiple) = multiple else {
            let words = [&usual[..], &["--connections", CLIENTS, "--duration", "1.5"]].concat();
            let trial = trials.run(self.peer, &conditions, file, &words)?;
            self.saturation.push(trial.goodput());
            return Ok(());
        };
        let Some(saturation) = self.saturation.last() else { return Ok(()) };
        let rate = format!("{:.1}", saturation * multiple / requests);
        let words = [&usual[..], &["--rate", &rate, "--duration", seconds]].concat();
        let trial = trials.run(self.peer, &conditions, file, &words)?;
        let point = match self.points.iter().position(|point| point.multiple == multiple) {
            Some(at) => &mut self.points[at],
            None => {
                self.points.push(Point { multiple, offered: Vec::new(), trials: Vec::new() });
                self.points.last_mut().expect("it was just added")
            }
        };
        point.offered.push(saturation * multiple);
        point.trials.push(trial);
        Ok(())
    }

    /// Goodput at a multiple of saturation, once for each round.
    pub(super) fn goodput(&self, multiple: f64) -> Vec<f64> {
        let point = self.points.iter().find(|point| point.multiple == multiple);
        point.map_or(Vec::new(), |point| point.trials.iter().map(Trial::goodput).collect())
    }

    /// The same over the highest goodput of each round.
    pub(super) fn relative(&self, multiple: f64) -> Vec<f64> {
        let best = |round: usize| {
            let runs = self.points.iter().filter_map(|point| point.trials.get(round));
            let all = runs.map(Trial::goodput).chain(self.saturation.get(round).copied());
            all.fold(f64::MIN_POSITIVE, f64::max)
        };
        let goodput = self.goodput(multiple).into_iter().enumerate();
        goodput.map(|(round, good)| good / best(round)).collect()
    }

    /// Adds a figure: what `of` says of each run, against the rate of requests.
    pub(super) fn against_rate(
        &self,
        outcome: &mut Outcome,
        figure: &str,
        unit: &str,
        of: fn(&Trial) -> f64,
    ) {
        for point in &self.points {
            let values: Vec<_> = point.trials.iter().map(of).collect();
            if let Some((rate, y)) = spread(&point.offered).zip(spread(&values)) {
                let x = X::Number(rate.median.round());
                outcome.point(figure, unit, &self.peer.to_string(), x, y);
            }
        }
    }

    /// Adds the ratios that goals are stated in: goodput at twice and three times saturation over
    /// its peak.
    pub(super) fn goals(&self, outcome: &mut Outcome) {
        if let Some(failure) = &self.failed {
            outcome.notes.push(format!("{} failed: {failure}", self.peer));
        }
        for (multiple, name) in [(2.0, "r2"), (3.0, "r3")] {
            if let Some(ratio) = spread(&self.relative(multiple)) {
                outcome.ratios.insert(format!("{}_{name}", self.short_name()), ratio.median);
            }
        }
    }

    /// Its name in the names of ratios.
    fn short_name(&self) -> String {
        match self.peer {
            Peer::Nginx(_) => "nginx".to_owned(),
            peer => peer.to_string().replace(['-', ' '], "_"),
        }
    }
}
