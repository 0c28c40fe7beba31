//! How soon a program that computes knows of a connection, and how often the kernel is entered for it.

mod client;
mod server;

use std::iter;
use std::sync::atomic::AtomicUsize;
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use send_core::{Delivery, SendKernel};
use shared_ring::poller::Epoll;
use shared_ring::{EngineConfig, Kernel, Mode, PortableKernel, UringConfig, UringKernel};

use super::{Context, Experiment};
use crate::failure::Failure;
use crate::measure::{Others, SERVER_CORE, pin, raise_descriptors};
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

use client::{ENDLESS, Load};
use server::{Arrived, CHUNK, Duty, Server};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "preempt",
    title: "the time from a connect until a program that computes knows of it, and entries into the \
            kernel for each connection",
    source: "SEND, sections 3.2 and 4.7, the modes of figure 4.11; goal of this project: waiting takes \
             at least 10 times as long, and above saturation 0.05 entries for each event suffice",
    own_network: false,
    run,
};

/// Rates, as multiples of what the server can compute for.
const QUICK: [f64; 3] = [LIGHT, TWICE, 3.0];
const FULL: [f64; 7] = [0.2, LIGHT, 0.8, 1.2, 1.5, TWICE, 3.0];
const LIGHT: f64 = 0.5;
/// Where entries above saturation are counted.
const TWICE: f64 = 2.0;

/// Seconds before a run counts.
const WARM_UP: f64 = 0.25;

const ASIDE: &str = "Time to accept while the program computes for something else";
const BESIDE: &str = "Median time to accept over that of send";
const P50: &str =
    "Median time to accept below saturation, against load as a multiple of saturation";
const P99: &str = "99th percentile of the time to accept below saturation, against load as a multiple of saturation";
const ABOVE: &str =
    "Median time to accept above saturation, against load as a multiple of saturation";
const ENTRIES: &str =
    "Kernel entries for each connection, against load as a multiple of saturation";

const NOTES: [&str; 6] = [
    "The server computes for 1 ms at a time; it makes no system call meanwhile, and never sleeps. \
     `wait_mode_over_send` is the median time to accept of `uring` over that of `send` while it computes \
     for something else and closes connections between, of which 1,000 come in a second: so none waits \
     for another. For the curves it computes for each connection, and for something else when there is \
     none; it is saturated at 1,000 connections per second, of which load is a multiple. Server on core \
     0, client on core 1; connections are due at random (Poisson), whatever became of those before.",
    "Times run from before connect(2) to when the program has the connection in its memory. What a \
     handler has put into the queue of new connections the program sees while it computes, by a look \
     at the queue's length about once in a microsecond; the return from the handler is in the time. \
     Connections are accepted in the order of their connects, by which the two are matched.",
    "`send` is interrupted. `send-ps2` has connections accepted at once, and looks between two \
     computations. `send-ps1` and `uring`, the wait mode (a ring with DEFER_TASKRUN), have them \
     accepted at their next wait, `epoll` by its next accept(2). With these three a batch is worked \
     through before the next wait, as it is in a server.",
    "Above saturation `send` is not interrupted while more than 32 new connections wait, since that \
     would bring nothing; they come at its next wait, at most 64 completions later. Its times are then \
     those of a batch. The times of the others that work through batches grow for as long as the load \
     goes on, so they tell of the length of a run, too.",
    "Entries into the kernel: every system call that the mechanism makes (waits; for epoll accept(2) \
     and close(2), too, where a ring has closes done at its waits; the call by which `send` lets its \
     signal through again), and two for each interruption: the signal, and sigreturn(2) by which its \
     handler ends. Interrupts of the machine, such as its clock's, are the same for all and do not \
     count. A program with little to do waits after each computation, 1,000 times a second at most.",
    "`kernel_entries_per_event_loaded` is that of `send` at twice saturation, for each connection that \
     was accepted, when 0.25 s have passed.",
];

/// A way to be told of connections.
struct Subject {
    name: &'static str,
    run: fn(Duty, Load) -> Result<Observation, Failure>,
}

const SUBJECTS: [Subject; 5] = [
    Subject { name: "send", run: |work, load| sending(Delivery::Preemptive, work, load) },
    Subject { name: "send-ps2", run: |work, load| sending(Delivery::Ps2, work, load) },
    Subject { name: "send-ps1", run: |work, load| sending(Delivery::Ps1, work, load) },
    Subject { name: "uring", run: waiting },
    Subject { name: "epoll", run: polling },
];
const SEND: usize = 0;
const WAIT: usize = 3;

/// What one run has shown.
struct Observation {
    p50_us: f64,
    p99_us: f64,
    entries: f64,
}

/// The runs of one subject at one load, one for each round.
struct Runs {
    work: Duty,
    load: f64,
    seen: Vec<Observation>,
}

impl Runs {
    fn of(&self, what: impl Fn(&Observation) -> f64) -> Vec<f64> {
        self.seen.iter().map(what).collect()
    }
}

/// All runs of one subject.
struct Measured {
    subject: &'static Subject,
    runs: Vec<Runs>,
    /// Why it was given up.
    failed: Option<Failure>,
}

fn run(cx: &Context) -> Result<Outcome, Failure> {
    if available_parallelism()?.get() < 2 {
        let what = "preempt needs two cores: a client on the server's would interrupt it itself";
        return Err(Failure::Run(what.to_owned()));
    }
    raise_descriptors();
    let (loads, rounds, seconds) =
        if cx.quick { (&QUICK[..], 2, 0.5) } else { (&FULL[..], 5, 2.0) };
    let others = Others::watch()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let mut measured: Vec<_> =
        SUBJECTS.iter().map(|subject| Measured::new(subject, loads)).collect();
    let cases = measured[SEND].runs.len();
    cx.progress.set_length((rounds * cases * SUBJECTS.len()) as u64);
    for round in 0..rounds {
        for case in 0..cases {
            // The first round is never left out.
            if round > 0 && cx.is_late() {
                break;
            }
            for one in &mut measured {
                cx.progress.set_message(one.subject.name);
                one.measure(case, seconds, (round * cases + case) as u64);
                cx.progress.inc(1);
            }
        }
    }
    // Without it there is nothing to compare with.
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
        let aside = Runs { work: Duty::Aside, load: 1.0, seen: Vec::new() };
        let each = |load: &f64| Runs { work: Duty::Each, load: *load, seen: Vec::new() };
        let runs = iter::once(aside).chain(loads.iter().map(each)).collect();
        Measured { subject, runs, failed: None }
    }

    /// Makes one run, unless one has failed.
    fn measure(&mut self, case: usize, seconds: f64, seed: u64) {
        if self.failed.is_some() {
            return;
        }
        let Runs { work, load, seen } = &mut self.runs[case];
        let rate = *load / CHUNK.as_secs_f64();
        let load = Load { rate, seconds: WARM_UP + seconds, seed };
        match alone(|| (self.subject.run)(*work, load)) {
            Ok(run) => seen.push(run),
            Err(failure) => self.failed = Some(failure),
        }
    }

    /// The runs of one kind.
    fn at(&self, work: Duty, load: f64) -> Option<&Runs> {
        self.runs.iter().find(|runs| runs.work == work && runs.load == load)
    }
}

/// Runs in a thread of its own, as a control block belongs to one.
fn alone<R: Send>(run: impl FnOnce() -> Result<R, Failure> + Send) -> Result<R, Failure> {
    let done = thread::scope(|scope| scope.spawn(run).join());
    done.unwrap_or_else(|_| Err(Failure::Run("the thread that serves broke".to_owned())))
}

fn config(mode: Mode) -> UringConfig {
    UringConfig { mode, operations: 4096, buffers: 1, buffer_size: 64 }
}

fn sending(delivery: Delivery, work: Duty, load: Load) -> Result<Observation, Failure> {
    let kernel = SendKernel::new(&config(delivery.mode()), delivery)
        .map_err(|e| Failure::new("a ring whose completions are events", e))?;
    serve(kernel, Some(SendKernel::arrived), work, load)
}

fn waiting(work: Duty, load: Load) -> Result<Observation, Failure> {
    let kernel =
        UringKernel::new(&config(Mode::Deferred)).map_err(|e| Failure::new("a ring", e))?;
    serve(kernel, None, work, load)
}

fn polling(work: Duty, load: Load) -> Result<Observation, Failure> {
    let config = EngineConfig { operations: 4096, buffers: 1, buffer_size: 64 };
    let kernel = Epoll::new().and_then(|poller| PortableKernel::new(poller, &config));
    let kernel = kernel.map_err(|e| Failure::new("epoll", e))?;
    serve(kernel, None, work, load)
}

fn serve<K: Kernel>(
    kernel: K,
    arrived: Arrived<K>,
    work: Duty,
    load: Load,
) -> Result<Observation, Failure> {
    let (server, address) = Server::new(kernel, arrived, work)?;
    let total = AtomicUsize::new(ENDLESS);
    let warm = Instant::now() + Duration::from_secs_f64(WARM_UP);
    thread::scope(|scope| {
        let client = scope.spawn(|| client::run(address, load, &total));
        // Not before, as a new thread runs where its maker does.
        let served =
            pin(&[SERVER_CORE]).map_err(Failure::from).and_then(|()| server.serve(&total, warm));
        let broken = |_| Failure::Run("the thread of the client broke".to_owned());
        let began = client.join().map_err(broken)?;
        // It may be why the client failed.
        let (served, began) = (served?, began?);
        let pairs = began.iter().zip(&served.known).filter(|(began, _)| **began >= warm);
        let us = |(began, known): (&Instant, &Instant)| (*known - *began).as_nanos() as f64 / 1e3;
        let mut times: Vec<f64> = pairs.map(us).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = (times.len() as f64 * share) as usize;
            times.get(place).copied().ok_or_else(|| Failure::Run("no connection came".to_owned()))
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
        let (p50, p99) = (runs.of(|seen| seen.p50_us), runs.of(|seen| seen.p99_us));
        if runs.work == Duty::Aside {
            let x = || X::Name(name.to_owned());
            add(ASIDE, "us", "median", x(), &p50);
            add(ASIDE, "us", "99th percentile", x(), &p99);
            continue;
        }
        let x = || X::Number(runs.load);
        if runs.load < 1.0 {
            add(P50, "us", name, x(), &p50);
            add(P99, "us", name, x(), &p99);
        } else {
            add(ABOVE, "ms", name, x(), &runs.of(|seen| seen.p50_us / 1e3));
        }
        add(ENTRIES, "", name, x(), &runs.of(|seen| seen.entries));
    }
}

/// The ratios of the goals, and the sentence.
fn compare(measured: &[Measured], outcome: &mut Outcome) {
    let times = |k: usize| {
        let aside = measured[k].at(Duty::Aside, 1.0);
        aside.map_or(Vec::new(), |runs| runs.of(|seen| seen.p50_us))
    };
    for (k, one) in measured.iter().enumerate().filter(|(k, _)| *k != SEND) {
        if let Some(ratio) = spread(&ratios(&times(k), &times(SEND))) {
            let name = if k == WAIT { "wait_mode" } else { one.subject.name };
            outcome.ratios.insert(format!("{}_over_send", name.replace('-', "_")), ratio.median);
            outcome.point(BESIDE, "times", "here", X::Name(one.subject.name.to_owned()), ratio);
        }
    }
    let entries = |load| {
        let runs = measured[SEND].at(Duty::Each, load);
        spread(&runs.map_or(Vec::new(), |runs| runs.of(|seen| seen.entries)))
    };
    let Some((light, loaded)) = entries(LIGHT).zip(entries(TWICE)) else { return };
    outcome.ratios.insert("kernel_entries_per_event_light".to_owned(), light.median);
    outcome.ratios.insert("kernel_entries_per_event_loaded".to_owned(), loaded.median);
    let Some((send, wait)) = spread(&times(SEND)).zip(spread(&times(WAIT))) else { return };
    outcome.shows.push(format!(
        "A program that computes for 1 ms at a time knows of a connection {:.0} us after its connect \
         began when that interrupts it, and after {:.0} us when it asks between (medians). For each \
         connection `send` enters the kernel {:.2} times at half of saturation, and {:.3} times at twice.",
        send.median, wait.median, light.median, loaded.median
    ));
}

fn papers(outcome: &mut Outcome) {
    outcome.paper(
        ABOVE,
        "SEND, section 4.7: the time of accept() is most likely what makes the difference between its \
         servers. PS2, which has connections accepted at once, behaves like SEND, and PS1, which has \
         them accepted at a wait, like /dev/poll.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a tenth of a second that counts, 1,000 per second.
    const LOAD: Load = Load { rate: 1_000.0, seconds: WARM_UP + 0.1, seed: 1 };

    #[test]
    fn whoever_can_run_here_knows_of_every_connection() {
        for work in [Duty::Aside, Duty::Each] {
            for subject in &SUBJECTS {
                match alone(|| (subject.run)(work, LOAD)) {
                    Ok(seen) => {
                        assert!(
                            seen.p50_us > 0.0 && seen.p99_us >= seen.p50_us,
                            "{}",
                            subject.name
                        );
                        assert!(seen.entries > 0.0, "{}", subject.name);
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
    fn what_is_compared_is_who_it_is_taken_for() {
        assert_eq!([SUBJECTS[SEND].name, SUBJECTS[WAIT].name], ["send", "uring"]);
        for loads in [&QUICK[..], &FULL[..]] {
            let measured = Measured::new(&SUBJECTS[SEND], loads);
            for (work, load) in [(Duty::Aside, 1.0), (Duty::Each, LIGHT), (Duty::Each, TWICE)] {
                assert!(measured.at(work, load).is_some());
            }
        }
    }
}
