//! Disk-to-network splicing.

use super::super::servers::{self, DEFAULT};
use super::super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{Peer, Trial};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ecem-dns",
    title: "downloads of 10 MB from the page cache, with disk-to-network splicing: rate, response times, \
            context switches",
    source: "ECEM, section 6, figures 13b and 14, table 3",
    own_network: false,
    run,
};

const DNS: Peer = Peer::Delivery(DEFAULT, "dns");
const EPOLL: Peer = Peer::Delivery("epoll", "plain");
const PLAIN: Peer = Peer::Plain("sendfile");
const NGINX: Peer = Peer::Nginx("downloads");

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let mut contestants = vec![PLAIN, EPOLL, Peer::Delivery(DEFAULT, "plain"), DNS];
    match servers::note(NGINX, false, &mut outcome) {
        Ok(()) => contestants.push(NGINX),
        Err(failure) => outcome.notes.push(format!("{failure}.")),
    }
    let mut downloads = super::run(cx, EXPERIMENT.id, &contestants, outcome)?;
    downloads.ratio("context_switches_over_plain", DNS, PLAIN, Trial::switches_per_megabyte);
    downloads.ratio("context_switches_over_epoll", DNS, EPOLL, Trial::switches_per_megabyte);
    downloads.ratio("cached_cpu_per_mb_over_nginx", DNS, NGINX, Trial::cpu_us_per_megabyte);
    downloads.memory("memory_per_download_kb", DNS);
    let mut outcome = downloads.outcome;
    outcome.paper(
        "Context switches against concurrent downloads",
        "ECEM, figure 13b: up to 17 % fewer with disk-to-network splicing.",
    );
    outcome.paper(
        "Mean response time against concurrent downloads",
        "ECEM, figure 14 and table 3: 8.1, 7.2, 7.0 and 6.9 % less with 10, 30, 60 and 120 connections.",
    );
    Ok(outcome)
}
