//! When work arrives in an open loop.

use std::time::Duration;

/// How far arrivals lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// At random and independent of each other, as those of many clients are.
    Poisson,
    /// All alike.
    Fixed,
}

/// The moments at which work arrives, counted from a beginning.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    arrivals: Arrivals,
    /// Seconds between two on average.
    apart: f64,
    /// How many times as many arrive at first, and for how many seconds.
    burst: (f64, f64),
    random: fastrand::Rng,
    /// In seconds. A sum of so many small numbers is off by less than a nanosecond in an hour.
    next: f64,
}

impl Moments {
    /// `rate` arrivals per second, and at first `burst.0` times as many, for so long.
    pub(crate) fn new(
        arrivals: Arrivals,
        rate: f64,
        (times, long): (f64, Duration),
        seed: u64,
    ) -> Self {
        let (apart, burst) = (1.0 / rate, (times, long.as_secs_f64()));
        let random = fastrand::Rng::with_seed(seed);
        let mut moments = Moments { arrivals, apart, burst, random, next: 0.0 };
        moments.advance();
        moments
    }

    /// When the next arrives.
    pub(crate) fn next(&self) -> Duration {
        Duration::from_secs_f64(self.next)
    }

    /// Goes on to the one after it.
    pub(crate) fn advance(&mut self) {
        let (times, long) = self.burst;
        let apart = if self.next < long { self.apart / times } else { self.apart };
        self.next += match self.arrivals {
            Arrivals::Fixed => apart,
            // From (0, 1], as the logarithm of 0 is none.
            Arrivals::Poisson => -(1.0 - self.random.f64()).ln() * apart,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(arrivals: Arrivals) -> Vec<f64> {
        let mut moments = Moments::new(arrivals, 1_000.0, (1.0, Duration::ZERO), 7);
        let mut take = || {
            let next = moments.next().as_secs_f64();
            moments.advance();
            next
        };
        (0..20_000).map(|_| take()).collect()
    }

    #[test]
    fn fixed_arrivals_lie_apart_alike() {
        let all = moments(Arrivals::Fixed);
        assert!((all[19_999] - 20.0).abs() < 1e-6);
        assert!(all.windows(2).all(|w| (w[1] - w[0] - 0.001).abs() < 1e-6));
    }

    #[test]
    fn a_burst_has_more_of_them_for_as_long_as_it_lasts() {
        let burst = (3.0, Duration::from_secs(2));
        let mut moments = Moments::new(Arrivals::Poisson, 1_000.0, burst, 7);
        let (mut during, mut after) = (0, 0);
        while moments.next() < Duration::from_secs(4) {
            *if moments.next() < burst.1 { &mut during } else { &mut after } += 1;
            moments.advance();
        }
        assert!((5_800..6_200).contains(&during) && (1_900..2_100).contains(&after));
    }

    #[test]
    fn poisson_arrivals_lie_apart_as_an_exponential_distribution_has_it() {
        let all = moments(Arrivals::Poisson);
        let gaps: Vec<f64> = all.windows(2).map(|w| w[1] - w[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean / 0.001 - 1.0).abs() < 0.03, "{mean}");
        // One in e is longer than the mean, one in e^3 longer than three of it.
        for (times, share) in [(1.0, 0.3679), (3.0, 0.0498)] {
            let longer = gaps.iter().filter(|gap| **gap > times * 0.001).count();
            let found = longer as f64 / gaps.len() as f64;
            assert!((found / share - 1.0).abs() < 0.1, "{found} instead of {share}");
        }
    }
}
