//! Randomness from one seed.

use crate::fault::{Fault, Faults};

/// The only source of randomness of a run.
#[derive(Debug)]
pub(super) struct SimRng {
    random: fastrand::Rng,
    /// Rate of each fault per 65,536 occasions.
    rates: [u16; Fault::COUNT],
    counts: [u64; Fault::COUNT],
    /// Number of faults that may still happen.
    remaining: u64,
}

impl SimRng {
    pub(super) fn new(seed: u64, faults: Faults, max: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // Each run has its own rates: some faults are frequent, some rare, some absent. That finds
        // bugs that need one fault and the absence of another.
        let rates = Fault::ALL.map(|fault| {
            let rate = [0, 0, fault.rate() / 8, fault.rate(), fault.rate() * 4][random.usize(..5)];
            if faults.has(fault) { rate } else { 0 }
        });
        SimRng { random, rates, counts: [0; Fault::COUNT], remaining: max }
    }

    /// Returns a number below `n`, which is not 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.random.usize(..n)
    }

    /// Returns true once in `n` calls on average.
    pub(super) fn once_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    pub(super) fn number(&mut self) -> u64 {
        self.random.u64(..)
    }

    /// Returns whether this fault happens now, and counts it.
    #[inline]
    pub(super) fn fault(&mut self, fault: Fault) -> bool {
        let rate = self.rates[fault as usize];
        if rate == 0 || self.remaining == 0 || self.random.u16(..) >= rate {
            return false;
        }
        self.remaining -= 1;
        self.counts[fault as usize] += 1;
        true
    }

    /// Counts a fault that happened without being injected.
    pub(super) fn count(&mut self, fault: Fault) {
        self.counts[fault as usize] += 1;
    }

    /// Stops injecting faults.
    pub(super) fn stop_faults(&mut self) {
        self.remaining = 0;
    }

    pub(super) fn counts(&self) -> [u64; Fault::COUNT] {
        self.counts
    }
}
