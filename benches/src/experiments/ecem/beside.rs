//! Small cached requests beside readers of files that are not cached.

use super::super::Context;
use super::{Cache, FILE_BYTES, FILES, LIMIT, QUICK_FILES, SEND_BUFFER, SMALL};
use crate::failure::Failure;
use crate::measure::{Conditions, Peer, Site, Trials, busy_option};
use crate::outcome::{Outcome, X};
use crate::statistics::{UNMEASURED, ratios, spread};

const ROUNDS: usize = 9;
/// Number of readers.
const READERS: u32 = 64;
/// Small requests per second.
const RATE: &str = "2000";
const FIGURE: &str = "99th percentile of small requests";

/// The 99th percentiles of a server in each round, in milliseconds.
struct Percentiles {
    peer: Peer,
    alone: Vec<f64>,
    beside: Vec<f64>,
}

/// The results.
pub(super) struct Beside(Vec<Percentiles>);

/// Measures the servers.
pub(super) fn run(cx: &Context, site: &Site, peers: &[Peer], outcome: &mut Outcome) -> Beside {
    // The readers must not reach the end of their files, nor those of the others.
    const { assert!(FILE_BYTES > 4 * LIMIT as usize && (READERS as usize) < QUICK_FILES.cold) };
    let mut trials = Trials::new(site, 1);
    let sessions = site.root().join(FILES.sessions(Cache::Cold)).display().to_string();
    let (readers, rate) = (READERS.to_string(), LIMIT.to_string());
    let (warm_up, seconds) = if cx.quick { ("1", "1") } else { ("1", "2") };
    let small =
        ["--rate", RATE, "--connections", "16", "--warm-up", warm_up, "--duration", seconds];
    let alone = [&small[..], busy_option()].concat();
    let slow = ["--slow-readers", &readers, "--slow-rate", &rate, "--slow-sessions", &sessions];
    // With a small buffer, what the generator does for the readers delays the small requests.
    let slow = [&slow[..], &["--slow-spread", "0.8", "--slow-buffer", "65536"]].concat();
    let beside = [&alone[..], &slow].concat();
    let entry = |peer: &Peer| Percentiles { peer: *peer, alone: Vec::new(), beside: Vec::new() };
    let mut all: Vec<_> = peers.iter().map(entry).collect();
    for mut round in cx.rounds(if cx.quick { 1 } else { ROUNDS }) {
        trials.set_seed(round.load_seed);
        for i in round.order(all.len()) {
            let Percentiles { peer, alone: of_alone, beside: of_beside } = &mut all[i];
            cx.progress.set_message(format!("{peer}: small requests beside readers"));
            let mut p99 = |evict, args: &[&str]| -> Result<f64, Failure> {
                let send_buffer = Some(SEND_BUFFER);
                let conditions = Conditions { send_buffer, evict, ..Conditions::default() };
                let trial = trials.run(*peer, &conditions, SMALL, args)?;
                if !trial.observed.doubts.is_empty() {
                    return Ok(UNMEASURED);
                }
                trial.p99_ms().ok_or_else(|| Failure::Run("no replies".to_owned()))
            };
            match p99(false, &alone).and_then(|a| Ok((a, p99(true, &beside)?))) {
                Ok((alone, beside)) => {
                    of_alone.push(alone);
                    of_beside.push(beside);
                }
                Err(failure) => {
                    outcome.notes.push(format!("{peer}, small requests, failed: {failure}."));
                }
            }
        }
    }
    trials.report(outcome);
    outcome.notes.push(format!(
        "Small requests: {RATE} per second for a cached file of 1 KiB, in an open loop on 16 connections, alone and \
         beside {READERS} readers with a limited rate, each of another file of 10 MB that is not cached. \
         The readers begin within 0.8 s, and have receive buffers of 64 KiB. A run whose generator was late has no value."
    ));
    Beside(all)
}

impl Beside {
    /// Adds the figure, and the ratio of each server. That of `ours` has the plain name.
    pub(super) fn report(&self, ours: Peer, outcome: &mut Outcome) {
        for Percentiles { peer, alone, beside } in &self.0 {
            let server = peer.to_string();
            for (x, values) in [("alone", alone), ("beside readers", beside)] {
                if let Some(y) = spread(values) {
                    outcome.point(FIGURE, "ms", &server, X::Name(x.to_owned()), y);
                }
            }
            let name = match *peer == ours {
                true => "cached_p99_over_alone".to_owned(),
                false => format!("cached_p99_over_alone_{}", peer.short_name()),
            };
            outcome.ratio(name, &server, ratios(beside, alone));
        }
    }
}
