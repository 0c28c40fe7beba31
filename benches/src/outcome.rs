//! The results of an experiment.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::goals;
use crate::machine::Machine;
use crate::ratio::Ratio;
use crate::statistics::Spread;

/// The results of an experiment and the format of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Identifier of the experiment.
    pub(crate) id: String,
    /// Whether it was a quick run, with less precision.
    pub(crate) quick: bool,
    /// Time of its end, as an HTTP date.
    pub(crate) date: String,
    pub(crate) machine: Machine,
    /// The seed of the order of contestants and of the load; `lab run ID --seed` repeats both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    pub(crate) series: Vec<Series>,
    /// The ratios by name, with their goals.
    pub(crate) ratios: BTreeMap<String, Ratio>,
    /// The findings, as sentences, including those where a mechanism loses.
    pub(crate) shows: Vec<String>,
    /// The corresponding result of a paper, by figure.
    pub(crate) papers: BTreeMap<String, String>,
    /// Notes on the method and the conditions.
    pub(crate) notes: Vec<String>,
}

/// One row of bars or one curve; series of the same figure are drawn together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) figure: String,
    pub(crate) unit: String,
    /// Distinguishes the series from the others of the figure.
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

/// One measured point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) x: X,
    #[serde(flatten)]
    pub(crate) y: Spread,
}

/// A position on the horizontal axis: names make bars, numbers make curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum X {
    Number(f64),
    Name(String),
}

/// The beginnings of the note on other programs, and of the finding that counts unreliable runs, which
/// [`Outcome::disturbances`] reads.
pub(crate) const OTHER_PROGRAMS: &str = "During the measurement, other programs";
pub(crate) const UNRELIABLE_RUNS: &str = "Unreliable runs in these figures, listed in the notes: ";

impl Outcome {
    /// Returns an empty outcome.
    pub(crate) fn new(id: &str) -> Self {
        Outcome {
            id: id.to_owned(),
            quick: false,
            date: String::new(),
            machine: Machine::with_tools(),
            seed: None,
            series: Vec::new(),
            ratios: BTreeMap::new(),
            shows: Vec::new(),
            papers: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a point to a series, which is created if it does not exist.
    pub(crate) fn point(&mut self, figure: &str, unit: &str, name: &str, x: X, y: Spread) {
        let same = |s: &&mut Series| s.figure == figure && s.name == name;
        let point = Point { x, y };
        match self.series.iter_mut().find(same) {
            Some(series) => series.points.push(point),
            None => self.series.push(Series {
                figure: figure.to_owned(),
                unit: unit.to_owned(),
                name: name.to_owned(),
                points: vec![point],
            }),
        }
    }

    /// Adds a ratio of a mechanism or server, with one value per round. Without rounds there is none.
    pub(crate) fn ratio(&mut self, name: impl Into<String>, mechanism: &str, per_round: Vec<f64>) {
        let name = name.into();
        let goal = goals::of(&self.id, &name);
        if let Some(ratio) = Ratio::of_rounds(per_round, mechanism, goal) {
            self.ratios.insert(name, ratio);
        }
    }

    /// Adds a figure that one measurement determines, such as a count.
    pub(crate) fn count(&mut self, name: impl Into<String>, mechanism: &str, value: f64) {
        let name = name.into();
        let goal = goals::of(&self.id, &name);
        self.ratios.insert(name, Ratio::exact(value, mechanism, goal));
    }

    /// Returns the median of a ratio.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        self.ratios.get(name).map(|ratio| ratio.value)
    }

    /// Returns the words of its notes for a disturbance: the share of a core that other programs used, and the number of
    /// runs that were unreliable at every attempt. Without a disturbance it is empty.
    pub(crate) fn disturbances(&self) -> String {
        let after = |text: &str, start| Some(text.strip_prefix(start)?.to_owned());
        // `... used 9 % of a core; repeat it on an idle machine.`
        let others = self.notes.iter().filter_map(|note| after(note, OTHER_PROGRAMS));
        let others = others
            .filter_map(|rest| Some(rest.split(" used ").nth(1)?.split(" %").next()?.to_owned()));
        let runs = self.shows.iter().filter_map(|show| after(show, UNRELIABLE_RUNS));
        let runs = runs.filter_map(|rest| rest.trim_end_matches('.').parse::<u32>().ok());
        let mut all: Vec<_> = others.map(|percent| format!("other programs {percent} %")).collect();
        match runs.sum() {
            0 => {}
            1 => all.push("1 unreliable run".to_owned()),
            n => all.push(format!("{n} unreliable runs")),
        }
        all.join(", ")
    }

    /// Returns the commit, or `unknown`.
    pub(crate) fn commit(&self) -> &str {
        self.machine.versions.get("commit").map_or("unknown", String::as_str)
    }

    /// Returns whether it was measured with changes that were not committed.
    pub(crate) fn is_dirty(&self) -> bool {
        self.commit().ends_with("-dirty")
    }

    /// Sets the result of a paper to show beside a figure.
    pub(crate) fn paper(&mut self, figure: &str, text: &str) {
        self.papers.insert(figure.to_owned(), text.to_owned());
    }

    /// Lists the ratios whose names end in `suffix`, highest first: the name without the suffix and
    /// the percentage.
    pub(crate) fn percentages(&self, suffix: &str) -> String {
        let mut all: Vec<_> = self
            .ratios
            .iter()
            .filter_map(|(n, r)| Some((n.strip_suffix(suffix)?, r.value)))
            .collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let words = all.iter().map(|(name, r)| format!("{name} {:.1} %", r * 100.0));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Writes the outcome to a file.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Failure::new("cannot serialize the outcome", e))?;
        fs::write(path, text + "\n")
            .map_err(|e| Failure::new(format_args!("cannot write {}", path.display()), e))
    }

    /// Reads an outcome from a file.
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let unreadable = |e: &dyn std::fmt::Display| {
            Failure::new(format_args!("cannot read {}", path.display()), e)
        };
        let text = fs::read_to_string(path).map_err(|e| unreadable(&e))?;
        serde_json::from_str(&text).map_err(|e| unreadable(&e))
    }
}

/// Returns the directory of the last runs, and creates it if necessary: `lab` in cargo's target
/// directory for the current directory, wherever the program was built.
pub(crate) fn directory() -> Result<PathBuf, Failure> {
    let configured = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let current = std::env::current_dir()?;
    let path = current.join(configured.unwrap_or_else(|| target(&current))).join("lab");
    fs::create_dir_all(&path)
        .map_err(|e| Failure::new(format_args!("cannot create {}", path.display()), e))?;
    Ok(path)
}

/// Returns the target directory of the workspace that contains a directory, or one inside the
/// directory itself if there is no workspace.
fn target(current: &Path) -> PathBuf {
    workspace(current).join("target")
}

/// Returns the workspace that contains a directory, or the directory itself if there is none.
pub(crate) fn workspace(current: &Path) -> &Path {
    let mut ancestors = current.ancestors();
    ancestors.find(|directory| directory.join("Cargo.lock").exists()).unwrap_or(current)
}

impl std::fmt::Display for X {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            X::Number(number) => f.pad(&number.to_string()),
            X::Name(name) => f.pad(name),
        }
    }
}
