//! Line coverage, by a copy of the simulation that counts its lines.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use llvm_profparser::{CoverageMapping, CoverageReport, CoverageResult, parse};

use crate::outcome;

/// How long the copy runs if there is time, in seconds, and how long it has to.
const SECONDS: u64 = 8;
const LEAST: u64 = 2;

/// The rooms whose lines are counted.
const ROOMS: [&str; 2] = ["shared-ring", "evring"];

/// A copy that is being built, or what stands in the way.
pub(super) struct Coverage(Result<Copy, String>);

struct Copy {
    build: Child,
    folder: PathBuf,
}

impl Coverage {
    /// Begins to build the copy, beside the experiment.
    pub(super) fn begin() -> Self {
        Coverage(Copy::begin())
    }

    /// Runs the copy and says what it found; all of this is over at `end`, or soon after.
    pub(super) fn end(self, end: Instant) -> String {
        match self.0.and_then(|copy| copy.measure(end)) {
            Ok(found) => format!("line coverage, {found}"),
            Err(why) => format!("line coverage was not measured: {why}"),
        }
    }
}

impl Drop for Copy {
    /// What is not waited for should not go on alone.
    fn drop(&mut self) {
        let _ = self.build.kill();
        let _ = self.build.wait();
    }
}

impl Copy {
    fn begin() -> Result<Self, String> {
        let folder = outcome::directory().map_err(|e| e.to_string())?.join("coverage");
        let build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--jobs", "2", "--package", "simulate"])
            .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
            .env("CARGO_TARGET_DIR", &folder)
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("RUSTFLAGS", "-C instrument-coverage")
            // Build scripts and macros count theirs too.
            .env("LLVM_PROFILE_FILE", folder.join("build.profraw"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cargo can't be started: {error}"))?;
        Ok(Copy { build, folder })
    }

    fn measure(mut self, end: Instant) -> Result<String, String> {
        while self.build.try_wait().map_err(|error| error.to_string())?.is_none() {
            if seconds_until(end) < LEAST {
                return Err("the copy that counts its lines takes too long to build; what it has \
                            of it stays for the next run"
                    .to_owned());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let seconds = seconds_until(end).clamp(LEAST, SECONDS);
        let program = self.folder.join("debug/simulate");
        let counts = self.folder.join("simulate.profraw");
        let run = Command::new(&program)
            .arg(seconds.to_string())
            .env("LLVM_PROFILE_FILE", &counts)
            .stdout(Stdio::null())
            .status();
        if !run.is_ok_and(|status| status.success()) {
            return Err("the copy that counts its lines can't be built, or fails".to_owned());
        }
        let report = report(&program, &counts)?;
        Ok(format!(
            "in {seconds} s of runs: {}",
            ROOMS.map(|room| of_room(&report, room)).join("; ")
        ))
    }
}

fn seconds_until(end: Instant) -> u64 {
    end.saturating_duration_since(Instant::now()).as_secs()
}

/// What a program that counts its lines has counted in the rooms.
fn report(program: &Path, counts: &Path) -> Result<CoverageReport, String> {
    let counts = parse(counts).map_err(|error| error.to_string())?;
    let programs = [program.to_owned()];
    CoverageMapping::new(&programs, &counts, false)
        .and_then(|lines| {
            lines.generate_subreport(|files| {
                files.iter().any(|file| ROOMS.iter().any(|room| is_of(room, file)))
            })
        })
        .map_err(|error| error.to_string())
}

/// Whether a file is part of a room, and not of the simulation itself.
fn is_of(room: &str, file: &Path) -> bool {
    let name = file.to_string_lossy();
    name.contains(&format!("crates/{room}/src/")) && !name.contains("/sim/")
}

/// How much of a room was reached.
fn of_room(report: &CoverageReport, room: &str) -> String {
    let (mut all, mut simulated, mut reached) = (0, 0, 0);
    for (_, regions) in report.files.iter().filter(|(file, _)| is_of(room, file)) {
        let lines = lines(regions);
        let of_file = lines.values().filter(|count| **count > 0).count();
        all += lines.len();
        reached += of_file;
        simulated += if of_file > 0 { lines.len() } else { 0 };
    }
    let percent = |of: usize| 100.0 * reached as f64 / of.max(1) as f64;
    format!(
        "{room} {:.1} % ({reached} of {all} lines; {:.1} % of the files that are simulated at all)",
        percent(all),
        percent(simulated),
    )
}

/// How often each line was reached. Regions lie within one another, and the innermost decides;
/// where one begins or ends, the line was reached if either was.
fn lines(regions: &CoverageResult) -> BTreeMap<usize, usize> {
    let mut outer_first: Vec<_> = regions.hits.iter().collect();
    outer_first.sort_by_key(|(at, _)| {
        (at.line_start, at.column_start, std::cmp::Reverse((at.line_end, at.column_end)))
    });
    let mut lines = BTreeMap::new();
    for (at, count) in outer_first {
        for line in at.line_start..=at.line_end {
            let known = lines.entry(line).or_insert(*count);
            let is_edge = line == at.line_start || line == at.line_end;
            *known = if is_edge { (*known).max(*count) } else { *count };
        }
    }
    lines
}
