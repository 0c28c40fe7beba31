//! Contestants that measure themselves, once in each round.

use super::Context;
use crate::failure::Failure;
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// A contestant of an experiment: measures itself once in each round.
pub(super) struct Contestant<'a> {
    pub(super) name: String,
    pub(super) measure: Box<dyn FnMut() -> Result<f64, Failure> + 'a>,
    /// One value per round.
    pub(super) values: Vec<f64>,
}

impl<'a> Contestant<'a> {
    pub(super) fn new(
        name: impl Into<String>,
        measure: impl FnMut() -> Result<f64, Failure> + 'a,
    ) -> Contestant<'a> {
        Contestant { name: name.into(), measure: Box::new(measure), values: Vec::new() }
    }
}

/// Runs all contestants in each round, in the order of the round.
pub(super) fn run_rounds(
    cx: &Context,
    rounds: usize,
    contestants: &mut [Contestant<'_>],
) -> Result<(), Failure> {
    cx.progress.set_length((rounds * contestants.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for i in round.order(contestants.len()) {
            let contestant = &mut contestants[i];
            cx.progress.set_message(contestant.name.clone());
            contestant.values.push((contestant.measure)()?);
            cx.progress.inc(1);
        }
    }
    Ok(())
}

/// Returns the values of the contestant `name`.
pub(super) fn values<'a>(contestants: &'a [Contestant<'_>], name: &str) -> &'a [f64] {
    let named = contestants.iter().find(|contestant| contestant.name == name);
    named.map_or(&[], |contestant| &contestant.values)
}

/// Adds the ratio of the times of two contestants, if both took part.
pub(super) fn ratio(
    outcome: &mut Outcome,
    name: &str,
    mechanism: &str,
    all: &[Contestant<'_>],
    (above, below): (&str, &str),
) {
    let of = |name| Some(values(all, name)).filter(|values| !values.is_empty());
    if let Some((above, below)) = of(above).zip(of(below)) {
        outcome.ratio(name, mechanism, ratios(above, below));
    }
}

/// Adds a bar for each contestant.
pub(super) fn bars(
    outcome: &mut Outcome,
    figure: &str,
    unit: &str,
    name: &str,
    all: &[Contestant<'_>],
) {
    for contestant in all {
        if let Some(y) = spread(&contestant.values) {
            outcome.point(figure, unit, name, X::Name(contestant.name.clone()), y);
        }
    }
}
