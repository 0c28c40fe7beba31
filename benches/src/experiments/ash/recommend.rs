//! `lab recommend`: where a handler should run on this machine, by the model of chapter 7.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use ash_sandbox::model::{Machine, ProcessState, Strategy, Workload};
use ash_sandbox::sandbox::{Handler, Outcome, Pass, Policy, Sandboxer};

use super::parameters::{contestants, machine};
use super::{handler, remote_write};
use crate::command::{Recommend, State};
use crate::failure::Failure;
use crate::measure::{SERVER_CORE, pin};
use crate::say::say;
use crate::statistics::spread;

/// Measurements of each parameter of the machine, and invocations of the handler.
const ROUNDS: usize = 5;
const INVOCATIONS: usize = 20_000;
/// The sandboxing factor, if no option names it.
const ASSUMED_FACTOR: f64 = 1.25;
/// The factors up to which an ASH may be the fastest, in percent.
const FACTORS: std::ops::RangeInclusive<u32> = 100..=1_000;

/// Measures a handler and the machine, and prints what the model recommends.
pub(crate) fn recommend(options: &Recommend) -> Result<(), Failure> {
    let messages = options.message.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    pin(&[SERVER_CORE])?;
    let mut measured = load(&options.handler)?;
    let measured = Measured::of(&mut measured, &messages)?;
    let workload = workload(&measured, options);
    say(format!(
        "Handler: {:.2} us in the sandbox, {:.2} us without ({} factor {}); passes on {:.0} % of the messages, after {:.0} % \
         of its time.",
        workload.handler_us * workload.sandboxing_factor,
        workload.handler_us,
        if options.sandboxing_factor.is_some() { "given" } else { "assumed" },
        workload.sandboxing_factor,
        workload.ash_abort_probability * 100.0,
        workload.share_before_abort * 100.0,
    ))?;
    let machine = this_machine()?;
    say(format!("Machine, in us, for `Governor::new`: {machine}"))?;
    for line in table(&machine, &workload, options.state) {
        say(line)?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|e| Failure::new(format_args!("cannot read {}", path.display()), e))
}

/// Loads a module, in its binary or its text format.
fn load(path: &Path) -> Result<Handler, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::new(path.display(), e);
    let wasm = wat::parse_bytes(&read(path)?).map_err(|e| failed(&e))?.into_owned();
    let policy = Policy::default().with(|p| p.operations_per_second = remote_write::PLENTY);
    let ash = Sandboxer::new(policy).and_then(|sandboxer| sandboxer.load(&wasm));
    ash.and_then(|ash| ash.instantiate(1)).map_err(|e| failed(&e))
}

/// Times of a handler, in us, without those of an empty one.
#[derive(Debug)]
struct Measured {
    /// Of messages that it has handled or discarded; if there are none, of those that it has passed on.
    handled_us: f64,
    /// Of messages that it has passed on, if there are any.
    passed_us: Option<f64>,
    /// The share of the messages that it has passed on.
    passed: f64,
}

impl Measured {
    /// Invokes a handler with all messages in turn.
    ///
    /// # Errors
    /// If it does not get a message.
    fn of(measured: &mut Handler, messages: &[Vec<u8>]) -> Result<Self, Failure> {
        let empty = times(&mut handler("")?, messages)?;
        let empty_us = empty.get(&false).copied().map_or(0.0, |(_, us)| us);
        let times = times(measured, messages)?;
        let own_us = |(_, us): &(usize, f64)| (us - empty_us).max(0.0);
        let passed_us = times.get(&true).map(own_us);
        let handled_us = times.get(&false).map(own_us).or(passed_us).unwrap_or(0.0);
        let passed = times.get(&true).map_or(0, |(count, _)| *count) as f64 / INVOCATIONS as f64;
        Ok(Measured { handled_us, passed_us, passed })
    }
}

/// Returns the number and the median time in us of the messages that a handler has passed on (`true`), and of the others.
fn times(
    handler: &mut Handler,
    messages: &[Vec<u8>],
) -> Result<BTreeMap<bool, (usize, f64)>, Failure> {
    let mut all: BTreeMap<bool, Vec<f64>> = BTreeMap::new();
    for message in messages.iter().cycle().take(INVOCATIONS) {
        // Involuntary aborts are a part of what is measured.
        handler.enable();
        let start = Instant::now();
        let outcome = handler.handle_copy(message, 7, start);
        let us = start.elapsed().as_nanos() as f64 / 1e3;
        let skipped = match &outcome {
            Outcome::Passed(Pass::TooLong) => Some("it is longer than the room for messages"),
            Outcome::Passed(Pass::OverBudget) => Some("the operations of a second are used up"),
            // Nothing else keeps a message from a handler that is on and has no governor.
            _ => None,
        };
        if let Some(reason) = skipped {
            let what = format_args!("the handler gets no message of {} bytes", message.len());
            return Err(Failure::new(what, reason));
        }
        all.entry(matches!(outcome, Outcome::Passed(_))).or_default().push(us);
    }
    let median = |us: Vec<f64>| (us.len(), spread(&us).map_or(0.0, |us| us.median));
    Ok(all.into_iter().map(|(is_passed, us)| (is_passed, median(us))).collect())
}

/// Returns the workload of a handler: what was measured, unless an option says otherwise.
fn workload(measured: &Measured, options: &Recommend) -> Workload {
    let factor = options.sandboxing_factor.unwrap_or(ASSUMED_FACTOR);
    let Measured { handled_us, passed_us, passed } = *measured;
    let share = passed_us.filter(|_| passed < 1.0 && handled_us > 0.0);
    let share = share.map(|passed_us| (passed_us / handled_us).min(1.0));
    let share = options.share_before_abort.or(share);
    let workload = Workload {
        handler_us: handled_us / factor,
        sandboxing_factor: factor,
        share_before_abort: share.unwrap_or(Workload::default().share_before_abort),
        other_processes: options.other_processes.into(),
        ..Workload::default()
    };
    workload.aborting(options.abort_probability.unwrap_or(passed))
}

/// Measures the parameters of this machine, as `ash-model` does.
fn this_machine() -> Result<Machine, Failure> {
    let mut medians = BTreeMap::new();
    for mut contestant in contestants()? {
        let values = (0..ROUNDS).map(|_| (contestant.measure)()).collect::<Result<Vec<_>, _>>()?;
        medians.insert(contestant.name, spread(&values).map_or(f64::NAN, |ns| ns.median));
    }
    Ok(machine(|name| medians.get(name).copied().unwrap_or(f64::NAN)))
}

/// Returns the lines with the time of each strategy, the sandboxing factor up to which an ASH is the fastest, and the fastest.
fn table(machine: &Machine, workload: &Workload, state: Option<State>) -> Vec<String> {
    let names = ["ASH", "upcall", "interrupt", "poll"];
    let header = names.map(|name| format!("{name:>12}")).concat();
    let mut lines = vec![format!("{:16}{header}   ASH up to   fastest, in us", "process")];
    for (name, of) in [
        ("spinning", ProcessState::Spinning),
        ("busy", ProcessState::Busy),
        ("blocked", ProcessState::Blocked),
        ("busy-suspended", ProcessState::BusySuspended),
    ] {
        if state.is_some_and(|state| state.model() != of) {
            continue;
        }
        let time = |strategy| match machine.time_us(strategy, workload, of) {
            Some(us) => format!("{us:>12.2}"),
            None => format!("{:>12}", "-"),
        };
        let fastest = machine.recommend(workload, of);
        let at = Strategy::ALL.iter().position(|strategy| *strategy == fastest).unwrap_or(0);
        let times = Strategy::ALL.map(time).concat();
        let factor = match factor_of_ash(machine, workload, of) {
            Some(factor) => format!("{factor:.2}"),
            None => "-".to_owned(),
        };
        lines.push(format!("{name:16}{times}{factor:>12}   {}", names[at]));
    }
    lines
}

/// Returns the highest sandboxing factor with which an ASH is the fastest, of a handler whose time in the sandbox stays.
fn factor_of_ash(machine: &Machine, workload: &Workload, state: ProcessState) -> Option<f64> {
    let sandboxed_us = workload.handler_us * workload.sandboxing_factor;
    let is_best = |factor: &f64| {
        let (handler_us, sandboxing_factor) = (sandboxed_us / factor, *factor);
        let workload = Workload { handler_us, sandboxing_factor, ..*workload };
        machine.recommend(&workload, state) == Strategy::Ash
    };
    FACTORS.map(|percent| f64::from(percent) / 100.0).take_while(is_best).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(change: impl FnOnce(&mut Recommend)) -> Recommend {
        let mut options = Recommend {
            handler: Default::default(),
            message: Vec::new(),
            sandboxing_factor: None,
            abort_probability: None,
            share_before_abort: None,
            state: None,
            other_processes: 1,
        };
        change(&mut options);
        options
    }

    #[test]
    fn workload_is_what_was_measured_unless_an_option_says_otherwise() {
        let measured = Measured { handled_us: 2.5, passed_us: Some(0.5), passed: 0.25 };
        let of = |change: fn(&mut Recommend)| workload(&measured, &options(change));
        let all = of(|_| {});
        assert_eq!((all.handler_us, all.sandboxing_factor), (2.0, 1.25));
        assert_eq!((all.ash_abort_probability, all.share_before_abort), (0.25, 0.2));
        let all = of(|o| (o.abort_probability, o.share_before_abort) = (Some(0.5), Some(1.0)));
        assert_eq!((all.upcall_abort_probability, all.share_before_abort), (0.5, 1.0));
        // The share is unknown if all messages are passed on.
        let never = Measured { handled_us: 0.5, passed_us: Some(0.5), passed: 1.0 };
        assert_eq!(workload(&never, &options(|_| {})).share_before_abort, 1.0 / 8.0);
    }

    #[test]
    fn table_names_the_fastest_for_each_state() {
        let workload = Workload { handler_us: 200.0, ..Workload::default() };
        let lines = table(&Machine::ULTRIX, &workload.aborting(1.0), None);
        let fastest: Vec<_> =
            lines[1..].iter().map(|line| line.rsplit("   ").next().unwrap()).collect();
        assert_eq!(fastest, ["poll", "interrupt", "interrupt", "interrupt"]);
        let lines = table(&Machine::ULTRIX, &workload, Some(State::Blocked));
        assert!(lines.len() == 2 && lines[1].ends_with("ASH"), "{lines:?}");
    }

    #[test]
    fn recommendation_hid_that_it_depends_on_an_assumed_factor() {
        // 20 us in the sandbox, in a process that an upcall or interrupt reaches in 5 and 8 us.
        let machine = Machine {
            ash_setup_us: 0.0,
            ash_success_us: 0.0,
            upcall_setup_us: 5.0,
            upcall_success_us: 0.0,
            interrupt_setup_us: 8.0,
            ..Machine::AEGIS
        };
        let of = |factor| {
            let workload = Workload {
                handler_us: 20.0 / factor,
                sandboxing_factor: factor,
                ..Workload::default()
            };
            (
                machine.recommend(&workload, ProcessState::Busy),
                factor_of_ash(&machine, &workload, ProcessState::Busy),
            )
        };
        // 20 us are less than 5 and 20 / 1.33 us.
        assert_eq!(of(1.25), (Strategy::Ash, Some(1.33)));
        assert_eq!(of(1.5), (Strategy::Upcall, Some(1.33)));
        let aborts = Workload::default().aborting(1.0);
        assert_eq!(factor_of_ash(&Machine::ULTRIX, &aborts, ProcessState::Busy), None);
    }

    #[test]
    fn share_of_messages_that_a_handler_passes_on_is_counted() {
        let mut measured = handler(
            "(if (i32.eqz (i32.load8_u (local.get $offset))) (then (return (i32.const -1))))",
        );
        let measured =
            Measured::of(measured.as_mut().unwrap(), &[vec![0], vec![1], vec![2], vec![3]]);
        assert_eq!(measured.unwrap().passed, 0.25);
    }

    #[test]
    fn message_that_the_handler_does_not_get_counted_as_passed_on() {
        let measured = Measured::of(&mut handler("").unwrap(), &[vec![0], vec![0; 1 << 20]]);
        let error = measured.unwrap_err().to_string();
        assert!(error.contains("no message of 1048576 bytes: it is longer"), "{error}");
    }
}
