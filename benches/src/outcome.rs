//! What an experiment found.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::machine::Machine;
use crate::statistics::Spread;

/// Everything that an experiment found; the shape of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Which experiment it was.
    pub(crate) id: String,
    /// Whether precision had to yield to time.
    #[serde(default)]
    pub(crate) quick: bool,
    /// When it ended, as HTTP has dates.
    #[serde(default)]
    pub(crate) date: String,
    pub(crate) machine: Machine,
    pub(crate) series: Vec<Series>,
    /// The numbers that goals are stated in, by name.
    pub(crate) ratios: BTreeMap<String, f64>,
    /// What it shows, in sentences, also where a mechanism loses.
    #[serde(default)]
    pub(crate) shows: Vec<String>,
    /// What a paper says of a figure, by the figure.
    #[serde(default)]
    pub(crate) papers: BTreeMap<String, String>,
    /// Sentences that whoever reads the numbers should know.
    pub(crate) notes: Vec<String>,
}

/// One row of bars or one curve; series of the same figure are drawn together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) figure: String,
    pub(crate) unit: String,
    /// What this series is, beside the others of the figure.
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

/// Where on the horizontal axis a point lies: a name makes bars, a number makes curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum X {
    Number(f64),
    Name(String),
}

impl Outcome {
    /// An outcome to be filled in.
    pub(crate) fn new(id: &str) -> Self {
        Outcome {
            id: id.to_owned(),
            quick: false,
            date: String::new(),
            machine: Machine::with_tools(),
            series: Vec::new(),
            ratios: BTreeMap::new(),
            shows: Vec::new(),
            papers: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a point to a series, which is made when it is not there.
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

    /// Sets what a paper says beside a figure.
    pub(crate) fn paper(&mut self, figure: &str, says: &str) {
        self.papers.insert(figure.to_owned(), says.to_owned());
    }

    /// Ratios whose names end in `suffix`, the highest first, each with the rest of its name and
    /// as a percentage.
    pub(crate) fn percentages(&self, suffix: &str) -> String {
        let mut all: Vec<_> =
            self.ratios.iter().filter_map(|(n, r)| Some((n.strip_suffix(suffix)?, *r))).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let words = all.iter().map(|(name, r)| format!("{name} {:.1} %", r * 100.0));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Writes the outcome to a file.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Failure::new("JSON", e))?;
        fs::write(path, text + "\n")
            .map_err(|e| Failure::new(format_args!("can't write {}", path.display()), e))
    }

    /// Reads an outcome from a file.
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let unreadable = |e: &dyn std::fmt::Display| {
            Failure::new(format_args!("can't read {}", path.display()), e)
        };
        let text = fs::read_to_string(path).map_err(|e| unreadable(&e))?;
        serde_json::from_str(&text).map_err(|e| unreadable(&e))
    }
}

/// The directory of the last runs: `lab` in the target directory that cargo has where this is run, be
/// the program built there or elsewhere. It is made if need be.
pub(crate) fn directory() -> Result<PathBuf, Failure> {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let here = std::env::current_dir()?;
    let path = here.join(named.unwrap_or_else(|| target(&here))).join("lab");
    fs::create_dir_all(&path)
        .map_err(|e| Failure::new(format_args!("can't make {}", path.display()), e))?;
    Ok(path)
}

/// The target directory of the workspace that a directory lies in, or in itself where there is none.
fn target(here: &Path) -> PathBuf {
    let workspace = here.ancestors().find(|directory| directory.join("Cargo.lock").exists());
    workspace.unwrap_or(here).join("target")
}

impl std::fmt::Display for X {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            X::Number(number) => f.pad(&number.to_string()),
            X::Name(name) => f.pad(name),
        }
    }
}
