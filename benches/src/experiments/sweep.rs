//! Servers at several rates, each a multiple of what the server does in a closed loop.

use std::iter;

use super::Context;
use crate::failure::Failure;
use crate::measure::{Conditions, Peer, SOURCES, Trial, Trials};
use crate::outcome::{Outcome, X};
use crate::statistics::{over_highest, spread};

/// Under what a server runs, and what it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub(super) conditions: Conditions<'a>,
    /// What is said behind a server's name, if it differs from the others.
    pub(super) mark: &'static str,
    /// A path with the length of its body, for a first look.
    pub(super) file: (&'a str, usize),
    /// What makes the sessions: a number of requests, or a file.
    pub(super) session: [&'a str; 2],
    /// Requests of a session.
    pub(super) requests: f64,
    /// For how many seconds load counts.
    pub(super) seconds: &'a str,
    /// The longest warm-up, in seconds.
    pub(super) longest_warm_up: f64,
    /// Further words for the generator.
    pub(super) generator: &'a [&'a str],
}

/// One server at several rates.
#[derive(Debug)]
pub(super) struct Sweep<'a> {
    pub(super) peer: Peer,
    setting: Setting<'a>,
    rounds: Vec<Round>,
    /// Why it was given up.
    pub(super) failed: Option<String>,
}

/// One time through all rates.
#[derive(Debug)]
struct Round {
    /// What it did in a closed loop.
    saturation: f64,
    /// The runs at multiples of it.
    runs: Vec<(f64, Trial)>,
}

impl Round {
    fn at(&self, multiple: f64) -> Option<&Trial> {
        self.runs.iter().find(|(at, _)| *at == multiple).map(|(_, trial)| trial)
    }
}

/// Clients of the closed loop, many enough for batches.
const CLIENTS: &str = "256";
/// When clients give up, in seconds.
const DEADLINE: &str = "1";

/// For how long load is made before it counts, in seconds. The queue of a server that is asked for
/// `multiple` of what it can do grows until those who are served have waited as long as clients
/// wait, which takes 1 / (multiple - 1) of that time; with several requests on each connection, one
/// after the other, so many times as long.
fn warm_up(multiple: Option<f64>, setting: &Setting<'_>) -> f64 {
    match multiple {
        Some(multiple) if multiple > 1.0 => {
            let grown = 1.3 * setting.requests / (multiple - 1.0);
            grown.clamp(1.0, setting.longest_warm_up)
        }
        _ => 1.0,
    }
}

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
                Some(multiple) => format!("{}: {multiple} times saturation", sweep.name()),
                None => format!("{}: saturation", sweep.name()),
            });
            if sweep.failed.is_none() {
                if cx.is_late() {
                    trials.note_late();
                } else if let Err(failure) = sweep.run(trials, multiple) {
                    sweep.failed = Some(failure.to_string());
                }
            }
            cx.progress.inc(1);
        }
    }
}

impl<'a> Sweep<'a> {
    fn new(peer: Peer, setting: Setting<'a>) -> Self {
        Sweep { peer, setting, rounds: Vec::new(), failed: None }
    }

    /// What is said behind its server's name.
    pub(super) fn mark(&self) -> &'static str {
        self.setting.mark
    }

    /// Its name in figures.
    pub(super) fn name(&self) -> String {
        match self.setting.mark {
            "" => self.peer.to_string(),
            mark => format!("{} ({mark})", self.peer),
        }
    }

    /// Its name in the names of ratios.
    fn short_name(&self) -> String {
        match self.setting.mark {
            "" => self.peer.short_name(),
            mark => format!("{}_{}", self.peer.short_name(), mark.replace(' ', "_")),
        }
    }

    /// One run: in a closed loop, or at a multiple of what was done there.
    fn run(&mut self, trials: &mut Trials<'_>, multiple: Option<f64>) -> Result<(), Failure> {
        let Setting { conditions, file, session, requests, seconds, generator, .. } = self.setting;
        let warm_up = warm_up(multiple, &self.setting).to_string();
        let usual = ["--deadline", DEADLINE, "--warm-up", &warm_up];
        let usual = [&usual[..], &SOURCES[..], &session, generator].concat();
        let Some(multiple) = multiple else {
            let words = [&usual[..], &["--connections", CLIENTS, "--duration", "1.5"]].concat();
            let trial = trials.run(self.peer, &conditions, file, &words)?;
            let saturation = trial.goodput();
            self.rounds.push(Round { saturation, runs: Vec::new() });
            return Ok(());
        };
        let Some(round) = self.rounds.last_mut() else { return Ok(()) };
        let rate = format!("{:.1}", round.saturation * multiple / requests);
        let words = [&usual[..], &["--rate", &rate, "--duration", seconds]].concat();
        let trial = trials.run(self.peer, &conditions, file, &words)?;
        round.runs.push((multiple, trial));
        Ok(())
    }

    /// What it did in a closed loop, once for each round.
    pub(super) fn saturation(&self) -> Vec<f64> {
        self.rounds.iter().map(|round| round.saturation).collect()
    }

    /// The multiples of it that it was asked for.
    pub(super) fn multiples(&self) -> Vec<f64> {
        let most = self.rounds.iter().max_by_key(|round| round.runs.len());
        most.map_or(Vec::new(), |round| round.runs.iter().map(|(at, _)| *at).collect())
    }

    /// Something of the run at a multiple, once for each round.
    fn of<T>(&self, multiple: f64, of: impl Fn(&Round, &Trial) -> T) -> Vec<T> {
        let run = |round: &Round| round.at(multiple).map(|trial| of(round, trial));
        self.rounds.iter().filter_map(run).collect()
    }

    /// Goodput at a multiple of saturation.
    pub(super) fn goodput(&self, multiple: f64) -> Vec<f64> {
        self.of(multiple, |_, trial| trial.goodput())
    }

    /// The 99th percentile of the times of good replies, in milliseconds.
    pub(super) fn p99_ms(&self, multiple: f64) -> Vec<f64> {
        self.of(multiple, |_, trial| trial.p99_ms()).into_iter().flatten().collect()
    }

    /// What is left at a multiple of saturation of the best goodput on the way there: that of the same round
    /// in a closed loop, or at a rate that was asked for as often.
    pub(super) fn over_peak(&self, multiple: f64) -> Vec<f64> {
        let rounds = self.goodput(multiple).len();
        let below = self.multiples().into_iter().filter(|below| *below <= multiple);
        let below = below.map(|below| self.goodput(below)).filter(|runs| runs.len() >= rounds);
        let all: Vec<_> = iter::once(self.saturation()).chain(below).collect();
        over_highest(&all)
    }

    /// Goodput at a multiple of saturation, over that.
    pub(super) fn over_saturation(&self, multiple: f64) -> Vec<f64> {
        let least = f64::MIN_POSITIVE;
        self.of(multiple, |round, trial| trial.goodput() / round.saturation.max(least))
    }

    /// Adds a figure: what `of` says of each run, against the rate of requests; nothing where there
    /// is nothing to say.
    pub(super) fn against_rate(
        &self,
        outcome: &mut Outcome,
        figure: &str,
        unit: &str,
        of: fn(&Trial) -> Option<f64>,
    ) {
        for multiple in self.multiples() {
            let offered = self.of(multiple, |round, _| round.saturation * multiple);
            let values: Vec<_> = self.of(multiple, |_, t| of(t)).into_iter().flatten().collect();
            if let Some((rate, y)) = spread(&offered).zip(spread(&values)) {
                let x = X::Number(rate.median.round());
                outcome.point(figure, unit, &self.name(), x, y);
            }
        }
    }

    /// Adds the ratios that goals are stated in: goodput at twice and three times saturation over its peak
    /// up to there.
    pub(super) fn goals(&self, outcome: &mut Outcome) {
        if let Some(failure) = &self.failed {
            outcome.notes.push(format!("{} failed: {failure}", self.name()));
        }
        for (multiple, name) in [(2.0, "r2"), (3.0, "r3")] {
            if let Some(ratio) = spread(&self.over_peak(multiple)) {
                let name = format!("{}_{name}", self.short_name());
                outcome.point("Ratios", "", &name, X::Name("over the peak".to_owned()), ratio);
                outcome.ratios.insert(name, ratio.median);
            }
        }
    }
}
