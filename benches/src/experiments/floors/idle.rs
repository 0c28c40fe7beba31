//! The memory of an idle connection.

use evring::mechanisms::backends;

use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::measure::{ClientWork, Load, Server, Site, Subject};
use crate::outcome::{Outcome, X};
use crate::statistics::Spread;

const CONNECTIONS: usize = 10_000;

/// Bytes per connection.
struct Bytes {
    allocated: f64,
    resident: f64,
}

/// Measures every mechanism. Returns the allocated bytes per connection of `uring`.
pub(super) fn measure_all(site: &Site, outcome: &mut Outcome) -> Option<f64> {
    let mut uring_bytes = None;
    for backend in backends().iter().filter(|b| b.available.is_ok()) {
        match measure(backend.name, site) {
            Ok(bytes) => {
                let mut add = |name, value| {
                    let y = Spread { median: value, low: value, high: value };
                    let x = X::Name(backend.name.to_owned());
                    outcome.point("Idle connection", "bytes", name, x, y);
                };
                add("allocated", bytes.allocated);
                add("resident", bytes.resident);
                if backend.name == "uring" {
                    uring_bytes = Some(bytes.allocated);
                }
            }
            Err(failure) => {
                outcome.notes.push(format!("idle connections on {}: {failure}", backend.name));
            }
        }
    }
    uring_bytes
}

fn measure(mechanism: &str, site: &Site) -> Result<Bytes, Failure> {
    let (what, work) = (ServerKind::App, Workload::File);
    let subject = Subject { what, mechanism: mechanism.to_owned(), work };
    let mut server = Server::start(&subject, site)?;
    let (live, resident) = (server.counts()?.live, server.resident()?);
    let reply_bytes = site.reply_bytes(work);
    let of_client = ClientWork::new(work, CONNECTIONS, reply_bytes);
    let mut load = Load::start(server.address(), &of_client)?;
    // One request each ensures that all are accepted and have allocated their memory.
    load.requests(CONNECTIONS as u64)?;
    let per_connection =
        |after: u64, before: u64| after.saturating_sub(before) as f64 / CONNECTIONS as f64;
    let allocated = per_connection(server.counts()?.live, live);
    let resident = per_connection(server.resident()?, resident);
    drop(load);
    server.stop()?;
    Ok(Bytes { allocated, resident })
}
