//! The time to handle queued events, by notification method (SEND 4.1).

mod descriptors;
mod method;
mod send;
mod signals;

use std::io;
use std::thread;
use std::time::Duration;

use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, SERVER_CORE, pin};
use crate::outcome::{Outcome, X};
use crate::statistics::{Spread, ratios, spread};

use method::{Method, Time};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "send-dequeue",
    title: "the time to handle queued events: SEND, signals and descriptors",
    source: "SEND, section 4.1, figure 4.1",
    own_network: false,
    run,
};

/// Numbers of queued events.
const EVENTS: [u32; 13] = [0, 1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 100];
/// Maximum number of events, at which ratios are taken. SEND's buffer has this length, as in the
/// thesis.
const MAX_EVENTS: u32 = 100;

/// Rounds, and repetitions in each; the thesis has 1,000 in all.
const QUICK: (usize, usize) = (10, 20);
const FULL: (usize, usize) = (25, 40);

const TOTAL: &str = "Time to handle all events, against events queued";
const EACH: &str = "Time for each event, against events queued";
const WITH_QUEUEING: &str = "Time for each event, queueing included, against events queued";
const OVER_SEND: &str = "Time over that of SEND, 100 events";

const NOTES: [&str; 6] = [
    "The clock starts when all events are queued, as in the thesis, where a dedicated system call queues \
     them; it stops when the last was handled. All handlers do the same work: they increment a counter. \
     In the figure with queueing included the clock starts before the first is queued.",
    "`send`: posted events, which carry a number as queued signals do (the thesis uses SIGINT, but a \
     stock kernel queues only one). The thread posts them itself, in user space, while notification is disabled, and \
     they are handled when it enables notification, as in the idle loop of the thesis. The time includes \
     the pending signal, the delivery into the buffer and the handler. Delivery is always enabled, so \
     the first event may already be in the buffer.",
    "`signals, handler`: POSIX real-time signals, queued while blocked, by pthread_sigqueue(3) to the \
     thread itself, and then unblocked. `sigtimedwait`: the same, one call for each. `signalfd`: the \
     same, one read(2) for all of them.",
    "`epoll`: one eventfd per event, edge-triggered, and one epoll_wait(2) for all. Like an event of \
     SEND, each is reported separately, carries a number and is consumed by the report; a pipe or a \
     single eventfd would merge them. `epoll, read`: level-triggered, as in most programs, where a \
     read(2) consumes each.",
    "Each round runs all methods at each number of events, in a shuffled order; a round's value is the \
     median of its repetitions. Ratios are taken within a round.",
    "With `sigtimedwait`, `signalfd` and `epoll` the program polls. `send` and `signals, handler` \
     interrupt it.",
];

/// Measurements of one method in ns: for each number of events, one value per round.
struct Measured {
    name: &'static str,
    dequeue: Vec<Vec<f64>>,
    whole: Vec<Vec<f64>>,
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let others = OtherPrograms::watch()?;
    // A control block belongs to a thread, and so do pending signals.
    let measured = thread::scope(|scope| scope.spawn(|| measure(cx)).join());
    let measured =
        measured.map_err(|_| Failure::Run("the measuring thread panicked".to_owned()))?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let measured = measured?;
    measured.iter().for_each(|one| curves(one, &mut outcome));
    compare(&measured, &mut outcome);
    papers(&mut outcome);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn measure(cx: &Context) -> Result<Vec<Measured>, Failure> {
    pin(&[SERVER_CORE])?;
    let mut methods = methods()?;
    let (rounds, repetitions) = if cx.quick { QUICK } else { FULL };
    let empty = || vec![Vec::with_capacity(rounds); EVENTS.len()];
    let one = |name| Measured { name, dequeue: empty(), whole: empty() };
    let mut measured: Vec<_> = methods.iter().map(|method| one(method.name())).collect();
    cx.progress.set_length(rounds as u64);
    for mut round in cx.rounds(rounds) {
        for (i, events) in EVENTS.into_iter().enumerate() {
            for at in round.order(methods.len()) {
                let times = repeat(methods[at].as_mut(), events, repetitions)?;
                measured[at].dequeue[i].push(median(&times, |time| time.dequeue));
                measured[at].whole[i].push(median(&times, |time| time.queue + time.dequeue));
            }
        }
        cx.progress.inc(1);
    }
    Ok(measured)
}

/// Returns the methods, SEND first.
fn methods() -> Result<Vec<Box<dyn Method>>, Failure> {
    let signals = |error: io::Error| Failure::new("cannot set up real-time signals", error);
    let descriptors = |error: io::Error| Failure::new("cannot set up epoll", error);
    Ok(vec![
        Box::new(send::Send::new(MAX_EVENTS)?),
        Box::new(signals::Handler::new().map_err(signals)?),
        Box::new(signals::Waiting::new().map_err(signals)?),
        Box::new(signals::Reading::new(MAX_EVENTS).map_err(signals)?),
        Box::new(descriptors::EdgeTriggered::new(MAX_EVENTS).map_err(descriptors)?),
        Box::new(descriptors::LevelTriggered::new(MAX_EVENTS).map_err(descriptors)?),
    ])
}

/// Repeats a measurement. The first repetition warms the caches and is not counted.
fn repeat(method: &mut dyn Method, events: u32, repetitions: usize) -> Result<Vec<Time>, Failure> {
    let name = method.name();
    let failed = |error| Failure::new(format_args!("{name}, {events} events"), error);
    let mut times = Vec::with_capacity(repetitions);
    for repetition in 0..=repetitions {
        let time = method::once(method, events).map_err(failed)?;
        if repetition > 0 {
            times.push(time);
        }
    }
    Ok(times)
}

fn median(times: &[Time], of: impl Fn(&Time) -> Duration) -> f64 {
    let ns: Vec<_> = times.iter().map(|time| of(time).as_nanos() as f64).collect();
    spread(&ns).map_or(0.0, |all| all.median)
}

fn curves(measured: &Measured, outcome: &mut Outcome) {
    for (i, events) in EVENTS.into_iter().enumerate() {
        let mut add = |figure, unit, rounds: &[f64], per: f64| {
            if let Some(y) = spread(&rounds.iter().map(|ns| ns / per).collect::<Vec<_>>()) {
                outcome.point(figure, unit, measured.name, X::Number(events.into()), y);
            }
        };
        add(TOTAL, "us", &measured.dequeue[i], 1e3);
        if events > 0 {
            add(EACH, "ns", &measured.dequeue[i], events.into());
            add(WITH_QUEUEING, "ns", &measured.whole[i], events.into());
        }
    }
}

/// Adds the ratios over SEND, the first, at the maximum number of events.
fn compare(measured: &[Measured], outcome: &mut Outcome) {
    let Some((send, others)) = measured.split_first() else { return };
    let last = EVENTS.len() - 1;
    let mut findings = Vec::new();
    for other in others {
        let of_dequeue = ratios(&other.dequeue[last], &send.dequeue[last]);
        let of_whole = ratios(&other.whole[last], &send.whole[last]);
        let Some((dequeue, whole)) = spread(&of_dequeue).zip(spread(&of_whole)) else { continue };
        let name = ratio_name(other.name);
        outcome.ratio(format!("{name}_over_send"), send.name, of_dequeue);
        outcome.ratio(format!("{name}_over_send_with_queueing"), send.name, of_whole);
        let x = || X::Name(other.name.to_owned());
        outcome.point(OVER_SEND, "times", "measured", x(), dequeue);
        outcome.point(OVER_SEND, "times", "measured, queueing included", x(), whole);
        findings.push(format!("{} {:.1} times", other.name, dequeue.median));
    }
    outcome.shows.push(format!(
        "Time to handle {MAX_EVENTS} queued events over that of SEND, whose events are posted in user \
         space: {}.",
        findings.join(", ")
    ));
}

/// Returns the name in ratios: `handler_signals` for `signals, handler`.
fn ratio_name(method: &str) -> String {
    match method.split_once(", ") {
        Some((kind, variant)) => format!("{variant}_{kind}"),
        None => method.to_owned(),
    }
}

fn papers(outcome: &mut Outcome) {
    let five = Spread { median: 5.0, low: 5.0, high: 5.0 };
    let x = X::Name("signals, handler".to_owned());
    outcome.point(OVER_SEND, "times", "paper", x, five);
    outcome.paper(
        TOTAL,
        "SEND, figure 4.1, a Pentium III at 550 MHz: both times rise in proportion to the events; SEND \
         takes about a fifth of the time of signals.",
    );
    outcome.paper(
        OVER_SEND,
        "SEND, section 4.1: signals with a handler take about five times as long. The thesis did not \
             measure the other methods.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_handles_queued_events() {
        for method in &mut methods().unwrap() {
            for events in [0, 1, 7, MAX_EVENTS, 3] {
                method::once(method.as_mut(), events).unwrap();
            }
        }
    }

    #[test]
    fn ratio_names_match_the_goals() {
        assert_eq!(ratio_name("signals, handler"), "handler_signals");
        assert_eq!(ratio_name("sigtimedwait"), "sigtimedwait");
    }
}
