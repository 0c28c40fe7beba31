//! The memcached server program.

mod options;

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::BuildHasher as _;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use clap::Parser as _;
use evring::{AnyMechanism, Config};
use kv::{Database, Kv};
use options::Options;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    if options.list_backends {
        for backend in
            evring::mechanisms::backends().iter().filter(|backend| backend.available.is_ok())
        {
            println!("{}", backend.name);
        }
        return Ok(());
    }
    let limits = options.limits()?;
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

/// Report of a worker: its addresses and mechanism; later, why it has ended.
type Report = Result<(Vec<SocketAddr>, &'static str), String>;

/// Starts workers on the same addresses, and waits until one ends.
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
    let mut started = None;
    for worker in 0..options.threads.into() {
        let (backend, config_of_worker) = (options.backend.clone(), config.clone());
        let database = database.share().ok_or("the database is not shared")?;
        let (sender, handler) = (sender.clone(), handler.cloned());
        thread::Builder::new().name("worker".to_owned()).spawn(move || {
            let started = |mechanism: &AnyMechanism| {
                Ok(sender.send(Ok((mechanism.addresses().to_vec(), mechanism.name())))?)
            };
            let end = end_of(|| {
                let mechanism = AnyMechanism::new(&backend, &config_of_worker)?;
                run(mechanism, database, handler.as_ref(), worker, started)
            });
            // If the receiver is dropped, the program is ending.
            let _ = sender.send(Err(end));
        })?;
        let (addresses, name) = receiver.recv()??;
        // With port 0, the first worker selects a port for all.
        config.listen.clone_from(&addresses);
        started = Some((addresses, name));
    }
    if let Some((addresses, name)) = started {
        print_addresses(&addresses, name);
    }
    match receiver.recv()? {
        Err(end) => Err(end.into()),
        Ok(_) => unreachable!("all workers have started"),
    }
}

/// Runs a worker, and returns why it has ended.
fn end_of(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> String {
    // The worker's state is not used again, and the program ends, so nothing that the panic has left is seen.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => "a worker has ended".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "a worker has panicked".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_that_panicked_left_the_others_serving() {
        assert_eq!(end_of(|| panic!("on purpose")), "a worker has panicked");
        assert_eq!(end_of(|| Err("no memory".into())), "no memory");
        assert_eq!(end_of(|| Ok(())), "a worker has ended");
    }
}
