//! The experiments: one file each, one list.

mod banga_cost;
mod cold;
mod contestants;
mod cpu_profile;
mod fairness;
mod floors;
mod http_sessions;
mod load_check;
mod mixed;
mod overload;
mod peers;
mod preempt;
mod send_dequeue;
mod simulate;
mod sweep;

use std::time::Instant;

use indicatif::ProgressBar;

use crate::command::Simulation;
use crate::failure::Failure;
use crate::outcome::Outcome;

/// An experiment.
pub(crate) struct Experiment {
    /// By what it is called.
    pub(crate) id: &'static str,
    /// What it asks.
    pub(crate) title: &'static str,
    /// Where the question comes from: a paper's figure, or a goal of this project.
    pub(crate) source: &'static str,
    /// Whether it is to have a network of its own.
    pub(crate) own_network: bool,
    /// Runs it.
    pub(crate) run: fn(&Context) -> Result<Outcome, Failure>,
}

/// What an experiment is given.
pub(crate) struct Context {
    /// Whether precision should yield to time.
    pub(crate) quick: bool,
    /// When no further round should begin.
    pub(crate) deadline: Instant,
    /// Shows how far it is.
    pub(crate) progress: ProgressBar,
    /// What only `simulate` takes.
    pub(crate) simulation: Simulation,
}

impl Context {
    /// Whether it is time to come to an end.
    pub(crate) fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// Every experiment.
pub(crate) const ALL: &[Experiment] = &[
    floors::EXPERIMENT,
    peers::EXPERIMENT,
    load_check::EXPERIMENT,
    overload::EXPERIMENT,
    fairness::EXPERIMENT,
    mixed::EXPERIMENT,
    cold::EXPERIMENT,
    banga_cost::EXPERIMENT,
    cpu_profile::EXPERIMENT,
    http_sessions::EXPERIMENT,
    send_dequeue::EXPERIMENT,
    preempt::EXPERIMENT,
    simulate::EXPERIMENT,
];

/// The experiment called `id`.
pub(crate) fn named(id: &str) -> Result<&'static Experiment, Failure> {
    ALL.iter().find(|e| e.id == id).ok_or_else(|| {
        let known: Vec<_> = ALL.iter().map(|e| e.id).collect();
        let known = known.join(", ");
        Failure::Request(format!("there is no experiment `{id}`; those that there are: {known}"))
    })
}
