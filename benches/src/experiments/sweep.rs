//! Servers at several rates, each a multiple of the server's goodput in a closed loop.

use std::iter;

use super::Context;
use crate::failure::Failure;
use crate::measure::{Conditions, Peer, SOURCES, Trial, Trials};
use crate::outcome::{Outcome, X};
use crate::statistics::{over_highest, spread};

/// The conditions of a server, and its load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub(super) conditions: Conditions<'a>,
    /// Suffix of the server's name, if the setting differs from the usual one.
    pub(super) mark: &'static str,
    /// A path and the length of its body, to check the server first.
    pub(super) file: (&'a str, usize),
    /// The option for the sessions: a number of requests, or a file.
    pub(super) session: [&'a str; 2],
    /// Requests per session.
    pub(super) requests: f64,
    /// Duration of the measurement, in seconds.
    pub(super) seconds: &'a str,
    /// Maximum warm-up, in seconds.
    pub(super) max_warm_up: f64,
    /// Further options of the generator.
    pub(super) generator: &'a [&'a str],
}

/// One server at several rates.
#[derive(Debug)]
pub(super) struct Sweep<'a> {
    pub(super) peer: Peer,
    setting: Setting<'a>,
    rounds: Vec<Round>,
    /// The error that ended its measurement.
    pub(super) failed: Option<String>,
}

/// One pass through all rates.
#[derive(Debug)]
struct Round {
    /// Goodput in a closed loop.
    saturation: f64,
    /// The runs at multiples of saturation.
    runs: Vec<(f64, Trial)>,
}

impl Round {
    fn at(&self, multiple: f64) -> Option<&Trial> {
        self.runs.iter().find(|(at, _)| *at == multiple).map(|(_, trial)| trial)
    }
}

/// Number of clients in the closed loop, enough for batches.
const CLIENTS: &str = "256";
/// The clients' deadline, in seconds.
const DEADLINE: &str = "1";

/// Returns the duration of load before the measurement, in seconds. At `multiple` times saturation,
/// the queueing delay grows to the clients' deadline in 1 / (multiple - 1) of that deadline. With
/// several successive requests per connection, it takes that many times as long.
fn warm_up(multiple: Option<f64>, setting: &Setting<'_>) -> f64 {
    match multiple {
        Some(multiple) if multiple > 1.0 => {
            let grown = 1.3 * setting.requests / (multiple - 1.0);
            grown.clamp(1.0, setting.max_warm_up)
        }
        _ => 1.0,
    }
}

/// Creates the sweeps of some servers.
pub(super) fn of<'a>(peers: Vec<Peer>, setting: Setting<'a>) -> Vec<Sweep<'a>> {
    peers.into_iter().map(|peer| Sweep::new(peer, setting)).collect()
}

/// Runs all servers at all rates once; at each rate, one server after the other.
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
                    trials.note_skipped();
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

    /// Returns the suffix of the server's name.
    pub(super) fn mark(&self) -> &'static str {
        self.setting.mark
    }

    /// Returns its name in figures.
    pub(super) fn name(&self) -> String {
        match self.setting.mark {
            "" => self.peer.to_string(),
            mark => format!("{} ({mark})", self.peer),
        }
    }

    /// Returns its name in the names of ratios.
    fn short_name(&self) -> String {
        match self.setting.mark {
            "" => self.peer.short_name(),
            mark => format!("{}_{}", self.peer.short_name(), mark.replace(' ', "_")),
        }
    }

    /// Makes one run: in a closed loop, or at a multiple of saturation.
    fn run(&mut self, trials: &mut Trials<'_>, multiple: Option<f64>) -> Result<(), Failure> {
        let Setting { conditions, file, session, requests, seconds, generator, .. } = self.setting;
        let warm_up = warm_up(multiple, &self.setting).to_string();
        let usual = ["--deadline", DEADLINE, "--warm-up", &warm_up];
        let usual = [&usual[..], &SOURCES[..], &session, generator].concat();
        let Some(multiple) = multiple else {
            let args = [&usual[..], &["--connections", CLIENTS, "--duration", "1.5"]].concat();
            let trial = trials.run(self.peer, &conditions, file, &args)?;
            let saturation = trial.goodput();
            self.rounds.push(Round { saturation, runs: Vec::new() });
            return Ok(());
        };
        let Some(round) = self.rounds.last_mut() else { return Ok(()) };
        let rate = format!("{:.1}", round.saturation * multiple / requests);
        let args = [&usual[..], &["--rate", &rate, "--duration", seconds]].concat();
        let trial = trials.run(self.peer, &conditions, file, &args)?;
        round.runs.push((multiple, trial));
        Ok(())
    }

    /// Returns the goodput in a closed loop, per round.
    pub(super) fn saturation(&self) -> Vec<f64> {
        self.rounds.iter().map(|round| round.saturation).collect()
    }

    /// Returns the multiples of saturation of its runs.
    pub(super) fn multiples(&self) -> Vec<f64> {
        let longest = self.rounds.iter().max_by_key(|round| round.runs.len());
        longest.map_or(Vec::new(), |round| round.runs.iter().map(|(at, _)| *at).collect())
    }

    /// Returns a value of the run at a multiple, per round.
    fn of<T>(&self, multiple: f64, of: impl Fn(&Round, &Trial) -> T) -> Vec<T> {
        let run = |round: &Round| round.at(multiple).map(|trial| of(round, trial));
        self.rounds.iter().filter_map(run).collect()
    }

    /// Returns the goodput at a multiple of saturation, per round.
    pub(super) fn goodput(&self, multiple: f64) -> Vec<f64> {
        self.of(multiple, |_, trial| trial.goodput())
    }

    /// Returns the 99th percentile of the times of good replies, in milliseconds, per round.
    pub(super) fn p99_ms(&self, multiple: f64) -> Vec<f64> {
        self.of(multiple, |_, trial| trial.p99_ms()).into_iter().flatten().collect()
    }

    /// Returns the goodput at a multiple of saturation over the highest goodput up to that multiple, per
    /// round. The closed loop is included; rates with fewer rounds are not.
    pub(super) fn over_peak(&self, multiple: f64) -> Vec<f64> {
        let rounds = self.goodput(multiple).len();
        let below = self.multiples().into_iter().filter(|below| *below <= multiple);
        let below = below.map(|below| self.goodput(below)).filter(|runs| runs.len() >= rounds);
        let all: Vec<_> = iter::once(self.saturation()).chain(below).collect();
        over_highest(&all)
    }

    /// Returns the goodput at a multiple of saturation over saturation, per round.
    pub(super) fn over_saturation(&self, multiple: f64) -> Vec<f64> {
        let min = f64::MIN_POSITIVE;
        self.of(multiple, |round, trial| trial.goodput() / round.saturation.max(min))
    }

    /// Adds a figure of the values that `of` returns, against the rate of requests. Runs without a
    /// value are skipped.
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

    /// Adds the ratios that goals refer to: goodput at twice and three times saturation over its peak
    /// up to that rate.
    pub(super) fn goals(&self, outcome: &mut Outcome) {
        if let Some(failure) = &self.failed {
            outcome.notes.push(format!("{} failed: {failure}", self.name()));
        }
        for (multiple, name) in [(2.0, "r2"), (3.0, "r3")] {
            let name = format!("{}_{name}", self.short_name());
            outcome.ratio(name, &self.name(), self.over_peak(multiple));
        }
    }
}
