//! What stands for the arrival of an acknowledgement: room in the socket, with and without a limit of unsent bytes
//! (`TCP_NOTSENT_LOWAT`, tcp(7)).

use super::super::Context;
use super::super::servers::DEFAULT;
use super::results::Figure;
use super::{COMPARED, Cache, Case, Runner, Speed};
use crate::measure::{Peer, Trial};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;

/// The limits, and the server with each.
const LIMITS: [(&str, Peer); 4] = [
    ("none", Peer::Delivery(DEFAULT, "dns")),
    ("16 KiB", Peer::Delivery(DEFAULT, "dns+16")),
    ("64 KiB", Peer::Delivery(DEFAULT, "dns+64")),
    ("128 KiB", Peer::Delivery(DEFAULT, "dns+128")),
];
const CASES: [(&str, Case); 2] = [
    ("fast clients", Case::new(COMPARED, Cache::Cached, Speed::Fast)),
    ("clients with a limited rate", Case::new(COMPARED, Cache::Cached, Speed::Limited)),
];
const ROUNDS: usize = 3;
/// Send buffer of the sockets, in bytes: larger than the limits, and one of which a client with a limited rate empties a
/// third several times in a run. Those that the kernel sizes hold megabytes.
const SEND_BUFFER: usize = 200 * 1024;
/// Number of runs of a run that is not quick.
pub(super) const RUNS: usize = ROUNDS * CASES.len() * LIMITS.len();

const FIGURES: [(&str, &str, Figure); 2] = [
    ("Context switches by the limit of unsent bytes", "per MB", Trial::switches_per_megabyte),
    ("Server CPU by the limit of unsent bytes", "us per MB", Trial::cpu_us_per_megabyte),
];

/// Measures the limits with the files of the runner.
pub(super) fn run(cx: &Context, runner: &mut Runner<'_>, outcome: &mut Outcome) {
    let before = std::mem::replace(&mut runner.send_buffer, SEND_BUFFER);
    let mut trials = CASES.map(|_| LIMITS.map(|_| Vec::new()));
    for mut round in cx.rounds(if cx.quick { 1 } else { ROUNDS }) {
        runner.seed = round.load_seed;
        for ((_, case), of_case) in CASES.iter().zip(&mut trials) {
            for i in round.order(LIMITS.len()) {
                let (limit, peer) = LIMITS[i];
                cx.progress.inc(1);
                cx.progress.set_message(format!("{peer}: {case}"));
                match runner.run(peer, *case) {
                    Ok(trial) => of_case[i].push(trial),
                    Err(failure) => outcome.notes.push(format!(
                        "A limit of unsent bytes, {limit}, {case}, failed: {failure}."
                    )),
                }
            }
        }
    }
    runner.send_buffer = before;
    for (figure, unit, of) in FIGURES {
        for ((clients, _), of_case) in CASES.iter().zip(&trials) {
            for ((limit, _), trials) in LIMITS.iter().zip(of_case) {
                let values: Vec<_> = trials.iter().filter_map(of).collect();
                if let Some(y) = spread(&values) {
                    outcome.point(figure, unit, clients, X::Name((*limit).to_owned()), y);
                }
            }
        }
    }
    outcome.notes.push(format!(
        "The limit of unsent bytes: `dns` with `Config::max_unsent_bytes` (`TCP_NOTSENT_LOWAT`), {COMPARED} clients, files of \
         10 MiB that are cached; `SO_SNDBUF` is 200 KiB. A socket has room once it has fewer unsent bytes than the limit, and \
         a third of its buffer is free. In a quick run the files have 1 MiB."
    ));
}
