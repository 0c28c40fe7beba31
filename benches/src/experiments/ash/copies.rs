//! The cost of copying a message more than once.

use std::hint::black_box;

use super::super::{Context, Experiment};
use super::{Contestant, bars, flush, ns_each, ratio, run_rounds};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, SERVER_CORE, pin};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-copies",
    title: "the cost of copying a message once, twice, and twice with a flush of the caches in between",
    source: "ASH, section 6.3.1, table 6-4",
    own_network: false,
    run,
};

const FIGURE: &str = "Time to copy 4,096 bytes";
const BYTES: usize = 4096;
/// Messages in a round, and rounds.
const MESSAGES: usize = 256;
const QUICK: usize = 15;
const FULL: usize = 201;

const SINGLE: &str = "single copy";
const DOUBLE: &str = "double copy";
const UNCACHED: &str = "double copy, uncached";

fn run(cx: &Context) -> Result<Outcome, Failure> {
    pin(&[SERVER_CORE])?;
    let others = OtherPrograms::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let contestant = |name, copies, is_flushed| {
        let mut buffers = [vec![1; BYTES], vec![2; BYTES], vec![3; BYTES]];
        Contestant::new(name, move || Ok(copy(&mut buffers, copies, is_flushed)))
    };
    let mut all =
        [contestant(SINGLE, 1, false), contestant(DOUBLE, 2, false), contestant(UNCACHED, 2, true)];
    run_rounds(cx, if cx.quick { QUICK } else { FULL }, &mut all)?;
    bars(&mut outcome, FIGURE, "ns", "measured", &all);
    ratio(&mut outcome, "double_over_single", "memcpy", &all, (DOUBLE, SINGLE));
    ratio(&mut outcome, "uncached_over_single", "memcpy", &all, (UNCACHED, SINGLE));
    outcome.paper(
        FIGURE,
        "ASH, table 6-4, a DECstation 5000/240: 20, 14 and 11 MB/s, so a second copy takes 1.43 times as \
         long in all, and 1.82 times without the cache.",
    );
    outcome.notes.extend(others.note()?);
    outcome.notes.push(
        "As in section 6.3, neither the message nor its destinations are cached when the message \
         arrives. The flushes themselves are not in the times."
            .to_owned(),
    );
    Ok(outcome)
}

/// Returns the nanoseconds of the copies of one message, from each buffer to the next.
fn copy(buffers: &mut [Vec<u8>; 3], copies: usize, is_flushed: bool) -> f64 {
    let mut ns = 0.0;
    for _ in 0..MESSAGES {
        buffers.iter().for_each(|buffer| flush(buffer));
        for at in 0..copies {
            if is_flushed && at > 0 {
                flush(&buffers[at]);
            }
            let (from, to) = buffers.split_at_mut(at + 1);
            ns += ns_each(1, || {
                to[0].copy_from_slice(black_box(&from[at]));
                black_box(&mut to[0]);
            });
        }
    }
    ns / MESSAGES as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_reach_the_last_buffer() {
        let mut buffers = [vec![1; BYTES], vec![2; BYTES], vec![3; BYTES]];
        assert!(copy(&mut buffers, 1, false) > 0.0);
        assert!(buffers[1] == buffers[0] && buffers[2] != buffers[0]);
        assert!(copy(&mut buffers, 2, true) > 0.0);
        assert_eq!(buffers[2], buffers[0]);
    }
}
