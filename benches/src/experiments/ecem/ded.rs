//! Deferred event delivery.

use super::super::servers::{self, DEFAULT};
use super::super::{Context, Experiment};
use super::{COMPARED, COUNTED, Cache, Case, Entry, NUMBERS, Setting, Speed};
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
const NGINX: Peer = Peer::Nginx("copy");

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let mut peers = vec![PLAIN, DED, Peer::Delivery("epoll", "ded")];
    match servers::note(NGINX, false, &mut outcome) {
        Ok(()) => peers.push(NGINX),
        Err(failure) => outcome.notes.push(format!("{failure}.")),
    }
    let entry = |clients, cache, speed| Entry::new(clients, cache, speed, &peers);
    let mut setting = Setting {
        id: EXPERIMENT.id,
        compared: vec![entry(COMPARED, Cache::Cached, Speed::Fast)],
        more: Vec::new(),
        counted: Vec::new(),
    };
    if !cx.quick {
        setting.more.extend(NUMBERS.map(|n| entry(n, Cache::Cached, Speed::Fast)));
        setting.counted.extend(COUNTED.map(|n| entry(n, Cache::Cached, Speed::Fast)));
        for (cache, speed) in [
            (Cache::Cold, Speed::Fast),
            (Cache::Cached, Speed::Limited),
            (Cache::Cold, Speed::Limited),
        ] {
            setting.more.push(entry(COMPARED, cache, speed));
            setting.more.extend(NUMBERS.map(|n| entry(n, cache, speed)));
            setting.counted.push(entry(COMPARED, cache, speed));
            setting.counted.extend(COUNTED.map(|n| entry(n, cache, speed)));
        }
    }
    let site = super::site(cx.quick)?;
    let mut downloads = super::run(cx, &site, &setting, outcome)?;
    let case = Case::new(COMPARED, Cache::Cached, Speed::Fast);
    downloads.ratio(
        "context_switches_over_plain",
        (DED, PLAIN),
        case,
        Trial::switches_per_megabyte,
    );
    downloads.ratio("rate_over_plain", (DED, PLAIN), case, |t| Some(t.received_megabytes()));
    downloads.ratio("cpu_per_mb_over_plain", (DED, PLAIN), case, Trial::cpu_us_per_megabyte);
    let mut outcome = downloads.outcome;
    outcome.paper(
        "Voluntary context switches against concurrent downloads",
        "ECEM, figure 13a: about 20 % fewer context switches with deferred event delivery, except with 10 \
         connections.",
    );
    outcome.paper(
        "Rate against concurrent downloads",
        "ECEM, figure 12 and table 3: 0.0, 2.4, 2.2 and 4.0 % more with 10, 30, 60 and 120 connections.",
    );
    Ok(outcome)
}
