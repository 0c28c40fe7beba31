//! An experiment and its parameters.

use std::time::Instant;

use indicatif::ProgressBar;

use crate::command::Simulation;
use crate::failure::Failure;
use crate::outcome::Outcome;

/// An experiment.
pub(crate) struct Experiment {
    /// Identifier on the command line.
    pub(crate) id: &'static str,
    /// The quantity it measures.
    pub(crate) title: &'static str,
    /// The origin of the question: a paper's figure, or a goal of this project.
    pub(crate) source: &'static str,
    /// Whether it runs in its own network namespace.
    pub(crate) own_network: bool,
    /// Runs it.
    pub(crate) run: fn(&Context) -> Result<Outcome, Failure>,
}

/// The parameters of an experiment.
pub(crate) struct Context {
    /// Whether to save time at the cost of precision.
    pub(crate) quick: bool,
    /// Time after which no further round begins.
    pub(crate) deadline: Instant,
    /// Seed of the order of contestants and of the load.
    pub(crate) seed: u64,
    /// The progress bar.
    pub(crate) progress: ProgressBar,
    /// The options of `simulate`.
    pub(crate) simulation: Simulation,
}

impl Context {
    /// Returns whether the deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }
}
