//! Compares each mechanism with its floor: a baseline program for the same work, on the same interface or on the one that the
//! mechanism stands for.

mod case;
mod idle;

use evring::mechanisms::backends;

use case::{Case, Measured};

use super::{Context, DEFAULT, Experiment};
use crate::command::{ServerKind, Workload};
use crate::failure::Failure;
use crate::floors;
use crate::measure::{Callgrind, OtherPrograms, PeerRequests, Requests, Site, Subject};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "floors",
    title: "each mechanism compared with a baseline program: echo and a small file",
    source: "goal of this project: file server at most 1.10 of its floor, echo at most 1.05",
    own_network: false,
    run,
};

/// Number of open connections, each with one request at a time.
const CONNECTIONS: usize = 64;

/// The amount of measurement.
struct Extent {
    rounds: usize,
    /// Slices of 1,000 requests in a round, for each program.
    slices: usize,
    warm_up: u64,
}

const QUICK: Extent = Extent { rounds: 4, slices: 10, warm_up: 4_000 };
const FULL: Extent = Extent { rounds: 15, slices: 16, warm_up: 8_000 };

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = site(&mut outcome)?;
    let extent = if cx.quick { QUICK } else { FULL };
    let mut cases = cases(&mut outcome);
    let others = OtherPrograms::watch()?;
    measure(cx, &extent, &site, &mut cases);
    outcome.notes.extend(others.note()?);
    let idle = idle::measure_all(&site, &mut outcome);
    count_instructions(cx, &site, &mut cases, &mut outcome);
    for case in &cases {
        report(case, &mut outcome);
    }
    count_handler_instructions(cx, &site, &mut outcome);
    if let Some(bytes) = idle {
        outcome.count("idle_connection_bytes", "uring", bytes);
    }
    overall(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

const NOTES: [&str; 6] = [
    "`epoll-edge` and `flexsc` are compared with the floor on epoll, and `send`, `send-ps1` and `send-ps2` with that on \
     io_uring, which no event interrupts. The others have a floor on the same interface.",
    "Server on core 0, client on core 1, loopback, 64 connections with one request each at a time. CPU \
     time is the sum over all threads of the server, including kernel workers.",
    "In each round both programs are new processes, loaded alternately, 1,000 requests at a time: \
     floor, app, app, floor, and so on. The order of the mechanisms is shuffled for each round. Ratios \
     are taken within a round.",
    "System calls are counted by the programs themselves, from start to end, including accepts but \
     excluding tokio's own waits.",
    "Instructions are counted outside the kernel, under valgrind, where batches are larger. Those of a handler are of \
     the whole web server, whose handler gets the parsed head and returns 12 bytes.",
    "An idle connection has made one request. Its bytes are those that the server allocated for it; \
     kernel memory is not included.",
];

/// Returns the available mechanisms with their floors, once for each workload.
fn cases(outcome: &mut Outcome) -> Vec<Case> {
    let mut cases = Vec::new();
    for backend in backends() {
        match (&backend.available, floors::for_mechanism(backend.name)) {
            (Err(reason), _) => {
                outcome.notes.push(format!("{} is unavailable: {reason}", backend.name))
            }
            (Ok(()), None) => outcome.notes.push(format!("{} has no floor", backend.name)),
            (Ok(()), Some(floor)) => {
                cases.push(Case::new(backend.name, floor, Workload::File));
                cases.push(Case::new(backend.name, floor, Workload::Echo));
            }
        }
    }
    cases
}

/// Fetches the reply once, as it is the same on every mechanism.
fn site(outcome: &mut Outcome) -> Result<Site, Failure> {
    let mut last = Failure::Run("none of the compiled mechanisms is available".to_owned());
    for backend in backends().iter().filter(|b| b.available.is_ok()) {
        match Site::new(backend.name) {
            Ok(site) => return Ok(site),
            Err(failure) => {
                outcome.notes.push(format!("{}: {failure}", backend.name));
                last = failure;
            }
        }
    }
    Err(last)
}

/// Each round covers all cases, so they have equal numbers of rounds after an early end.
fn measure(cx: &Context, extent: &Extent, site: &Site, cases: &mut [Case]) {
    cx.progress.set_length((extent.rounds * cases.len()) as u64);
    for mut round in cx.rounds(extent.rounds) {
        for i in round.order(cases.len()) {
            let case = &mut cases[i];
            if case.failed.is_some() {
                continue;
            }
            cx.progress.set_message(case.to_string());
            if let Err(failure) = case.round(site, round.number, extent.slices, extent.warm_up) {
                case.failed = Some(failure.to_string());
            }
            cx.progress.inc(1);
        }
    }
}

fn count_instructions(cx: &Context, site: &Site, cases: &mut [Case], outcome: &mut Outcome) {
    if cx.quick {
        return;
    }
    let callgrind = match Callgrind::find() {
        Ok(callgrind) => callgrind,
        Err(failure) => return outcome.notes.push(failure.to_string()),
    };
    cx.progress.set_position(0);
    for case in cases.iter_mut() {
        cx.progress.set_message(format!("instructions of {case}"));
        for what in [ServerKind::Floor, ServerKind::App] {
            match callgrind.count(&case.subject(what), site, CONNECTIONS) {
                Ok(count) => case.measured(what).instructions.push(count),
                Err(failure) => {
                    outcome
                        .notes
                        .push(format!("instructions of {case}, {}: {failure}", what.name()));
                }
            }
        }
        cx.progress.inc(1);
    }
}

/// Counts the instructions of a request to a handler of the web server.
fn count_handler_instructions(cx: &Context, site: &Site, outcome: &mut Outcome) {
    // `count_instructions` has noted the reason if there is no callgrind.
    let Some(callgrind) = Callgrind::find().ok().filter(|_| !cx.quick) else { return };
    let (what, mechanism, work) = (ServerKind::Httpd, DEFAULT.to_owned(), Workload::File);
    let requests = PeerRequests {
        path: "/hello",
        kind: Requests::KeepAlive,
        connections: CONNECTIONS,
        few: 2_000,
        many: 102_000,
    };
    cx.progress.set_message("instructions of a handler");
    match callgrind.count_requests(&Subject { what, mechanism, work }, site, &requests) {
        Ok(count) => outcome.count("handler_instructions", DEFAULT, count),
        Err(failure) => outcome.notes.push(format!("instructions of a handler: {failure}")),
    }
}

fn report(case: &Case, outcome: &mut Outcome) {
    if let Some(failure) = &case.failed {
        outcome.notes.push(format!("{case} failed: {failure}"));
    }
    for (what, runs) in [(ServerKind::Floor, &case.floor_runs), (ServerKind::App, &case.app_runs)] {
        figures(case, what, runs, outcome);
    }
    let name = case.mechanism.replace('-', "_");
    let prefix = if case.work == Workload::Echo { "echo_" } else { "" };
    if let Some(ratio) = spread(&case.ratios()) {
        let x = X::Name(case.mechanism.to_owned());
        outcome.point("CPU over that of the floor", "ratio", case.work.name(), x, ratio);
    }
    outcome.ratio(format!("{prefix}{name}_vs_floor_cpu"), case.mechanism, case.ratios());
    let calls = case.app_runs.system_calls.clone();
    outcome.ratio(format!("{prefix}syscalls_per_request_{name}"), case.mechanism, calls);
    if let Some(allocations) = spread(&case.app_runs.of(|s| s.allocations())) {
        // The maximum over both workloads.
        let name = format!("allocations_per_request_{name}");
        let max = outcome.median(&name).unwrap_or(0.0).max(allocations.high);
        outcome.count(name, case.mechanism, max);
    }
}

fn figures(case: &Case, what: ServerKind, runs: &Measured, outcome: &mut Outcome) {
    let work = case.work.name();
    let mut add = |figure: &str, unit, name: &str, values: &[f64]| {
        if let Some(y) = spread(values) {
            let x = X::Name(case.mechanism.to_owned());
            outcome.point(&format!("{figure}, {work}"), unit, name, x, y);
        }
    };
    let name = what.name();
    add("CPU per request", "ns", name, &runs.of(|s| s.cpu_ns()));
    add("System calls per request", "", name, &runs.system_calls);
    add("Instructions per request", "", name, &runs.instructions);
    add("Requests", "per second", name, &runs.of(|s| s.rate()));
    let (server, client) = (format!("{name}: server"), format!("{name}: client"));
    add("Busy", "part of a core", &server, &runs.of(|s| s.server_busy()));
    add("Busy", "part of a core", &client, &runs.of(|s| s.client_busy()));
}

/// Adds the maximum over all mechanisms.
fn overall(outcome: &mut Outcome) {
    let each = outcome.ratios.iter().filter(|(n, _)| n.starts_with("allocations_per_request_"));
    if let Some(max) = each.map(|(_, ratio)| ratio.value).reduce(f64::max) {
        outcome.count("allocations_per_request", "every mechanism", max);
    }
}
