//! Servers under overload.

mod recovery;

use super::sweep::{self, Measurement, Setting, Sweep};
use super::{Context, Experiment, servers};
use crate::failure::Failure;
use crate::measure::{Conditions, OtherPrograms, Peer, Quota, Site, Trial, Trials, busy_option};
use crate::outcome::{Outcome, Point, X};
use crate::statistics::spread;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "overload",
    title: "goodput, throughput and times against the rate of requests, up to three times saturation; by \
                file size, number of cores and length of the listen backlog",
    source: "SEND, sections 4.5 to 4.8, figures 4.3 to 4.9, 4.12 and 4.13",
    own_network: true,
    run,
};

/// CPU share of a server, in percent of a core. It is small because the generator's core also
/// does part of the kernel's work for the server.
const SHARE: u32 = 10;
/// Rates, as multiples of the goodput in a closed loop: of the servers that run once, of each round,
/// and of the first round.
const ONCE: [f64; 2] = [2.0, 3.0];
const EACH: [f64; 3] = [0.9, 2.0, 3.0];
const FIRST: [f64; 4] = [0.9, 1.25, 2.0, 3.0];
/// Default length of the listen backlog.
const BACKLOG: u32 = 4096;
/// Name of the figure by length of the backlog.
const BY_BACKLOG: &str = "Goodput at twice saturation over saturation, by length of the backlog";
/// Rounds of the servers that ratios compare.
const ROUNDS: usize = 7;
/// The mechanism that goals refer to.
const SEND: &str = "send";
/// The mark of servers without admission control.
const UNBOUNDED_MARK: &str = "no admission";
/// Mechanisms measured without admission control: those of the thesis in every round, others once.
const OF_THE_THESIS: [&str; 4] = [SEND, "send-ps1", "send-ps2", "devpoll"];
const UNBOUNDED: [&str; 2] = ["epoll", "uring"];
/// A path that uses 100 us of CPU time, and the length of its reply.
const SPIN: (&str, usize) = ("/spin?us=100", "100\n".len());

const NOTES: [&str; 8] = [
    "The server has 10 % of core 0, 1 ms in every 10; the generator has core 1. Both run in their own \
     network namespace; the client connects from 16 addresses.",
    "Open loop: a new connection for each request, at random times, independent of the server's \
     progress. A client gives up, by a reset, one second after its request was due. Goodput is the rate \
     of replies completed before that; all times count from when a request was due. The load starts 1 to \
     5 s before the measurement, so that queues have grown, and continues until all measured requests \
     have ended.",
    "Saturation is the goodput for 256 clients in a closed loop with a new connection for each request. \
     It is measured in each round, just before the other runs of the server, and all rates of the round \
     are fixed multiples of it. `r2` and `r3` are goodput at twice and three times saturation over \
     saturation, per round; above 1, an open loop gets more out of the server than a closed one. A round \
     has all servers that ratios compare, in a shuffled order; the others run once and have no ratios. \
     Each round has its own seed for the arrivals.",
    "Our servers use admission control by default; `no admission` marks those where it is disabled. The \
     listen backlog then keeps its full length.",
    "The generator never sleeps, except in the runs by number of cores: a reply that wakes its core \
     costs the server more, and at low load more replies do.",
    "The thesis (figures 4.3 and 4.4, 550 MHz Pentium III, Linux 2.4, 100 Mbit/s): the /dev/poll \
     server loses a large part of its response rate beyond saturation; the SEND server keeps nearly \
     all of it with files of 1, 2 and 4 KB. With 6 and 8 KB the network was the limit. In the thesis \
     clients did not give up, which hides work for clients that have left.",
    "nginx: one worker; `nginx shipped` as in Debian's nginx.conf, with `multi_accept off` and 768 \
     connections; `nginx tuned` with `multi_accept on`, 15,000 connections and files copied from open \
     descriptors. haproxy replies from memory. A \
     listen backlog has 4,096 entries unless noted (defaults: nginx 511, ours 1,024; h2o uses the \
     kernel's limit, 4,096 in this namespace). Maximum connections: ours, nginx tuned and h2o 15,000, haproxy \
     9,000, lighttpd 8,000, or 500 with select. The external servers shed no load; they run with these \
     defaults.",
    "The thesis' second core was for a server of one thread. Here a server on two cores has two workers \
     and twice the share, in one group; the generator shares the second core. Both shares are \
     allocated in slices of 5 ms per core in every 50 ms.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let quota = Quota::new(SHARE)?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = Site::bare(b"")?;
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 }).may_fail();
    let others = OtherPrograms::watch()?;
    let usual = Setting {
        conditions: Conditions {
            quota: Some(&quota),
            backlog: Some(BACKLOG),
            ..Conditions::default()
        },
        mark: "",
        file: ("/1k.txt", 1 << 10),
        session: ["--requests", "1"],
        requests: 1.0,
        seconds: if cx.quick { "1" } else { "2" },
        max_warm_up: if cx.quick { 1.0 } else { 5.0 },
        generator: busy_option(),
    };
    let few = servers::few(&mut outcome)?;
    let all = if cx.quick {
        quick(cx, &mut trials, usual)
    } else {
        full(cx, &few, usual, &mut trials, &mut outcome)?
    };
    for sweep in &all {
        against_rate(sweep, &mut outcome);
        sweep.report(cx, &mut outcome);
    }
    response_times(&all, &mut outcome);
    thesis_ratios(&all, &mut outcome);
    recovery::run(cx, &mut trials, &usual, &mut outcome)?;
    if !cx.quick {
        by_backlog(cx, &few, &mut trials, usual, &all, &mut outcome);
        by_cores(cx, &few, &mut trials, usual, &mut outcome)?;
        by_size(cx, &few, &mut trials, usual, &all, &mut outcome);
    }
    findings(&mut outcome);
    outcome.notes.extend(others.note()?);
    trials.report(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Returns our servers on the available mechanisms.
fn ours(names: &[&'static str]) -> Vec<Peer> {
    servers::available(names).into_iter().map(Peer::Ours).collect()
}

/// Returns the setting without admission control.
fn unbounded(usual: Setting<'_>) -> Setting<'_> {
    let conditions = Conditions { unbounded: true, ..usual.conditions };
    Setting { conditions, mark: UNBOUNDED_MARK, ..usual }
}

/// Returns the setting with requests that cost more than a connection.
fn spinning(usual: Setting<'_>) -> Setting<'_> {
    Setting { mark: "spin", file: SPIN, ..usual }
}

/// Sweeps a few servers, once.
fn quick<'a>(cx: &Context, trials: &mut Trials<'_>, usual: Setting<'a>) -> Vec<Sweep<'a>> {
    let mut all = sweep::of(ours(&[SEND]), usual);
    all.extend(sweep::of(vec![servers::NGINX], usual));
    all.extend(sweep::of(ours(&["epoll"]), unbounded(usual)));
    cx.progress.set_length((all.len() * (EACH.len() + 1) + 2) as u64);
    for mut round in cx.rounds(1) {
        sweep::all(cx, trials, &mut all, &EACH, &mut round);
    }
    all
}

/// Sweeps the servers that ratios compare in several rounds, then all others once.
fn full<'a>(
    cx: &Context,
    few: &[Peer],
    usual: Setting<'a>,
    trials: &mut Trials<'_>,
    outcome: &mut Outcome,
) -> Result<Vec<Sweep<'a>>, Failure> {
    let mut compared = sweep::of(few.to_vec(), usual);
    compared.extend(sweep::of(ours(&[SEND]), spinning(usual)));
    compared.extend(sweep::of(ours(&OF_THE_THESIS), unbounded(usual)));
    let mut others = servers::all(cx, outcome)?;
    others.retain(|peer| !few.contains(peer));
    let mut others = sweep::of(others, usual);
    others.extend(sweep::of(ours(&UNBOUNDED), unbounded(usual)));
    let runs = ROUNDS * compared.len() * (EACH.len() + 1)
        + compared.len()
        + others.len() * (ONCE.len() + 1)
        + 2 * recovery::ROUNDS;
    cx.progress.set_length(runs as u64);
    for mut round in cx.rounds(ROUNDS) {
        let multiples = if round.number == 0 { &FIRST[..] } else { &EACH };
        sweep::all(cx, trials, &mut compared, multiples, &mut round);
    }
    for mut round in cx.rounds(1) {
        sweep::all(cx, trials, &mut others, &ONCE, &mut round);
    }
    compared.append(&mut others);
    Ok(compared)
}

/// Returns the sweep of our server on a mechanism, with a mark.
fn of<'a, 'b>(all: &'a [Sweep<'b>], name: &'static str, mark: &str) -> Option<&'a Sweep<'b>> {
    all.iter().find(|sweep| sweep.peer == Peer::Ours(name) && sweep.mark() == mark)
}

/// Adds the ratio of response times beyond and below saturation.
fn response_times(all: &[Sweep<'_>], outcome: &mut Outcome) {
    let Some(send) = of(all, SEND, "") else { return };
    let ratio = send.each(|round| {
        let (beyond, below) = (round.p99_ms(2.0)?, round.p99_ms(0.9)?);
        // A server that replies to nobody below saturation has no good time beyond it.
        Some(if below.is_finite() { beyond / below } else { f64::INFINITY })
    });
    outcome.ratio("served_p99_over_09c", SEND, ratio);
}

/// Adds the thesis' comparisons, without admission control (figures 4.3, 4.4, 4.12 and 4.13).
fn thesis_ratios(all: &[Sweep<'_>], outcome: &mut Outcome) {
    let of = |name: &'static str| of(all, name, UNBOUNDED_MARK);
    let beyond = |round: &Measurement<'_>| Some(round.goodput(2.0)? + round.goodput(3.0)?);
    for (name, above, below) in [
        ("send_over_devpoll_past_saturation", SEND, "devpoll"),
        ("ps1_over_devpoll", "send-ps1", "devpoll"),
        ("ps2_over_send", "send-ps2", SEND),
    ] {
        if let Some((above, below)) = of(above).zip(of(below)) {
            outcome.ratio(name, &above.name(), above.over(below, beyond));
        }
    }
    if let Some((send, devpoll)) = of(SEND).zip(of("devpoll")) {
        let saturation = |round: &Measurement<'_>| Some(round.saturation());
        let ratio = send.over(devpoll, saturation);
        outcome.ratio("send_saturation_over_devpoll", &send.name(), ratio);
    }
}

fn findings(outcome: &mut Outcome) {
    let (twice, thrice) = (outcome.percentages("_r2"), outcome.percentages("_r3"));
    outcome.shows.push(format!(
        "Goodput at three times saturation, in percent of that in a closed loop: {thrice}; at twice: {twice}. \
         The listen backlog has {BACKLOG} entries, more than a second's work; admission control shortens \
         it. A server whose goodput falls works for clients that have given up."
    ));
    let by_backlog = outcome.series.iter().filter(|series| series.figure == BY_BACKLOG);
    let by_backlog = by_backlog.map(|series| {
        let at = |p: &Point| format!("{:.0} % with {}", p.y.median * 100.0, p.x);
        let all: Vec<_> = series.points.iter().map(at).collect();
        format!("{}: {}", series.name, all.join(", "))
    });
    let by_backlog: Vec<_> = by_backlog.collect();
    if !by_backlog.is_empty() {
        outcome.shows.push(format!(
            "Goodput at twice saturation over saturation, without admission control, by length of the \
             backlog: {}.",
            by_backlog.join("; ")
        ));
    }
    outcome.paper(
        "Goodput against request rate",
        "SEND, figures 4.3, 4.4, 4.12 and 4.13: past saturation the response rate of SEND and PS2 \
         stays nearly level for files of 1 to 4 KB; that of /dev/poll and PS1 falls. Saturation of \
         SEND is under 5 % below that of /dev/poll.",
    );
    outcome.paper(
        "Throughput against request rate",
        "SEND, figures 4.6 and 4.7: with files of 6 and 8 KB both servers exceed 80 Mbit/s on a network of \
         100 Mbit/s, which is the limit.",
    );
    outcome.paper(
        "Mean time of successful connects against request rate",
        "SEND, figures 4.8 and 4.9: with SEND connection times stay low for 1 to 4 KB; with /dev/poll \
         they grow, as its queue of 128 connections overflows.",
    );
    outcome.paper(
        BY_BACKLOG,
        "SEND, section 4.6: with a longer queue the /dev/poll server fell even more.",
    );
    outcome.paper(
        "Saturation by number of cores",
        "SEND, figure 4.5: a second processor raised the saturation of both servers for 1 to 4 KB.",
    );
}

/// Adds figures 4.3 to 4.9, 4.12 and 4.13.
fn against_rate(sweep: &Sweep<'_>, outcome: &mut Outcome) {
    let mut add = |figure: &str, unit: &str, of: fn(&Trial) -> Option<f64>| {
        sweep.against_rate(outcome, &format!("{figure} against request rate"), unit, of);
    };
    add("Goodput", "replies/s", |t| Some(t.goodput()));
    add("Throughput", "MB/s", |t| Some(t.megabytes()));
    add("Mean time of successful connects", "ms", |t| {
        (t.observed.connects > 0).then_some(t.observed.connect_us.mean / 1e3)
    });
    add("Mean response time of good replies", "ms", Trial::mean_ms);
    add("99th percentile of the times of good replies", "ms", Trial::p99_ms);
    add("Server CPU per good reply", "us", Trial::cpu_us_per_reply);
    add("Context switches per good reply", "", Trial::switches_per_reply);
    add("Connections dropped in the listen backlog", "per second", |t| Some(t.dropped()));
    for multiple in sweep.multiples() {
        if let Some(y) = spread(&sweep.over_saturation(multiple)) {
            let figure = "Goodput over saturation, against the rate as a multiple of it";
            outcome.point(figure, "", &sweep.name(), X::Number(multiple), y);
        }
    }
}

/// The servers measured with larger files.
const BY_SIZE: [Peer; 3] = [Peer::Ours(SEND), servers::NGINX, servers::NGINX_SHIPPED];

/// Adds goodput at twice saturation by file size; `measured` has the sweeps of the usual size.
fn by_size(
    cx: &Context,
    few: &[Peer],
    trials: &mut Trials<'_>,
    usual: Setting<'_>,
    measured: &[Sweep<'_>],
    outcome: &mut Outcome,
) {
    let mut add_point = |kib: usize, sweep: &Sweep<'_>| {
        let name = sweep.peer.to_string();
        let mut add = |figure: &str, values: &[f64]| {
            if let Some(y) = spread(values) {
                outcome.point(figure, "replies/s", &name, X::Number(kib as f64), y);
            }
        };
        add("Saturation against size of the file [KB]", &sweep.saturation());
        add("Goodput at twice saturation against size of the file [KB]", &sweep.goodput(2.0));
    };
    let usual_one = |sweep: &&Sweep<'_>| sweep.mark().is_empty() && BY_SIZE.contains(&sweep.peer);
    measured.iter().filter(usual_one).for_each(|sweep| add_point(1, sweep));
    let few: Vec<_> = few.iter().copied().filter(|peer| BY_SIZE.contains(peer)).collect();
    for kib in [2, 4, 6, 8] {
        let path = format!("/{kib}k.txt");
        let setting = Setting { file: (&path, kib << 10), ..usual };
        let mut sweeps = sweep::of(few.clone(), setting);
        for mut round in cx.rounds(1) {
            sweep::all(cx, trials, &mut sweeps, &[2.0], &mut round);
        }
        sweeps.iter().for_each(|sweep| add_point(kib, sweep));
    }
}

/// Adds goodput at twice saturation by length of the backlog (section 4.6); `measured` has the
/// sweeps of the usual length.
fn by_backlog(
    cx: &Context,
    few: &[Peer],
    trials: &mut Trials<'_>,
    usual: Setting<'_>,
    measured: &[Sweep<'_>],
    outcome: &mut Outcome,
) {
    let mut add_point = |backlog: u32, sweep: &Sweep<'_>| {
        if let Some(y) = spread(&sweep.over_saturation(2.0)) {
            let (name, x) = (sweep.peer.to_string(), X::Name(backlog.to_string()));
            outcome.point(BY_BACKLOG, "", &name, x, y);
        }
    };
    for backlog in [128, 511] {
        let conditions = Conditions { backlog: Some(backlog), unbounded: true, ..usual.conditions };
        let mut sweeps = sweep::of(few.to_vec(), Setting { conditions, ..usual });
        for mut round in cx.rounds(1) {
            sweep::all(cx, trials, &mut sweeps, &[2.0], &mut round);
        }
        sweeps.iter().for_each(|sweep| add_point(backlog, sweep));
    }
    let is_comparable = |sweep: &&Sweep<'_>| match sweep.peer {
        Peer::Ours(_) => sweep.mark() == UNBOUNDED_MARK && few.contains(&sweep.peer),
        peer => few.contains(&peer),
    };
    measured.iter().filter(is_comparable).for_each(|sweep| add_point(BACKLOG, sweep));
}

/// Adds figure 4.5.
fn by_cores(
    cx: &Context,
    few: &[Peer],
    trials: &mut Trials<'_>,
    usual: Setting<'_>,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let (quota, double) = (Quota::in_slices(SHARE)?, Quota::in_slices(2 * SHARE)?);
    let one = Conditions { quota: Some(&quota), ..usual.conditions };
    let two = Conditions { quota: Some(&double), cores: &[0, 1], ..usual.conditions };
    for (cores, conditions) in [("one core", one), ("two cores", two)] {
        // The generator shares the second core.
        let setting = Setting { conditions, generator: &[], ..usual };
        let mut sweeps = sweep::of(few.to_vec(), setting);
        for mut round in cx.rounds(1) {
            sweep::all(cx, trials, &mut sweeps, &[], &mut round);
        }
        for sweep in &sweeps {
            if let Some(y) = spread(&sweep.saturation()) {
                let x = X::Name(sweep.peer.to_string());
                outcome.point("Saturation by number of cores", "replies/s", cores, x, y);
            }
        }
    }
    Ok(())
}
