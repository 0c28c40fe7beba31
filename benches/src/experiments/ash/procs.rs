//! Round trips against the number of busy processes on the server's core, and a runaway handler.

use std::time::{Duration, Instant};

use super::super::{Context, DEFAULT, Experiment};
use super::rtt::median;
use super::scheduling::{Busy, Policy};
use super::server::{Endless, Placement, Server};
use super::{Contestant, client, ratio, run_rounds};
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, OtherPrograms, pin};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-procs",
    title: "round trips against busy processes on the server's core, by placement and scheduling",
    source: "ASH, section 6.3.3, figure 6-2",
    own_network: false,
    run,
};

const FIGURE: &str = "Round trip of a remote increment, against busy processes";
/// The pause of the client between two messages.
const GAP: Duration = Duration::from_micros(50);
/// A pause with which the server needs less than an eleventh of its core, its fair share beside ten processes.
const LONG_GAP: Duration = Duration::from_micros(200);
/// The pause between two runaway handlers.
const RUNAWAY_GAP: Duration = Duration::from_millis(10);
/// Runaway handlers that are loaded before a round, and more if it needs them. A sandboxer keeps as many that were dropped,
/// until the next are loaded.
const RUNAWAYS: usize = 32;

/// The amount of measurement.
struct Extent {
    rounds: usize,
    /// Round trips of a contestant in a round.
    round_trips: usize,
    /// The numbers of busy processes.
    busy: &'static [usize],
}

const QUICK: Extent = Extent { rounds: 5, round_trips: 15, busy: &[1, 10] };
const FULL: Extent =
    Extent { rounds: 15, round_trips: 100, busy: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] };
/// Round trips for a 99th percentile, as a multiple.
const FOR_P99: usize = 20;

const CURVES: [(&str, Placement, Policy, Duration); 6] = [
    ("ash", Placement::Ash, Policy::Normal, GAP),
    ("ash, 100 us slice", Placement::Ash, Policy::Slice, GAP),
    ("ash, 100 us slice, within its share", Placement::Ash, Policy::Slice, LONG_GAP),
    ("ash, real-time", Placement::Ash, Policy::RealTime, GAP),
    ("user level", Placement::User, Policy::Normal, GAP),
    ("user level, batch", Placement::User, Policy::Batch, GAP),
];

const NOTES: [&str; 6] = [
    "Server on core 0, with the busy processes, client on core 1, which polls its socket; 50 us between two messages. `ash`: the \
     handler answers where the message arrives. `user level`: a thread of the application does. The \
     policy is that of all threads of the server.",
    "A slice makes a thread run sooner, and not more: a fair scheduler gives one of eleven threads an eleventh of the \
     core. With 50 us between two messages the server needs about 12 us in 75; `within its share` has 200 us between \
     two messages. Real-time threads have no such limit.",
    "A round's value is the median of its round trips.",
    "Runaway: every 10 ms, another tenant hands the server a fresh endless handler, and sends it a message on a connection of \
     its own, right before a message of the tenant that is measured. Both clients are one thread: two would compete for \
     the core. A hook of the experiment's own copies the message to the handler, and drops it when it was stopped: a \
     `Landing` keeps the handlers that were added to it, and disables one after a few aborts. Each handler is loaded, compiled \
     and instantiated by itself, before the round: with two cores, a compiler would compete with the client or with the \
     server. `runaway_stopped_ms` is the longest time of such a handler.",
    "`runaway_delayed_us` is the median of the round trips that follow such a message. Of some 150 round trips in 10 ms one \
     does, so the 99th percentile has what a handler that was stopped costs the others, and not the delay itself.",
    "The thread of the server has what an `OwnerThread` has: the policy, the handlers in front of the application, and a \
     mailbox for its replies. The application gets its messages by a channel of the experiment's own.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    pin(&[CLIENT_CORE])?;
    let others = OtherPrograms::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let extent = if cx.quick { QUICK } else { FULL };
    let mut all = Vec::new();
    let mut keys = Vec::new();
    for (curve, placement, policy, gap) in CURVES {
        for busy in extent.busy {
            let mut server = match Server::start(placement, policy) {
                Ok(server) => server,
                Err(failure) => {
                    outcome.notes.push(format!("Not measured: {curve}: {failure}."));
                    break;
                }
            };
            keys.push((curve, *busy));
            all.push(Contestant::new(format!("{curve}, {busy}"), move || {
                let _busy = Busy::start(*busy)?;
                Ok(median(&server.round_trips(extent.round_trips, gap)?))
            }));
        }
    }
    run_rounds(cx, extent.rounds, &mut all)?;
    for ((curve, busy), contestant) in keys.iter().zip(&all) {
        if let Some(y) = spread(&contestant.values) {
            outcome.point(FIGURE, "us", curve, X::Number(*busy as f64), y);
        }
    }
    for (curve, name) in [
        ("ash", "rtt_10_over_1"),
        ("ash, 100 us slice", "rtt_10_over_1_slice"),
        ("ash, 100 us slice, within its share", "rtt_10_over_1_slice_within_share"),
        ("ash, real-time", "rtt_10_over_1_realtime"),
        ("user level", "rtt_10_over_1_user"),
        ("user level, batch", "rtt_10_over_1_user_batch"),
    ] {
        ratio(&mut outcome, name, DEFAULT, &all, (&format!("{curve}, 10"), &format!("{curve}, 1")));
    }
    drop(all);
    runaway(cx, &extent, &mut outcome)?;
    outcome.paper(
        FIGURE,
        "ASH, figure 6-2: with an oblivious scheduler the round trip grows with each process; with a \
         scheduler that raises the priority of the receiver it grows less; with ASHs it stays the same.",
    );
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Measures one tenant while the handlers of another one never end.
fn runaway(cx: &Context, extent: &Extent, outcome: &mut Outcome) -> Result<(), Failure> {
    let count = extent.round_trips * FOR_P99;
    let mut calm = Server::start(Placement::Ash, Policy::Normal)?;
    let mut disturbed = Server::start(Placement::Ash, Policy::Normal)?;
    let (mut stopped_ms, mut delayed_us) = (Vec::new(), Vec::new());
    let mut all = [
        Contestant::new("without", || Ok(p99(&calm.round_trips(count, GAP)?))),
        Contestant::new("with", || {
            let (times, delayed) = beside_runaways(&mut disturbed, count)?;
            stopped_ms.push(disturbed.stopped().as_secs_f64() * 1e3);
            delayed_us.push(median(&delayed));
            Ok(p99(&times))
        }),
    ];
    run_rounds(cx, extent.rounds, &mut all)?;
    ratio(outcome, "runaway_p99_over_none", DEFAULT, &all, ("with", "without"));
    drop(all);
    outcome.ratio("runaway_stopped_ms", "ash", stopped_ms);
    outcome.ratio("runaway_delayed_us", DEFAULT, delayed_us);
    Ok(())
}

/// Returns the times of a number of round trips, and those of the round trips that followed a message to an endless
/// handler, both sorted. One thread has both clients, so that they do not compete for a core.
fn beside_runaways(server: &mut Server, count: usize) -> Result<(Vec<f64>, Vec<f64>), Failure> {
    let mut other = server.runaway()?;
    let endless = Endless::new()?;
    let mut fresh = endless.load(RUNAWAYS)?;
    let (mut times, mut delayed) = (Vec::with_capacity(count), Vec::new());
    let mut due = Instant::now() + RUNAWAY_GAP;
    while times.len() < count {
        let is_due = Instant::now() >= due;
        if is_due {
            let Some(handler) = fresh.pop() else {
                fresh = endless.load(RUNAWAYS)?;
                continue;
            };
            other.start(handler)?;
            due = Instant::now() + RUNAWAY_GAP;
        }
        let time = server.round_trip()?;
        times.push(time);
        if is_due {
            delayed.push(time);
            other.wait()?;
        }
        client::pause(GAP);
    }
    times.sort_by(f64::total_cmp);
    delayed.sort_by(f64::total_cmp);
    Ok((times, delayed))
}

/// Returns the 99th percentile: the nearest rank.
fn p99(sorted: &[f64]) -> f64 {
    let rank = (sorted.len() * 99).div_ceil(100);
    rank.checked_sub(1).map_or(f64::NAN, |at| sorted[at])
}
