//! The cost of the sandbox: remote write in the sandbox, and the same by unsafe handlers.

use super::super::{Context, Experiment};
use super::remote_write::Writer;
use super::{Contestant, bars, ns_each, ratio, run_rounds, values};
use crate::command::RemoteWrite;
use crate::failure::Failure;
use crate::measure::{Callgrind, OtherPrograms, SERVER_CORE, pin};
use crate::outcome::{Outcome, X};
use crate::statistics::{Spread, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-sandbox",
    title: "the sandboxing factor: remote write in the sandbox and by unsafe handlers",
    source: "ASH, section 6.2, table 6-3",
    own_network: false,
    run,
};

/// Bytes that a message writes.
const SIZES: [usize; 2] = [40, 4096];
/// Messages in a round, and rounds.
const MESSAGES: usize = 1_000;
const UNCACHED: usize = 64;
const QUICK: usize = 15;
const FULL: usize = 201;

const INSTRUCTIONS: &str = "Instructions of a remote write, without data";

/// The contestants, with their names in figures.
const WRITERS: [(RemoteWrite, &str); 4] = [
    (RemoteWrite::Sandboxed, "sandboxed"),
    (RemoteWrite::Unsafe, "unsafe"),
    (RemoteWrite::Generic, "generic"),
    (RemoteWrite::Function, "function"),
];

const NOTES: [&str; 9] = [
    "Definition (section 6.3): `the time the sandboxed handler takes, divided by the time the unsafe handler \
     takes`, both in the kernel, in isolation (6.2). Here both are handlers of the same dispatch, with the \
     same budget, memory and message (`Sandboxer::trust`); the unsafe one is native code that checks nothing, \
     the sandboxed one is WebAssembly that calls the trusted copy of table 5-1.",
    "`factor_40`, `factor_4096`: the message and its place are flushed from the caches before each message, as \
     the driver of the thesis does before it invokes an ASH and as its microbenchmarks do at every iteration \
     (6.3). Its figures agree with that: 28 more instructions (table 6-3) are 0.7 us at 40 MHz, which is 1.3 of \
     40 bytes at the 20 MB/s of an uncached copy (table 6-4). The flushes and the clock are not in the times.",
    "Flushed and cached factors are both factors of the sandbox, of different machines: flushed, the time of the data hides \
     that of the instructions; cached, the instructions are nearly all of the time. The summary has both.",
    "Flushed, a handler waits for two lines of memory, one after the other: that of the message, which has the place, and \
     that of the place, as the atomic operation that charges the budget waits for the stores before it. The function \
     does not wait for its stores.",
    "The interval of a flushed factor is that of the rounds of one run, in which the memory of each contestant stays where \
     it is. Runs differ by more: for 40 bytes, one at d3471d5 had 0.91 (0.906 to 0.922), and one at 40fd60c had 1.04 (1.033 to \
     1.057). Why is not known. So a factor below 1 does not say that the sandbox is faster than native code.",
    "`factor_*_cached`: the same, all in the first-level cache, which a message that has just been received is \
     not far from. A copy of 4,096 bytes then takes as long as two entries of the sandbox.",
    "`function_factor_*`: the sandboxed handler over a native function that nothing dispatches and whose \
     memory is the program's. It has the cost of the dispatch in it, and is not the factor of the thesis.",
    "`generic`: the untrusted remote write of 6.2, with segment, offset and size from the message and a table of \
     segments, as an unsafe handler.",
    "Instructions: the difference of 24,000 and 4,000 invocations under callgrind, outside the kernel, with messages \
     without data. `dispatch`, a handler that does nothing, is common to all but the function.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    pin(&[SERVER_CORE])?;
    let others = OtherPrograms::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    for bytes in SIZES {
        measure(cx, bytes, &mut outcome)?;
    }
    if let Err(failure) = count(&mut outcome) {
        outcome.notes.push(format!("Instructions are not counted: {failure}."));
    }
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

fn measure(cx: &Context, bytes: usize, outcome: &mut Outcome) -> Result<(), Failure> {
    let mut cached = Vec::new();
    let mut uncached = Vec::new();
    for (what, name) in WRITERS {
        let mut writer = Writer::new(what, bytes)?;
        cached.push(Contestant::new(name, move || Ok(ns_each(MESSAGES, || writer.write()))));
        let mut writer = Writer::new(what, bytes)?;
        uncached.push(Contestant::new(name, move || {
            let clock = (0..UNCACHED).map(|_| ns_each(1, || {})).sum::<f64>();
            let sum = (0..UNCACHED).map(|_| writer.write_flushed()).sum::<f64>();
            Ok((sum - clock) / UNCACHED as f64)
        }));
    }
    let rounds = if cx.quick { QUICK } else { FULL };
    run_rounds(cx, rounds, &mut cached)?;
    run_rounds(cx, rounds, &mut uncached)?;
    let factor = if bytes == 40 { "1.3 to 1.4" } else { "1.01 to 1.02" };
    for (all, kind) in [(&uncached, ""), (&cached, "_cached")] {
        let place = if kind.is_empty() { "not in the caches" } else { "in the cache" };
        let figure = format!("Time of a remote write of {bytes} bytes, {place}");
        bars(outcome, &figure, "ns", "measured", all);
        outcome.paper(&figure, &format!("ASH, section 6.2: a sandboxing factor of {factor}."));
        let name = format!("factor_{bytes}{kind}");
        ratio(outcome, &name, "ash", all, ("sandboxed", "unsafe"));
        let name = format!("sandboxed_over_generic_{bytes}{kind}");
        ratio(outcome, &name, "ash", all, ("sandboxed", "generic"));
    }
    let median = |all: &[Contestant<'_>]| {
        let pairs = values(all, "sandboxed").iter().zip(values(all, "unsafe"));
        spread(&pairs.map(|(sandboxed, other)| sandboxed / other).collect::<Vec<_>>())
            .map_or(f64::NAN, |factor| factor.median)
    };
    outcome.shows.push(format!(
        "Sandboxing factor of {bytes} bytes: {:.2} in the caches, {:.2} flushed from them.",
        median(&cached),
        median(&uncached)
    ));
    for (all, kind) in [(&uncached, ""), (&cached, "_cached")] {
        let name = format!("function_factor_{bytes}{kind}");
        ratio(outcome, &name, "ash", all, ("sandboxed", "function"));
    }
    let added = values(&cached, "sandboxed").iter().zip(values(&cached, "unsafe"));
    let name = format!("sandbox_ns_{bytes}");
    outcome.ratio(name, "ash", added.map(|(sandboxed, other)| sandboxed - other).collect());
    Ok(())
}

/// Counts instructions, as in table 6-3.
fn count(outcome: &mut Outcome) -> Result<(), Failure> {
    let callgrind = Callgrind::find()?;
    let dispatch = callgrind.count_invocations(RemoteWrite::Nothing, 0)?;
    let mut add = |name: &str, value: f64| {
        let y = Spread { median: value, low: value, high: value };
        outcome.point(INSTRUCTIONS, "", "counted", X::Name(name.to_owned()), y);
    };
    add("dispatch", dispatch);
    let mut beyond = Vec::new();
    for (what, name) in WRITERS {
        let all = callgrind.count_invocations(what, 0)?;
        add(name, all);
        if what != RemoteWrite::Function {
            beyond.push((name, all - dispatch));
        }
    }
    for (name, instructions) in beyond {
        outcome.count(format!("{name}_instructions"), "ash", instructions);
    }
    let (sandboxed, other) = (
        callgrind.count_invocations(RemoteWrite::Sandboxed, 40)?,
        callgrind.count_invocations(RemoteWrite::Unsafe, 40)?,
    );
    outcome.count("instruction_factor_40", "ash", sandboxed / other);
    outcome.paper(
        INSTRUCTIONS,
        "ASH, table 6-3: 68 generic and untrusted, 38 sandboxed, 10 unsafe, without the copying of data.",
    );
    Ok(())
}
