//! One router of axum, on our web server and on hyper.

use super::super::contestants::{Contestant, bars, ratio, run_rounds};
use super::super::{Context, DEFAULT, Experiment, servers};
use super::client::{Client, Stream, get, post_json};
use super::{start, us_each};
use crate::command::ServerKind;
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, OtherPrograms, Peer, Server, Site, pin};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "axum",
    title: "one router of axum on our web server and on hyper",
    source: "goal of this project: at most 1.05 of the CPU time of the router on hyper",
    own_network: false,
    run,
};

const CONNECTIONS: usize = 64;
/// Rounds, and requests on each connection in a round.
const QUICK: (usize, u64) = (7, 100);
const FULL: (usize, u64) = (25, 600);
const WARM_UP: u64 = 10;

const MIXED: &str = "CPU time of the server per request, three kinds";
const HELLO: &str = "CPU time of the server per request, 12 bytes of text";

/// A field of each response, which a function around all handlers adds.
const FIELD: &str = "x-lab: 1";

const NOTES: [&str; 2] = [
    "One thread for each server, on core 0, in a new process in each round; the client is on core 1, with 64 connections and one request at a time on \
     each. The CPU time is that of all threads of the server. hyper: `axum::serve` on tokio's runtime with one thread. \
     Both servers run the router of `benches/peers/axum/src/router.rs`; the bodies of their responses are compared.",
    "Three kinds of request, a third of the connections each: text; a path with a parameter, a query and state, answered \
     with JSON; JSON in both directions. A function around all handlers adds a field. Our server also puts the client's \
     address into the extensions of each request, which `axum::serve` does not.",
];

/// Returns one request of each kind.
fn kinds() -> [Vec<u8>; 3] {
    [
        get("/hello", ""),
        get("/users/42?name=Ada", "Accept: application/json\r\n"),
        post_json("/points", r#"{"x":1.5,"y":-2.25}"#),
    ]
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    servers::note(Peer::Axum, !cx.quick, &mut outcome)?;
    pin(&[CLIENT_CORE])?;
    let (rounds, requests) = if cx.quick { QUICK } else { FULL };
    let site = Site::bare(b"")?;
    let others = OtherPrograms::watch()?;
    let ours = format!("{DEFAULT}/router");
    let contestants =
        [(DEFAULT, ServerKind::Variant, &*ours), ("hyper", ServerKind::Axum, "tokio")];
    let [(_, ours, setting), (_, other, of_other)] = contestants;
    compare(&start(ours, setting, &site)?, &start(other, of_other, &site)?)?;
    let mixed = kinds();
    for (figure, name, kinds) in [
        (MIXED, "router_on_uring_vs_hyper_cpu", &mixed[..]),
        (HELLO, "hello_on_uring_vs_hyper_cpu", &mixed[..1]),
    ] {
        let mut all = Vec::new();
        for (contestant, what, setting) in contestants {
            let site = &site;
            all.push(Contestant::new(contestant, move || {
                let mut server = start(what, setting, site)?;
                server.count_children()?;
                let mix = kinds.iter().cycle().take(CONNECTIONS).cloned().collect();
                let mut client = Client::new(server.address(), None, mix, FIELD)?;
                client.requests(WARM_UP)?;
                let pieces = requests * CONNECTIONS as u64;
                us_each(&server, pieces, || client.requests(requests))
            }));
        }
        run_rounds(cx, rounds, &mut all)?;
        bars(&mut outcome, figure, "us", "server", &all);
        ratio(&mut outcome, name, DEFAULT, &all, (DEFAULT, "hyper"));
    }
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Checks that two servers send the same bodies.
fn compare(ours: &Server, other: &Server) -> Result<(), Failure> {
    for request in kinds() {
        let bodies = [body(ours, &request)?, body(other, &request)?];
        if bodies[0] != bodies[1] {
            let [ours, other] = bodies.map(|body| String::from_utf8_lossy(&body).into_owned());
            return Err(Failure::Run(format!("different responses: {ours:?} and {other:?}")));
        }
    }
    Ok(())
}

fn body(server: &Server, request: &[u8]) -> Result<Vec<u8>, Failure> {
    let (mut stream, mut reply) = (Stream::connect(server.address(), None)?, Vec::new());
    stream.send(request)?;
    stream.receive(&mut reply, FIELD)?;
    let head = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n").map_or(0, |at| at + 4);
    Ok(reply.split_off(head))
}
