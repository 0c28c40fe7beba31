//! A server under test, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs, thread};

use rustix::process::{Pid, Signal};
use serde::Deserialize;

use super::processor::family;
use super::processor::{SERVER_CORE, Switches};
use super::site::fetch;
use super::{CpuTime, Quota, Site};
use crate::command::{What, Workload};
use crate::failure::Failure;

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) what: What,
    pub(crate) mechanism: String,
    pub(crate) work: Workload,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.mechanism, self.what.name(), self.work.name())
    }
}

/// What a server has allocated.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Counts {
    /// Allocations so far.
    pub(crate) allocations: u64,
    /// Bytes allocated now.
    pub(crate) live: u64,
}

/// What a server says at its end.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Ended {
    /// System calls it made, by its own count.
    pub(crate) system_calls: u64,
}

/// A running server. It is ended when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
    /// Its processes.
    family: Vec<u32>,
}

/// Under what conditions a server runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions<'a> {
    /// The words of a program that runs it, if any. A server under one has no thread of its own
    /// to obey, and ends by [`Server::terminate`].
    pub(crate) under: &'a [&'a str],
    /// The share of the processor that it has.
    pub(crate) quota: Option<&'a Quota>,
    /// The length of its listener's queue, if not the usual one.
    pub(crate) backlog: Option<u32>,
    /// Whether it lets in whatever comes, also more than it can serve. Ours do not, by themselves.
    pub(crate) unbounded: bool,
    /// The cores that it may use, with a worker for each; its usual one if there is none.
    pub(crate) cores: &'a [usize],
    /// The server behind a proxy.
    pub(crate) upstream: Option<SocketAddr>,
}

impl Server {
    /// Starts a server on its core.
    pub(crate) fn start(subject: &Subject, site: &Site) -> Result<Self, Failure> {
        Server::start_under(subject, site, &Conditions::default())
    }

    /// Starts a server.
    pub(crate) fn start_under(
        subject: &Subject,
        site: &Site,
        conditions: &Conditions<'_>,
    ) -> Result<Self, Failure> {
        let lab = program()?;
        let under = conditions.under;
        let mut words = under.iter().map(AsRef::as_ref).chain([lab.as_os_str()]);
        let mut command = Command::new(words.next().expect("the lab itself is a word"));
        command.args(words).arg("serve");
        if !under.is_empty() {
            command.arg("--alone");
        }
        command.args(["--what", subject.what.name(), "--mechanism", &subject.mechanism]);
        command.args(["--work", subject.work.name()]);
        if let Some(quota) = conditions.quota {
            command.arg("--group").arg(quota.path());
        }
        if let Some(backlog) = conditions.backlog {
            command.args(["--backlog", &backlog.to_string()]);
        }
        if conditions.unbounded {
            command.arg("--unbounded");
        }
        let cores = if conditions.cores.is_empty() { &[SERVER_CORE] } else { conditions.cores };
        let cores: Vec<_> = cores.iter().map(usize::to_string).collect();
        command.args(["--cores", &cores.join(",")]);
        if let Some(upstream) = conditions.upstream {
            command.args(["--upstream", &upstream.to_string()]);
        }
        command.arg("--reply").arg(site.reply()).arg("--root").arg(site.root());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Failure::new("can't start a server", e))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let family = vec![child.id()];
        let mut server = Server { child, input, output, address, family };
        let line = server.line().map_err(|e| Failure::new(format_args!("{subject}"), e))?;
        server.address = line.trim().parse().map_err(|e| Failure::new("an address", e))?;
        server.await_connection(subject)?;
        Ok(server)
    }

    /// Asks once for a path, which must give a body of so many bytes. Counts the server's children,
    /// one of which may have answered, as part of it from now on.
    pub(crate) fn ask(&mut self, path: &str, bytes: usize) -> Result<(), Failure> {
        let reply = fetch(self, path)?;
        let head = reply.windows(4).position(|w| w == b"\r\n\r\n").map_or(0, |at| at + 4);
        if reply.len() - head != bytes {
            let found = reply.len() - head;
            return Err(Failure::Run(format!("{path} has {found} bytes instead of {bytes}")));
        }
        self.family = family(self.child.id())?;
        Ok(())
    }

    /// Waits until it accepts a connection: nginx tells its address before it listens.
    fn await_connection(&mut self, subject: &Subject) -> Result<(), Failure> {
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            match TcpStream::connect_timeout(&self.address, Duration::from_secs(1)) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > patience || self.child.try_wait()?.is_some() => {
                    return Err(Failure::new(format_args!("{subject} does not listen"), error));
                }
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks what it has allocated.
    pub(crate) fn counts(&mut self) -> Result<Counts, Failure> {
        self.input.as_mut().expect("open until the end").write_all(b"\n")?;
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|e| Failure::new("the server's counts", e))
    }

    /// The processor time it has used.
    pub(crate) fn cpu(&self) -> Result<CpuTime, Failure> {
        Ok(CpuTime::of(&self.family)?)
    }

    /// Its processes.
    pub(crate) fn family(&self) -> &[u32] {
        &self.family
    }

    /// How often its threads have been taken from a core, or have left one.
    pub(crate) fn switches(&self) -> Result<Switches, Failure> {
        Ok(Switches::of(&self.family)?)
    }

    /// The memory that it has in use, in bytes, as the kernel counts it.
    pub(crate) fn resident(&self) -> Result<u64, Failure> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.and_then(|l| l.split_ascii_whitespace().next()?.parse::<u64>().ok());
        kib.map(|k| k * 1024).ok_or_else(|| Failure::Run("no VmRSS in /proc".to_owned()))
    }

    /// Stops it.
    pub(crate) fn stop(mut self) -> Result<Ended, Failure> {
        drop(self.input.take());
        let line = self.line()?;
        self.child.wait()?;
        serde_json::from_str(&line).map_err(|e| Failure::new("the server's last words", e))
    }

    /// Ends it by a signal, for when it runs under a program that has the last word.
    pub(crate) fn terminate(mut self) -> Result<(), Failure> {
        let process = Pid::from_child(&self.child);
        rustix::process::kill_process(process, Signal::TERM).map_err(std::io::Error::from)?;
        let patience = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait()?.is_none() {
            if Instant::now() > patience {
                return Err(Failure::Run("the server does not end".to_owned()));
            }
            // Valgrind 3.19 takes io_uring_enter for a call that does not wait: it looks at signals
            // only between two calls, after a hundred thousand blocks of code. New connections
            // make the call return and the server work.
            for _ in 0..100 {
                let poke = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
                if poke.is_err() {
                    break;
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(Failure::Run("the server ended unexpectedly".to_owned())),
            _ => Ok(line),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // All of this fails only when it has ended already. A signal that can be heard lets it end
        // its own children.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
        let patience = Instant::now() + Duration::from_secs(2);
        while Instant::now() < patience && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lab's own program. Tests are another program, beside which cargo has put the lab's.
pub(super) fn program() -> Result<std::path::PathBuf, Failure> {
    let this = std::env::current_exe()?;
    let built = this.ancestors().nth(2).unwrap_or(Path::new("/")).join("lab");
    Ok(if this.ends_with("lab") || !built.exists() { this } else { built })
}
