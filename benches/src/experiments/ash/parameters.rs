//! The parameters of a machine (ASH, tables 7-2 and 7-5), measured on the paths that messages take in a server of evring.

use std::hint::black_box;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::model::Machine;
use ash_sandbox::sandbox::Handler;

use super::request::Times;
use super::scheduling::{Busy, Policy};
use super::server::{Placement, Server, Setup};
use super::{Contestant, handle_landed, handler, ns_each};
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, pin};
use crate::statistics::spread;

pub(super) const SUCCESS: &str = "ASH, in and out";
const ABORT: &str = "ASH, in and abort";
const OTHER_ASH: &str = "two ASHs in turn";
const UPCALL_IN: &str = "to the upcall";
const UPCALL_OUT: &str = "back from the upcall";
const SWITCH: &str = "to another process";
const APPLICATION_IN: &str = "to the application that sleeps";
const POLL_IN: &str = "to the application that polls";
const QUANTUM: &str = "quantum";
/// The application's reply, from its code to the thread of the ring.
pub(super) const REPLY: &str = "reply of an application that slept";
pub(super) const POLL_REPLY: &str = "reply of an application that polls";
/// Not in the model: its machine has one processor.
pub(super) const OTHER_CORE: &str = "a word that two cores share";

pub(super) const NOTES: [&str; 6] = [
    "ASH: a handler that does nothing. The equations use only the sums of set-up and clean-up, so the \
     set-up has the whole of a successful invocation, and t_a,s is 0. The switch is the additional time of two \
     handlers in turn, half of it for each direction.",
    "Upcall, interrupt and poll are measured as in section 7.3: in the server, from the point where a handler would run to \
     the first line of the code that increments, in another process or in the thread of the application, both on the same \
     core; for an upcall, also from there until the thread of the ring has the reply, by a thread that waits for the process \
     and wakes the ring. The set-up of the upcall contains the switch, so t_u,c is 0. Its clean-up is the way \
     back, which an abort takes, too: t_u,a is t_u,s. A busy process shares the core, except while the application polls.",
    "Context switch: a byte through a pipe to another process on the same core, and back, half of it for each direction. The \
     interrupt is the rest of the way to an application that sleeps, as in section 7.3: t_i,i + t_c is what was measured.",
    "Poll: the application shares the core with the thread of the ring, as in the thesis with the kernel. One that polls on a \
     core of its own sees a message after the time of `a word that two cores share`, and no handler is then better.",
    "The reply of the application goes through a mailbox to the thread of the ring, which is woken and switched to. t_i,i and \
     t_p,i contain that way, as an upcall's clean-up does: an ASH has no such way, and what follows it is common to all. In the \
     thesis a process sends by a system call, which is the `message transmission` that figure 7-3 leaves out.",
    "Quantum: the pause of a thread that computes beside another one on its core.",
];

/// Returns the parameters, in us, from the measured times in ns.
pub(super) fn machine(ns: impl Fn(&str) -> f64) -> Machine {
    let us = |name| ns(name) / 1e3;
    let (success, switch) = (us(SUCCESS), us(SWITCH));
    Machine {
        ash_setup_us: success,
        ash_switch_us: ((us(OTHER_ASH) - success) / 2.0).max(0.0),
        ash_abort_us: (us(ABORT) - success).max(0.0),
        ash_success_us: 0.0,
        upcall_setup_us: us(UPCALL_IN),
        upcall_switch_us: 0.0,
        upcall_abort_us: us(UPCALL_OUT),
        upcall_success_us: us(UPCALL_OUT),
        // They have no clean-up in the model, so the set-up contains the reply.
        interrupt_setup_us: (us(APPLICATION_IN) - switch).max(0.0) + us(REPLY),
        context_switch_us: switch,
        poll_setup_us: us(POLL_IN) + us(POLL_REPLY),
        quantum_us: us(QUANTUM),
    }
}

/// One parameter of a machine.
type Parameter = (&'static str, fn(&Machine) -> f64);

/// The parameters with their names in table 7-2.
pub(super) const TABLE: [Parameter; 12] = [
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

/// Returns the measurements, each in ns.
pub(super) fn contestants() -> Result<Vec<Contestant<'static>>, Failure> {
    let mut success = Invoked::new("")?;
    let mut abort = Invoked::new("(return (i32.const -1))")?;
    let (mut one, mut other) = (Invoked::new("")?, Invoked::new("")?);
    let mut process = Process::start()?;
    let policy = Policy::of_ring_thread();
    let upcall = Setup::new(Placement::UpcallProcess, policy, false);
    let sleeps = Setup::new(Placement::User, policy, false);
    let polls = Setup::new(Placement::User, policy, true);
    let way = |name, setup, of: fn(&Times) -> f64| {
        Contestant::new(name, move || Ok(way_us(setup, of)? * 1e3))
    };
    Ok(vec![
        Contestant::new(SUCCESS, move || Ok(ns_each(INVOCATIONS, || success.once()))),
        Contestant::new(ABORT, move || Ok(ns_each(INVOCATIONS, || abort.once()))),
        Contestant::new(OTHER_ASH, move || {
            Ok(ns_each(INVOCATIONS, || {
                one.once();
                other.once();
            }) / 2.0)
        }),
        way(UPCALL_IN, upcall, |times| times.in_us),
        way(UPCALL_OUT, upcall, |times| times.out_us),
        Contestant::new(SWITCH, move || Ok(process.round_trip_ns()? / 2.0)),
        way(APPLICATION_IN, sleeps, |times| times.in_us),
        way(REPLY, sleeps, |times| times.out_us),
        way(POLL_IN, polls, |times| times.in_us),
        way(POLL_REPLY, polls, |times| times.out_us),
        Contestant::new(OTHER_CORE, || Ok(other_core_ns())),
        Contestant::new(QUANTUM, quantum_ns),
    ])
}

/// Invocations, and round trips, in a round.
const INVOCATIONS: usize = 10_000;
const ROUND_TRIPS: usize = 500;
/// Messages through a new server in a round, and those before them that are not counted.
const MESSAGES: usize = 100;
const WARM_UP: usize = 20;
/// Turns of each core in a round; few, as another program may have one of them.
const TURNS: u64 = 50;

/// Returns the median of a part of a message's times in a new server.
fn way_us(setup: Setup, of: fn(&Times) -> f64) -> Result<f64, Failure> {
    let measure = || -> Result<f64, Failure> {
        // The other measurements have the core of the server.
        pin(&[CLIENT_CORE])?;
        let mut server = Server::with(setup)?;
        // An application that polls is busy itself.
        let _busy = Busy::start(usize::from(!setup.polls))?;
        server.round_trips(WARM_UP, Duration::ZERO)?;
        let times = (0..MESSAGES).map(|_| server.times().map(|times| of(&times)));
        let times = times.collect::<Result<Vec<_>, _>>()?;
        Ok(spread(&times).map_or(f64::NAN, |us| us.median))
    };
    let panicked = |_| Failure::Run("a client panicked".to_owned());
    thread::scope(|scope| scope.spawn(measure).join().map_err(panicked)?)
}

struct Invoked {
    handler: Handler,
    now: Instant,
}

impl Invoked {
    fn new(body: &str) -> Result<Self, Failure> {
        Ok(Invoked { handler: handler(body)?, now: Instant::now() })
    }

    fn once(&mut self) {
        black_box(handle_landed(&mut self.handler, 8, self.now));
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

/// Two threads on two cores increment a word in turn.
fn other_core_ns() -> f64 {
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
    use ash_sandbox::model::{ProcessState, Strategy, Workload};

    use super::*;

    #[test]
    fn twelve_parameters_follow_from_the_measured_times() {
        let machine = machine(|name| match name {
            SUCCESS => 50.0,
            ABORT => 70.0,
            OTHER_ASH => 60.0,
            UPCALL_IN => 5_000.0,
            UPCALL_OUT => 6_000.0,
            SWITCH => 2_000.0,
            APPLICATION_IN => 7_000.0,
            REPLY => 8_000.0,
            POLL_IN => 3_000.0,
            POLL_REPLY => 9_000.0,
            QUANTUM => 3_000_000.0,
            // The model has no parameter for the other one.
            _ => f64::NAN,
        });
        let us = TABLE.map(|(_, parameter)| parameter(&machine));
        let expected = [0.05, 0.005, 0.02, 0.0, 5.0, 0.0, 6.0, 6.0, 13.0, 2.0, 12.0, 3_000.0];
        assert!(us.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{us:?}");
    }

    /// Medians of docs/results/ash-model.json at 7701253, in ns.
    fn measured_ns(name: &str) -> f64 {
        match name {
            SUCCESS | ABORT | OTHER_ASH => 21.0,
            UPCALL_IN => 6_439.0,
            UPCALL_OUT => 7_477.0,
            SWITCH => 2_013.0,
            APPLICATION_IN => 3_001.0,
            REPLY => 8_353.0,
            POLL_IN => 1_823.0,
            POLL_REPLY => 8_368.0,
            QUANTUM => 4_017_482.0,
            _ => f64::NAN,
        }
    }

    #[test]
    fn model_left_out_the_reply_of_the_application() {
        let machine = machine(measured_ns);
        // Round trips of the same run, beyond those of an ASH.
        for (state, strategy, measured_us) in [
            (ProcessState::Blocked, Strategy::Interrupt, 12.4),
            (ProcessState::Spinning, Strategy::Poll, 10.2),
        ] {
            let workload = |handler_us, factor| Workload {
                handler_us,
                sandboxing_factor: factor,
                ..Workload::default()
            };
            let us = |strategy| machine.time_us(strategy, &workload(0.1, 1.0), state).unwrap();
            let ratio = measured_us / (us(strategy) - us(Strategy::Ash));
            assert!((0.9..1.15).contains(&ratio), "{state:?}: {ratio}");
            // It lost 5 us in the sandbox.
            assert_eq!(machine.recommend(&workload(20.0, 1.25), state), Strategy::Ash);
            assert_eq!(machine.recommend(&workload(20.0, 2.0), state), strategy);
        }
    }

    #[test]
    fn every_contestant_measures_a_time() {
        let mut all = contestants().unwrap();
        for contestant in &mut all {
            assert!((contestant.measure)().unwrap() > 0.0, "{}", contestant.name);
        }
    }

    #[test]
    fn all_parameters_but_parts_of_others_follow_from_a_contestant() {
        let names: Vec<_> = contestants().unwrap().into_iter().map(|all| all.name).collect();
        let follows = |name: &str, parameter: &Parameter| {
            parameter.1(&machine(|other| if other == name { 1_000.0 } else { 0.0 })) > 0.0
        };
        let without: Vec<_> = TABLE
            .iter()
            .filter(|parameter| !names.iter().any(|name| follows(name, parameter)))
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(without, ["t_a,s", "t_u,c"]);
        for name in names.iter().filter(|name| *name != OTHER_CORE) {
            assert!(TABLE.iter().any(|parameter| follows(name, parameter)), "{name}");
        }
    }
}
