//! Servers at several rates, each a fixed multiple of the server's capacity: its goodput in a closed
//! loop, measured just before, in the same round.

use super::Context;
use super::rounds::Round;
use crate::failure::Failure;
use crate::measure::{Conditions, Peer, SOURCES, Trial, Trials};
use crate::outcome::{Outcome, X};
use crate::ratio::MIN_ROUNDS;
use crate::statistics::{ratio, spread};

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
    passes: Vec<Pass>,
    /// The error that ended its measurement.
    pub(super) failed: Option<String>,
}

/// One pass through all rates, in one round.
#[derive(Debug)]
struct Pass {
    round: usize,
    /// Goodput in a closed loop.
    saturation: f64,
    /// The runs at multiples of saturation.
    runs: Vec<(f64, Trial)>,
}

impl Pass {
    fn at(&self, multiple: f64) -> Option<&Trial> {
        self.runs.iter().find(|(at, _)| *at == multiple).map(|(_, trial)| trial)
    }
}

/// The results of a server in one round.
pub(super) struct Measurement<'a>(&'a Pass);

impl Measurement<'_> {
    /// Returns the goodput in a closed loop.
    pub(super) fn saturation(&self) -> f64 {
        self.0.saturation
    }

    /// Returns the goodput at a multiple of saturation.
    pub(super) fn goodput(&self, multiple: f64) -> Option<f64> {
        self.0.at(multiple).map(Trial::goodput)
    }

    /// Returns the 99th percentile of the times of good replies, in milliseconds; without a reply it
    /// is infinite.
    pub(super) fn p99_ms(&self, multiple: f64) -> Option<f64> {
        self.0.at(multiple).map(|trial| trial.p99_ms().unwrap_or(f64::INFINITY))
    }
}

/// Number of clients in the closed loop, enough for batches.
const CLIENTS: &str = "256";
/// The clients' deadline, in seconds.
const DEADLINE: &str = "1";

/// Returns the duration of load before the measurement, in seconds. At `multiple` times saturation,
/// the queueing delay grows to the clients' deadline in 1 / (multiple - 1) of that deadline. With
/// several successive requests per connection, it takes that many times as long.
fn warm_up(multiple: f64, setting: &Setting<'_>) -> f64 {
    if multiple <= 1.0 {
        return 1.0;
    }
    (1.3 * setting.requests / (multiple - 1.0)).clamp(1.0, setting.max_warm_up)
}

impl Setting<'_> {
    /// Measures the goodput of a server in a closed loop.
    pub(super) fn saturation(&self, peer: Peer, trials: &mut Trials<'_>) -> Result<f64, Failure> {
        let times = ["--timeout", DEADLINE, "--warm-up", "1", "--duration", "1.5"];
        let clients = ["--connections", CLIENTS];
        let args = [&times[..], &clients, &SOURCES, &self.session, self.generator].concat();
        Ok(trials.run(peer, &self.conditions, self.file, &args)?.goodput())
    }
}

/// Creates the sweeps of some servers.
pub(super) fn of<'a>(peers: Vec<Peer>, setting: Setting<'a>) -> Vec<Sweep<'a>> {
    peers.into_iter().map(|peer| Sweep::new(peer, setting)).collect()
}

/// Runs all servers at all rates once, one server after the other, in the order of the round.
pub(super) fn all(
    cx: &Context,
    trials: &mut Trials<'_>,
    sweeps: &mut [Sweep<'_>],
    multiples: &[f64],
    round: &mut Round,
) {
    trials.set_seed(round.load_seed);
    for i in round.order(sweeps.len()) {
        let sweep = &mut sweeps[i];
        let rates = multiples.iter().copied().map(Some);
        for multiple in [None].into_iter().chain(rates) {
            cx.progress.set_message(match multiple {
                Some(multiple) => format!("{}: {multiple} times saturation", sweep.name()),
                None => format!("{}: saturation", sweep.name()),
            });
            if sweep.failed.is_none() {
                if cx.is_late() {
                    trials.note_skipped();
                } else if let Err(failure) = sweep.run(trials, multiple, round.number) {
                    sweep.failed = Some(failure.to_string());
                }
            }
            cx.progress.inc(1);
        }
    }
}

impl<'a> Sweep<'a> {
    fn new(peer: Peer, setting: Setting<'a>) -> Self {
        Sweep { peer, setting, passes: Vec::new(), failed: None }
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
    fn run(
        &mut self,
        trials: &mut Trials<'_>,
        multiple: Option<f64>,
        round: usize,
    ) -> Result<(), Failure> {
        let Setting { conditions, file, session, requests, seconds, generator, .. } = self.setting;
        let Some(multiple) = multiple else {
            let saturation = self.setting.saturation(self.peer, trials)?;
            self.passes.push(Pass { round, saturation, runs: Vec::new() });
            return Ok(());
        };
        // Without this round's capacity there is no rate.
        let Some(pass) = self.passes.last_mut().filter(|pass| pass.round == round) else {
            return Ok(());
        };
        let rate = format!("{:.1}", pass.saturation * multiple / requests);
        let warm_up = warm_up(multiple, &self.setting).to_string();
        let times = ["--timeout", DEADLINE, "--warm-up", &warm_up, "--duration", seconds];
        let args = [&times[..], &["--rate", &rate], &SOURCES, &session, generator].concat();
        let trial = trials.run(self.peer, &conditions, file, &args)?;
        pass.runs.push((multiple, trial));
        Ok(())
    }

    /// Returns the goodput in a closed loop, per round.
    pub(super) fn saturation(&self) -> Vec<f64> {
        self.passes.iter().map(|pass| pass.saturation).collect()
    }

    /// Returns the ratios of a value of this server to the same of another, for each round that has
    /// both.
    pub(super) fn over(
        &self,
        other: &Sweep<'_>,
        of: impl Fn(&Measurement<'_>) -> Option<f64>,
    ) -> Vec<f64> {
        let in_round = |pass: &Pass| {
            let other = other.passes.iter().find(|other| other.round == pass.round)?;
            Some(ratio(of(&Measurement(pass))?, of(&Measurement(other))?))
        };
        self.passes.iter().filter_map(in_round).collect()
    }

    /// Returns a value per round, of those that have it.
    pub(super) fn each(&self, of: impl Fn(&Measurement<'_>) -> Option<f64>) -> Vec<f64> {
        self.passes.iter().filter_map(|pass| of(&Measurement(pass))).collect()
    }

    /// Returns the multiples of saturation of its runs.
    pub(super) fn multiples(&self) -> Vec<f64> {
        let longest = self.passes.iter().max_by_key(|pass| pass.runs.len());
        longest.map_or(Vec::new(), |pass| pass.runs.iter().map(|(at, _)| *at).collect())
    }

    /// Returns a value of the run at a multiple, per round.
    fn of<T>(&self, multiple: f64, of: impl Fn(&Pass, &Trial) -> T) -> Vec<T> {
        let run = |pass: &Pass| pass.at(multiple).map(|trial| of(pass, trial));
        self.passes.iter().filter_map(run).collect()
    }

    /// Returns the goodput at a multiple of saturation, per round.
    pub(super) fn goodput(&self, multiple: f64) -> Vec<f64> {
        self.of(multiple, |_, trial| trial.goodput())
    }

    /// Returns the goodput at a multiple of saturation over saturation, per round.
    pub(super) fn over_saturation(&self, multiple: f64) -> Vec<f64> {
        self.of(multiple, |pass, trial| ratio(trial.goodput(), pass.saturation))
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
            let offered = self.of(multiple, |pass, _| pass.saturation * multiple);
            let values: Vec<_> = self.of(multiple, |_, t| of(t)).into_iter().flatten().collect();
            if let Some((rate, y)) = spread(&offered).zip(spread(&values)) {
                let x = X::Number(rate.median.round());
                outcome.point(figure, unit, &self.name(), x, y);
            }
        }
    }

    /// Notes the error that ended its measurement, and adds the ratios: goodput at twice and three
    /// times saturation over saturation. Too few rounds make no ratio, unless the run is quick.
    pub(super) fn report(&self, cx: &Context, outcome: &mut Outcome) {
        if let Some(failure) = &self.failed {
            outcome.notes.push(format!("{} failed: {failure}", self.name()));
        }
        if self.passes.len() < MIN_ROUNDS && !cx.quick {
            return;
        }
        for (multiple, name) in [(2.0, "r2"), (3.0, "r3")] {
            let name = format!("{}_{name}", self.short_name());
            outcome.ratio(name, &self.name(), self.over_saturation(multiple));
        }
    }
}
