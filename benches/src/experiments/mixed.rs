//! Files of many sizes, as the web has them.

use std::fmt::Write;
use std::fs;

use super::sweep::{self, Setting};
use super::{Context, Experiment, contestants};
use crate::failure::Failure;
use crate::measure::{Conditions, Others, Peer, Quota, Site, Trial, Trials};
use crate::outcome::{self, Outcome};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "mixed",
    title: "good replies against the rate of requests for files of many sizes",
    source: "SEND, section 4.9, figure 4.14",
    own_network: true,
    run,
};

/// The share of a core that a server has, in percent.
const SHARE: u32 = 10;
const FILES: usize = 200;
/// Nobody waits for more within the deadline.
const MOST: f64 = (1 << 20) as f64;
/// What of the files lies in the tail, and what shapes body and tail.
const TAIL: f64 = 0.07;
const BODY: (f64, f64) = (9.357, 1.318);
const PARETO: (f64, f64) = (133_000.0, 1.1);

const QUICK: [f64; 3] = [1.0, 2.0, 3.0];
const FULL: [f64; 7] = [0.5, 0.75, 0.9, 1.0, 1.5, 2.0, 3.0];

const NOTES: [&str; 3] = [
    "200 files: the body of the sizes is lognormal (mu 9.357, sigma 1.318), 7 % are the tail of a \
     Pareto distribution from 133 KB on (alpha 1.1), cut at 1 MiB. These are the parameters of \
     SURGE (Barford and Crovella, 1998). The thesis compares its files with those that Barford et \
     al. (1999) saw, and gives no parameters.",
    "Each file is asked for as often as the others, in a random order that repeats; a new connection \
     for each request; 10 % of a core for the server; clients give up after one second.",
    "haproxy takes no part: it replies from memory, and takes no file of more than 12 KB into it.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let quota = Quota::new(SHARE)?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = Site::bare(b"")?;
    let sessions = outcome::directory()?.join("mixed.sessions");
    fs::write(&sessions, listing(&site)?)?;
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 });
    let others = Others::watch()?;
    let path = sessions.display().to_string();
    let setting = Setting {
        mark: "",
        conditions: Conditions { quota: Some(&quota), ..Conditions::default() },
        file: ("/1k.txt", 1 << 10),
        session: ["--sessions", &path],
        requests: 1.0,
        seconds: if cx.quick { "1.5" } else { "3" },
        longest_warm_up: 5.0,
        generator: &[],
    };
    let multiples = if cx.quick { &QUICK[..] } else { &FULL[..] };
    let mut peers = contestants::all(cx, &mut outcome)?;
    peers.retain(|peer| *peer != Peer::Haproxy);
    let mut sweeps = sweep::of(peers, setting);
    cx.progress.set_length((sweeps.len() * (multiples.len() + 1)) as u64);
    sweep::all(cx, &mut trials, &mut sweeps, multiples);
    for sweep in &sweeps {
        let mut add = |figure: &str, unit: &str, of: fn(&Trial) -> Option<f64>| {
            sweep.against_rate(&mut outcome, &format!("{figure} against request rate"), unit, of);
        };
        add("Goodput", "replies/s", |t| Some(t.goodput()));
        add("Throughput", "MB/s", |t| Some(t.megabytes()));
        add("Mean response time of good replies", "ms", Trial::mean_ms);
        sweep.goals(&mut outcome);
    }
    let (twice, thrice) = (outcome.percentages("_r2"), outcome.percentages("_r3"));
    outcome.shows.push(format!(
        "Of its best goodput each keeps, asked for three times what it can do: {thrice}; for twice: \
         {twice}."
    ));
    outcome.paper(
        "Goodput against request rate",
        "SEND, figure 4.14: as with files of one size, SEND keeps its rate and /dev/poll does not.",
    );
    outcome.notes.extend(others.note()?);
    trials.tell(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Makes the files, and a list of sessions that asks for each of them once.
fn listing(site: &Site) -> Result<String, Failure> {
    let mut text = String::new();
    for (i, bytes) in sizes().into_iter().enumerate() {
        let name = format!("mixed-{i}.bin");
        site.add(&name, bytes)?;
        writeln!(text, "/{name} size={bytes}\n").expect("a string takes everything");
    }
    Ok(text)
}

/// The same at every run, in random order.
fn sizes() -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(1998);
    let size = |_| {
        let (u, v) = (1.0 - random.f64(), random.f64());
        let bytes = if random.f64() < TAIL {
            PARETO.0 / u.powf(1.0 / PARETO.1)
        } else {
            // Box and Muller's way to a normal distribution.
            let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
            (BODY.0 + BODY.1 * normal).exp()
        };
        bytes.clamp(1.0, MOST) as usize
    };
    (0..FILES).map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_web() {
        let mut sizes = sizes();
        sizes.sort_unstable();
        let median = sizes[FILES / 2] as f64;
        // The median of the body is e^9.357, 11,580 bytes.
        assert!((9_000.0..16_000.0).contains(&median), "{median}");
        let tail = sizes.iter().filter(|bytes| **bytes >= 133_000).count();
        assert!((5..=25).contains(&tail), "{tail}");
    }
}
