//! Medians and ratios of repeated measurements.

use serde::{Deserialize, Deserializer, Serialize};

/// Maximum probability that the true median lies below an interval of 95 %, and that it lies above.
const MAX_TAIL: f64 = 0.025;

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

/// Returns an interval that contains the true median with a probability of at least 95 %, for values from any
/// distribution: the binomial interval, between two of the sorted values. Fewer than six values have no such interval;
/// theirs is from the smallest to the largest. Rounds that are [`UNMEASURED`] do not count. `None` without values.
///
/// A percentile bootstrap of a median is too narrow for so few values: for seven, it has 88 %.
pub(crate) fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.retain(|value| !value.is_nan());
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // The number of values below the median is that of heads of as many coins.
    let mut probability = 0.5f64.powi(i32::try_from(count).ok()?);
    let (mut tail, mut outside) = (probability, 0);
    while outside + 1 < count.div_ceil(2) {
        probability *= (count - outside) as f64 / (outside + 1) as f64;
        if tail + probability > MAX_TAIL {
            break;
        }
        tail += probability;
        outside += 1;
    }
    Some((*sorted.get(outside)?, sorted[count - 1 - outside]))
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
    fn interval_is_the_binomial_one() {
        // Tables of order statistics for the median have these places for 95 %.
        for (count, low, high) in [
            (1, 1, 1),
            (5, 1, 5),
            (6, 1, 6),
            (7, 1, 7),
            (8, 1, 8),
            (9, 2, 8),
            (15, 4, 12),
            (16, 4, 13),
            (25, 8, 18),
            (201, 87, 115),
        ] {
            let mut values: Vec<_> = (1..=count).rev().map(f64::from).collect();
            values.push(UNMEASURED);
            let interval = Some((f64::from(low), f64::from(high)));
            assert_eq!(median_interval(&values), interval, "of {count}");
        }
        assert_eq!(median_interval(&[]), None);
        assert_eq!(median_interval(&[UNMEASURED]), None);
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
