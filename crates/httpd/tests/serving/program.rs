//! The program as a child process.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, kill_process};

use super::Client;

/// Returns a command that runs the program, with its output in pipes.
pub(crate) fn httpd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_httpd"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Like [`httpd`], after a shell command such as `ulimit -n 64`.
pub(crate) fn limited(line: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{line} && exec \"$@\""), "sh", env!("CARGO_BIN_EXE_httpd")]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns a command that runs the program with sockets, as a service manager does.
pub(crate) fn with_sockets<const N: usize>(
    sockets: [TcpListener; N],
    arguments: &[&str],
) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh", env!("CARGO_BIN_EXE_httpd")]);
    command.args(arguments).env("LISTEN_FDS", N.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mappings = sockets.into_iter().zip(3..);
    let mappings =
        mappings.map(|(socket, child_fd)| FdMapping { parent_fd: socket.into(), child_fd });
    command.fd_mappings(mappings.collect()).unwrap();
    command
}

pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) errors: BufReader<ChildStderr>,
    pub(crate) line: String,
    /// The output before the line that reports the address.
    pub(crate) before: String,
    pub(crate) address: SocketAddr,
}

impl Serving {
    /// Starts the program and reads the line that reports the address.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::of(httpd(arguments))
    }

    pub(crate) fn of(command: Command) -> Self {
        Self::try_of(command).unwrap_or_else(|output| panic!("the program has exited: {output}"))
    }

    /// Returns what the program has said if it exits.
    pub(crate) fn try_of(mut command: Command) -> Result<Self, String> {
        let mut child = command.spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut serving =
            Serving { child, errors, line: String::new(), before: String::new(), address };
        serving.address = loop {
            serving.line.clear();
            let n = serving.errors.read_line(&mut serving.line).unwrap();
            if n == 0 {
                return Err(mem::take(&mut serving.before));
            }
            let url = serving.line.strip_prefix("listening on http");
            if let Some(text) = url.and_then(|url| url.trim_start_matches('s').strip_prefix("://"))
            {
                break text.split(' ').next().unwrap().parse().unwrap();
            }
            serving.before += &serving.line;
        };
        Ok(serving)
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).unwrap())
    }

    pub(crate) fn resident_kb(&self) -> u64 {
        self.kilobytes("VmRSS:")
    }

    pub(crate) fn peak_kb(&self) -> u64 {
        self.kilobytes("VmHWM:")
    }

    /// Returns a field of proc_pid_status(5).
    fn kilobytes(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the program, and waits until none of its threads runs.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let is_stopped = |task: PathBuf| match fs::read_to_string(task.join("stat")) {
            Ok(stat) => stat.rsplit(") ").next().unwrap().starts_with('T'),
            // The thread has ended.
            Err(_) => true,
        };
        let tasks = format!("/proc/{}/task", self.child.id());
        while !fs::read_dir(&tasks).unwrap().all(|task| is_stopped(task.unwrap().path())) {
            thread::yield_now();
        }
    }

    /// Waits for the program to exit with success and without further output.
    pub(crate) fn expect_success(mut self) {
        let mut output = String::new();
        self.errors.read_to_string(&mut output).unwrap();
        assert_eq!((self.child.wait().unwrap().code(), &*output), (Some(0), ""));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Fails if it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
