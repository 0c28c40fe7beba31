//! The cost of metrics and an access log.

use super::super::contestants::{Contestant, bars, ratio, run_rounds};
use super::super::{Context, DEFAULT, Experiment};
use super::client::{Client, get};
use super::{start, us_each};
use crate::command::ServerKind;
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, OtherPrograms, Site, pin};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "observed",
    title: "our web server with metrics and an access log, and without",
    source: "goal of this project: at most 1.08 of the CPU time without them",
    own_network: false,
    run,
};

const CONNECTIONS: usize = 64;
/// Rounds, and requests on each connection in a round.
const QUICK: (usize, u64) = (5, 100);
const FULL: (usize, u64) = (25, 600);

/// Requests on each connection before a measurement.
const WARM_UP: u64 = 10;

const FIGURE: &str = "CPU time of the server per request, 1 KiB";

const NOTES: [&str; 1] = [
    "One worker on core 0, the client on core 1, 64 connections with one request at a time; a new server in each round. The access log has the \
     combined format and goes to a file; the CPU time includes that of the thread that writes it. Metrics are counted, \
     and not read.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    pin(&[CLIENT_CORE])?;
    let (rounds, requests) = if cx.quick { QUICK } else { FULL };
    let site = Site::bare(b"")?;
    let others = OtherPrograms::watch()?;
    let mut all = Vec::new();
    for name in ["plain", "observed"] {
        let site = &site;
        all.push(Contestant::new(name, move || {
            let mut server = start(ServerKind::Variant, &format!("{DEFAULT}/{name}"), site)?;
            let all_requests = vec![get("/1k.txt", "User-Agent: lab\r\n"); CONNECTIONS];
            let mut client =
                Client::new(server.address(), None, all_requests, "content-length: 1024")?;
            client.requests(WARM_UP)?;
            server.count_children()?;
            let pieces = requests * CONNECTIONS as u64;
            us_each(&server, pieces, || client.requests(requests))
        }));
    }
    run_rounds(cx, rounds, &mut all)?;
    bars(&mut outcome, FIGURE, "us", "server", &all);
    ratio(&mut outcome, "observed_vs_plain_cpu", DEFAULT, &all, ("observed", "plain"));
    drop(all);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}
