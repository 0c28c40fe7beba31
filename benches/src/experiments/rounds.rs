//! The rounds of an experiment. The contestants of a ratio run in the same rounds, in an order that
//! is shuffled for each round.

use fastrand::Rng;

use super::Context;

/// A round. Its order and its load follow from the seed of the run and its number.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) number: usize,
    /// The seed of the load, the same for all contestants.
    pub(super) load_seed: u64,
    random: Rng,
}

impl Round {
    fn new(seed: u64, number: usize) -> Self {
        // The generator's own mixing separates the rounds of one seed.
        let mut random = Rng::with_seed(seed);
        let mut load_seed = 0;
        for _ in 0..=number {
            load_seed = random.u64(..);
        }
        Round { number, load_seed, random: Rng::with_seed(load_seed) }
    }

    /// Returns the indices below `contestants`, shuffled.
    pub(super) fn order(&mut self, contestants: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..contestants).collect();
        self.random.shuffle(&mut order);
        order
    }
}

impl Context {
    /// Returns `count` rounds, fewer if the deadline passes. The first is never skipped.
    pub(super) fn rounds(&self, count: usize) -> impl Iterator<Item = Round> + '_ {
        let in_time = |number: &usize| *number == 0 || !self.is_late();
        (0..count).take_while(in_time).map(|number| Round::new(self.seed, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_differ_in_order_and_load_and_are_repeatable() {
        let orders =
            |seed| -> Vec<_> { (0..4).map(|number| Round::new(seed, number).order(10)).collect() };
        assert_eq!(orders(7), orders(7));
        assert_ne!(orders(7), orders(8));
        let all = orders(7);
        assert!(all.iter().enumerate().all(|(i, order)| !all[..i].contains(order)), "{all:?}");
        let mut sorted = all[3].clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        assert_ne!(Round::new(7, 0).load_seed, Round::new(7, 1).load_seed);
    }
}
