//! Ratios: what each round gave, how certain the median is, and whether the goal was met.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::say::number;
use crate::statistics::{infinite_if_null, median_interval, spread};

/// Fewer rounds do not decide whether a goal was met: they have no interval of 95 %.
pub(crate) const MIN_ROUNDS: usize = 6;

/// A ratio, or another figure that may have a goal, of a mechanism that was named before the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ratio {
    /// The median of the rounds. An infinite value, such as the time of a recovery that never
    /// happened, is `null` in a file.
    #[serde(deserialize_with = "infinite_if_null")]
    pub(crate) value: f64,
    /// The 95 % interval of the median.
    #[serde(deserialize_with = "infinite_if_null")]
    pub(crate) low: f64,
    #[serde(deserialize_with = "infinite_if_null")]
    pub(crate) high: f64,
    /// The value of each round.
    #[serde(deserialize_with = "rounds")]
    pub(crate) per_round: Vec<f64>,
    /// The mechanism, or the server, that the figure is about.
    pub(crate) mechanism: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<Goal>,
    /// Whether the goal was met, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) met: Option<Met>,
}

/// A limit that a ratio should keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// At least the first, at most the second.
    Within(f64, f64),
}

/// Whether a goal was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Met {
    /// The whole interval keeps the limit.
    Yes,
    /// The limit lies in the interval, or the rounds are too few.
    Open,
    /// The whole interval is beyond the limit.
    No,
}

impl Ratio {
    /// Returns the ratio with these values, one per round, or `None` without rounds.
    pub(crate) fn of_rounds(
        per_round: Vec<f64>,
        mechanism: &str,
        goal: Option<Goal>,
    ) -> Option<Self> {
        let value = spread(&per_round)?.median;
        let (low, high) = median_interval(&per_round)?;
        let measured = per_round.iter().filter(|value| !value.is_nan()).count();
        let met = goal.map(|goal| match measured {
            MIN_ROUNDS.. => goal.judge(low, high),
            _ => Met::Open,
        });
        let mechanism = mechanism.to_owned();
        Some(Ratio { value, low, high, per_round, mechanism, goal, met })
    }

    /// Returns a figure that one measurement determines, such as a count.
    pub(crate) fn exact(value: f64, mechanism: &str, goal: Option<Goal>) -> Self {
        let met = goal.map(|goal| goal.judge(value, value));
        let mechanism = mechanism.to_owned();
        Ratio { value, low: value, high: value, per_round: vec![value], mechanism, goal, met }
    }

    /// Formats the interval, or nothing if it is a point.
    pub(crate) fn interval(&self) -> String {
        if self.low == self.high {
            return String::new();
        }
        format!("{} to {}", number(self.low), number(self.high))
    }
}

impl Goal {
    /// Judges an interval.
    fn judge(self, low: f64, high: f64) -> Met {
        let (min, max) = match self {
            Goal::AtMost(max) => (f64::NEG_INFINITY, max),
            Goal::AtLeast(min) => (min, f64::INFINITY),
            Goal::Within(min, max) => (min, max),
        };
        if low >= min && high <= max {
            Met::Yes
        } else if high < min || low > max {
            Met::No
        } else {
            Met::Open
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtMost(max) => write!(f, "at most {max}"),
            Goal::AtLeast(min) => write!(f, "at least {min}"),
            Goal::Within(min, max) => write!(f, "{min} to {max}"),
        }
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Met::Yes => "yes",
            Met::Open => "open",
            Met::No => "no",
        })
    }
}

/// Reads the values of rounds.
fn rounds<'de, D: Deserializer<'de>>(values: D) -> Result<Vec<f64>, D::Error> {
    let values = Vec::<Option<f64>>::deserialize(values)?;
    Ok(values.into_iter().map(|value| value.unwrap_or(f64::INFINITY)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(rounds: &[f64], goal: Goal) -> Met {
        Ratio::of_rounds(rounds.to_vec(), "uring", Some(goal)).unwrap().met.unwrap()
    }

    #[test]
    fn the_whole_interval_decides_whether_a_goal_is_met() {
        let around_one = [0.9, 0.95, 1.0, 1.0, 1.05, 1.1];
        assert_eq!(met(&around_one, Goal::AtMost(1.2)), Met::Yes);
        assert_eq!(met(&around_one, Goal::AtMost(1.01)), Met::Open);
        assert_eq!(met(&around_one, Goal::AtMost(0.8)), Met::No);
        assert_eq!(met(&around_one, Goal::AtLeast(0.8)), Met::Yes);
        assert_eq!(met(&around_one, Goal::AtLeast(0.99)), Met::Open);
        assert_eq!(met(&around_one, Goal::AtLeast(1.2)), Met::No);
        assert_eq!(met(&around_one, Goal::Within(0.8, 1.2)), Met::Yes);
        assert_eq!(met(&around_one, Goal::Within(0.95, 1.2)), Met::Open);
        assert_eq!(met(&around_one, Goal::Within(1.2, 1.3)), Met::No);
    }

    #[test]
    fn few_rounds_leave_a_goal_open_and_a_count_does_not() {
        assert_eq!(met(&[2.0; 5], Goal::AtMost(1.0)), Met::Open);
        assert_eq!(met(&[2.0; 6], Goal::AtMost(1.0)), Met::No);
        assert_eq!(Ratio::exact(2.0, "uring", Some(Goal::AtMost(1.0))).met, Some(Met::No));
        assert_eq!(Ratio::exact(2.0, "uring", None).met, None);
    }

    #[test]
    fn infinite_rounds_count_and_are_stored() {
        let rounds = vec![0.1, f64::INFINITY, f64::INFINITY, 0.1, f64::INFINITY, f64::INFINITY];
        let ratio = Ratio::of_rounds(rounds, "send", Some(Goal::AtMost(1.0))).unwrap();
        assert_eq!((ratio.value, ratio.low, ratio.met), (f64::INFINITY, 0.1, Some(Met::Open)));
        let text = serde_json::to_string(&ratio).unwrap();
        assert!(text.contains("\"value\":null") && text.contains("{\"at_most\":1.0}"), "{text}");
        assert_eq!(serde_json::from_str::<Ratio>(&text).unwrap(), ratio);
    }
}
