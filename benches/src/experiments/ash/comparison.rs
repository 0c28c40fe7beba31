//! The model's predictions against measurement: ASH, tables 7-6 and 7-7.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ash_sandbox::model::{Machine, ProcessState, Strategy, Workload};
use ash_sandbox::sandbox::{Handler, NativeCalls, Outcome as Handled, Sandboxer};

use super::super::Context;
use super::page::{self, REQUEST};
use super::request::{Request, compute};
use super::rtt::median;
use super::scheduling::{Busy, Policy};
use super::server::{Placement, Server, Setup};
use super::{Contestant, computing_handler, handler, load, ns_each, policy, run_rounds, values};
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, pin};
use crate::outcome::{Outcome, X};
use crate::statistics::{Spread, spread};

const COMPARISON: &str = "Time beyond that of an ASH";
const HANDLERS: &str = "Handlers";

/// Round trips of a server in a round.
const COMPARED: usize = 300;
const QUICK: usize = 5;
const FULL: usize = 15;

/// The handlers that are compared: the remote increment, and longer ones, with the steps of their computation.
const LENGTHS: [(&str, u32); 3] =
    [("increment", 0), ("2,000 steps", 2_000), ("8,000 steps", 8_000)];

/// The states in which predictions are compared, and what the application does at a message there.
const STATES: [(&str, ProcessState, Strategy); 2] = [
    ("", ProcessState::Blocked, Strategy::Interrupt),
    (", polling", ProcessState::Spinning, Strategy::Poll),
];

pub(super) const NOTES: [&str; 2] = [
    "Predicted and measured (table 7-6): round trips beyond those of an ASH. A busy process shares the core, the thread of the \
     ring and the upcall process are real-time where that is permitted, and the application sleeps and is normal; `polling`: it \
     polls, and no other process is busy. What all have in common, such as TCP, is in neither.",
    "Table 7-7: the time of a handler without a sandbox and its sandboxing factor, both without those of an empty handler. The \
     probability of aborts of the pages is that of table 6-12, in `ash-web`; the others never abort. TCP is the kernel's here, \
     so the handler of TCP latency has no counterpart; the computations of 2,000 and 8,000 steps are as long as handlers \
     of the thesis were.",
];

/// A handler's row of table 7-7.
struct Row {
    handler_us: f64,
    factor: f64,
}

/// Measures table 7-7, and compares predictions with round trips.
pub(super) fn compare(
    cx: &Context,
    machine: &Machine,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let rounds = if cx.quick { QUICK } else { FULL };
    let rows = handlers(cx, rounds, outcome)?;
    pin(&[CLIENT_CORE])?;
    let owner = super::scheduling::owner_policy(outcome);
    for (length, row) in LENGTHS.into_iter().zip(rows) {
        let workload = Workload {
            handler_us: row.handler_us,
            sandboxing_factor: row.factor,
            ..Workload::default()
        };
        for state in STATES {
            compare_state(cx, rounds, owner, (length, state), (machine, &workload), outcome)?;
        }
    }
    outcome.paper(
        COMPARISON,
        "ASH, table 7-6, remote increment on Aegis, in us: an upcall 15.8 predicted and 21 measured, an interrupt 34.6 predicted \
         and 48 measured; while it polls, an upcall 15.8 and 19.5, a poll 10.5 and 15.",
    );
    outcome.paper(
        HANDLERS,
        "ASH, table 7-7, time in us and factor: remote increment 20 and 1.25, TCP latency 50 and 1.4 to 1.5, web pages of 8 bytes \
         125 and 1.3, of 2,048 bytes 200 and 1.1.",
    );
    Ok(())
}

fn compare_state(
    cx: &Context,
    rounds: usize,
    owner: Policy,
    ((length, steps), (suffix, state, of_user)): ((&str, u32), (&str, ProcessState, Strategy)),
    (machine, workload): (&Machine, &Workload),
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let polls = state == ProcessState::Spinning;
    let mut all = Vec::new();
    for (name, placement) in [
        ("ash", Placement::Ash),
        ("upcall", Placement::UpcallProcess),
        ("user level", Placement::User),
    ] {
        let setup = Setup { computes: true, ..Setup::new(placement, owner, polls) };
        all.push(Contestant::new(name, move || {
            let mut server = Server::with(setup)?;
            // The application that polls is busy itself.
            let _busy = Busy::start(usize::from(!polls))?;
            server.computations(steps, COMPARED / 10, Duration::ZERO)?;
            Ok(median(&server.computations(steps, COMPARED, Duration::ZERO)?))
        }));
    }
    run_rounds(cx, rounds, &mut all)?;
    let predicted = |strategy| machine.time_us(strategy, workload, state).unwrap_or(f64::NAN);
    for (name, strategy) in [("upcall", Strategy::Upcall), ("user level", of_user)] {
        let more = predicted(strategy) - predicted(Strategy::Ash);
        let pairs = values(&all, name).iter().zip(values(&all, "ash"));
        let measured: Vec<_> = pairs.map(|(other, ash)| other - ash).collect();
        let exact = Spread { median: more, low: more, high: more };
        let row = format!("{name}, {length}{suffix}");
        outcome.point(COMPARISON, "us", "predicted", X::Name(row.clone()), exact);
        if let Some(y) = spread(&measured) {
            outcome.point(COMPARISON, "us", "measured", X::Name(row), y);
        }
        // A longer handler in the sandbox loses what it gains by its place: the difference may be near 0.
        if steps == 0 {
            let ratio = format!("{name}{suffix}").replace(',', "").replace(' ', "_");
            let ratio = format!("measured_over_predicted_{ratio}");
            outcome.ratio(ratio, "ash", measured.iter().map(|us| us / more).collect());
        }
    }
    Ok(())
}

/// Batches in a round, of which the median counts, and invocations in each: shorter than a quantum.
const BATCHES: usize = 11;
const INVOCATIONS: usize = 50;

/// A handler with the message it gets.
struct Invoked {
    handler: Handler,
    message: Vec<u8>,
    now: Instant,
}

impl Invoked {
    fn new(handler: Handler, message: &[u8]) -> Result<Self, Failure> {
        let mut invoked = Invoked { handler, message: message.to_vec(), now: Instant::now() };
        match invoked.once() {
            Handled::Handled => Ok(invoked),
            other => Err(Failure::Run(format!("a handler has not handled its message: {other:?}"))),
        }
    }

    fn once(&mut self) -> Handled {
        self.handler.handle_copy(&self.message, 7, self.now)
    }

    fn us(&mut self) -> f64 {
        let mut batch = || {
            let once = || {
                black_box(self.once());
            };
            ns_each(INVOCATIONS, once) / 1e3
        };
        let mut all = [0.0; BATCHES].map(|_| batch());
        all.sort_by(f64::total_cmp);
        median(&all)
    }
}

/// Measures table 7-7. Returns the rows of [`LENGTHS`].
fn handlers(cx: &Context, rounds: usize, outcome: &mut Outcome) -> Result<Vec<Row>, Failure> {
    let mut names = Vec::new();
    let mut all = Vec::new();
    let empty = Request::default().bytes();
    let mut add = |name: &str, sandboxed: Handler, native: Handler, message: &[u8]| {
        for (kind, handler) in [("sandboxed", sandboxed), ("native", native)] {
            let mut invoked = Invoked::new(handler, message)?;
            all.push(Contestant::new(format!("{name}, {kind}"), move || Ok(invoked.us())));
        }
        names.push(name.to_owned());
        Ok::<_, Failure>(())
    };
    for (name, steps) in LENGTHS {
        let message = Request { steps, ..Request::default() }.bytes();
        add(name, computing_handler()?, native(increment)?, &message)?;
    }
    for bytes in [8, 2048] {
        let reply = page::reply(bytes);
        let sandboxed = load(&page::module(&reply, false))?;
        add(&format!("page of {bytes} bytes"), sandboxed, page::native(reply)?, REQUEST)?;
    }
    add("empty", handler("")?, native(|_| 1)?, &empty)?;
    run_rounds(cx, rounds, &mut all)?;
    let mut rows = Vec::new();
    for name in names.iter().filter(|name| *name != "empty") {
        // The page of a request is longer than the message of an empty handler, whose copy is a few ns.
        let us = |name: &str, kind: &str| values(&all, &format!("{name}, {kind}")).to_vec();
        let own = |kind| -> Vec<f64> {
            let pairs = us(name, kind).into_iter().zip(us("empty", kind));
            pairs.map(|(all, empty)| (all - empty).max(0.001)).collect()
        };
        let (sandboxed, native) = (own("sandboxed"), own("native"));
        let factors: Vec<_> = sandboxed.iter().zip(&native).map(|(s, n)| s / n).collect();
        for (series, unit, values) in [("t_h", "us", &native), ("s", "", &factors)] {
            if let Some(y) = spread(values) {
                let figure = format!("{HANDLERS}: {series}");
                outcome.point(&figure, unit, series, X::Name(name.clone()), y);
            }
        }
        let median = |values: &[f64]| spread(values).map_or(f64::NAN, |all| all.median);
        rows.push(Row { handler_us: median(&native), factor: median(&factors) });
    }
    Ok(rows)
}

fn native(
    entry: impl FnMut(&mut NativeCalls<'_>) -> i32 + Send + 'static,
) -> Result<Handler, Failure> {
    let trusted = Sandboxer::new(policy()).and_then(|sandboxer| sandboxer.trust(1, 2 << 16, entry));
    trusted.map_err(|e| Failure::new("cannot create an unsafe handler", e))
}

/// Does what [`computing_handler`] does.
fn increment(calls: &mut NativeCalls<'_>) -> i32 {
    const COUNT: usize = 64;
    let (message, memory) = calls.memory();
    compute(Request::of(message).steps);
    let mut count = [0; 8];
    count.copy_from_slice(&memory[COUNT..COUNT + 8]);
    let count = u64::from_le_bytes(count).wrapping_add(1);
    memory[COUNT..COUNT + 8].copy_from_slice(&count.to_le_bytes());
    i32::from(calls.send(COUNT as u32, 8) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_computations_take_longer_in_both() {
        for make in [computing_handler, || native(increment)] {
            let mut us = [100, 100_000].map(|steps| {
                let message = Request { steps, ..Request::default() }.bytes();
                let mut invoked = Invoked::new(make().unwrap(), &message).unwrap();
                (0..3).map(|_| invoked.us()).fold(f64::MAX, f64::min)
            });
            us[0] *= 10.0;
            assert!(us[0] < us[1], "{us:?}");
        }
    }
}
