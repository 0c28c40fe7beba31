//! Downloads by many clients: event pairs of disk and network.

pub(super) mod ded;
pub(super) mod dns;

use super::Context;
use crate::failure::Failure;
use crate::measure::{Conditions, OtherPrograms, Peer, Site, Trial, Trials};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// Numbers of concurrent downloads; ratios are those of the one that the paper ends with.
const FULL: [u32; 6] = [10, 30, 60, 120, 1_000, 5_000];
const QUICK: [u32; 1] = [120];
const COMPARED: u32 = 120;
const ROUNDS: usize = 5;

const FILE: (&str, usize) = ("/10m.bin", 10 << 20);
/// Small enough that even a busy machine ends some downloads in a second.
const QUICK_FILE: (&str, usize) = ("/256k.bin", 256 << 10);

const NOTES: [&str; 3] = [
    "A closed loop: each client downloads the file again and again on its connection. The file is in the \
     page cache. The server runs on core 0, the load generator on core 1.",
    "`SO_SNDBUF` is 64 KiB (the kernel doubles it) for all servers, as a larger buffer has fewer context \
     switches.",
    "`plain` has a blocking thread for each connection, where the paper has a process. Numbers of context \
     switches are those of all threads, voluntary and involuntary, for each megabyte sent.",
];

/// What a contestant did: the number of downloads at a time, and the trial.
struct Run {
    round: usize,
    clients: u32,
    trial: Trial,
}

/// The runs of all contestants.
struct Downloads {
    contestants: Vec<(Peer, Vec<Run>)>,
    rounds: usize,
    outcome: Outcome,
}

/// Runs all contestants with all numbers of clients.
fn run(
    cx: &Context,
    id: &'static str,
    contestants: &[Peer],
    outcome: Outcome,
) -> Result<Downloads, Failure> {
    let site = Site::bare(b"")?;
    let file = if cx.quick { QUICK_FILE } else { FILE };
    site.add(&file.0[1..], file.1)?;
    let conditions = Conditions { send_buffer: Some(64 * 1024), ..Conditions::default() };
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 });
    let others = OtherPrograms::watch()?;
    let (numbers, rounds) = if cx.quick { (&QUICK[..], 1) } else { (&FULL[..], ROUNDS) };
    let contestants = contestants.iter().map(|peer| (*peer, Vec::new())).collect();
    let mut downloads = Downloads { contestants, rounds, outcome };
    cx.progress.set_length((rounds * numbers.len() * downloads.contestants.len()) as u64);
    for mut round in cx.rounds(rounds) {
        trials.set_seed(round.load_seed);
        for clients in numbers {
            for i in round.order(downloads.contestants.len()) {
                let (peer, runs) = &mut downloads.contestants[i];
                cx.progress.inc(1);
                if cx.is_late() {
                    trials.note_skipped();
                    continue;
                }
                cx.progress.set_message(format!("{peer}: {clients} downloads"));
                let count = clients.to_string();
                let (warm_up, seconds) = if cx.quick { ("0.2", "1") } else { ("1", "5") };
                let times = ["--warm-up", warm_up, "--duration", seconds, "--timeout", "60"];
                let args = [&["--connections", &count][..], &times].concat();
                match trials.run(*peer, &conditions, file, &args) {
                    Ok(trial) => {
                        runs.push(Run { round: round.number, clients: *clients, trial });
                    }
                    Err(failure) => {
                        let what = format!("{id}: {peer}, {clients} downloads, failed: {failure}.");
                        downloads.outcome.notes.push(what);
                    }
                }
            }
        }
    }
    downloads.figures();
    downloads.outcome.notes.extend(others.note()?);
    trials.report(&mut downloads.outcome);
    downloads.outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(downloads)
}

impl Downloads {
    fn figures(&mut self) {
        for (peer, runs) in &self.contestants {
            let mut numbers: Vec<_> = runs.iter().map(|run| run.clients).collect();
            numbers.sort_unstable();
            numbers.dedup();
            for clients in numbers {
                let mut add = |figure: &str, unit: &str, of: fn(&Trial) -> Option<f64>| {
                    let these = runs.iter().filter(|run| run.clients == clients);
                    let values: Vec<_> = these.filter_map(|run| of(&run.trial)).collect();
                    if let Some(y) = spread(&values) {
                        let (figure, x) =
                            (format!("{figure} against concurrent downloads"), f64::from(clients));
                        self.outcome.point(&figure, unit, &peer.to_string(), X::Number(x), y);
                    }
                };
                add("Mean response time", "ms", Trial::mean_ms);
                add("Rate", "MB/s", |trial| Some(trial.megabytes()));
                add("Context switches", "per MB", Trial::switches_per_megabyte);
                add("Server CPU", "us per MB", Trial::cpu_us_per_megabyte);
            }
        }
    }

    /// Adds the ratio of a figure of two contestants with [`COMPARED`] downloads.
    fn ratio(&mut self, name: &str, above: Peer, below: Peer, of: fn(&Trial) -> Option<f64>) {
        let values = |peer: Peer, round| {
            let (_, runs) = self.contestants.iter().find(|(each, _)| *each == peer)?;
            let run = runs.iter().find(|run| (run.round, run.clients) == (round, COMPARED))?;
            of(&run.trial)
        };
        let pairs = (0..self.rounds).filter_map(|r| values(above, r).zip(values(below, r)));
        let (over, under): (Vec<_>, Vec<_>) = pairs.unzip();
        self.outcome.ratio(name.to_owned(), &above.to_string(), ratios(&over, &under));
    }

    /// Adds the memory that each of [`COMPARED`] downloads takes, in KiB.
    fn memory(&mut self, name: &str, peer: Peer) {
        let (_, runs) = self.contestants.iter().find(|(each, _)| *each == peer).expect("it runs");
        let these = runs.iter().filter(|run| run.clients == COMPARED);
        let each = |run: &Run| run.trial.memory_bytes as f64 / 1024.0 / f64::from(COMPARED);
        let values = these.map(each).collect();
        self.outcome.ratio(name.to_owned(), &peer.to_string(), values);
    }
}
