//! The memcached server program.

mod options;

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::BuildHasher as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use clap::Parser as _;
use evring::{AnyMechanism, Config};
use kv::{Database, Kv};
use options::Options;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    if options.list_backends {
        for backend in evring::backends().iter().filter(|backend| backend.available.is_ok()) {
            println!("{}", backend.name);
        }
        return Ok(());
    }
    let limits = options.limits()?;
    let threads = usize::from(options.threads);
    let mut config = Config::default();
    config.listen = options.addresses()?;
    config.max_connections = options.connections.div_ceil(options.threads.into());
    config.reuse_port = threads > 1;
    let no_memory = |_| {
        format!(
            "cannot allocate {} MiB of memory for values; use a smaller -m",
            limits.memory >> 20
        )
    };
    let seed = RandomState::new().hash_one(0);
    if threads == 1 {
        let database = Database::new(limits, seed).map_err(no_memory)?;
        let mechanism = AnyMechanism::new(&options.backend, &config)?;
        print_addresses(mechanism.addresses(), mechanism.name());
        mechanism.run(Kv::new(database))?;
        return Ok(());
    }
    let database = Database::shared(limits, seed, threads).map_err(no_memory)?;
    serve_in_threads(options, config, &database)
}

fn print_addresses(addresses: &[SocketAddr], backend: &str) {
    for address in addresses {
        println!("listening on {address} (backend {backend})");
    }
}

/// Report of a worker: its addresses and mechanism; later, its error.
type Report = Result<(Vec<SocketAddr>, &'static str), String>;

/// Starts workers on the same addresses, and waits until one ends.
fn serve_in_threads(
    options: Options,
    mut config: Config,
    database: &Database,
) -> Result<(), Box<dyn Error>> {
    // Workers share the port, so another server that shares it too would not be noticed.
    for at in &config.listen {
        TcpListener::bind(at).map_err(|error| format!("cannot listen on {at}: {error}"))?;
    }
    let (sender, receiver) = channel();
    let mut started = None;
    for _ in 0..options.threads {
        let (backend, config_of_worker) = (options.backend.clone(), config.clone());
        let database = database.share().ok_or("the database is not shared")?;
        let sender = sender.clone();
        thread::Builder::new().name("worker".to_owned()).spawn(move || {
            if let Err(error) = work(&backend, &config_of_worker, database, &sender) {
                // If the receiver is dropped, the program is ending.
                let _ = sender.send(Err(error.to_string()));
            }
        })?;
        let (addresses, name) = receiver.recv()??;
        // With port 0, the first worker selects a port for all.
        config.listen.clone_from(&addresses);
        started = Some((addresses, name));
    }
    if let Some((addresses, name)) = started {
        print_addresses(&addresses, name);
    }
    drop(sender);
    match receiver.recv() {
        Ok(Err(error)) => Err(error.into()),
        _ => Err("a worker has ended".into()),
    }
}

fn work(
    backend: &str,
    config: &Config,
    database: Database,
    sender: &Sender<Report>,
) -> Result<(), Box<dyn Error>> {
    let mechanism = AnyMechanism::new(backend, config)?;
    sender.send(Ok((mechanism.addresses().to_vec(), mechanism.name())))?;
    mechanism.run(Kv::new(database))?;
    Ok(())
}
