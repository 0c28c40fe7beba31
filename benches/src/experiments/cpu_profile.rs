//! The CPU profile of a proxy with many idle connections.

use std::time::Instant;

use load_generator::RunEvent;

use super::{Context, Experiment, servers};
use crate::failure::Failure;
use crate::measure::{
    Conditions, OtherPrograms, Peer, Perf, Recording, SOURCES, Server, Share, Site, load,
};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "cpu-profile",
    title: "the CPU share that a proxy spends on event notification, with 750 idle and 50 busy \
                connections at 400 requests per second",
    source: "Banga, Mogul and Druschel, section 7.3, table 2",
    own_network: true,
    run,
};

/// Prefixes of the kernel functions that belong to event notification, by mechanism.
const EVENTS: [(&str, &[&[&str]]); 5] = [
    ("select", &[&["do_select", "core_sys_select", "do_pselect", "__x64_sys_pselect6"], SCAN]),
    (
        "poll",
        &[
            &["do_sys_poll", "do_poll", "__x64_sys_poll", "__x64_sys_ppoll", "_copy_from_user"],
            SCAN,
        ],
    ),
    ("epoll", &[EPOLL, STATE]),
    ("interest", &[EPOLL, &["do_sys_poll", "do_poll", "__x64_sys_poll"], SCAN]),
    ("uring", &[&["io_", "__io_", "__do_sys_io_uring"], STATE]),
];
const EPOLL: &[&str] = &["ep_", "epoll", "do_epoll", "__x64_sys_epoll"];
/// Functions that query the state of a socket.
const STATE: &[&str] = &["sock_poll", "tcp_poll"];
/// Functions that scan all descriptors at every wait.
const SCAN: &[&str] = &[
    "sock_poll",
    "tcp_poll",
    "__pollwait",
    "pollwake",
    "poll_freewait",
    "poll_select",
    "fdget",
    "fget",
    "fput",
];

const ROUNDS: usize = 5;

const FIGURE: &str = "Share of the core at 400 requests per second, 750 idle connections";

/// Maximum number of functions listed in a note.
const MAX_FUNCTIONS: usize = 12;

const NOTES: [&str; 3] = [
    "The example proxy with all of core 0; web server and clients on core 1. A file of 1 KB; the 50 \
     busy connections are kept open. Shares are of the total time of the core, including idle time: the \
     CPU time of the proxy, multiplied by the share of the functions in perf's samples.",
    "As in the paper, a function counts without its callees. `event notification` counts the kernel \
     functions that serve only this purpose, such as `do_select`, `tcp_poll` and `ep_*`; for io_uring, \
     all functions whose names begin with `io_`, which also perform the operations.",
    "The kernel's work on packet arrival, such as waking the waiting thread, runs on the sender's core \
     and is not counted.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let perf = Perf::find()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    outcome.machine.versions.insert("perf".to_owned(), perf.version.clone());
    let site = Site::bare(b"")?;
    let on_client_core = Conditions { cores: &[1], ..Conditions::default() };
    let origin = Server::start_under(&Peer::Ours("epoll").subject(), &site, &on_client_core)?;
    let conditions = Conditions { upstream: Some(origin.address()), ..Conditions::default() };
    let others = OtherPrograms::watch()?;
    let mechanisms = servers::available(&EVENTS.map(|(name, _)| name));
    let rounds = if cx.quick { 1 } else { ROUNDS };
    cx.progress.set_length((rounds * mechanisms.len()) as u64);
    let mut runs: Vec<Vec<ProfileRun>> = mechanisms.iter().map(|_| Vec::new()).collect();
    for mut round in cx.rounds(rounds) {
        for i in round.order(mechanisms.len()) {
            cx.progress.set_message(mechanisms[i]);
            let seed = round.load_seed.to_string();
            let run = measure(cx, &perf, mechanisms[i], &seed, &site, &conditions, &mut outcome)?;
            runs[i].push(run);
            cx.progress.inc(1);
        }
    }
    for (mechanism, runs) in mechanisms.iter().zip(&runs) {
        report(mechanism, runs, &mut outcome);
    }
    paper(&mut outcome);
    // The CPU time of a child counts as ours only after it has ended.
    drop(origin);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Shares of the core, in percent, in one run.
struct ProfileRun {
    busy: f64,
    events: f64,
    /// The functions with the largest shares.
    functions: String,
}

/// Runs a mechanism once.
fn measure(
    cx: &Context,
    perf: &Perf,
    mechanism: &'static str,
    seed: &str,
    site: &Site,
    conditions: &Conditions<'_>,
    outcome: &mut Outcome,
) -> Result<ProfileRun, Failure> {
    let mut server = Server::start_under(&Peer::Proxy(mechanism).subject(), site, conditions)?;
    server.check_reply("/1k.txt", 1 << 10)?;
    let seconds = if cx.quick { "6" } else { "10" };
    let args =
        ["--rate", "400", "--connections", "50", "--idle-connections", "750", "--seed", seed];
    let args = [&args[..], &["--warm-up", "1", "--duration", seconds], &SOURCES].concat();
    let (mut recording, mut readings) = (None, Vec::new());
    let observed = load(&format!("http://{}/1k.txt", server.address()), &args, |moment| {
        if let RunEvent::MeasurementStart = moment {
            recording = Some(perf.record(server.family())?);
        }
        readings.push((Instant::now(), server.cpu()?));
        Ok(())
    })?;
    // perf takes a while to write its report.
    let shares = recording.map_or(Ok(Vec::new()), Recording::end)?;
    let [(begin, before), (end, after)] = &readings[..] else {
        let reason = observed.partial.unwrap_or_else(|| "the run ended early".to_owned());
        return Err(Failure::Run(format!("{mechanism}: {reason}")));
    };
    if observed.replies < observed.due {
        outcome.notes.push(format!(
            "{mechanism}: {} of {} requests failed.",
            observed.due - observed.replies,
            observed.due
        ));
    }
    outcome.notes.extend(observed.doubts.iter().map(|doubt| format!("{mechanism}: {doubt}.")));
    let busy = after.since(before) as f64 / 1e7 / (*end - *begin).as_secs_f64();
    let events = events(mechanism, &shares) * busy / 100.0;
    let functions = shares.iter().take(MAX_FUNCTIONS);
    let functions = functions.map(|s| format!("{} {:.2} %", s.function, s.percent * busy / 100.0));
    let functions = functions.collect::<Vec<_>>().join(", ");
    Ok(ProfileRun { busy, events, functions })
}

/// Adds the shares of a mechanism, and the functions of its last run.
fn report(mechanism: &str, runs: &[ProfileRun], outcome: &mut Outcome) {
    let of = |share: fn(&ProfileRun) -> f64| runs.iter().map(share).collect::<Vec<_>>();
    let (idle, events) = (of(|run| 100.0 - run.busy), of(|run| run.events));
    let other = of(|run| run.busy - run.events);
    for (name, percent) in [("idle", &idle), ("event notification", &events), ("other", &other)] {
        if let Some(y) = spread(percent) {
            outcome.point(FIGURE, "%", mechanism, X::Name(name.to_owned()), y);
        }
    }
    outcome.ratio(format!("{mechanism}_event_percent"), mechanism, events);
    outcome.ratio(format!("{mechanism}_idle_percent"), mechanism, idle);
    if let Some(run) = runs.last() {
        outcome.notes.push(format!("{mechanism}, top functions: {}.", run.functions));
    }
}

/// Adds the results and the paper's table.
fn paper(outcome: &mut Outcome) {
    let spent = outcome.ratios.iter().filter_map(|(name, percent)| {
        Some(format!("{} {:.2} %", name.strip_suffix("_event_percent")?, percent.value))
    });
    let spent: Vec<_> = spent.collect();
    outcome.shows.push(format!(
        "Share of the core for event notification: {}. (The paper: 33.51 % with the classical select(), \
         12.02 % with an improved one, 0.68 % with the new interface.)",
        spent.join(", ")
    ));
    let table = [
        ("paper: select()", 18.09, 33.51),
        ("paper: improved select()", 33.01, 12.02),
        ("paper: new interface", 59.01, 0.68),
    ];
    for (name, idle, events) in table {
        for (what, percent) in
            [("idle", idle), ("event notification", events), ("other", 100.0 - idle - events)]
        {
            if let Some(y) = spread(&[percent]) {
                outcome.point(FIGURE, "%", name, X::Name(what.to_owned()), y);
            }
        }
    }
    outcome.paper(
        FIGURE,
        "Banga et al., table 2, on a 500 MHz Alpha: the series whose names begin with `paper`.",
    );
}

/// Returns the percentage of the samples that belongs to event notification.
fn events(mechanism: &str, shares: &[Share]) -> f64 {
    let entry = EVENTS.iter().find(|(name, _)| *name == mechanism);
    let prefixes = entry.map_or(&[][..], |(_, prefixes)| prefixes).concat();
    let belongs = |s: &&Share| s.kernel && prefixes.iter().any(|p| s.function.starts_with(p));
    shares.iter().filter(belongs).map(|share| share.percent).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernel_functions_count_as_events() {
        let share = |percent, kernel, function: &str| Share {
            percent,
            kernel,
            function: function.to_owned(),
        };
        let all = [
            share(10.0, true, "ep_send_events"),
            share(5.0, true, "do_epoll_wait"),
            share(2.0, false, "epoll_wait"),
            share(40.0, true, "tcp_sendmsg"),
        ];
        assert_eq!(events("epoll", &all), 15.0);
        assert_eq!(events("unknown", &all), 0.0);
    }
}
