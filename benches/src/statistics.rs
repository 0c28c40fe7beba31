//! What many measurements of one thing say.

use serde::{Deserialize, Serialize};

/// A median and how far the measurements lie from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The median with the smallest and the largest value; none of nothing.
pub(crate) fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (*sorted.first()?, *sorted.last()?);
    let (upper, lower) = (sorted[sorted.len() / 2], sorted[(sorted.len() - 1) / 2]);
    Some(Spread { median: (upper + lower) / 2.0, low, high })
}

/// The ratios of values that were measured side by side, one of each in every round; none to
/// nothing.
pub(crate) fn ratios(above: &[f64], below: &[f64]) -> Vec<f64> {
    above.iter().zip(below).filter(|(_, b)| **b != 0.0).map(|(a, b)| a / b).collect()
}

/// The ratios of the last of several rows to the highest, that is the one whose ratios to the first have the
/// highest median. A row has a value for each round, and values are compared within rounds.
pub(crate) fn over_highest(rows: &[Vec<f64>]) -> Vec<f64> {
    let [first, .., last] = rows else { return Vec::new() };
    let height = |row: &&Vec<f64>| spread(&ratios(row, first)).map_or(0.0, |ratio| ratio.median);
    let highest = rows.iter().max_by(|a, b| height(a).total_cmp(&height(b)));
    highest.map_or(Vec::new(), |highest| ratios(last, highest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_is_found_and_compared_with_round_by_round() {
        // The second and the third round were slow ones.
        let closed = vec![10.0, 5.0, 4.0];
        let (best, last) = (vec![20.0, 10.0, 8.0], vec![18.0, 10.0, 4.0]);
        assert_eq!(over_highest(&[closed.clone(), best, last.clone()]), [0.9, 1.0, 0.5]);
        assert_eq!(over_highest(&[closed.clone(), last.clone()]), [1.0; 3]);
        assert_eq!(over_highest(&[last, closed]), [10.0 / 18.0, 0.5, 1.0]);
        // A last round that is not whole counts for as much as there is of it.
        assert_eq!(over_highest(&[vec![2.0, 2.0], vec![4.0, 4.0], vec![3.0]]), [0.75]);
    }

    #[test]
    fn the_median_is_the_middle_one_or_between_two() {
        let odd = spread(&[3.0, 1.0, 100.0]).unwrap();
        assert_eq!(odd, Spread { median: 3.0, low: 1.0, high: 100.0 });
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(spread(&[7.0]).unwrap(), Spread { median: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_ratio_is_taken_within_a_round() {
        // The machine was twice as slow in the second round, which the ratios do not show.
        assert_eq!(ratios(&[11.0, 22.0], &[10.0, 20.0]), [1.1, 1.1]);
    }
}
