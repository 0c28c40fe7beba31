//! How long events that wait take to be handled, by what they come (SEND 4.1).

mod descriptors;
mod send;
mod signals;
mod way;

use std::io;
use std::thread;
use std::time::Duration;

use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{Others, SERVER_CORE, pin};
use crate::outcome::{Outcome, X};
use crate::statistics::{Spread, ratios, spread};

use way::{Time, Way};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "send-dequeue",
    title: "the time until events that are queued have been handled: SEND, signals and descriptors",
    source: "SEND, section 4.1, figure 4.1",
    own_network: false,
    run,
};

/// How many events are queued.
const EVENTS: [u32; 13] = [0, 1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 100];
/// The most, by which ratios are taken. The buffer of SEND has as many places, as in the thesis.
const MOST: u32 = 100;

/// Rounds, and repetitions in each; the thesis has 1,000 in all.
const QUICK: (usize, usize) = (10, 20);
const FULL: (usize, usize) = (25, 40);

const TOTAL: &str = "Time until all are handled, against events queued";
const EACH: &str = "Time for each event, against events queued";
const WITH_QUEUEING: &str = "Time for each event, queueing included, against events queued";
const BESIDE: &str = "Time over that of SEND, 100 events";

const NOTES: [&str; 6] = [
    "The clock begins when all events are queued, as in the thesis, where a system call of its own \
     queues them; it ends when the last was handled. All handlers do the same work, which is to count \
     one. The figure with queueing included begins before the first is queued.",
    "`send`: posted events, which carry a number as queued signals do (SIGINT, which the thesis takes, \
     is no such event: a stock kernel keeps one). They are queued by the thread itself while \
     notification is off, and handled when it is raised, as the idle loop of the thesis does; the \
     signal that waits, the delivery into the buffer and the handler are all in the time. Delivery is \
     enabled at all times, so the first may stand in the buffer before.",
    "`signals, handler`: POSIX real-time signals, queued while they are blocked, by pthread_sigqueue(3) \
     to the thread itself, and let through. `sigtimedwait`: the same, one call for each. `signalfd`: the \
     same, one read(2) for all of them.",
    "`epoll`: as many eventfds, edge-triggered, and one epoll_wait(2) for all: an event that is told by \
     itself, carries a number and is used up by being told, as those of SEND are. A pipe, or one \
     eventfd, would make one event of them all. `epoll, read`: level-triggered, as most programs have \
     it, where a read(2) uses each up.",
    "All ways have their turn at each number of events in each round, in another order each time; a \
     round's value is the median of its repetitions. Ratios are taken within a round.",
    "`sigtimedwait`, `signalfd` and `epoll` interrupt nobody: the program asks. `send` and `signals, \
     handler` interrupt.",
];

/// What was measured of one way: for each number of events a value for each round, in ns.
struct Measured {
    name: &'static str,
    dequeue: Vec<Vec<f64>>,
    whole: Vec<Vec<f64>>,
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let others = Others::watch()?;
    // A control block belongs to a thread, and so do signals that wait.
    let measured = thread::scope(|scope| scope.spawn(|| measure(cx)).join());
    let measured =
        measured.map_err(|_| Failure::Run("the thread that measures broke".to_owned()))?;
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
    let mut ways = ways()?;
    let (rounds, repetitions) = if cx.quick { QUICK } else { FULL };
    let empty = || vec![Vec::with_capacity(rounds); EVENTS.len()];
    let one = |name| Measured { name, dequeue: empty(), whole: empty() };
    let mut measured: Vec<_> = ways.iter().map(|way| one(way.name())).collect();
    cx.progress.set_length(rounds as u64);
    for round in 0..rounds {
        // The first round is never left out.
        if round > 0 && cx.is_late() {
            break;
        }
        for (i, events) in EVENTS.into_iter().enumerate() {
            for turn in 0..ways.len() {
                let at = (round + i + turn) % ways.len();
                let times = repeat(ways[at].as_mut(), events, repetitions)?;
                measured[at].dequeue[i].push(median(&times, |time| time.dequeue));
                measured[at].whole[i].push(median(&times, |time| time.queue + time.dequeue));
            }
        }
        cx.progress.inc(1);
    }
    Ok(measured)
}

/// SEND is the first.
fn ways() -> Result<Vec<Box<dyn Way>>, Failure> {
    let signals = |error: io::Error| Failure::new("real-time signals can't be used", error);
    let descriptors = |error: io::Error| Failure::new("epoll can't be used", error);
    Ok(vec![
        Box::new(send::Send::new(MOST)?),
        Box::new(signals::Handler::new().map_err(signals)?),
        Box::new(signals::Waiting::new().map_err(signals)?),
        Box::new(signals::Reading::new(MOST).map_err(signals)?),
        Box::new(descriptors::Edges::new(MOST).map_err(descriptors)?),
        Box::new(descriptors::Levels::new(MOST).map_err(descriptors)?),
    ])
}

/// The first repetition fills the caches and does not count.
fn repeat(way: &mut dyn Way, events: u32, repetitions: usize) -> Result<Vec<Time>, Failure> {
    let name = way.name();
    let failed = |error| Failure::new(format_args!("{name}, {events} events"), error);
    let mut times = Vec::with_capacity(repetitions);
    for repetition in 0..=repetitions {
        let time = way::once(way, events).map_err(failed)?;
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

/// The others beside SEND, the first, at the most events.
fn compare(measured: &[Measured], outcome: &mut Outcome) {
    let Some((send, others)) = measured.split_first() else { return };
    let last = EVENTS.len() - 1;
    let mut words = Vec::new();
    for other in others {
        let dequeue = spread(&ratios(&other.dequeue[last], &send.dequeue[last]));
        let whole = spread(&ratios(&other.whole[last], &send.whole[last]));
        let Some((dequeue, whole)) = dequeue.zip(whole) else { continue };
        let name = ratio_name(other.name);
        outcome.ratios.insert(format!("{name}_over_send"), dequeue.median);
        outcome.ratios.insert(format!("{name}_over_send_with_queueing"), whole.median);
        let x = || X::Name(other.name.to_owned());
        outcome.point(BESIDE, "times", "here", x(), dequeue);
        outcome.point(BESIDE, "times", "here, queueing included", x(), whole);
        words.push(format!("{} {:.1} times", other.name, dequeue.median));
    }
    outcome.shows.push(format!(
        "With {MOST} events queued, each takes so much longer than with SEND until it is handled: {}.",
        words.join(", ")
    ));
}

/// `signals, handler` is `handler_signals`, by which the goal is called.
fn ratio_name(way: &str) -> String {
    match way.split_once(", ") {
        Some((what, how)) => format!("{how}_{what}"),
        None => way.to_owned(),
    }
}

fn papers(outcome: &mut Outcome) {
    let five = Spread { median: 5.0, low: 5.0, high: 5.0 };
    let x = X::Name("signals, handler".to_owned());
    outcome.point(BESIDE, "times", "paper", x, five);
    outcome.paper(
        TOTAL,
        "SEND, figure 4.1, a Pentium III at 550 MHz: both times rise in proportion to the events; SEND \
         takes about a fifth of the time of signals.",
    );
    outcome.paper(
        BESIDE,
        "SEND, section 4.1: signals by handler take about five times as long. The other ways were not \
         measured.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_handles_what_is_queued() {
        for way in &mut ways().unwrap() {
            for events in [0, 1, 7, MOST, 3] {
                way::once(way.as_mut(), events).unwrap();
            }
        }
    }

    #[test]
    fn goals_are_called_as_they_are_stated() {
        assert_eq!(ratio_name("signals, handler"), "handler_signals");
        assert_eq!(ratio_name("sigtimedwait"), "sigtimedwait");
    }
}
