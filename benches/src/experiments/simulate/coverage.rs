//! Line coverage, from an instrumented build of the simulation.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use llvm_profparser::{CoverageMapping, CoverageReport, CoverageResult, parse};

use crate::outcome;

/// Maximum and minimum duration of its run, in seconds.
const MAX_SECONDS: u64 = 8;
const MIN_SECONDS: u64 = 2;

/// The crates whose lines are counted.
const CRATES: [&str; 2] = ["shared-ring", "evring"];

/// The instrumented build in progress, or the error that prevents it.
pub(super) struct Coverage(Result<Instrumented, String>);

struct Instrumented {
    build: Child,
    directory: PathBuf,
}

impl Coverage {
    /// Starts the build, concurrent with the experiment.
    pub(super) fn begin() -> Self {
        Coverage(Instrumented::begin())
    }

    /// Runs the instrumented program and describes its coverage. Returns at about `end`.
    pub(super) fn end(self, end: Instant) -> String {
        match self.0.and_then(|program| program.measure(end)) {
            Ok(lines) => format!("line coverage, {lines}"),
            Err(reason) => format!("line coverage was not measured: {reason}"),
        }
    }
}

impl Drop for Instrumented {
    /// Stops the build.
    fn drop(&mut self) {
        let _ = self.build.kill();
        let _ = self.build.wait();
    }
}

impl Instrumented {
    fn begin() -> Result<Self, String> {
        let directory = outcome::directory().map_err(|e| e.to_string())?.join("coverage");
        let build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--jobs", "2", "--package", "simulate"])
            .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
            .env("CARGO_TARGET_DIR", &directory)
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("RUSTFLAGS", "-C instrument-coverage")
            // Build scripts and macros are also instrumented.
            .env("LLVM_PROFILE_FILE", directory.join("build.profraw"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start cargo: {error}"))?;
        Ok(Instrumented { build, directory })
    }

    fn measure(mut self, end: Instant) -> Result<String, String> {
        while self.build.try_wait().map_err(|error| error.to_string())?.is_none() {
            if seconds_until(end) < MIN_SECONDS {
                return Err(
                    "the instrumented build takes too long; the next run continues it".to_owned()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let seconds = seconds_until(end).clamp(MIN_SECONDS, MAX_SECONDS);
        let program = self.directory.join("debug/simulate");
        let counts = self.directory.join("simulate.profraw");
        let run = Command::new(&program)
            .arg(seconds.to_string())
            .env("LLVM_PROFILE_FILE", &counts)
            .stdout(Stdio::null())
            .status();
        if !run.is_ok_and(|status| status.success()) {
            return Err("the instrumented program cannot be built, or failed".to_owned());
        }
        let report = report(&program, &counts)?;
        Ok(format!(
            "in {seconds} s of runs: {}",
            CRATES.map(|package| describe(&report, package)).join("; ")
        ))
    }
}

fn seconds_until(end: Instant) -> u64 {
    end.saturating_duration_since(Instant::now()).as_secs()
}

/// Returns the coverage of the crates by an instrumented program.
fn report(program: &Path, counts: &Path) -> Result<CoverageReport, String> {
    let counts = parse(counts).map_err(|error| error.to_string())?;
    let programs = [program.to_owned()];
    CoverageMapping::new(&programs, &counts, false)
        .and_then(|lines| {
            lines.generate_subreport(|files| {
                files.iter().any(|file| CRATES.iter().any(|package| is_of(package, file)))
            })
        })
        .map_err(|error| error.to_string())
}

/// Returns whether a file belongs to a crate.
fn is_of(package: &str, file: &Path) -> bool {
    let name = file.to_string_lossy();
    name.contains(&format!("crates/{package}/src/"))
}

/// Describes the coverage of a crate.
fn describe(report: &CoverageReport, package: &str) -> String {
    let (mut all, mut simulated, mut reached) = (0, 0, 0);
    for (_, regions) in report.files.iter().filter(|(file, _)| is_of(package, file)) {
        let lines = lines(regions);
        let of_file = lines.values().filter(|count| **count > 0).count();
        all += lines.len();
        reached += of_file;
        simulated += if of_file > 0 { lines.len() } else { 0 };
    }
    let percent = |of: usize| 100.0 * reached as f64 / of.max(1) as f64;
    format!(
        "{package} {:.1} % ({reached} of {all} lines; {:.1} % of the simulated files)",
        percent(all),
        percent(simulated),
    )
}

/// Returns the count of each line. Regions are nested, and the innermost determines the count; on a
/// line where a region begins or ends, the maximum of both counts.
fn lines(regions: &CoverageResult) -> BTreeMap<usize, usize> {
    let mut outer_first: Vec<_> = regions.hits.iter().collect();
    outer_first.sort_by_key(|(at, _)| {
        (at.line_start, at.column_start, std::cmp::Reverse((at.line_end, at.column_end)))
    });
    let mut lines = BTreeMap::new();
    for (at, count) in outer_first {
        for line in at.line_start..=at.line_end {
            let line_count = lines.entry(line).or_insert(*count);
            let is_edge = line == at.line_start || line == at.line_end;
            *line_count = if is_edge { (*line_count).max(*count) } else { *count };
        }
    }
    lines
}
