//! Compression on the fly.

use super::super::contestants::{Contestant, bars, ratio, run_rounds};
use super::super::{Context, DEFAULT, Experiment, servers};
use super::client::{Client, get};
use super::{start, us_each};
use crate::command::ServerKind;
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, OtherPrograms, Site, pin};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "compress",
    title: "20 KB of HTML compressed for each request, in our web server and in nginx",
    source: "goal of this project: at most the CPU time of nginx at the same level",
    own_network: false,
    run,
};

/// Connections. Each requests a file of its own, as our server compresses a file once at a time.
const CONNECTIONS: usize = 8;
const BYTES: usize = 20_000;
/// Rounds, and requests on each connection in a round.
const QUICK: (usize, u64) = (5, 100);
const FULL: (usize, u64) = (15, 500);
/// Requests on each connection before a measurement.
const WARM_UP: u64 = 10;

const FIGURE: &str = "CPU time of the server per response";

const SIZES: &str = "Bytes of a response";

const NOTES: [&str; 3] = [
    "Each server has one worker on core 0, in a new process in each round, and the client core 1. gzip at level 1, nginx's default. Our server, which caches \
     what it has compressed, runs without its cache here, so that it compresses for each request, in threads of its own \
     on the same core. With the cache, a response costs what one of a small file costs.",
    "Level 1 of zlib-rs is faster than that of nginx's zlib, and compresses less; level 2 compresses as much or more.",
    "8 connections with one request at a time; the client checks that each response is compressed.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    servers::note(servers::NGINX, false, &mut outcome)?;
    pin(&[CLIENT_CORE])?;
    let (rounds, requests) = if cx.quick { QUICK } else { FULL };
    let site = Site::bare(b"")?;
    for n in 0..CONNECTIONS {
        site.write(&format!("{n}.html"), page(n))?;
    }
    let others = OtherPrograms::watch()?;
    let (ours, more) = (format!("{DEFAULT}/gzip-1"), format!("{DEFAULT}/gzip-2"));
    let level_2 = format!("{DEFAULT}, level 2");
    let started = |what, setting: &str| {
        let mut server = start(what, setting, &site)?;
        let request = |n| get(&format!("/{n}.html"), "Accept-Encoding: gzip\r\n");
        let all_requests = (0..CONNECTIONS).map(request).collect();
        let field = "content-encoding: gzip";
        let mut client = Client::new(server.address(), None, all_requests, field)?;
        client.requests(WARM_UP)?;
        server.count_children()?;
        Ok::<_, Failure>((server, client))
    };
    let started = &started;
    let mut all = Vec::new();
    for (name, what, setting) in [
        ("nginx", ServerKind::Nginx, "gzip"),
        (DEFAULT, ServerKind::Variant, &ours),
        (&level_2, ServerKind::Variant, &more),
    ] {
        let bytes = started(what, setting)?.1.received() as f64;
        let bytes = bytes / (WARM_UP * CONNECTIONS as u64) as f64;
        if let Some(y) = spread(&[bytes]) {
            outcome.point(SIZES, "", "server", X::Name(name.to_owned()), y);
        }
        all.push(Contestant::new(name, move || {
            let (server, mut client) = started(what, setting)?;
            let pieces = requests * CONNECTIONS as u64;
            us_each(&server, pieces, || client.requests(requests))
        }));
    }
    run_rounds(cx, rounds, &mut all)?;
    bars(&mut outcome, FIGURE, "us", "server", &all);
    ratio(&mut outcome, "gzip_vs_nginx_cpu", DEFAULT, &all, (DEFAULT, "nginx"));
    ratio(&mut outcome, "gzip_level2_vs_nginx_cpu", DEFAULT, &all, (&level_2, "nginx"));
    drop(all);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Returns a page of words in random order, which compresses about as HTML does.
fn page(n: usize) -> String {
    const WORDS: [&str; 24] = [
        "<p>",
        "</p>\n",
        "<a href=\"/",
        "\">",
        "</a>",
        "event",
        "ring",
        "kernel",
        "the",
        "a",
        "of",
        "and",
        "request",
        "server",
        "buffer",
        "memory",
        "is",
        "to",
        "with",
        "page",
        "<em>",
        "</em>",
        "completion",
        "descriptor",
    ];
    let mut random = fastrand::Rng::with_seed(n as u64);
    let mut text = String::from("<!DOCTYPE html>\n");
    while text.len() < BYTES {
        text.push_str(WORDS[random.usize(..WORDS.len())]);
        match random.u8(..8) {
            0 => text.push_str(&random.u16(..).to_string()),
            _ => text.push(' '),
        }
    }
    text.truncate(BYTES);
    text
}
