//! CPU profiles, by perf.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::failure::Failure;
use crate::outcome;

/// Samples per second of CPU time; a prime, to avoid aliasing with periodic work.
const RATE: &str = "4999";

/// An installed perf.
#[derive(Debug)]
pub(crate) struct Perf {
    pub(crate) version: String,
}

/// A recording in progress.
#[derive(Debug)]
pub(crate) struct Recording {
    child: Child,
    file: PathBuf,
}

/// A function and its share of the samples, without its callees.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) percent: f64,
    pub(crate) kernel: bool,
    pub(crate) function: String,
}

impl Perf {
    /// Finds perf and its version.
    ///
    /// # Errors
    /// If it is not installed.
    pub(crate) fn find() -> Result<Self, Failure> {
        let Ok(output) = Command::new("perf").arg("--version").output() else {
            return Err(Failure::Run(
                "perf is not installed (Debian package: linux-perf)".to_owned(),
            ));
        };
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(Perf { version: text.trim().replace("perf version ", "") })
    }

    /// Starts to record some processes.
    pub(crate) fn record(&self, processes: &[u32]) -> Result<Recording, Failure> {
        let file = outcome::directory()?.join(format!("perf-{}.data", std::process::id()));
        let processes: Vec<_> = processes.iter().map(u32::to_string).collect();
        let mut command = Command::new("perf");
        command.args(["record", "--quiet", "--event", "cpu-clock", "--freq", RATE]);
        command.args(["--pid", &processes.join(","), "--output"]).arg(&file);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Recording { child: child.map_err(|e| Failure::new("cannot start perf", e))?, file })
    }
}

impl Recording {
    /// Ends the recording. Returns the functions, largest share first.
    pub(crate) fn end(mut self) -> Result<Vec<Share>, Failure> {
        // perf writes its file on SIGINT.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::INT);
        self.child.wait()?;
        let output = Command::new("perf")
            .args(["report", "--stdio", "--no-children", "--sort", "symbol", "--input"])
            .arg(&self.file)
            .output()
            .map_err(|e| Failure::new("cannot run perf", e))?;
        let shares = parse(&String::from_utf8_lossy(&output.stdout));
        if shares.is_empty() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Run(format!("perf recorded no samples: {}", stderr.trim())));
        }
        Ok(shares)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // perf has already ended, unless something failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}

/// Parses lines such as `    12.34%  [k] tcp_sendmsg_locked`.
fn parse(report: &str) -> Vec<Share> {
    let share = |line: &str| {
        let (percent, remaining) = line.trim().split_once('%')?;
        let (origin, function) = remaining.trim().split_once(' ')?;
        let kernel = match origin {
            "[k]" => true,
            "[.]" => false,
            _ => return None,
        };
        // Empty columns follow the name.
        let function = function.trim_end_matches([' ', '-']).trim().to_owned();
        Some(Share { percent: percent.parse().ok()?, kernel, function })
    };
    report.lines().filter_map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parsed() {
        let report = "# Overhead  Symbol\n#\n    33.51%  [k] do_select      -      -\n     1.20%  [.] main::run\n\n";
        let found = parse(report);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].function, "do_select");
        assert!(found[0].kernel && !found[1].kernel && found[1].percent == 1.2);
    }
}
