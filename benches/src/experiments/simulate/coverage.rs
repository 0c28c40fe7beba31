//! Line coverage, by a copy of the simulation that counts its lines.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::outcome;

/// How long the copy runs, in seconds.
const SECONDS: &str = "8";

/// The rooms whose lines are counted.
const ROOMS: [&str; 2] = ["crates/shared-ring/src/", "crates/multiplex/src/"];

/// A copy that is being built, or what stands in the way.
pub(super) struct Coverage(Result<Copy, String>);

struct Copy {
    build: Child,
    folder: PathBuf,
    tools: PathBuf,
}

impl Coverage {
    /// Begins to build the copy, beside the experiment.
    pub(super) fn begin() -> Self {
        Coverage(Copy::begin())
    }

    /// Runs the copy and says what it found. When time is short it has to be built by now.
    pub(super) fn end(self, is_short: bool) -> String {
        match self.0.and_then(|copy| copy.measure(is_short)) {
            Ok(found) => format!("line coverage, in {SECONDS} s of runs: {found}"),
            Err(why) => format!("line coverage was not measured: {why}"),
        }
    }
}

impl Copy {
    fn begin() -> Result<Self, String> {
        let tools = tools()?;
        let folder = outcome::directory().map_err(|e| e.to_string())?.join("coverage");
        let build = cargo(&folder)
            .args(["build", "--quiet", "--jobs", "1"])
            .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
            .args(["--package", "lab", "--example", "simulate"])
            .spawn()
            .map_err(|error| format!("cargo can't be started: {error}"))?;
        Ok(Copy { build, folder, tools })
    }

    fn measure(mut self, is_short: bool) -> Result<String, String> {
        let patience = Duration::from_secs(if is_short { 2 } else { 300 });
        let end = Instant::now() + patience;
        loop {
            match self.build.try_wait() {
                Ok(Some(status)) if status.success() => break,
                Ok(Some(_)) => return Err("the copy that counts its lines can't be built".into()),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
                _ => {
                    return Err(
                        "the copy that counts its lines is still being built, and will be \
                                there for the next run"
                            .into(),
                    );
                }
            }
        }
        let program = self.folder.join("debug/examples/simulate");
        let raw = self.folder.join("simulate.profraw");
        let data = self.folder.join("simulate.profdata");
        succeed(Command::new(&program).arg(SECONDS).env("LLVM_PROFILE_FILE", &raw))?;
        let mut merge = Command::new(self.tools.join("llvm-profdata"));
        succeed(merge.args(["merge", "-sparse", "-o"]).arg(&data).arg(&raw))?;
        let mut export = Command::new(self.tools.join("llvm-cov"));
        export.args(["export", "-summary-only", "-instr-profile"]).arg(&data).arg(&program);
        let text = succeed(&mut export)?;
        let report: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let found = ROOMS.map(|room| of_room(&report, room));
        Ok(found.join(", "))
    }
}

/// Cargo, for builds that count lines.
fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .env("CARGO_TARGET_DIR", folder)
        .env("RUSTFLAGS", "-C instrument-coverage")
        // Build scripts and macros count theirs too.
        .env("LLVM_PROFILE_FILE", folder.join("build.profraw"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    cargo
}

/// Where the tools of the compiler's own LLVM are.
fn tools() -> Result<PathBuf, String> {
    let say = |argument: &[&str]| {
        let output = succeed(Command::new("rustc").args(argument))?;
        Ok::<_, String>(String::from_utf8_lossy(&output).into_owned())
    };
    let root = say(&["--print", "sysroot"])?;
    let about = say(&["--version", "--verbose"])?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let folder = Path::new(root.trim()).join("lib/rustlib").join(host).join("bin");
    if folder.join("llvm-cov").exists() {
        Ok(folder)
    } else {
        Err("`rustup component add llvm-tools` installs what it needs".to_owned())
    }
}

/// Runs a program that has to succeed, and returns what it says.
fn succeed(command: &mut Command) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name} can't be started: {error}"))?;
    if output.status.success() { Ok(output.stdout) } else { Err(format!("{name} failed")) }
}

/// How much of a room was reached, without the simulation itself.
fn of_room(report: &Value, room: &str) -> String {
    let files = report["data"][0]["files"].as_array().map_or(&[][..], Vec::as_slice);
    let (mut all, mut reached) = (0, 0);
    for file in files {
        let name = file["filename"].as_str().unwrap_or_default();
        if name.contains(room) && !name.contains("/sim/") {
            all += file["summary"]["lines"]["count"].as_u64().unwrap_or(0);
            reached += file["summary"]["lines"]["covered"].as_u64().unwrap_or(0);
        }
    }
    let percent = 100.0 * reached as f64 / (all as f64).max(1.0);
    let name = room.trim_start_matches("crates/").trim_end_matches("/src/");
    format!("{name} {percent:.1} % ({reached} of {all} lines)")
}
