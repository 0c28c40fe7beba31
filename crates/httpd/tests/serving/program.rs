//! The program as a process of its own.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::Client;

/// The program with these arguments, and its output in pipes.
pub(crate) fn httpd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_httpd"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same, behind a line for the shell such as `ulimit -n 64`.
pub(crate) fn limited(line: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{line} && exec \"$@\""), "sh", env!("CARGO_BIN_EXE_httpd")]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program while it serves.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) errors: BufReader<ChildStderr>,
    pub(crate) line: String,
    /// What it said before the line that says it accepts connections.
    pub(crate) before: String,
    pub(crate) address: SocketAddr,
}

impl Serving {
    /// Starts the program and reads up to the line that says it accepts connections.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::of(httpd(arguments))
    }

    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut serving =
            Serving { child, errors, line: String::new(), before: String::new(), address };
        serving.address = loop {
            serving.line.clear();
            assert!(serving.errors.read_line(&mut serving.line).unwrap() > 0, "it has ended");
            if let Some(rest) = serving.line.strip_prefix("listening on http://") {
                break rest.split(' ').next().unwrap().parse().unwrap();
            }
            serving.before += &serving.line;
        };
        serving
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).unwrap())
    }

    /// Its resident memory, in kilobytes.
    pub(crate) fn resident_kb(&self) -> u64 {
        self.kilobytes("VmRSS:")
    }

    /// The most resident memory that it has had, in kilobytes.
    pub(crate) fn peak_kb(&self) -> u64 {
        self.kilobytes("VmHWM:")
    }

    /// What /proc says of it (proc_pid_status(5)).
    fn kilobytes(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end; nothing more may have been said.
    pub(crate) fn expect_success(mut self) {
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).unwrap();
        assert_eq!((self.child.wait().unwrap().code(), &*rest), (Some(0), ""));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Already gone, if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
