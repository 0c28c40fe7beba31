//! A server under test, in a separate process.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs, thread};

use rustix::process::{Pid, Signal};
use serde::Deserialize;

use super::cpu::family;
use super::cpu::{SERVER_CORE, Switches};
use super::site::fetch;
use super::wait::line_within;
use super::{CpuTime, Quota, Site};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;

/// Maximum time for a server to accept connections, and to end; under valgrind, on a busy machine,
/// both take many seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time for a server to end that is dropped, before it is killed.
const ORDERLY: Duration = Duration::from_secs(2);

/// A program to measure.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) what: ServerKind,
    pub(crate) mechanism: String,
    pub(crate) work: Workload,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.mechanism, self.what.name(), self.work.name())
    }
}

/// The allocations of a server.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Counts {
    /// Allocations so far.
    pub(crate) allocations: u64,
    /// Bytes currently allocated.
    pub(crate) live: u64,
}

/// The report of a server at its end.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Ended {
    /// Number of system calls, by its own count.
    pub(crate) system_calls: u64,
}

/// A running server, terminated on drop.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
    /// The server's process and its children.
    family: Vec<u32>,
    /// Whether its children end only with its own end: they are to end before, so that their CPU time is known.
    ends_by_input: bool,
}

/// The conditions under which a server runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions<'a> {
    /// Command line of a program that runs the server, such as valgrind. A server under one does not
    /// read standard input, and must be ended by [`Server::terminate`].
    pub(crate) under: &'a [&'a str],
    /// The CPU quota.
    pub(crate) quota: Option<&'a Quota>,
    /// The length of the listen backlog, or `None` for the default.
    pub(crate) backlog: Option<u32>,
    /// Whether to disable admission control, which only our servers have.
    pub(crate) unbounded: bool,
    /// The cores to use, with one worker each; if empty, the server core.
    pub(crate) cores: &'a [usize],
    /// The address of the server behind a proxy.
    pub(crate) upstream: Option<SocketAddr>,
    /// The size of the sockets' send buffers, or `None` for the kernel's default.
    pub(crate) send_buffer: Option<usize>,
    /// The number of processes of `plain`, or `None` for the default.
    pub(crate) processes: Option<u32>,
    /// The module of a handler in a sandbox, for our web server.
    pub(crate) handler: Option<&'a Path>,
    /// Whether the site's files leave the page cache before the load.
    pub(crate) evict: bool,
}

impl Server {
    /// Starts a server on the server core.
    pub(crate) fn start(subject: &Subject, site: &Site) -> Result<Self, Failure> {
        Server::start_under(subject, site, &Conditions::default())
    }

    /// Starts a server under the given conditions.
    pub(crate) fn start_under(
        subject: &Subject,
        site: &Site,
        conditions: &Conditions<'_>,
    ) -> Result<Self, Failure> {
        Server::start_within(subject, site, conditions, TIMEOUT)
    }

    /// Starts a server, which prints its address in time.
    fn start_within(
        subject: &Subject,
        site: &Site,
        conditions: &Conditions<'_>,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let lab = program()?;
        let under = conditions.under;
        let mut command_line = under.iter().map(AsRef::as_ref).chain([lab.as_os_str()]);
        let mut command = Command::new(command_line.next().expect("the lab itself is an argument"));
        command.args(command_line).arg("serve");
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
        if let Some(bytes) = conditions.send_buffer {
            command.args(["--send-buffer", &bytes.to_string()]);
        }
        if let Some(number) = conditions.processes {
            command.args(["--processes", &number.to_string()]);
        }
        if let Some(handler) = conditions.handler {
            command.arg("--handler").arg(handler);
        }
        command.arg("--reply").arg(site.reply()).arg("--root").arg(site.root());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Failure::new("cannot start the server", e))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let family = vec![child.id()];
        let ends_by_input = subject.what == ServerKind::Plain && under.is_empty();
        let mut server = Server { child, input, output, address, family, ends_by_input };
        let line = server.line(limit).map_err(|e| Failure::new(format_args!("{subject}"), e))?;
        server.address = line
            .trim()
            .parse()
            .map_err(|e| Failure::new("cannot parse the server's address", e))?;
        server.await_connection(subject)?;
        Ok(server)
    }

    /// Requests a path once, and checks the length of the reply's body. From then on, the server's
    /// children, one of which may have replied, count as part of it.
    pub(crate) fn check_reply(&mut self, path: &str, bytes: usize) -> Result<(), Failure> {
        let reply = fetch(self, path)?;
        let head = reply.windows(4).position(|w| w == b"\r\n\r\n").map_or(0, |at| at + 4);
        if reply.len() - head != bytes {
            let found = reply.len() - head;
            return Err(Failure::Run(format!(
                "the reply to {path} has {found} bytes instead of {bytes}"
            )));
        }
        self.count_children()
    }

    /// Counts its present children as part of it, for a server that has replied.
    pub(crate) fn count_children(&mut self) -> Result<(), Failure> {
        self.family = family(self.child.id())?;
        Ok(())
    }

    /// Waits until the server accepts a connection: an external server's address is printed before it
    /// listens.
    fn await_connection(&mut self, subject: &Subject) -> Result<(), Failure> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match TcpStream::connect_timeout(&self.address, Duration::from_secs(1)) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline || self.child.try_wait()?.is_some() => {
                    return Err(Failure::new(
                        format_args!("{subject} does not accept connections"),
                        error,
                    ));
                }
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Queries its allocations.
    pub(crate) fn counts(&mut self) -> Result<Counts, Failure> {
        self.input.as_mut().expect("open until the end").write_all(b"\n")?;
        let line = self.line(TIMEOUT)?;
        serde_json::from_str(&line).map_err(|e| Failure::new("cannot parse the server's counts", e))
    }

    /// Returns its CPU time so far.
    pub(crate) fn cpu(&self) -> Result<CpuTime, Failure> {
        Ok(CpuTime::of(&self.family)?)
    }

    /// Returns its process and its children.
    pub(crate) fn family(&self) -> &[u32] {
        &self.family
    }

    /// Returns the context switches of its threads so far.
    pub(crate) fn switches(&self) -> Result<Switches, Failure> {
        Ok(Switches::of(&self.family)?)
    }

    /// Returns the resident memory (VmRSS) of its processes, in bytes.
    pub(crate) fn resident(&self) -> Result<u64, Failure> {
        self.memory("status", "VmRSS:")
    }

    /// Returns the same without pages of files (RssFile), such as programs.
    pub(crate) fn unmapped(&self) -> Result<u64, Failure> {
        Ok(self.resident()?.saturating_sub(self.memory("status", "RssFile:")?))
    }

    /// Returns the peaks of the resident memory (VmHWM) of its processes, without the pages of files that it has now, in bytes.
    pub(crate) fn unmapped_peak(&self) -> Result<u64, Failure> {
        let peak = self.memory("status", "VmHWM:")?;
        Ok(peak.saturating_sub(self.memory("status", "RssFile:")?))
    }

    /// Returns the memory of its processes that is not of files, in bytes. Each has its part of a page that they share
    /// (`Pss_Anon` in proc_pid_smaps(5)).
    pub(crate) fn private(&self) -> Result<u64, Failure> {
        self.memory("smaps_rollup", "Pss_Anon:")
    }

    fn memory(&self, file: &str, field: &str) -> Result<u64, Failure> {
        let of = |process: &u32| -> Result<u64, Failure> {
            let text = fs::read_to_string(format!("/proc/{process}/{file}"))?;
            let line = text.lines().find_map(|l| l.strip_prefix(field));
            let kib = line.and_then(|l| l.split_ascii_whitespace().next()?.parse::<u64>().ok());
            kib.map(|k| k * 1024).ok_or_else(|| Failure::Run(format!("no {field} in /proc")))
        };
        self.family.iter().map(of).sum()
    }

    /// Stops it, and returns its report.
    pub(crate) fn stop(mut self) -> Result<Ended, Failure> {
        drop(self.input.take());
        let line = self.line(TIMEOUT)?;
        if !self.ends_within(TIMEOUT) {
            return Err(Failure::Run(
                "the server did not end within 60 s of its report".to_owned(),
            ));
        }
        serde_json::from_str(&line).map_err(|e| Failure::new("cannot parse the server's report", e))
    }

    /// Ends it by a signal. Required if it runs under another program.
    pub(crate) fn terminate(mut self, signal: Signal) -> Result<(), Failure> {
        let process = Pid::from_child(&self.child);
        rustix::process::kill_process(process, signal).map_err(std::io::Error::from)?;
        let deadline = Instant::now() + TIMEOUT;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Err(Failure::Run(
                    "the server did not end within 60 s of a signal".to_owned(),
                ));
            }
            // Valgrind 3.19 treats io_uring_enter as non-blocking: it checks for signals only
            // between two calls, after a hundred thousand basic blocks. New connections make the
            // call return and the server execute code.
            for _ in 0..100 {
                let connection =
                    TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
                if connection.is_err() {
                    break;
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn line(&mut self, limit: Duration) -> Result<String, Failure> {
        let line = line_within(&mut self.output, limit)?;
        match line.is_empty() {
            true => Err(Failure::Run("the server ended unexpectedly".to_owned())),
            false => Ok(line),
        }
    }

    /// Waits for its end. Returns whether it was in time.
    fn ends_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Ends it. One that ends by its input has this time for it.
    fn end(&mut self, orderly: Duration) {
        drop(self.input.take());
        // A process without clients ends then. One that its parent's end kills counts as another program.
        if self.ends_within(if self.ends_by_input { orderly } else { Duration::ZERO }) {
            return;
        }
        // These calls fail only if the server has already ended. SIGTERM lets an external one end its own
        // children.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
        self.ends_within(ORDERLY);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(ORDERLY);
    }
}

/// Returns the path of the lab's program. Unit tests are a different program; cargo puts the lab's in
/// the parent of their directory.
pub(crate) fn program() -> Result<std::path::PathBuf, Failure> {
    let this = std::env::current_exe()?;
    let built = this.ancestors().nth(2).unwrap_or(Path::new("/")).join("lab");
    Ok(if this.ends_with("lab") || !built.exists() { this } else { built })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::measure::Peer;

    /// Starts the blocking server with three processes beside their parent. Returns their ids, too.
    fn server_of_the_paper() -> (Site, Server, Vec<u32>) {
        let site = Site::bare(b"").unwrap();
        let conditions = Conditions { processes: Some(3), ..Conditions::default() };
        let subject = Peer::Plain("sendfile").subject();
        let mut server = Server::start_under(&subject, &site, &conditions).unwrap();
        server.check_reply("/1k.txt", 1 << 10).unwrap();
        let family = server.family().to_vec();
        assert_eq!(family.len(), 4);
        (site, server, family)
    }

    #[test]
    fn processes_of_the_paper_were_killed_before_their_parent_had_waited_for_them() {
        let (_site, mut server, family) = server_of_the_paper();
        server.end(TIMEOUT);
        // No signal has ended it.
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        let exist = |id: &&u32| Path::new(&format!("/proc/{id}")).exists();
        assert_eq!(family.iter().find(exist), None, "{family:?}");
    }

    #[test]
    fn server_that_printed_nothing_was_waited_for() {
        let site = Site::bare(b"").unwrap();
        let conditions =
            Conditions { under: &["sh", "-c", "exec sleep 60"], ..Conditions::default() };
        let subject = Peer::Ours("epoll").subject();
        let limit = Duration::from_millis(50);
        let failure = Server::start_within(&subject, &site, &conditions, limit).unwrap_err();
        assert!(failure.to_string().contains("no line within"), "{failure}");
    }

    #[test]
    fn paper_has_a_process_for_each_connection_and_threads_were_measured() {
        let (_site, server, family) = server_of_the_paper();
        // While the others are open, each connection has a reply.
        let mut clients = [(); 3].map(|()| TcpStream::connect(server.address()).unwrap());
        for client in &mut clients {
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
            client.write_all(b"GET /1k.txt HTTP/1.1\r\n\r\n").unwrap();
            client.read_exact(&mut [0; 1 << 10]).unwrap();
        }
        drop(server);
        // The kernel ends them soon after.
        let exist = |id: &u32| Path::new(&format!("/proc/{id}")).exists();
        let deadline = Instant::now() + TIMEOUT;
        while family.iter().any(exist) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!family.iter().any(exist), "{family:?}");
    }
}
