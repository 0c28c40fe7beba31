//! Chance, from one seed.

use crate::sim::fault::{Fault, Faults};

/// Everything that is left to chance is asked here, so that one seed decides it.
#[derive(Debug)]
pub(super) struct SimRng {
    random: fastrand::Rng,
    /// Of 65,536 occasions, at how many each fault happens.
    rates: [u16; Fault::COUNT],
    counts: [u64; Fault::COUNT],
    /// Faults that may still happen.
    left: u64,
}

impl SimRng {
    pub(super) fn new(seed: u64, faults: Faults, max: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // Each run has faults of its own: some kinds often, some seldom, some not at all. What
        // needs one kind and the absence of another is found that way.
        let rates = Fault::ALL.map(|fault| {
            let rate = [0, 0, fault.rate() / 8, fault.rate(), fault.rate() * 4][random.usize(..5)];
            if faults.has(fault) { rate } else { 0 }
        });
        SimRng { random, rates, counts: [0; Fault::COUNT], left: max }
    }

    /// A number below `n`, which is not 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.random.usize(..n)
    }

    /// True once in `n` times.
    pub(super) fn once_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    pub(super) fn number(&mut self) -> u64 {
        self.random.u64(..)
    }

    /// Whether this happens now.
    #[inline]
    pub(super) fn fault(&mut self, fault: Fault) -> bool {
        let rate = self.rates[fault as usize];
        if rate == 0 || self.left == 0 || self.random.u16(..) >= rate {
            return false;
        }
        self.left -= 1;
        self.counts[fault as usize] += 1;
        true
    }

    /// Notes what happened of itself.
    pub(super) fn count(&mut self, fault: Fault) {
        self.counts[fault as usize] += 1;
    }

    /// From now on nothing fails.
    pub(super) fn stop_faults(&mut self) {
        self.left = 0;
    }

    pub(super) fn counts(&self) -> [u64; Fault::COUNT] {
        self.counts
    }
}
