//! CPU profiles and numbers of system calls, by perf.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal};

use crate::failure::Failure;
use crate::outcome;

/// Samples per second of CPU time; a prime, to avoid aliasing with periodic work.
const RATE: &str = "4999";

/// Maximum time for perf to start or stop counting.
const TIMEOUT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

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

    /// Prepares to count the system calls of some processes and of the threads that they start.
    pub(crate) fn count_system_calls(&self, processes: &[u32]) -> Result<Counting, Failure> {
        Counting::new(processes)
    }

    /// Counts the system calls of some processes while `run` runs.
    ///
    /// # Errors
    /// If perf may not use the kernel's tracepoints, which usually requires root.
    pub(crate) fn system_calls(
        &self,
        processes: &[u32],
        run: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let mut counting = self.count_system_calls(processes)?;
        counting.start()?;
        run()?;
        counting.pause()?;
        counting.end()
    }
}

/// A perf that counts system calls on command.
#[derive(Debug)]
pub(crate) struct Counting {
    child: Child,
    commands: File,
    replies: File,
    /// The common part of the names of its files.
    prefix: PathBuf,
}

impl Counting {
    fn new(processes: &[u32]) -> Result<Self, Failure> {
        let prefix = outcome::directory()?.join(format!("perf-{}", std::process::id()));
        let (commands, replies) = (prefix.with_extension("in"), prefix.with_extension("out"));
        let processes: Vec<_> = processes.iter().map(u32::to_string).collect();
        // Opened for both, so that no open waits for the other side.
        let opened = [fifo(&commands)?, fifo(&replies)?];
        let child = Command::new("perf")
            .args(["stat", "--event", "raw_syscalls:sys_enter", "--field-separator", ","])
            .args(["--pid", &processes.join(","), "--delay", "-1", "--output"])
            .arg(prefix.with_extension("calls"))
            .arg(format!("--control=fifo:{},{}", commands.display(), replies.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| Failure::new("cannot start perf", e))?;
        let [commands, replies] = opened;
        Ok(Counting { child, commands, replies, prefix })
    }

    /// Starts to count.
    ///
    /// # Errors
    /// If perf may not use the kernel's tracepoints, which usually requires root.
    pub(crate) fn start(&mut self) -> Result<(), Failure> {
        self.command("enable")
    }

    /// Stops to count.
    pub(crate) fn pause(&mut self) -> Result<(), Failure> {
        self.command("disable")
    }

    /// Gives a command, and waits until perf has executed it.
    fn command(&mut self, command: &str) -> Result<(), Failure> {
        writeln!(self.commands, "{command}")?;
        let mut events = [PollFd::new(&self.replies, PollFlags::IN)];
        if poll(&mut events, Some(&TIMEOUT)).map_err(io::Error::from)? == 0 {
            return Err(Failure::Run("perf cannot count system calls; run as root".to_owned()));
        }
        // `ack`, a line end and a zero.
        let mut reply = [0; 16];
        rustix::io::read(&self.replies, &mut reply).map_err(io::Error::from)?;
        Ok(())
    }

    /// Returns the count.
    pub(crate) fn end(mut self) -> Result<u64, Failure> {
        // perf writes its file on SIGINT.
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::INT)
            .map_err(io::Error::from)?;
        self.child.wait()?;
        let text = fs::read_to_string(self.prefix.with_extension("calls"))?;
        counted(&text).ok_or_else(|| Failure::Run(format!("perf counted nothing: {text}")))
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        // perf has already ended, unless something failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for extension in ["in", "out", "calls"] {
            let _ = fs::remove_file(self.prefix.with_extension(extension));
        }
    }
}

/// Makes a FIFO and opens it.
fn fifo(path: &Path) -> Result<File, Failure> {
    let _ = fs::remove_file(path);
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(io::Error::from)?;
    Ok(File::options().read(true).write(true).open(path)?)
}

/// Parses a line such as `1234,,raw_syscalls:sys_enter,5678,100.00,,`.
fn counted(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("raw_syscalls:sys_enter"))?;
    line.split(',').next()?.parse().ok()
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
    fn count_of_system_calls_is_parsed() {
        let text = "# started on Monday\n\n1234,,raw_syscalls:sys_enter,5678,100.00,,\n";
        assert_eq!(counted(text), Some(1234));
        assert_eq!(counted("<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n"), None);
    }

    #[test]
    fn shares_are_parsed() {
        let report = "# Overhead  Symbol\n#\n    33.51%  [k] do_select      -      -\n     1.20%  [.] main::run\n\n";
        let found = parse(report);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].function, "do_select");
        assert!(found[0].kernel && !found[1].kernel && found[1].percent == 1.2);
    }
}
