//! Where a process spends its processor time, by perf.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::failure::Failure;
use crate::outcome;

/// Samples in a second of processor time; a prime, so as not to beat with anything.
const RATE: &str = "4999";

/// perf.
#[derive(Debug)]
pub(crate) struct Perf {
    pub(crate) version: String,
}

/// A recording under way.
#[derive(Debug)]
pub(crate) struct Recording {
    child: Child,
    file: PathBuf,
}

/// A function and its share of the samples, without what it calls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) percent: f64,
    pub(crate) kernel: bool,
    pub(crate) function: String,
}

impl Perf {
    /// Looks whether it is installed.
    pub(crate) fn find() -> Result<Self, Failure> {
        let Ok(output) = Command::new("perf").arg("--version").output() else {
            return Err(Failure::Run(
                "perf is not installed (Debian package: linux-perf)".to_owned(),
            ));
        };
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(Perf { version: text.trim().replace("perf version ", "") })
    }

    /// Begins to look at some processes.
    pub(crate) fn record(&self, processes: &[u32]) -> Result<Recording, Failure> {
        let file = outcome::directory()?.join(format!("perf-{}.data", std::process::id()));
        let processes: Vec<_> = processes.iter().map(u32::to_string).collect();
        let mut command = Command::new("perf");
        command.args(["record", "--quiet", "--event", "cpu-clock", "--freq", RATE]);
        command.args(["--pid", &processes.join(","), "--output"]).arg(&file);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Recording { child: child.map_err(|e| Failure::new("can't start perf", e))?, file })
    }
}

impl Recording {
    /// Ends it and tells what was seen, the largest share first.
    pub(crate) fn end(mut self) -> Result<Vec<Share>, Failure> {
        // It writes its file when it is interrupted.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::INT);
        self.child.wait()?;
        let output = Command::new("perf")
            .args(["report", "--stdio", "--no-children", "--sort", "symbol", "--input"])
            .arg(&self.file)
            .output()
            .map_err(|e| Failure::new("can't run perf", e))?;
        let shares = shares(&String::from_utf8_lossy(&output.stdout));
        if shares.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Run(format!("perf saw nothing: {}", said.trim())));
        }
        Ok(shares)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // It has ended already, unless something failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}

/// Reads lines such as `    12.34%  [k] tcp_sendmsg_locked`.
fn shares(report: &str) -> Vec<Share> {
    let share = |line: &str| {
        let (percent, rest) = line.trim().split_once('%')?;
        let (place, function) = rest.trim().split_once(' ')?;
        let kernel = match place {
            "[k]" => true,
            "[.]" => false,
            _ => return None,
        };
        // Columns that have nothing to say follow the name.
        let function = function.trim_end_matches([' ', '-']).trim().to_owned();
        Some(Share { percent: percent.parse().ok()?, kernel, function })
    };
    report.lines().filter_map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read() {
        let report = "# Overhead  Symbol\n#\n    33.51%  [k] do_select      -      -\n     1.20%  [.] main::run\n\n";
        let found = shares(report);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].function, "do_select");
        assert!(found[0].kernel && !found[1].kernel && found[1].percent == 1.2);
    }
}
