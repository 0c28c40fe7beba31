//! Upgrades of the running program under load.

use std::io::BufReader;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};

use super::super::{Context, DEFAULT, Experiment};
use super::client::{Stream, get};
use crate::failure::Failure;
use crate::measure::{Site, line_within};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "reload",
    title: "requests that fail while the program httpd is upgraded (SIGUSR2) again and again under load",
    source: "goal of this project: none",
    own_network: false,
    run,
};

const MECHANISMS: [&str; 2] = [DEFAULT, "epoll"];

/// Rounds, and upgrades in a round.
const QUICK: (usize, u64) = (5, 2);
const FULL: (usize, u64) = (6, 20);

/// Clients that keep their connections, and as many that connect for each request.
const CLIENTS: usize = 4;

/// Requests between two upgrades.
const REQUESTS: u64 = 200;

/// Maximum time for a program to listen.
const TIMEOUT: Duration = Duration::from_secs(60);

const NOTES: [&str; 2] = [
    "The program httpd with two workers; both cores serve and request. Four clients keep their connections until a \
     response ends them, four connect for each request; a request fails if it cannot connect, or if its response is \
     not complete. Each round starts the program, and upgrades it once for each 200 requests.",
    "Each round stands for the failures of all rounds, as a median would hide a few.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let (rounds, upgrades) = if cx.quick { QUICK } else { FULL };
    let site = Site::bare(b"")?;
    cx.progress.set_length((rounds * MECHANISMS.len()) as u64);
    for mechanism in MECHANISMS {
        let (mut done, mut failed, mut run) = (0, 0, 0);
        for _ in cx.rounds(rounds) {
            cx.progress.set_message(mechanism);
            let mut program = Program::start(mechanism, site.root())?;
            let requests = requests_during(&mut program, upgrades)?;
            done += requests.done.into_inner();
            failed += requests.failed.into_inner();
            run += 1;
            cx.progress.inc(1);
        }
        let ratio = match mechanism {
            DEFAULT => "failed_requests".to_owned(),
            other => format!("failed_requests_{other}"),
        };
        outcome.ratio(&ratio, mechanism, vec![failed as f64; run]);
        let upgrades = upgrades * run as u64;
        outcome.shows.push(format!(
            "{mechanism}: of {} requests during {upgrades} upgrades, {failed} failed.",
            done + failed
        ));
    }
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

#[derive(Default)]
struct Requests {
    done: AtomicU64,
    failed: AtomicU64,
}

/// Upgrades a program again and again under load.
fn requests_during(program: &mut Program, upgrades: u64) -> Result<Requests, Failure> {
    let (requests, stop) = (Requests::default(), AtomicBool::new(false));
    let address = program.address;
    thread::scope(|scope| {
        for n in 0..2 * CLIENTS {
            let (requests, stop) = (&requests, &stop);
            scope.spawn(move || request(address, n % 2 == 0, requests, stop));
        }
        let outcome: Result<(), Failure> = (0..upgrades).try_for_each(|_| {
            program.upgrade()?;
            let made =
                || requests.done.load(Ordering::Relaxed) + requests.failed.load(Ordering::Relaxed);
            let end = made() + REQUESTS;
            while made() < end {
                thread::yield_now();
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    Ok(requests)
}

/// Makes requests until `stop` is set.
fn request(to: SocketAddr, keeps: bool, requests: &Requests, stop: &AtomicBool) {
    let request = get("/1k.txt", "");
    let (mut stream, mut reply) = (None, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let outcome = match stream.take() {
            Some(stream) => Ok(stream),
            None => Stream::connect(to, None),
        };
        let outcome = outcome.and_then(|mut stream| {
            stream.send(&request)?;
            stream.receive(&mut reply, "content-length: 1024")?;
            Ok(stream)
        });
        let count = if outcome.is_ok() { &requests.done } else { &requests.failed };
        count.fetch_add(1, Ordering::Relaxed);
        let ends = reply.windows(17).any(|bytes| bytes == b"Connection: close");
        stream = outcome.ok().filter(|_| keeps && !ends);
    }
}

/// The program, in the process of its last upgrade.
struct Program {
    child: Child,
    errors: BufReader<ChildStderr>,
    address: SocketAddr,
    pid_file: PathBuf,
}

impl Program {
    /// Starts the program that was built with the lab.
    fn start(mechanism: &str, root: &Path) -> Result<Self, Failure> {
        let program = std::env::current_exe()?.with_file_name("httpd");
        if !program.exists() {
            return Err(Failure::Run(format!(
                "there is no {}: build it with `cargo build --profile dist -p evring-httpd`",
                program.display()
            )));
        }
        let pid_file = root.with_extension("pid");
        let mut command = Command::new(program);
        command.args(["--listen", "127.0.0.1:0", "--workers", "2", "--backend", mechanism]);
        command.arg("--pid-file").arg(&pid_file).arg("--listing").arg(root);
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let errors = child.stderr.take().ok_or_else(|| Failure::Run("no pipe".to_owned()))?;
        let address = SocketAddr::from(([0; 4], 0));
        let mut program = Program { child, errors: BufReader::new(errors), address, pid_file };
        program.address = program.ready()?;
        Ok(program)
    }

    /// Waits until the program reports the address where it listens.
    fn ready(&mut self) -> Result<SocketAddr, Failure> {
        let line = line_within(&mut self.errors, TIMEOUT).map_err(|e| Failure::new("httpd", e))?;
        let address = line
            .strip_prefix("listening on http://")
            .and_then(|rest| rest.split(' ').next()?.parse().ok());
        address.ok_or_else(|| Failure::new("httpd", line.trim_end()))
    }

    /// Upgrades the program, and waits until its successor listens.
    fn upgrade(&mut self) -> Result<(), Failure> {
        let process = self.process().ok_or_else(|| Failure::new("httpd", "an empty pid file"))?;
        kill_process(process, Signal::USR2).map_err(std::io::Error::from)?;
        self.ready().map(|_| ())
    }

    fn process(&self) -> Option<Pid> {
        Pid::from_raw(fs::read_to_string(&self.pid_file).ok()?.trim_end().parse().ok()?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(process) = self.process() {
            // Fails if it has ended.
            let _ = kill_process(process, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.pid_file);
    }
}
