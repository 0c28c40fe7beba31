//! The threads that serve: each has a mechanism of its own, and shares nothing with the others.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use httpd::multiplex::{Fault, Remote, StartError, Unavailable};
use httpd::{Any, Config, Root, Site};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::{Arguments, backends};

/// Why the server ended otherwise than it was told to.
#[derive(Debug)]
pub(crate) enum Failure {
    Start(StartError),
    Fault(Fault),
    Panic,
    System(std::io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Start(error) => error.fmt(f),
            Failure::Fault(fault) => fault.fmt(f),
            Failure::Panic => f.write_str("a worker panicked"),
            Failure::System(error) => write!(f, "the system refused a signal or a thread: {error}"),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::System(error)
    }
}

impl From<Unavailable> for Failure {
    fn from(why: Unavailable) -> Self {
        Failure::Start(why.into())
    }
}

/// A worker that listens but does not serve yet.
struct Worker {
    address: SocketAddr,
    backend: &'static str,
    remote: Remote,
    /// Has it serve; dropped unsent, it ends.
    go: Sender<()>,
    thread: JoinHandle<Result<(), Failure>>,
}

/// Has the others end when a worker ends, even by a panic.
struct Bell(Handle);

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Serves until a signal says stop.
pub(crate) fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let mut signals = end_at_second_signal()?;
    let (backend, note) = backends::choose(&arguments.backend)?;
    let mut config = Config {
        listen: vec![arguments.listen],
        roots: arguments.root.iter().cloned().collect(),
        reuse_port: arguments.workers > 1,
        ..Config::default()
    };

    let mut workers: Vec<Worker> = Vec::new();
    for _ in 0..arguments.workers {
        let worker = start(&backend, &config, signals.handle())?;
        // With port 0, the first found a port for all.
        config.listen = vec![worker.address];
        workers.push(worker);
    }
    if let Some(note) = note {
        eprintln!("{note}");
    }
    let (first, n) = (&workers[0], workers.len());
    eprintln!("listening on http://{} (backend {}, {n} workers)", first.address, first.backend);

    for worker in &workers {
        // A worker that has failed meanwhile says so below.
        let _ = worker.go.send(());
    }
    // Ends at the first signal, or when a worker fails.
    signals.forever().next();
    workers.iter().for_each(|worker| worker.remote.stop());
    let mut outcome = Ok(());
    for worker in workers {
        outcome = outcome.and(worker.thread.join().unwrap_or(Err(Failure::Panic)));
    }
    outcome
}

/// Listens to the signals that end the server; the second one ends the process.
fn end_at_second_signal() -> Result<Signals, Failure> {
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal passes by the exit and arms it.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&is_second))?;
        signal_hook::flag::register(signal, Arc::clone(&is_second))?;
    }
    Ok(Signals::new([SIGTERM, SIGINT])?)
}

/// Starts a worker and returns when it listens. Mechanisms don't move between threads, so it is
/// made in its own.
fn start(backend: &str, config: &Config, signals: Handle) -> Result<Worker, Failure> {
    let (name, config) = (backend.to_owned(), config.clone());
    let (go, may_go) = channel();
    let (tell, told) = channel();
    let thread = thread::Builder::new().name("worker".to_owned()).spawn(move || {
        let mechanism = match Any::new(&name, &config) {
            Ok(mechanism) => mechanism,
            Err(error) => return Err(Failure::Start(error)),
        };
        let _ = tell.send((mechanism.addresses()[0], mechanism.name(), mechanism.remote()));
        let _bell = Bell(signals);
        run(mechanism, &config, &may_go)
    })?;
    match told.recv() {
        Ok((address, backend, remote)) => Ok(Worker { address, backend, remote, go, thread }),
        Err(_) => {
            Err(thread.join().map_or(Failure::Panic, |ended| ended.err().unwrap_or(Failure::Panic)))
        }
    }
}

fn run(mechanism: Any, config: &Config, may_go: &Receiver<()>) -> Result<(), Failure> {
    if may_go.recv().is_err() {
        // Another worker could not start.
        return Ok(());
    }
    let root = (!config.roots.is_empty()).then_some(Root(0));
    let files = Site::new(root).backend(mechanism.name());
    mechanism.run(files).map(drop).map_err(Failure::Fault)
}
