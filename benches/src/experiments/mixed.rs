//! Overload with files of the sizes found on the web.

use std::fmt::Write;
use std::fs;

use super::sweep::{self, Setting};
use super::{Context, Experiment, servers};
use crate::failure::Failure;
use crate::measure::{Conditions, OtherPrograms, Peer, Quota, Site, Trial, Trials};
use crate::outcome::{self, Outcome};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "mixed",
    title: "good replies against the rate of requests for files of many sizes",
    source: "SEND, section 4.9, figure 4.14",
    own_network: true,
    run,
};

/// CPU share of a server, in percent of a core.
const SHARE: u32 = 10;
const FILES: usize = 200;
/// Maximum file size; a larger file would miss the deadline.
const MAX_BYTES: f64 = (1 << 20) as f64;
/// Share of the files in the tail, and the parameters of body and tail.
const TAIL: f64 = 0.07;
const BODY: (f64, f64) = (9.357, 1.318);
const PARETO: (f64, f64) = (133_000.0, 1.1);

/// Rates, as multiples of the goodput in a closed loop: of the first round, of the other rounds and
/// the servers that run once, and of a quick run.
const FIRST: [f64; 7] = [0.5, 0.75, 0.9, 1.0, 1.5, 2.0, 3.0];
const EACH: [f64; 2] = [2.0, 3.0];
const QUICK: [f64; 3] = [1.0, 2.0, 3.0];
const ROUNDS: usize = 6;

const NOTES: [&str; 4] = [
    "Five rounds of the servers that ratios compare, in a shuffled order, each with its own seed for the \
     arrivals; the other servers run once. Rates are multiples of the goodput of 256 clients in a closed \
     loop, measured just before in the same round.",
    "200 files: the body of the sizes is lognormal (mu 9.357, sigma 1.318), 7 % are the tail of a \
     Pareto distribution from 133 KB on (alpha 1.1), cut at 1 MiB. These are the parameters of SURGE \
     (Barford and Crovella, 1998). The thesis compares its files with those of Barford et al. (1999), \
     and gives no parameters.",
    "Each file is requested equally often, in a random order that repeats; a new connection for each \
     request; 10 % of a core for the server; clients give up after one second.",
    "haproxy is excluded: it replies from memory, with files of at most 12 KB.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let quota = Quota::new(SHARE)?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = Site::bare(b"")?;
    let sessions = outcome::directory()?.join("mixed.sessions");
    fs::write(&sessions, listing(&site)?)?;
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 }).may_fail();
    let others = OtherPrograms::watch()?;
    let path = sessions.display().to_string();
    let setting = Setting {
        mark: "",
        conditions: Conditions { quota: Some(&quota), ..Conditions::default() },
        file: ("/1k.txt", 1 << 10),
        session: ["--sessions", &path],
        requests: 1.0,
        seconds: if cx.quick { "1.5" } else { "3" },
        max_warm_up: 5.0,
        generator: &[],
    };
    let few = servers::few(&mut outcome)?;
    let mut rest = servers::all(cx, &mut outcome)?;
    rest.retain(|peer| *peer != Peer::Haproxy && !few.contains(peer));
    let (mut sweeps, mut once) = (sweep::of(few, setting), sweep::of(rest, setting));
    let (rounds, first) = if cx.quick { (1, &QUICK[..]) } else { (ROUNDS, &FIRST[..]) };
    let later = (rounds - 1) * sweeps.len() + once.len();
    let runs = sweeps.len() * (first.len() + 1) + later * (EACH.len() + 1);
    cx.progress.set_length(runs as u64);
    for mut round in cx.rounds(rounds) {
        let multiples = if round.number == 0 { first } else { &EACH };
        sweep::all(cx, &mut trials, &mut sweeps, multiples, &mut round);
    }
    for mut round in cx.rounds(1) {
        sweep::all(cx, &mut trials, &mut once, &EACH, &mut round);
    }
    sweeps.append(&mut once);
    for sweep in &sweeps {
        let mut add = |figure: &str, unit: &str, of: fn(&Trial) -> Option<f64>| {
            sweep.against_rate(&mut outcome, &format!("{figure} against request rate"), unit, of);
        };
        add("Goodput", "replies/s", |t| Some(t.goodput()));
        add("Throughput", "MB/s", |t| Some(t.megabytes()));
        add("Mean response time of good replies", "ms", Trial::mean_ms);
        sweep.report(cx, &mut outcome);
    }
    let (twice, thrice) = (outcome.percentages("_r2"), outcome.percentages("_r3"));
    outcome.shows.push(format!(
        "Goodput at three times saturation, in percent of that in a closed loop: {thrice}; at twice: \
         {twice}."
    ));
    outcome.paper(
        "Goodput against request rate",
        "SEND, figure 4.14: as with files of one size, SEND keeps its rate and /dev/poll does not.",
    );
    outcome.notes.extend(others.note()?);
    trials.report(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Creates the files and the list of sessions, one per file.
fn listing(site: &Site) -> Result<String, Failure> {
    let mut text = String::new();
    for (i, bytes) in sizes().into_iter().enumerate() {
        let name = format!("mixed-{i}.bin");
        site.add(&name, bytes)?;
        writeln!(text, "/{name} size={bytes}\n").expect("writing to a string cannot fail");
    }
    Ok(text)
}

/// Returns the file sizes in random order, the same in every run.
fn sizes() -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(1998);
    let size = |_| {
        let (u, v) = (1.0 - random.f64(), random.f64());
        let bytes = if random.f64() < TAIL {
            PARETO.0 / u.powf(1.0 / PARETO.1)
        } else {
            // The Box-Muller transform.
            let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
            (BODY.0 + BODY.1 * normal).exp()
        };
        bytes.clamp(1.0, MAX_BYTES) as usize
    };
    (0..FILES).map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_median_and_tail_of_the_distribution() {
        let mut sizes = sizes();
        sizes.sort_unstable();
        let median = sizes[FILES / 2] as f64;
        // The median of the body is e^9.357, 11,580 bytes.
        assert!((9_000.0..16_000.0).contains(&median), "{median}");
        let tail = sizes.iter().filter(|bytes| **bytes >= 133_000).count();
        assert!((5..=25).contains(&tail), "{tail}");
    }
}
