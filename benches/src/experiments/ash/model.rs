//! The parameters of chapter 7 on this machine, and what its model recommends with them.

use std::hint::black_box;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::model::{Machine, ProcessState, Strategy, Workload};
use ash_sandbox::sandbox::Handler;
use ash_sandbox::upcall::Channel;
use signal_hook::consts::SIGUSR1;

use super::super::{Context, Experiment};
use super::scheduling::{Busy, Policy};
use super::server::{Placement, Server, Setup, UpcallProcess};
use super::{Contestant, handler, ns_each, run_rounds, values};
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, OtherPrograms, SERVER_CORE, pin};
use crate::outcome::{Outcome, X};
use crate::statistics::{Spread, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-model",
    title: "the machine parameters of the cost model, and where it recommends ASHs and upcalls",
    source: "ASH, chapter 7, tables 7-2 and 7-5, figures 7-4 to 7-11",
    own_network: false,
    run,
};

const PARAMETERS: &str = "Machine parameters";
const COMPARISON: &str = "Round trip beyond that of an ASH";
const FASTEST: &str = "Time of the fastest strategy";
const QUICK: usize = 5;
const FULL: usize = 51;

/// Lengths of handlers in us: an increment, a look-up, a small page, and the study's shortest one.
const HANDLERS_US: [f64; 4] = [0.1, 1.0, 5.0, 20.0];
/// Sandboxing factors of the maps, in percent.
const FACTORS: std::ops::RangeInclusive<i32> = 100..=400;

const SUCCESS: &str = "ASH, in and out";
const ABORT: &str = "ASH, in and abort";
const OTHER_ASH: &str = "two ASHs in turn";
const UPCALL: &str = "upcall";
const SWITCH: &str = "to another process";
const INTERRUPT: &str = "interrupt";
const POLL: &str = "poll";
const QUANTUM: &str = "quantum";

const NOTES: [&str; 7] = [
    "ASH: a handler that does nothing. The equations use only the sums of set-up and clean-up, so the \
     set-up has the whole of a successful invocation. The switch is the additional time of two handlers \
     in turn, half of it for each direction.",
    "Upcall: a message through the shared ring to a process on the same core, and its answer, half of the time for \
     each direction: its set-up contains the switch. Context switch: a byte through a pipe, likewise.",
    "Interrupt: a signal that the thread sends to itself, until it was handled.",
    "Poll: a word that two cores share, from the store of one to the load of the other.",
    "Quantum: the pause of a thread that computes beside another one on its core.",
    "Maps: n_p = 1 and f = 1/8, as in the study.",
    "Predicted and measured (table 7-6): round trips of the remote increment beyond those of an ASH, while one busy \
     process shares the core; the thread of the ring and the upcall process are real-time where that is permitted, \
     the application sleeps and is normal. `polling`: it polls, and no other process is busy; it shares the core with the \
     thread of the ring, which runs before it, and the model's poll does not have the switch to it. What all have in \
     common, such as TCP, is not in the model. Longer handlers (table 7-7) are predicted by the maps, and not measured.",
];

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
    parameters(&machines, &mut outcome);
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
    compare(cx, &typical, &mut outcome)?;
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Returns the parameters, in us, from the measured times in ns.
pub(super) fn machine(ns: impl Fn(&str) -> f64) -> Machine {
    let us = |name| ns(name) / 1e3;
    let success = us(SUCCESS);
    Machine {
        ash_setup_us: success,
        ash_switch_us: ((us(OTHER_ASH) - success) / 2.0).max(0.0),
        ash_abort_us: (us(ABORT) - success).max(0.0),
        ash_success_us: 0.0,
        upcall_setup_us: us(UPCALL),
        upcall_switch_us: 0.0,
        upcall_abort_us: us(UPCALL),
        upcall_success_us: us(UPCALL),
        interrupt_setup_us: us(INTERRUPT),
        context_switch_us: us(SWITCH),
        poll_setup_us: us(POLL),
        quantum_us: us(QUANTUM),
    }
}

/// One parameter of a machine.
type Parameter = (&'static str, fn(&Machine) -> f64);

/// The parameters with their names in table 7-2.
const TABLE: [Parameter; 12] = [
    ("t_a,i", |m| m.ash_setup_us),
    ("t_a,c", |m| m.ash_switch_us),
    ("t_a,a", |m| m.ash_abort_us),
    ("t_a,s", |m| m.ash_success_us),
    ("t_u,i", |m| m.upcall_setup_us),
    ("t_u,c", |m| m.upcall_switch_us),
    ("t_u,a", |m| m.upcall_abort_us),
    ("t_u,s", |m| m.upcall_success_us),
    ("t_i,i", |m| m.interrupt_setup_us),
    ("t_c", |m| m.context_switch_us),
    ("t_p,i", |m| m.poll_setup_us),
    ("t_q", |m| m.quantum_us),
];

fn parameters(machines: &[Machine], outcome: &mut Outcome) {
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

/// Returns the measurements, each in ns.
pub(super) fn contestants() -> Result<Vec<Contestant<'static>>, Failure> {
    let mut success = Invoked::new("")?;
    let mut abort = Invoked::new("(return (i32.const -1))")?;
    let (mut one, mut other) = (Invoked::new("")?, Invoked::new("")?);
    let mut process = Process::start()?;
    let mut upcall = UpcallRing::start()?;
    let handled = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGUSR1, Arc::clone(&handled))?;
    Ok(vec![
        Contestant::new(SUCCESS, move || Ok(ns_each(INVOCATIONS, || success.once()))),
        Contestant::new(ABORT, move || Ok(ns_each(INVOCATIONS, || abort.once()))),
        Contestant::new(OTHER_ASH, move || {
            Ok(ns_each(INVOCATIONS, || {
                one.once();
                other.once();
            }) / 2.0)
        }),
        Contestant::new(UPCALL, move || Ok(upcall.round_trip_ns()? / 2.0)),
        Contestant::new(SWITCH, move || Ok(process.round_trip_ns()? / 2.0)),
        Contestant::new(INTERRUPT, move || interrupt_ns(&handled)),
        Contestant::new(POLL, || Ok(poll_ns())),
        Contestant::new(QUANTUM, quantum_ns),
    ])
}

/// Invocations, and round trips, in a round.
const INVOCATIONS: usize = 10_000;
const ROUND_TRIPS: usize = 500;
/// Turns of each core in a round; few, as another program may have one of them.
const TURNS: u64 = 50;

struct Invoked {
    handler: Handler,
    start: usize,
    now: Instant,
}

impl Invoked {
    fn new(body: &str) -> Result<Self, Failure> {
        let handler = handler(body)?;
        let start = handler.memory().message_area().start;
        Ok(Invoked { handler, start, now: Instant::now() })
    }

    fn once(&mut self) {
        black_box(self.handler.handle(self.start..self.start + 8, 7, 0, self.now));
    }
}

/// Another process on the same core, which returns each byte.
struct Process {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Process {
    fn start() -> Result<Self, Failure> {
        // It inherits the core.
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::new("cannot start cat", e))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| Failure::Run("no pipes".to_owned()))?;
        Ok(Process { child, input, output })
    }

    fn round_trip_ns(&mut self) -> Result<f64, Failure> {
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            self.input.write_all(&[0])?;
            self.output.read_exact(&mut [0])?;
        }
        Ok(start.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process for upcalls on the same core.
struct UpcallRing {
    _process: UpcallProcess,
    channel: Channel,
}

impl UpcallRing {
    fn start() -> Result<Self, Failure> {
        let (process, channel) = UpcallProcess::spawn()?;
        Ok(UpcallRing { _process: process, channel })
    }

    fn round_trip_ns(&mut self) -> Result<f64, Failure> {
        let event = self.channel.answer_event();
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            let lost = || Failure::Run("the process for upcalls does not answer".to_owned());
            self.channel.submit(&[1; 8], 1, Instant::now()).ok_or_else(lost)?;
            while self.channel.next_done().is_none() {
                if !event.wait(Duration::from_secs(10))? {
                    return Err(lost());
                }
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64)
    }
}

/// Round trips of a server in a round of the comparison with the model.
const COMPARED: usize = 300;

/// The states in which predictions are compared, and what the application does at a message there.
const COMPARED_STATES: [(&str, ProcessState, Strategy); 2] = [
    ("", ProcessState::Blocked, Strategy::Interrupt),
    (", polling", ProcessState::Spinning, Strategy::Poll),
];

/// Compares predictions with round trips, as in table 7-6: the application sleeps beside a busy process, or it polls.
fn compare(cx: &Context, machine: &Machine, outcome: &mut Outcome) -> Result<(), Failure> {
    pin(&[CLIENT_CORE])?;
    let owner = super::rtt::owner_policy(outcome);
    let workload = Workload { handler_us: 0.1, sandboxing_factor: 1.25, ..Workload::default() };
    for (suffix, state, of_user) in COMPARED_STATES {
        let polls = state == ProcessState::Spinning;
        let mut all = Vec::new();
        for (name, placement) in [
            ("ash", Placement::Ash),
            ("upcall", Placement::UpcallProcess),
            ("user level", Placement::User),
        ] {
            let setup = Setup { placement, server: owner, application: Policy::Normal, polls };
            all.push(Contestant::new(name, move || {
                let mut server = Server::with(setup)?;
                // The application that polls is busy itself.
                let _busy = Busy::start(usize::from(!polls))?;
                server.round_trips(COMPARED / 10, Duration::ZERO)?;
                Ok(super::rtt::median(&server.round_trips(COMPARED, Duration::ZERO)?))
            }));
        }
        run_rounds(cx, if cx.quick { QUICK } else { 15 }, &mut all)?;
        let predicted = |strategy| machine.time_us(strategy, &workload, state).unwrap_or(f64::NAN);
        for (name, strategy) in [("upcall", Strategy::Upcall), ("user level", of_user)] {
            let more = predicted(strategy) - predicted(Strategy::Ash);
            let pairs = values(&all, name).iter().zip(values(&all, "ash"));
            let measured: Vec<_> = pairs.map(|(other, ash)| other - ash).collect();
            let exact = Spread { median: more, low: more, high: more };
            let name = format!("{name}{suffix}");
            outcome.point(COMPARISON, "us", "predicted", X::Name(name.clone()), exact);
            if let Some(y) = spread(&measured) {
                outcome.point(COMPARISON, "us", "measured", X::Name(name.clone()), y);
            }
            let name =
                format!("measured_over_predicted_{}", name.replace(", ", "_").replace(' ', "_"));
            outcome.ratio(name, "ash", measured.iter().map(|us| us / more).collect());
        }
    }
    outcome.paper(
        COMPARISON,
        "ASH, table 7-6, remote increment on Aegis, in us: an upcall 15.8 predicted and 19.5 measured, an interrupt \
         34.6 predicted and 48 measured.",
    );
    Ok(())
}

fn interrupt_ns(handled: &AtomicBool) -> Result<f64, Failure> {
    let start = Instant::now();
    for _ in 0..ROUND_TRIPS {
        handled.store(false, Ordering::Relaxed);
        signal_hook::low_level::raise(SIGUSR1)?;
        while !handled.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64)
}

/// Two threads on two cores increment a word in turn.
fn poll_ns() -> f64 {
    let word = AtomicU64::new(0);
    let last = 2 * TURNS;
    let turns = |first: u64| {
        for value in (first..last).step_by(2) {
            while word.load(Ordering::Acquire) != value {
                std::hint::spin_loop();
            }
            word.store(value + 1, Ordering::Release);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            // On one core, each turn takes a quantum, which the figure shows.
            let _ = pin(&[CLIENT_CORE]);
            turns(1);
        });
        // The first turn waits for the thread.
        while word.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {}
        while word.load(Ordering::Acquire) < 2 {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        turns(2);
        start.elapsed().as_nanos() as f64 / (last - 2) as f64
    })
}

/// The time in which a thread looks for pauses, and the shortest that is one.
const WATCH: Duration = Duration::from_millis(60);
const MIN_PAUSE: Duration = Duration::from_micros(200);

fn quantum_ns() -> Result<f64, Failure> {
    let _busy = Busy::start(1)?;
    let (start, mut last, mut pauses) = (Instant::now(), Instant::now(), Vec::new());
    // Until there was a pause, even if the scheduler first runs this thread for long.
    while start.elapsed() < WATCH || pauses.is_empty() {
        let now = Instant::now();
        if now - last > MIN_PAUSE {
            pauses.push((now - last).as_nanos() as f64);
        }
        last = now;
        if start.elapsed() > 100 * WATCH {
            return Err(Failure::Run("no thread on the same core ever ran".to_owned()));
        }
    }
    Ok(spread(&pauses).map_or(f64::NAN, |pauses| pauses.median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_parameters_follow_from_the_measured_times() {
        let machine = machine(|name| match name {
            SUCCESS => 50.0,
            ABORT => 70.0,
            OTHER_ASH => 60.0,
            SWITCH | UPCALL => 2_000.0,
            INTERRUPT => 1_000.0,
            POLL => 100.0,
            _ => 3_000_000.0,
        });
        let us = TABLE.map(|(_, parameter)| parameter(&machine));
        let expected = [0.05, 0.005, 0.02, 0.0, 2.0, 0.0, 2.0, 2.0, 1.0, 2.0, 0.1, 3_000.0];
        assert!(us.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{us:?}");
    }

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

    #[test]
    fn every_parameter_is_measured() {
        let mut all = contestants().unwrap();
        for contestant in &mut all {
            assert!((contestant.measure)().unwrap() > 0.0, "{}", contestant.name);
        }
    }
}
