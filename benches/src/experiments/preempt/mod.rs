//! Time until a computing program accepts a connection, and kernel entries per connection.

mod client;
mod server;

use std::iter;
use std::sync::atomic::AtomicUsize;
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use send_core::kernel::{Delivery, SendKernel};
use shared_ring::poller::Epoll;
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{EngineConfig, Kernel, PortableKernel};

use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{OtherPrograms, SERVER_CORE, pin, raise_descriptors};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios_until_failure, spread};

use client::{Load, RUNNING};
use server::{Arrived, CHUNK, Duty, Server};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "preempt",
    title: "the time from a connect until a computing program accepts it, and kernel entries per \
                connection",
    source: "SEND, sections 3.2 and 4.7, the modes of figure 4.11; goal of this project: waiting takes \
                 at least 10 times as long, and at most 0.05 entries per event above saturation",
    own_network: false,
    run,
};

/// Rates, as multiples of saturation.
const QUICK: [f64; 3] = [LIGHT, TWICE, 3.0];
const FULL: [f64; 7] = [0.2, LIGHT, 0.8, 1.2, 1.5, TWICE, 3.0];
const LIGHT: f64 = 0.5;
/// The load at which entries above saturation are counted.
const TWICE: f64 = 2.0;

/// Seconds before the measurement.
const WARM_UP: f64 = 0.25;

const BACKGROUND: &str = "Time to accept during a background computation";
const OVER_SEND: &str = "Median time to accept over that of send";
const P50: &str =
    "Median time to accept below saturation, against load as a multiple of saturation";
const P99: &str = "99th percentile of the time to accept below saturation, against load as a multiple of saturation";
const ABOVE: &str =
    "Median time to accept above saturation, against load as a multiple of saturation";
const ENTRIES: &str = "Kernel entries per connection, against load as a multiple of saturation";

const NOTES: [&str; 7] = [
    "The server computes for 1 ms at a time, without system calls, and never sleeps. How long waiting \
     takes follows from that: a connection comes in the middle of a computation, on average. \
     `wait_mode_over_send` is the median time to accept of `uring` over that of `send` during a \
     background computation; connections are closed between computations, and 1,000 per second arrive, \
     so none waits for another. For the curves the server computes once for each connection, and in the \
     background when there is none; it saturates at 1,000 connections per second, the unit of load. \
     Server on core 0, client on core 1; connections are due at random times (Poisson), independent of \
     earlier ones.",
    "Times run from before connect(2) until the program has the connection in its memory. During a \
     computation the program checks the length of the queue of new connections, filled by a handler, \
     about once per microsecond; the return from the handler is included. Connections are accepted in \
     the order of their connects, which matches the two.",
    "`send` is interrupted. `send-ps2` has connections accepted at once, and checks between two \
     computations. `send-ps1` and `uring`, the wait mode (a ring with DEFER_TASKRUN), have them accepted \
     at their next wait, `epoll` by its next accept(2). These three work through a batch before the next \
     wait, as a server does.",
    "Above saturation `send` is not interrupted while more than 32 new connections are queued, as this \
     would bring nothing; they are taken at its next wait, at most 64 completions later. Its times are \
     then those of a batch. The times of the other mechanisms that process batches grow throughout the \
     load, so they depend on the length of a run.",
    "Kernel entries: every system call of the mechanism (waits; for epoll also accept(2) and close(2), \
     where a ring performs closes at its waits; the call by which `send` unblocks its signal), and two \
     for each interruption: the signal, and sigreturn(2) at the end of its handler. Hardware interrupts, \
     such as the timer's, are equal for all and not counted. An idle program waits after each \
     computation, at most 1,000 times per second.",
    "`kernel_entries_per_event_loaded` is that of `send` at twice saturation, per accepted connection, \
     after the first 0.25 s.",
    "The background computation and the loads of half and twice saturation, of which the ratios are, are measured in every \
     round, the other loads in the first one.",
];

/// A mechanism under test.
struct Subject {
    name: &'static str,
    run: fn(Duty, Load) -> Result<Observation, Failure>,
}

const SUBJECTS: [Subject; 5] = [
    Subject { name: "send", run: |duty, load| sending(Delivery::Preemptive, duty, load) },
    Subject { name: "send-ps2", run: |duty, load| sending(Delivery::Ps2, duty, load) },
    Subject { name: "send-ps1", run: |duty, load| sending(Delivery::Ps1, duty, load) },
    Subject { name: "uring", run: waiting },
    Subject { name: "epoll", run: polling },
];
const SEND: usize = 0;
const WAIT: usize = 3;

/// The results of one run.
struct Observation {
    p50_us: f64,
    p99_us: f64,
    entries: f64,
}

/// The runs of one subject at one load, one per round.
struct Runs {
    duty: Duty,
    load: f64,
    observed: Vec<Observation>,
}

impl Runs {
    /// Returns whether ratios are taken of them. The others are measured in the first round only.
    fn has_ratio(&self) -> bool {
        self.duty == Duty::Background || [LIGHT, TWICE].contains(&self.load)
    }

    fn of(&self, what: impl Fn(&Observation) -> f64) -> Vec<f64> {
        self.observed.iter().map(what).collect()
    }
}

/// All runs of one subject.
struct Measured {
    subject: &'static Subject,
    runs: Vec<Runs>,
    /// The error that ended its measurement.
    failed: Option<Failure>,
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    if available_parallelism()?.get() < 2 {
        let what = "preempt needs two cores: a client on the server's core would preempt it";
        return Err(Failure::Run(what.to_owned()));
    }
    raise_descriptors();
    let (loads, rounds, seconds) =
        if cx.quick { (&QUICK[..], 2, 0.5) } else { (&FULL[..], 7, 2.0) };
    let others = OtherPrograms::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let mut measured: Vec<_> =
        SUBJECTS.iter().map(|subject| Measured::new(subject, loads)).collect();
    let all: Vec<_> = (0..measured[SEND].runs.len()).collect();
    let compared: Vec<_> =
        all.iter().copied().filter(|case| measured[SEND].runs[*case].has_ratio()).collect();
    let steps = all.len() + (rounds - 1) * compared.len();
    cx.progress.set_length((steps * SUBJECTS.len()) as u64);
    for mut round in cx.rounds(rounds) {
        for &case in if round.number == 0 { &all } else { &compared } {
            for i in round.order(measured.len()) {
                let one = &mut measured[i];
                cx.progress.set_message(one.subject.name);
                one.measure(case, seconds, round.load_seed.wrapping_add(case as u64));
                cx.progress.inc(1);
            }
        }
    }
    // All ratios are relative to `send`.
    if let Some(failure) = measured[SEND].failed.take() {
        return Err(failure);
    }
    measured.iter().for_each(|one| figures(one, &mut outcome));
    compare(&measured, &mut outcome);
    papers(&mut outcome);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

impl Measured {
    fn new(subject: &'static Subject, loads: &[f64]) -> Self {
        let background = Runs { duty: Duty::Background, load: 1.0, observed: Vec::new() };
        let each =
            |load: &f64| Runs { duty: Duty::PerConnection, load: *load, observed: Vec::new() };
        let runs = iter::once(background).chain(loads.iter().map(each)).collect();
        Measured { subject, runs, failed: None }
    }

    /// Makes one run, unless an earlier one failed.
    fn measure(&mut self, case: usize, seconds: f64, seed: u64) {
        if self.failed.is_some() {
            return;
        }
        let Runs { duty, load, observed } = &mut self.runs[case];
        let rate = *load / CHUNK.as_secs_f64();
        let load = Load { rate, warm_up: WARM_UP, seconds: WARM_UP + seconds, seed };
        match in_thread(|| (self.subject.run)(*duty, load)) {
            Ok(run) => observed.push(run),
            Err(failure) => self.failed = Some(failure),
        }
    }

    /// Returns the runs of one kind.
    fn at(&self, duty: Duty, load: f64) -> Option<&Runs> {
        self.runs.iter().find(|runs| runs.duty == duty && runs.load == load)
    }
}

/// Runs in a new thread, as a control block belongs to a thread.
fn in_thread<R: Send>(run: impl FnOnce() -> Result<R, Failure> + Send) -> Result<R, Failure> {
    let done = thread::scope(|scope| scope.spawn(run).join());
    done.unwrap_or_else(|_| Err(Failure::Run("the server thread panicked".to_owned())))
}

fn config(mode: Mode) -> UringConfig {
    UringConfig::new(mode, 4096, 1, 64)
}

fn sending(delivery: Delivery, duty: Duty, load: Load) -> Result<Observation, Failure> {
    let kernel = SendKernel::new(&config(delivery.mode()), delivery)
        .map_err(|e| Failure::new("cannot create a ring whose completions are events", e))?;
    serve(kernel, Some(SendKernel::arrived), duty, load)
}

fn waiting(duty: Duty, load: Load) -> Result<Observation, Failure> {
    let kernel = UringKernel::new(&config(Mode::Deferred))
        .map_err(|e| Failure::new("cannot create a ring", e))?;
    serve(kernel, None, duty, load)
}

fn polling(duty: Duty, load: Load) -> Result<Observation, Failure> {
    let config = EngineConfig::new(4096, 1, 64);
    let kernel = Epoll::new().and_then(|poller| PortableKernel::new(poller, &config));
    let kernel = kernel.map_err(|e| Failure::new("cannot create an epoll instance", e))?;
    serve(kernel, None, duty, load)
}

fn serve<K: Kernel>(
    kernel: K,
    arrived: Arrived<K>,
    duty: Duty,
    load: Load,
) -> Result<Observation, Failure> {
    let (server, address) = Server::new(kernel, arrived, duty)?;
    let total = AtomicUsize::new(RUNNING);
    let warm_end = Instant::now() + Duration::from_secs_f64(load.warm_up);
    thread::scope(|scope| {
        let client = scope.spawn(|| client::run(address, load, &total));
        // Pinned only now, as a new thread inherits the affinity of its creator.
        let served = pin(&[SERVER_CORE])
            .map_err(Failure::from)
            .and_then(|()| server.serve(&total, warm_end));
        let broken = |_| Failure::Run("the client thread panicked".to_owned());
        let started = client.join().map_err(broken)?;
        // The server's error comes first, as it may have caused the client's.
        let (served, started) = (served?, started?);
        let pairs =
            started.iter().zip(&served.accepted).filter(|(started, _)| **started >= warm_end);
        let us = |(started, accepted): (&Instant, &Instant)| {
            (*accepted - *started).as_nanos() as f64 / 1e3
        };
        let mut times: Vec<f64> = pairs.map(us).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = (times.len() as f64 * share) as usize;
            times
                .get(place)
                .copied()
                .ok_or_else(|| Failure::Run("no connection was accepted".to_owned()))
        };
        Ok(Observation { p50_us: at(0.5)?, p99_us: at(0.99)?, entries: served.entries_per_event })
    })
}

fn figures(of: &Measured, outcome: &mut Outcome) {
    let name = of.subject.name;
    if let Some(failure) = &of.failed {
        outcome.notes.push(format!("{name} failed: {failure}"));
    }
    for runs in &of.runs {
        let mut add = |figure, unit, series: &str, x, values: &[f64]| {
            if let Some(y) = spread(values) {
                outcome.point(figure, unit, series, x, y);
            }
        };
        let (p50, p99) = (runs.of(|observed| observed.p50_us), runs.of(|observed| observed.p99_us));
        if runs.duty == Duty::Background {
            let x = || X::Name(name.to_owned());
            add(BACKGROUND, "us", "median", x(), &p50);
            add(BACKGROUND, "us", "99th percentile", x(), &p99);
            continue;
        }
        let x = || X::Number(runs.load);
        if runs.load < 1.0 {
            add(P50, "us", name, x(), &p50);
            add(P99, "us", name, x(), &p99);
        } else {
            add(ABOVE, "ms", name, x(), &runs.of(|observed| observed.p50_us / 1e3));
        }
        add(ENTRIES, "", name, x(), &runs.of(|observed| observed.entries));
    }
}

/// Adds the ratios of the goals and the finding.
fn compare(measured: &[Measured], outcome: &mut Outcome) {
    let times = |k: usize| {
        let background = measured[k].at(Duty::Background, 1.0);
        background.map_or(Vec::new(), |runs| runs.of(|observed| observed.p50_us))
    };
    for (k, one) in measured.iter().enumerate().filter(|(k, _)| *k != SEND) {
        let each = ratios_until_failure(&times(k), &times(SEND));
        if let Some(ratio) = spread(&each) {
            let name = if k == WAIT { "wait_mode" } else { one.subject.name };
            outcome.ratio(format!("{}_over_send", name.replace('-', "_")), "send", each);
            outcome.point(
                OVER_SEND,
                "times",
                "measured",
                X::Name(one.subject.name.to_owned()),
                ratio,
            );
        }
    }
    let entries = |load| {
        let runs = measured[SEND].at(Duty::PerConnection, load);
        runs.map_or(Vec::new(), |runs| runs.of(|observed| observed.entries))
    };
    outcome.ratio("kernel_entries_per_event_light", "send", entries(LIGHT));
    outcome.ratio("kernel_entries_per_event_loaded", "send", entries(TWICE));
    let Some((light, loaded)) = spread(&entries(LIGHT)).zip(spread(&entries(TWICE))) else {
        return;
    };
    let Some((send, wait)) = spread(&times(SEND)).zip(spread(&times(WAIT))) else { return };
    outcome.shows.push(format!(
        "A program that computes for 1 ms at a time has a connection {:.0} us after the start of its \
         connect if events interrupt it, and after {:.0} us if it polls between computations (medians), \
         which follows from the length of a computation. \
         For each connection `send` enters the kernel {:.2} times at half of saturation, and {:.3} times \
         at twice.",
        send.median, wait.median, light.median, loaded.median
    ));
}

fn papers(outcome: &mut Outcome) {
    outcome.paper(
        ABOVE,
        "SEND, section 4.7: the time of accept() is the most likely cause of the difference between its \
             servers. PS2, which has connections accepted at once, behaves like SEND, and PS1, which has \
         them accepted at a wait, like /dev/poll.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000 connections per second for a fifth of a second. All count: on a busy machine, the server
    /// may accept the last one before a warm-up ends.
    const LOAD: Load = Load { rate: 1_000.0, warm_up: 0.0, seconds: 0.2, seed: 1 };

    #[test]
    fn every_available_mechanism_accepts_every_connection() {
        for duty in [Duty::Background, Duty::PerConnection] {
            for subject in &SUBJECTS {
                match in_thread(|| (subject.run)(duty, LOAD)) {
                    Ok(observed) => {
                        assert!(
                            observed.p50_us > 0.0 && observed.p99_us >= observed.p50_us,
                            "{}",
                            subject.name
                        );
                        assert!(observed.entries > 0.0, "{}", subject.name);
                    }
                    Err(failure) => {
                        assert_ne!(subject.name, "epoll");
                        assert!(failure.to_string().contains("io_uring"), "{failure}");
                    }
                }
            }
        }
    }

    #[test]
    fn constants_select_the_named_subjects_and_loads() {
        assert_eq!([SUBJECTS[SEND].name, SUBJECTS[WAIT].name], ["send", "uring"]);
        for loads in [&QUICK[..], &FULL[..]] {
            let measured = Measured::new(&SUBJECTS[SEND], loads);
            for (duty, load) in [
                (Duty::Background, 1.0),
                (Duty::PerConnection, LIGHT),
                (Duty::PerConnection, TWICE),
            ] {
                assert!(measured.at(duty, load).is_some());
            }
        }
    }
}
