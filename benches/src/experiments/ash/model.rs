//! The parameters of chapter 7 on this machine, and what its model recommends with them.

use ash_sandbox::model::{Machine, ProcessState, Strategy, Workload};

use super::super::{Context, Experiment};
use super::comparison;
use super::parameters::{
    self, OTHER_CORE, POLL_REPLY, REPLY, SUCCESS, TABLE, contestants, machine,
};
use super::{run_rounds, values};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, SERVER_CORE, pin};
use crate::outcome::{Outcome, X};
use crate::statistics::{Spread, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-model",
    title: "the machine parameters of the cost model, and where it recommends ASHs and upcalls",
    source: "ASH, chapter 7, tables 7-2 and 7-5 to 7-7, figures 7-4 to 7-11",
    own_network: false,
    run,
};

const PARAMETERS: &str = "Machine parameters";
const REPLIES: &str = "Replies of the application, in t_i,i and t_p,i";
const NOT_MODELLED: &str = "Times that the model has no parameter for";
const FASTEST: &str = "Time of the fastest strategy";
const QUICK: usize = 5;
const FULL: usize = 51;

/// Lengths of handlers in us: an increment, a look-up, a small page, and the study's shortest one.
const HANDLERS_US: [f64; 4] = [0.1, 1.0, 5.0, 20.0];
/// Sandboxing factors of the maps, in percent.
const FACTORS: std::ops::RangeInclusive<i32> = 100..=400;

const MAPS: &str = "Maps: n_p = 1 and f = 1/8, as in the study, for this machine only. The study's handlers take 20, 50, 125 and \
     200 us on a processor of 40 MHz, where an ASH's set-up takes 5.4 us and a switch 24.5. Here these take 0.02 and 2.0, compared \
     with which handlers of 0.1, 1 and 5 us are about as long as those of the study; one of 20 us is the study's shortest.";

fn run(cx: &Context) -> Result<Outcome, Failure> {
    pin(&[SERVER_CORE])?;
    let others = OtherPrograms::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let mut all = contestants()?;
    run_rounds(cx, if cx.quick { QUICK } else { FULL }, &mut all)?;
    let rounds = values(&all, SUCCESS).len();
    let machines: Vec<_> =
        (0..rounds).map(|round| machine(|name| values(&all, name)[round])).collect();
    let typical = machine(|name| spread(values(&all, name)).map_or(0.0, |all| all.median));
    table(&machines, &mut outcome);
    for (figure, name) in [(REPLIES, REPLY), (REPLIES, POLL_REPLY), (NOT_MODELLED, OTHER_CORE)] {
        let us: Vec<_> = values(&all, name).iter().map(|ns| ns / 1e3).collect();
        if let Some(y) = spread(&us) {
            outcome.point(figure, "us", "measured", X::Name(name.to_owned()), y);
        }
    }
    outcome.shows.push(format!("The machine, in us, for `Governor::new`: {typical}."));
    map(&typical, &mut outcome);
    // The prediction for the increment of a process that waits, as in table 6-6.
    let workload = Workload { handler_us: 0.1, sandboxing_factor: 1.25, ..Workload::default() };
    let time = |machine: &Machine, strategy| {
        machine.time_us(strategy, &workload, ProcessState::Blocked).unwrap_or(f64::NAN)
    };
    for (name, strategy) in [
        ("predicted_user_over_ash", Strategy::Interrupt),
        ("predicted_upcall_over_ash", Strategy::Upcall),
    ] {
        let over = |machine: &Machine| time(machine, strategy) / time(machine, Strategy::Ash);
        outcome.ratio(name, "ash", machines.iter().map(over).collect());
    }
    outcome.paper(
        PARAMETERS,
        "ASH, table 7-5, Aegis on a DECstation 5000/240, in us: t_a,i 5.4, t_a,c 0.4, t_a,a and t_a,s 1.7, \
         t_u,i 26, t_u,c 0.4, t_u,a and t_u,s 4.9, t_i,i 22, t_c 24.5, t_p,i 20.9, t_q 15,625.",
    );
    drop(all);
    comparison::compare(cx, &typical, &mut outcome)?;
    outcome.notes.extend(others.note()?);
    let notes = parameters::NOTES.into_iter().chain([MAPS]).chain(comparison::NOTES);
    outcome.notes.extend(notes.map(str::to_owned));
    Ok(outcome)
}

fn table(machines: &[Machine], outcome: &mut Outcome) {
    for (name, parameter) in TABLE {
        let us: Vec<_> = machines.iter().map(parameter).collect();
        if let Some(y) = spread(&us) {
            outcome.point(PARAMETERS, "us", "measured", X::Name(name.to_owned()), y);
        }
    }
}

/// Adds the maps: for each length of the handler and state of the process, the sandboxing factor up to which
/// an ASH is best, against the probability of aborts; 0 where it is never.
fn map(machine: &Machine, outcome: &mut Outcome) {
    for handler_us in HANDLERS_US {
        let figure =
            format!("Sandboxing factor up to which an ASH is best, handler of {handler_us} us");
        let mut best = Vec::new();
        for state in ProcessState::ALL {
            let name = format!("{state:?}");
            for step in 0..=10 {
                let aborts = f64::from(step) / 10.0;
                let y = limit(machine, handler_us, aborts, state);
                let y = Spread { median: y, low: y, high: y };
                outcome.point(&figure, "", &name, X::Number(aborts), y);
            }
            let workload = Workload { handler_us, sandboxing_factor: 1.25, ..Workload::default() };
            let strategy = machine.recommend(&workload, state);
            best.push(format!("{strategy:?} while {name}"));
            let y = machine.time_us(strategy, &workload, state).unwrap_or(f64::NAN);
            let y = Spread { median: y, low: y, high: y };
            outcome.point(FASTEST, "us", &name, X::Number(handler_us), y);
        }
        outcome.shows.push(format!(
            "Recommended for a handler of {handler_us} us that never aborts, with a sandboxing factor of \
             1.25: {}.",
            best.join(", ")
        ));
    }
}

fn limit(machine: &Machine, handler_us: f64, aborts: f64, state: ProcessState) -> f64 {
    let is_best = |factor: &f64| {
        let workload = Workload { handler_us, sandboxing_factor: *factor, ..Workload::default() };
        machine.recommend(&workload.aborting(aborts), state) == Strategy::Ash
    };
    let factors = FACTORS.map(|percent| f64::from(percent) / 100.0);
    factors.take_while(is_best).last().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_the_thesis_machine_are_those_of_its_figures() {
        let limits = |machine, handler_us, state| {
            [0.0, 0.5, 1.0].map(|aborts| limit(machine, handler_us, aborts, state))
        };
        // Figure 7-5: for 20 us, an ASH is best at every factor of the figure unless it always aborts.
        let [never, half, always] = limits(&Machine::ULTRIX, 20.0, ProcessState::Blocked);
        assert!(never > 2.0 && half > 2.0 && always == 0.0, "{never} {half} {always}");
        // Figure 7-10: for 200 us, polling is better than nearly any ASH.
        assert!(limits(&Machine::AEGIS, 200.0, ProcessState::Spinning)[0] < 1.1);
    }
}
