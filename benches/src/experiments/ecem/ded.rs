//! Deferred event delivery.

use super::super::servers::DEFAULT;
use super::super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{Peer, Trial};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ecem-ded",
    title: "downloads of 10 MB through the memory of the server, with deferred event delivery: rate, response \
            times, context switches",
    source: "ECEM, section 6, figures 12 and 13a",
    own_network: false,
    run,
};

const DED: Peer = Peer::Delivery(DEFAULT, "ded");
const PLAIN: Peer = Peer::Plain("read-write");

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let contestants = [PLAIN, DED, Peer::Delivery("epoll", "ded")];
    let mut downloads = super::run(cx, EXPERIMENT.id, &contestants, Outcome::new(EXPERIMENT.id))?;
    downloads.ratio("context_switches_over_plain", DED, PLAIN, Trial::switches_per_megabyte);
    downloads.ratio("rate_over_plain", DED, PLAIN, |trial| Some(trial.megabytes()));
    let mut outcome = downloads.outcome;
    outcome.paper(
        "Context switches against concurrent downloads",
        "ECEM, figure 13a: about 20 % fewer with deferred event delivery, except with 10 connections.",
    );
    outcome.paper(
        "Rate against concurrent downloads",
        "ECEM, figure 12 and table 3: 0.0, 2.4, 2.2 and 4.0 % more with 10, 30, 60 and 120 connections.",
    );
    Ok(outcome)
}
