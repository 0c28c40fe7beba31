//! Round trips of a remote increment, by the place that answers.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::super::{Context, DEFAULT, Experiment};
use super::scheduling::{Busy, Policy};
use super::server::{Placement, Server};
use super::{Contestant, bars, handler, ns_each, ratio, run_rounds};
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, OtherPrograms, pin};
use crate::outcome::Outcome;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-rtt",
    title: "round trips of a remote increment: native and sandboxed handlers, and the application",
    source: "ASH, section 6.3.2, tables 6-1 and 6-6",
    own_network: false,
    run,
};

const FIGURE: &str = "Round trip of a remote increment";
const DISPATCH: &str = "Dispatch of a handler";

/// Busy threads on the server's core.
const BUSY: usize = 4;
/// Invocations in a round, for the dispatch.
const INVOCATIONS: usize = 20_000;
/// Rounds, and round trips in each.
const QUICK: (usize, usize) = (7, 100);
const FULL: (usize, usize) = (31, 1_000);

const NOTES: [&str; 3] = [
    "Server on core 0, client on core 1, one message of 8 bytes at a time over loopback TCP. `user level`: \
     the server hands the message to a thread of the application on the same core, which sleeps until \
     then, and sends its reply.",
    "A round's value is the median of its round trips. On an idle machine, the wake-up of the server's \
     core hides most of the difference.",
    "Dispatch: a handler that does nothing is called and returns, with the accounting of its budget; the \
     message lies in its memory. Not measured: a polling application, as this machine has no core for it; \
     upcalls.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    pin(&[CLIENT_CORE])?;
    let others = OtherPrograms::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let (rounds, count) = if cx.quick { QUICK } else { FULL };
    let mut all = Vec::new();
    for busy in [0, BUSY] {
        for (name, placement) in [
            ("unsafe", Placement::Unsafe),
            ("sandboxed", Placement::Ash),
            ("user level", Placement::User),
        ] {
            let mut server = Server::start(placement, Policy::Normal)?;
            let load = if busy == 0 { "idle" } else { "busy" };
            all.push(Contestant::new(format!("{name}, {load}"), move || {
                let _busy = Busy::start(busy);
                Ok(median(&server.round_trips(count, Duration::ZERO)?))
            }));
        }
    }
    let mut handler = handler("")?;
    let start = handler.memory().message_area().start;
    let mut dispatch = [Contestant::new("sandboxed", move || {
        let now = Instant::now();
        Ok(ns_each(INVOCATIONS, || {
            black_box(handler.handle(black_box(start..start + 8), 7, 0, now));
        }))
    })];
    run_rounds(cx, rounds, &mut dispatch)?;
    run_rounds(cx, rounds, &mut all)?;
    bars(&mut outcome, DISPATCH, "ns", "measured", &dispatch);
    bars(&mut outcome, FIGURE, "us", "measured", &all);
    outcome.ratio("dispatch_ns", "ash", dispatch[0].values.clone());
    let user = |load| (format!("user level, {load}"), format!("sandboxed, {load}"));
    for (name, load) in [("idle_user_over_ash", "idle"), ("suspended_user_over_ash", "busy")] {
        let (user, ash) = user(load);
        ratio(&mut outcome, name, DEFAULT, &all, (&user, &ash));
    }
    ratio(
        &mut outcome,
        "sandboxed_over_unsafe",
        DEFAULT,
        &all,
        ("sandboxed, busy", "unsafe, busy"),
    );
    outcome.paper(
        FIGURE,
        "ASH, table 6-6, two DECstations on AN2, in us: 147 unsafe, 152 sandboxed, 191 upcall, 182 user \
         level while it polls; 147, 151, 193, 247 while it is suspended (1.63 times).",
    );
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Returns the median of sorted values.
pub(super) fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
