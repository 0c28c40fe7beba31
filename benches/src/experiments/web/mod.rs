//! The experiments on what a web server does besides sending files.

pub(super) mod axum;
mod client;
pub(super) mod compress;
pub(super) mod observed;
pub(super) mod reload;
pub(super) mod slow_clients;
pub(super) mod tls;

use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::measure::{Server, Site, Subject};

/// Starts our server on a mechanism with a setting, such as `uring/tls`, or nginx in a configuration.
fn start(what: ServerKind, name: &str, site: &Site) -> Result<Server, Failure> {
    let subject = Subject { what, mechanism: name.to_owned(), work: Workload::File };
    Server::start(&subject, site)
}

/// Returns the CPU time that a server spends on work, per piece of work, in microseconds.
fn us_each(
    server: &Server,
    pieces: u64,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let before = server.cpu()?;
    work()?;
    Ok(server.cpu()?.since(&before) as f64 / 1e3 / pieces as f64)
}
