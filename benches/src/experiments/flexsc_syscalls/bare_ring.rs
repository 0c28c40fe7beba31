//! The times of a ring without flexsc-rt: what limits a call that is posted to a ring.

use std::time::Instant;

use super::super::rounds::Round;
use super::cell::{Cell, DIRECT, GETPPID, NULL, NULL_DEPTH, REPEATS, figure};
use super::works::MAX_DEPTH;
use crate::failure::Failure;
use crate::floors::{self, Operation};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// An operation of the ring.
struct Contestant {
    operation: Operation,
    /// The name of its series, the call in whose figure it stands, and the ratio of that call, made directly, to it.
    series: &'static str,
    figure: &'static str,
    ratio: &'static str,
    /// The number of that call in the list of works.
    direct: usize,
}

const ALL: [Contestant; 3] = [
    Contestant {
        operation: Operation::Advice,
        series: "bare ring",
        figure: "null",
        ratio: "null_direct_over_bare_ring",
        direct: NULL,
    },
    Contestant {
        operation: Operation::RegisteredAdvice,
        series: "bare ring, registered file",
        figure: "null",
        ratio: "null_direct_over_bare_ring_registered",
        direct: NULL,
    },
    Contestant {
        operation: Operation::Nop,
        series: "bare ring",
        figure: NOP,
        ratio: "nop_direct_over_bare_ring",
        direct: GETPPID,
    },
];

const NOP: &str = "IORING_OP_NOP beside getppid(2)";

/// The ring, and the times of each operation: by depth, one for each round.
pub(super) struct BareRing {
    ring: Option<floors::BareRing>,
    depths: Vec<usize>,
    times: [Vec<Vec<f64>>; ALL.len()],
}

impl BareRing {
    /// Without io_uring nothing is measured.
    pub(super) fn new(depths: &[usize]) -> Self {
        BareRing {
            ring: floors::BareRing::new(MAX_DEPTH as u32).ok(),
            depths: depths.to_vec(),
            times: ALL.map(|_| vec![Vec::new(); depths.len()]),
        }
    }

    /// Measures all in a round.
    pub(super) fn measure(&mut self, round: &mut Round, calls: usize) -> Result<(), Failure> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        for i in round.order(self.depths.len()) {
            let depth = self.depths[i];
            for which in round.order(ALL.len()) {
                let operation = ALL[which].operation;
                // One batch before warms the caches.
                ring.batch(operation, depth)?;
                let batches = calls.div_ceil(depth);
                let mut least = f64::MAX;
                for _ in 0..REPEATS {
                    let begin = Instant::now();
                    for _ in 0..batches {
                        ring.batch(operation, depth)?;
                    }
                    let ns = begin.elapsed().as_nanos() as f64;
                    least = least.min(ns / (batches * depth) as f64);
                }
                self.times[which][i].push(least);
            }
        }
        Ok(())
    }

    /// Adds the times, and the ratios to the direct calls in the same rounds.
    pub(super) fn report(&self, cells: &[Cell], outcome: &mut Outcome) {
        let direct = |work, depth| {
            let cell = cells.iter().find(|cell| (cell.work, cell.depth) == (work, depth));
            cell.map_or(&[][..], |cell| &cell.times[DIRECT])
        };
        for (one, by_depth) in ALL.iter().zip(&self.times) {
            for (&depth, times) in self.depths.iter().zip(by_depth) {
                let Some(y) = spread(times) else { continue };
                let x = || X::Number(depth as f64);
                outcome.point(&figure(one.figure), "ns", one.series, x(), y);
                let others = direct(one.direct, depth);
                if let Some(y) = spread(others).filter(|_| one.figure == NOP) {
                    outcome.point(&figure(NOP), "ns", "direct", x(), y);
                }
                if depth == NULL_DEPTH {
                    outcome.ratio(one.ratio, "uring", ratios(others, times));
                }
            }
        }
    }
}
