//! Where a proxy with many idle connections spends its time.

use std::time::Instant;

use load_generator::RunEvent;

use super::{Context, Experiment, contestants};
use crate::failure::Failure;
use crate::measure::{
    Conditions, Others, Peer, Perf, Recording, SOURCES, Server, Share, Site, load,
};
use crate::outcome::{Outcome, X};
use crate::statistics::spread;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "cpu-profile",
    title: "the share of the processor that a proxy spends on learning of events, with 750 idle and \
            50 busy connections at 400 requests per second",
    source: "Banga, Mogul and Druschel, section 7.3, table 2",
    own_network: true,
    run,
};

/// What belongs to learning of events: functions of the kernel whose names begin so.
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
/// What asks a socket for its state.
const STATE: &[&str] = &["sock_poll", "tcp_poll"];
/// What goes through all descriptors at every wait.
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

const FIGURE: &str = "Share of the core at 400 requests per second, 750 idle connections";

/// How many functions the table names.
const NAMED: usize = 12;

const NOTES: [&str; 3] = [
    "The proxy of the examples with all of core 0; web server and clients on core 1. A file of 1 KB; \
     the 50 busy connections are kept. Shares are of all time of the core, the idle time included: \
     the proxy's processor time, and of that the functions' part in perf's samples.",
    "As in the paper, a function counts by itself, without what it calls. `learning of events` \
     counts the functions of the kernel that serve this alone, such as `do_select`, `tcp_poll` and \
     `ep_*`; for io_uring, all functions whose names begin with `io_`, which also do the work.",
    "What the kernel does when a packet arrives, such as waking the waiter, happens on the core of \
     whoever sent it, and is not counted here.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let perf = Perf::find()?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    outcome.machine.versions.insert("perf".to_owned(), perf.version.clone());
    let site = Site::bare(b"")?;
    let on_client_core = Conditions { cores: &[1], ..Conditions::default() };
    let origin = Server::start_under(&Peer::Ours("epoll").subject(), &site, &on_client_core)?;
    let conditions = Conditions { upstream: Some(origin.address()), ..Conditions::default() };
    let others = Others::watch()?;
    let mechanisms = contestants::available(&EVENTS.map(|(name, _)| name));
    cx.progress.set_length(mechanisms.len() as u64);
    for mechanism in mechanisms {
        cx.progress.set_message(mechanism);
        let mut server =
            Server::start_under(&Peer::Proxy(mechanism).subject(), &site, &conditions)?;
        server.ask("/1k.txt", 1 << 10)?;
        let seconds = if cx.quick { "6" } else { "30" };
        let words = ["--rate", "400", "--connections", "50", "--cold", "750"];
        let words = [&words[..], &["--warm-up", "1", "--duration", seconds], &SOURCES].concat();
        let (mut recording, mut readings) = (None, Vec::new());
        let seen = load(&format!("http://{}/1k.txt", server.address()), &words, |moment| {
            if let RunEvent::MeasurementStart = moment {
                recording = Some(perf.record(server.family())?);
            }
            readings.push((Instant::now(), server.cpu()?));
            Ok(())
        })?;
        // It takes perf a while to say what it saw.
        let shares = recording.map_or(Ok(Vec::new()), Recording::end)?;
        let [(begin, before), (end, after)] = &readings[..] else {
            let why = seen.partial.unwrap_or_else(|| "it ended early".to_owned());
            return Err(Failure::Run(format!("{mechanism}: {why}")));
        };
        if seen.replies < seen.due {
            outcome.notes.push(format!(
                "{mechanism}: {} of {} requests failed.",
                seen.due - seen.replies,
                seen.due
            ));
        }
        let busy = after.since(before) as f64 / 1e7 / (*end - *begin).as_secs_f64();
        let events = events(mechanism, &shares) * busy / 100.0;
        let mut add = |name: &str, percent: f64| {
            if let Some(y) = spread(&[percent]) {
                outcome.point(FIGURE, "%", mechanism, X::Name(name.to_owned()), y);
            }
        };
        add("idle", 100.0 - busy);
        add("learning of events", events);
        add("all else", busy - events);
        outcome.ratios.insert(format!("{mechanism}_event_percent"), events);
        outcome.ratios.insert(format!("{mechanism}_idle_percent"), 100.0 - busy);
        let named = shares.iter().take(NAMED);
        let named = named.map(|s| format!("{} {:.2} %", s.function, s.percent * busy / 100.0));
        let named: Vec<_> = named.collect();
        outcome.notes.push(format!("{mechanism}, most of it: {}.", named.join(", ")));
        outcome.notes.extend(seen.doubts.iter().map(|doubt| format!("{mechanism}: {doubt}.")));
        cx.progress.inc(1);
    }
    paper(&mut outcome);
    // Children count as ours when they have ended.
    drop(origin);
    outcome.notes.extend(others.note()?);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// The paper's table beside ours.
fn paper(outcome: &mut Outcome) {
    let spent = outcome.ratios.iter().filter_map(|(name, percent)| {
        Some(format!("{} {percent:.2} %", name.strip_suffix("_event_percent")?))
    });
    let spent: Vec<_> = spent.collect();
    outcome.shows.push(format!(
        "Of the core, learning of events takes: {}. (The paper: 33.51 % with the classical select(), \
         12.02 % with an improved one, 0.68 % with the new interface.)",
        spent.join(", ")
    ));
    let table = [
        ("paper: select()", 18.09, 33.51),
        ("paper: improved select()", 33.01, 12.02),
        ("paper: new interface", 59.01, 0.68),
    ];
    for (who, idle, events) in table {
        for (what, percent) in
            [("idle", idle), ("learning of events", events), ("all else", 100.0 - idle - events)]
        {
            if let Some(y) = spread(&[percent]) {
                outcome.point(FIGURE, "%", who, X::Name(what.to_owned()), y);
            }
        }
    }
    outcome.paper(
        FIGURE,
        "Banga et al., table 2, on a 500 MHz Alpha: the series whose names begin so.",
    );
}

/// The part of the samples, in percent, that belongs to learning of events.
fn events(mechanism: &str, shares: &[Share]) -> f64 {
    let known = EVENTS.iter().find(|(name, _)| *name == mechanism);
    let prefixes = known.map_or(&[][..], |(_, prefixes)| prefixes).concat();
    let belongs = |s: &&Share| s.kernel && prefixes.iter().any(|p| s.function.starts_with(p));
    shares.iter().filter(belongs).map(|share| share.percent).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_of_the_kernel_count_as_events() {
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
        assert_eq!(events("nobody", &all), 0.0);
    }
}
