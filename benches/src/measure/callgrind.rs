//! Instruction counts, by valgrind.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use super::site::fetch;
use super::wait::output_within;
use super::{ClientWork, Conditions, Load, Requests, Server, Site, Subject, program};
use crate::command::{CompletionWay, RemoteWrite, ServerKind, Workload};
use crate::failure::Failure;
use crate::outcome;

/// Two numbers of requests. The difference of their counts excludes start and end.
const FEW: u64 = 2_000;
const MANY: u64 = 42_000;
/// The same for invocations of handlers, and for completions, in whole batches.
const FEW_INVOCATIONS: u64 = 4_000;
const MANY_INVOCATIONS: u64 = 24_000;
const FEW_COMPLETIONS: u64 = 4_096;
const MANY_COMPLETIONS: u64 = 24_576;

/// Maximum time of a command under callgrind, which takes seconds, or some minutes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Counts the instructions that servers execute outside the kernel.
#[derive(Debug)]
pub(crate) struct Callgrind(());

impl Callgrind {
    /// Finds valgrind.
    ///
    /// # Errors
    /// If it is not installed.
    pub(crate) fn find() -> Result<Self, Failure> {
        let mut command = Command::new("valgrind");
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => Ok(Callgrind(())),
            _ => Err(Failure::Run(
                "valgrind is not installed (Debian package: valgrind), so instructions were not \
                 counted"
                    .to_owned(),
            )),
        }
    }

    /// Returns the instructions per request.
    pub(crate) fn count(
        &self,
        subject: &Subject,
        site: &Site,
        connections: usize,
    ) -> Result<f64, Failure> {
        let work = ClientWork::new(subject.work, connections, site.reply_bytes(subject.work));
        between(FEW, MANY, |count| total(subject, site, count, |_| Ok(work)))
    }

    /// Returns the instructions of one invocation of a handler, with its dispatch.
    pub(crate) fn count_invocations(
        &self,
        what: RemoteWrite,
        bytes: usize,
    ) -> Result<f64, Failure> {
        let (what, bytes) = (what.name(), bytes.to_string());
        between(FEW_INVOCATIONS, MANY_INVOCATIONS, |count| {
            total_of_lab(&["invoke", "--what", what, "--bytes", &bytes], count)
        })
    }

    /// Returns the instructions of a call that is posted, completed in a way and taken, while so many others wait.
    pub(crate) fn count_completions(
        &self,
        way: CompletionWay,
        outstanding: usize,
    ) -> Result<f64, Failure> {
        let (way, outstanding) = (way.name(), outstanding.to_string());
        between(FEW_COMPLETIONS, MANY_COMPLETIONS, |count| {
            total_of_lab(&["complete", "--way", way, "--outstanding", &outstanding], count)
        })
    }

    /// Returns the instructions per request of a server in comparison with others.
    pub(crate) fn count_requests(
        &self,
        subject: &Subject,
        site: &Site,
        requests: &PeerRequests<'_>,
    ) -> Result<f64, Failure> {
        let PeerRequests { path, kind, connections, few, many } = *requests;
        let batch = if let Requests::Pipelined(n) = kind { n } else { 1 };
        let work = |server: &Server| {
            let (work, reply_bytes) = (Workload::File, fetch(server, path)?.len() * batch);
            let close = kind == Requests::Close;
            Ok(ClientWork { work, path, connections, batch, reply_bytes, close })
        };
        between(few, many, |count| total(subject, site, count, work))
    }
}

/// Requests whose instructions are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerRequests<'a> {
    pub(crate) path: &'a str,
    pub(crate) kind: Requests,
    pub(crate) connections: usize,
    /// Two numbers of requests, multiples of a batch.
    pub(crate) few: u64,
    pub(crate) many: u64,
}

/// Returns the difference of two totals per request.
fn between(
    few: u64,
    many: u64,
    total: impl Fn(u64) -> Result<u64, Failure>,
) -> Result<f64, Failure> {
    Ok((total(many)? as f64 - total(few)? as f64) / (many - few) as f64)
}

/// Returns the instructions of this program with a hidden command and its option `--count`.
fn total_of_lab(command: &[&str], count: u64) -> Result<u64, Failure> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program()?);
    valgrind.args(command).args(["--count", &count.to_string()]);
    let output = output_within(&mut valgrind, TIMEOUT)?;
    let log = String::from_utf8_lossy(&output.stderr);
    let no_total = || Failure::Run(format!("no total in a log of callgrind:\n{log}"));
    collected(&log).filter(|_| output.status.success()).ok_or_else(no_total)
}

fn total<'a>(
    subject: &Subject,
    site: &Site,
    count: u64,
    work: impl Fn(&Server) -> Result<ClientWork<'a>, Failure>,
) -> Result<u64, Failure> {
    // One log for each process, as nginx has several.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let prefix = format!("callgrind-{}-{number}.", std::process::id());
    let directory = outcome::directory()?;
    let option = format!("--log-file={}", directory.join(format!("{prefix}%p")).display());
    let args = [
        "valgrind",
        "--tool=callgrind",
        "--trace-children=yes",
        // The thread that takes the signal at the end has its turn next, so that few instructions follow.
        "--fair-sched=yes",
        "--callgrind-out-file=/dev/null",
        &option,
    ];
    let conditions = Conditions { under: &args, ..Conditions::default() };
    let server = Server::start_under(subject, site, &conditions)?;
    if subject.work == Workload::File && subject.what == ServerKind::App {
        let what = "the server does not work under valgrind";
        fetch(&server, Workload::PATH).map_err(|e| Failure::new(what, e))?;
    }
    let mut load = Load::start(server.address(), &work(&server)?)?;
    load.requests(count)?;
    drop(load);
    // After SIGTERM, nginx would soon kill a worker that is slow to report.
    server.terminate(if subject.what == ServerKind::Nginx {
        Signal::QUIT
    } else {
        Signal::TERM
    })?;
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let text = fs::read_to_string(entry.path())?;
            let _ = fs::remove_file(entry.path());
            sum += collected(&text)
                .ok_or_else(|| Failure::Run(format!("no total in a log of callgrind:\n{text}")))?;
        }
    }
    // A program that was counted executed something.
    (sum > 0).then_some(sum).ok_or_else(|| Failure::Run("callgrind wrote no log".to_owned()))
}

/// Parses the total of a process from its log, which ends with a line such as
/// `==1== Collected : 123456`.
fn collected(log: &str) -> Option<u64> {
    let line = log.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Peer;
    use super::*;

    /// Finds valgrind, or prints what is not tested without it.
    fn find() -> Option<Callgrind> {
        Callgrind::find().inspect_err(|missing| println!("not tested: {missing}")).ok()
    }

    #[test]
    fn instructions_are_counted_for_a_server_on_io_uring() {
        let Some(callgrind) = find() else { return };
        let site = Site::bare(b"a reply").unwrap();
        let mechanism = "uring".to_owned();
        let subject = Subject { what: ServerKind::Floor, mechanism, work: Workload::File };
        let count = callgrind.count(&subject, &site, 8).unwrap();
        assert!((10.0..100_000.0).contains(&count), "{count}");
    }

    #[test]
    fn instructions_of_a_completion_are_counted() {
        let Some(callgrind) = find() else { return };
        for way in [CompletionWay::InPlace, CompletionWay::Readiness] {
            let count = callgrind.count_completions(way, 100).unwrap();
            assert!((50.0..10_000.0).contains(&count), "{way:?}: {count}");
        }
    }

    #[test]
    #[ignore = "takes a minute; ci/lab.sh runs it"]
    fn instructions_are_counted_for_every_kind_of_request() {
        let Some(callgrind) = find() else { return };
        let site = Site::bare(b"").unwrap();
        let count = |peer: Peer, kind| {
            let (path, connections, few, many) = ("/hello", 8, 160, 480);
            let requests = PeerRequests { path, kind, connections, few, many };
            callgrind.count_requests(&peer.subject(), &site, &requests).unwrap()
        };
        let pipelined = count(Peer::Ours("epoll"), Requests::Pipelined(16));
        let close = count(Peer::Ours("epoll"), Requests::Close);
        assert!(pipelined > 100.0 && pipelined < close, "{pipelined} {close}");
        if Peer::Nginx("tuned").find(false).is_ok() {
            // The instructions are those of the worker, a child of the process that is started.
            assert!(count(Peer::Nginx("tuned"), Requests::KeepAlive) > 100.0);
        }
    }

    #[test]
    #[ignore = "needs memcached; ci/lab.sh runs it"]
    fn instructions_are_counted_for_memcached() {
        let Some(callgrind) = find() else { return };
        let site = Site::bare(b"").unwrap();
        let (what, mechanism) = (ServerKind::Memcached, "epoll".to_owned());
        let subject = Subject { what, mechanism, work: Workload::KvGets };
        let count = callgrind.count(&subject, &site, 8).unwrap();
        assert!((100.0..100_000.0).contains(&count), "{count}");
    }

    #[test]
    fn total_is_parsed_from_the_log() {
        let log = "==7== Events    : Ir\n==7== Collected : 1234567\n==7==\n";
        assert_eq!(super::collected(log), Some(1_234_567));
        assert_eq!(super::collected("==7== killed\n"), None);
    }
}
