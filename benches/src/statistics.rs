//! Medians and ratios of repeated measurements.

use fastrand::Rng;
use serde::{Deserialize, Deserializer, Serialize};

/// Resamples of a bootstrap interval.
const RESAMPLES: usize = 2_000;
/// Seed of the resamples: equal values have equal intervals.
const SEED: u64 = 1979;

/// A median with the range of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    #[serde(deserialize_with = "infinite_if_null")]
    pub(crate) median: f64,
    #[serde(deserialize_with = "infinite_if_null")]
    pub(crate) low: f64,
    #[serde(deserialize_with = "infinite_if_null")]
    pub(crate) high: f64,
}

/// Reads a number of a file, where an infinite one is `null`.
pub(crate) fn infinite_if_null<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::INFINITY))
}

/// The value of a round in which nothing was measured. It keeps the place of the round.
pub(crate) const UNMEASURED: f64 = f64::NAN;

/// Returns the median with the smallest and the largest value, or `None` without values. Rounds that
/// are [`UNMEASURED`] do not count.
pub(crate) fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted = values.to_vec();
    sorted.retain(|value| !value.is_nan());
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (*sorted.first()?, *sorted.last()?);
    let (upper, lower) = (sorted[sorted.len() / 2], sorted[(sorted.len() - 1) / 2]);
    Some(Spread { median: (upper + lower) / 2.0, low, high })
}

/// Returns the 95 % interval of the median by the percentile bootstrap, or `None` without values.
pub(crate) fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut random = Rng::with_seed(SEED);
    let mut resampled = |_| {
        let drawn: Vec<_> =
            (0..values.len()).filter_map(|_| random.choice(values)).copied().collect();
        spread(&drawn).map(|drawn| drawn.median)
    };
    let mut medians = (0..RESAMPLES).map(&mut resampled).collect::<Option<Vec<_>>>()?;
    medians.sort_by(f64::total_cmp);
    let outside = RESAMPLES / 40;
    Some((medians[outside], medians[RESAMPLES - 1 - outside]))
}

/// Returns the ratios of values measured in the same rounds, without those in which one of both is
/// [`UNMEASURED`].
///
/// # Panics
/// If one has fewer rounds, as it is then not known which.
pub(crate) fn ratios(above: &[f64], below: &[f64]) -> Vec<f64> {
    assert_eq!(above.len(), below.len(), "both have a value for each round");
    let pairs =
        above.iter().zip(below).filter(|(above, below)| !(above.is_nan() || below.is_nan()));
    pairs.map(|(above, below)| ratio(*above, *below)).collect()
}

/// Returns the same for measurements that ended early, after a failure: the rounds that both have.
pub(crate) fn ratios_until_failure(above: &[f64], below: &[f64]) -> Vec<f64> {
    let rounds = above.len().min(below.len());
    ratios(&above[..rounds], &below[..rounds])
}

/// Returns the ratio of two values: 1 if they are equal, zero or infinity included.
pub(crate) fn ratio(above: f64, below: f64) -> f64 {
    if above == below { 1.0 } else { above / below }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_value_or_the_mean_of_two() {
        let odd = spread(&[3.0, 1.0, 100.0]).unwrap();
        assert_eq!(odd, Spread { median: 3.0, low: 1.0, high: 100.0 });
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(spread(&[7.0]).unwrap(), Spread { median: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn interval_contains_the_median_and_is_repeatable() {
        let values: Vec<_> = (1..=15).map(f64::from).collect();
        let (low, high) = median_interval(&values).unwrap();
        // The binomial interval of a median of 15 is from the 4th to the 12th.
        assert!((4.0..=5.0).contains(&low) && (11.0..=12.0).contains(&high), "{low} to {high}");
        assert_eq!(median_interval(&values), Some((low, high)));
        assert_eq!(median_interval(&[2.0; 7]), Some((2.0, 2.0)));
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        // The machine was twice as slow in the second round; the ratios are unaffected.
        assert_eq!(ratios(&[11.0, 22.0], &[10.0, 20.0]), [1.1, 1.1]);
        // No round is dropped.
        assert_eq!(ratios(&[3.0, 0.0], &[0.0, 0.0]), [f64::INFINITY, 1.0]);
    }

    #[test]
    fn round_without_a_value_shifted_the_others() {
        let posted = [5.0, UNMEASURED, 7.0, 4.0];
        assert_eq!(ratios(&[10.0, 20.0, 28.0, 4.0], &posted), [2.0, 4.0, 1.0]);
        assert_eq!(ratios(&posted, &[10.0, 20.0, 28.0, 4.0]), [0.5, 0.25, 1.0]);
        assert_eq!(spread(&posted), spread(&[5.0, 7.0, 4.0]));
        assert_eq!(spread(&[UNMEASURED]), None);
        assert_eq!(ratios_until_failure(&posted, &[10.0, 20.0]), [0.5]);
    }

    #[test]
    #[should_panic(expected = "both have a value for each round")]
    fn rounds_beyond_the_shorter_measurement_were_ignored() {
        ratios(&[1.0, 2.0], &[1.0]);
    }
}
