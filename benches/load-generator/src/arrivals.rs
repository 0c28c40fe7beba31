//! Arrival times in an open loop.

use std::time::Duration;

/// Distribution of the intervals between arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Exponential intervals: a Poisson process, as with many independent clients.
    Poisson,
    /// Equal intervals.
    Fixed,
}

/// Iterates over arrival times, from the start of the run.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalTimes {
    arrivals: Arrivals,
    /// Mean interval between arrivals, in seconds.
    mean_gap: f64,
    /// Rate multiplier of the initial burst, and its length in seconds.
    burst: (f64, f64),
    random: fastrand::Rng,
    /// Next arrival, in seconds. The accumulated rounding error stays below 1 ns per hour.
    next: f64,
}

impl ArrivalTimes {
    /// Generates `rate` arrivals per second, `burst.0` times as many during the first `burst.1`.
    pub(crate) fn new(
        arrivals: Arrivals,
        rate: f64,
        (factor, length): (f64, Duration),
        seed: u64,
    ) -> Self {
        let (mean_gap, burst) = (1.0 / rate, (factor, length.as_secs_f64()));
        let random = fastrand::Rng::with_seed(seed);
        let mut arrivals = ArrivalTimes { arrivals, mean_gap, burst, random, next: 0.0 };
        arrivals.advance();
        arrivals
    }

    /// Returns the time of the next arrival.
    pub(crate) fn next(&self) -> Duration {
        Duration::from_secs_f64(self.next)
    }

    /// Advances to the arrival after it.
    pub(crate) fn advance(&mut self) {
        let (factor, length) = self.burst;
        let mean_gap = if self.next < length { self.mean_gap / factor } else { self.mean_gap };
        self.next += match self.arrivals {
            Arrivals::Fixed => mean_gap,
            // The argument is in (0, 1], as ln(0) is undefined.
            Arrivals::Poisson => -(1.0 - self.random.f64()).ln() * mean_gap,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(arrivals: Arrivals) -> Vec<f64> {
        let mut arrivals = ArrivalTimes::new(arrivals, 1_000.0, (1.0, Duration::ZERO), 7);
        let mut take = || {
            let next = arrivals.next().as_secs_f64();
            arrivals.advance();
            next
        };
        (0..20_000).map(|_| take()).collect()
    }

    #[test]
    fn fixed_arrivals_have_equal_intervals() {
        let all = arrivals(Arrivals::Fixed);
        assert!((all[19_999] - 20.0).abs() < 1e-6);
        assert!(all.windows(2).all(|w| (w[1] - w[0] - 0.001).abs() < 1e-6));
    }

    #[test]
    fn burst_multiplies_the_rate_until_its_end() {
        let burst = (3.0, Duration::from_secs(2));
        let mut arrivals = ArrivalTimes::new(Arrivals::Poisson, 1_000.0, burst, 7);
        let (mut during, mut after) = (0, 0);
        while arrivals.next() < Duration::from_secs(4) {
            *if arrivals.next() < burst.1 { &mut during } else { &mut after } += 1;
            arrivals.advance();
        }
        assert!((5_800..6_200).contains(&during) && (1_900..2_100).contains(&after));
    }

    #[test]
    fn poisson_arrivals_have_exponential_intervals() {
        let all = arrivals(Arrivals::Poisson);
        let gaps: Vec<f64> = all.windows(2).map(|w| w[1] - w[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean / 0.001 - 1.0).abs() < 0.03, "{mean}");
        // The share of gaps longer than `t` means is e^-t.
        for (factor, share) in [(1.0, 0.3679), (3.0, 0.0498)] {
            let longer = gaps.iter().filter(|gap| **gap > factor * 0.001).count();
            let found = longer as f64 / gaps.len() as f64;
            assert!((found / share - 1.0).abs() < 0.1, "{found} instead of {share}");
        }
    }
}
