//! The machine on which the lab runs.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// A machine with its kernel and tool versions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rustc: Option<String>,
    pub(crate) versions: BTreeMap<String, String>,
}

impl Machine {
    /// Describes this machine.
    pub(crate) fn here() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let mut versions = BTreeMap::from([("lab".to_owned(), version)]);
        versions.extend(profile().map(|profile| ("profile".to_owned(), profile)));
        Machine {
            cpu: cpu().unwrap_or_else(unknown),
            cores: cores().unwrap_or(1),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            rustc: None,
            versions,
        }
    }

    /// Describes this machine with the versions of the tools, which runs a few programs.
    pub(crate) fn with_tools() -> Self {
        let mut machine = Machine::here();
        machine.rustc = first_line("rustc", &["--version"]);
        let valgrind = first_line("valgrind", &["--version"]);
        let valgrind = valgrind.map(|version| version.trim_start_matches("valgrind-").to_owned());
        machine.versions.extend(commit().map(|v| ("commit".to_owned(), v)));
        machine.versions.extend(valgrind.map(|v| ("valgrind".to_owned(), v)));
        machine
    }
}

/// Returns the cargo profile of this program, which names the directory that contains it.
fn profile() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let directory = program.parent()?.file_name()?;
    Some(directory.to_string_lossy().into_owned())
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn cpu() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the number of cores of the machine; this thread may be pinned to one.
fn cores() -> Option<usize> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    Some(text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count())
}

/// Returns the commit of the sources, with a note if they were changed. Results and pages do not change what is
/// measured.
fn commit() -> Option<String> {
    let commit = first_line("git", &["rev-parse", "--short", "HEAD"])?;
    let sources = [":/", ":(top,exclude)docs", ":(top,exclude)*.md"];
    let changed =
        first_line("git", &[&["diff", "--name-only", "HEAD", "--"], &sources[..]].concat());
    Some(if changed.is_some() { commit + "-dirty" } else { commit })
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next()?.trim();
    (output.status.success() && !line.is_empty()).then(|| line.to_owned())
}
