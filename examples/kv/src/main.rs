//! The memcached server program.

mod options;

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::BuildHasher as _;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use clap::Parser as _;
use evring::process::{raise_descriptor_limit, stop_at_signals};
use evring::{AnyMechanism, Config, RemoteHandle};
use kv::{Database, Kv};
use options::Options;

fn main() -> ExitCode {
    match serve(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options) -> Result<(), Box<dyn Error>> {
    if options.list_backends {
        for backend in
            evring::mechanisms::backends().iter().filter(|backend| backend.available.is_ok())
        {
            println!("{}", backend.name);
        }
        return Ok(());
    }
    let limits = options.limits()?;
    options.check_descriptors(raise_descriptor_limit())?;
    let threads = usize::from(options.threads);
    let mut config = Config::default();
    config.listen = options.addresses()?;
    config.max_connections = options.connections_of_worker();
    config.reuse_port = threads > 1;
    config.workers = options.threads;
    if options.no_admission {
        config.admission = None;
    }
    let no_memory = |_| {
        format!(
            "cannot allocate {} MiB of memory for values; use a smaller -m",
            limits.memory >> 20
        )
    };
    let seed = RandomState::new().hash_one(0);
    let handler = handler(&options, limits.memory)?;
    if threads == 1 {
        let database = Database::new(limits, seed).map_err(no_memory)?;
        let database = mirrored(database, handler.as_ref());
        database.start(Instant::now());
        let mechanism = AnyMechanism::new(&options.backend, &config)?;
        let print = |mechanism: &AnyMechanism| {
            stop_at_signals(vec![mechanism.remote()])?;
            print_addresses(mechanism.addresses(), mechanism.name());
            Ok(())
        };
        return run(mechanism, database, handler.as_ref(), 0, print);
    }
    let database = Database::shared(limits, seed, threads).map_err(no_memory)?;
    let database = mirrored(database, handler.as_ref());
    database.start(Instant::now());
    serve_in_threads(options, config, &database, handler.as_ref())
}

#[cfg(feature = "sandbox")]
type Handler = kv::GetHandler;

#[cfg(feature = "sandbox")]
fn handler(options: &Options, memory: usize) -> Result<Option<Handler>, Box<dyn Error>> {
    let Some(path) = &options.handler else { return Ok(None) };
    let load = || Handler::load(&std::fs::read(path)?, memory);
    load().map(Some).map_err(|error| format!("--handler {}: {error}", path.display()).into())
}

#[cfg(feature = "sandbox")]
fn mirrored(database: Database, handler: Option<&Handler>) -> Database {
    match handler {
        Some(handler) => database.mirrored(handler.mirror()),
        None => database,
    }
}

#[cfg(not(feature = "sandbox"))]
type Handler = std::convert::Infallible;

#[cfg(not(feature = "sandbox"))]
fn handler(_: &Options, _: usize) -> Result<Option<Handler>, Box<dyn Error>> {
    Ok(None)
}

#[cfg(not(feature = "sandbox"))]
fn mirrored(database: Database, _: Option<&Handler>) -> Database {
    database
}

/// Runs a worker, behind the handler if there is one. Nothing that can fail is left to do when it calls `started`.
fn run(
    mechanism: AnyMechanism,
    database: Database,
    handler: Option<&Handler>,
    worker: u64,
    started: impl FnOnce(&AnyMechanism) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    #[cfg(feature = "sandbox")]
    if let Some(handler) = handler {
        let mut mechanism = mechanism;
        let (server, _) = handler.before(database, worker, &mut mechanism)?;
        started(&mechanism)?;
        mechanism.run(server)?;
        return Ok(());
    }
    let _ = (handler, worker);
    started(&mechanism)?;
    mechanism.run(Kv::new(database))?;
    Ok(())
}

fn print_addresses(addresses: &[SocketAddr], backend: &str) {
    for address in addresses {
        println!("listening on {address} (backend {backend})");
    }
}

/// A worker that serves: its addresses, the name of its mechanism, and its handle.
type Started = (Vec<SocketAddr>, &'static str, RemoteHandle);

/// Report of a worker: that it has started; later, how it has ended.
enum Report {
    Started(Started),
    Ended(Result<(), String>),
}

/// Starts workers on the same addresses, and waits until all have stopped, or one has failed.
fn serve_in_threads(
    options: Options,
    mut config: Config,
    database: &Database,
    handler: Option<&Handler>,
) -> Result<(), Box<dyn Error>> {
    // Workers share the port, so another server that shares it too would not be noticed.
    for at in &config.listen {
        TcpListener::bind(at).map_err(|error| format!("cannot listen on {at}: {error}"))?;
    }
    let (sender, receiver) = channel::<Report>();
    let (mut mechanism, mut workers) = ("", Vec::new());
    for worker in 0..options.threads.into() {
        let (backend, config_of_worker) = (options.backend.clone(), config.clone());
        let database = database.share().ok_or("the database is not shared")?;
        let (sender, handler) = (sender.clone(), handler.cloned());
        thread::Builder::new().name("worker".to_owned()).spawn(move || {
            let started = |mechanism: &AnyMechanism| {
                let addresses = mechanism.addresses().to_vec();
                let started = (addresses, mechanism.name(), mechanism.remote());
                Ok(sender.send(Report::Started(started))?)
            };
            let end = end_of(|| {
                let mechanism = AnyMechanism::new(&backend, &config_of_worker)?;
                run(mechanism, database, handler.as_ref(), worker, started)
            });
            // If the receiver is dropped, the program is ending.
            let _ = sender.send(Report::Ended(end));
        })?;
        match receiver.recv()? {
            Report::Started((addresses, name, remote)) => {
                // With port 0, the first worker selects a port for all.
                config.listen = addresses;
                mechanism = name;
                workers.push(remote);
            }
            Report::Ended(end) => return Ok(end?),
        }
    }
    let mut running = workers.len();
    stop_at_signals(workers)?;
    print_addresses(&config.listen, mechanism);
    while running > 0 {
        if let Report::Ended(end) = receiver.recv()? {
            end?;
            running -= 1;
        }
    }
    Ok(())
}

/// Runs a worker, and returns how it has ended.
fn end_of(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<(), String> {
    // The worker's state is not used again, and the program ends, so nothing that the panic has left is seen.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(end) => end.map_err(|error| error.to_string()),
        Err(_) => Err("a worker has panicked".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_that_panicked_left_the_others_serving() {
        assert_eq!(end_of(|| panic!("on purpose")), Err("a worker has panicked".to_owned()));
        assert_eq!(end_of(|| Err("no memory".into())), Err("no memory".to_owned()));
        assert_eq!(end_of(|| Ok(())), Ok(()));
    }
}
