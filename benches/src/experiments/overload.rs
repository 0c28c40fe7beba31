//! What servers do when they are asked for more than they can give.

mod recovery;

use super::sweep::{self, Setting, Sweep};
use super::{Context, Experiment, contestants};
use crate::failure::Failure;
use crate::measure::{Conditions, Others, Peer, Quota, Site, Trial, Trials, awake};
use crate::outcome::{Outcome, Point, X};
use crate::statistics::{ratios, spread};

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "overload",
    title: "good replies, throughput and times against the rate of requests, up to three times what \
            a server can do; by size of the file, number of cores and length of the listener's queue",
    source: "SEND, sections 4.5 to 4.8, figures 4.3 to 4.9, 4.12 and 4.13",
    own_network: true,
    run,
};

/// The share of a core that a server has, in percent: the generator needs the rest of what the
/// two do for each other in the kernel.
const SHARE: u32 = 10;
/// Rates, as multiples of what the server does in a closed loop.
const FEW: [f64; 2] = [2.0, 3.0];
const QUICK: [f64; 3] = [0.9, 2.0, 3.0];
const FULL: [f64; 4] = [0.9, 1.25, 2.0, 3.0];
/// The length of the listener's queue, if nothing else is said.
const BACKLOG: u32 = 4096;
/// A figure that is drawn and spoken of.
const BY_BACKLOG: &str = "Goodput at twice saturation over saturation, by length of the queue";
/// How often those are taken through the rates that the goals are about.
const ROUNDS: usize = 11;
/// The mechanism that the goals are about.
const SEND: &str = "send";
/// What is said of those that let in whatever comes.
const UNBOUNDED_MARK: &str = "no admission";
/// Those of the thesis beside it, and what else is asked without admission.
const UNBOUNDED: [&str; 5] = ["send-ps1", "send-ps2", "devpoll", "epoll", "uring"];
/// What burns so many microseconds of processor time, and the length of its reply.
const SPIN: (&str, usize) = ("/spin?us=100", "100\n".len());

const NOTES: [&str; 8] = [
    "The server has 10 % of core 0, a millisecond in every ten; the generator has core 1. Both are \
     alone in a network of their own; the client connects from 16 addresses.",
    "Open loop: a new connection for each request, at random moments, whether or not the server \
     keeps up. A client gives up, by a reset, one second after its request was due. Goodput is the \
     rate of replies that were whole before that; all times count from when a request was due. The \
     load begins long enough before anything counts for queues to have grown (1 to 5 s), and goes on \
     until all that counts has its end.",
    "Saturation is what a server does for 256 clients in a closed loop that open a new connection \
     for each request. `r2` and `r3` are goodput at twice and three times that, over the goodput of the same \
     round at that rate up to there where it is highest (in the median), the closed loop's among them. \
     For send that is the median of eleven rounds at 0.9, 1.25, 2 and 3 times saturation, for the others of \
     a single one. Where goodput still grows it is 1.",
    "Ours let in no more than they can serve, as by themselves; `no admission` is what they do when \
     that is switched off. The queue then has its full length, and is never made shorter.",
    "The generator never sleeps, but by number of cores: a reply that has to wake its core costs the \
     server more, and the less there is to do the more of them have to.",
    "The thesis (figures 4.3 and 4.4, 550 MHz Pentium III, Linux 2.4, 100 Mbit/s): the /dev/poll \
     server loses a large part of its response rate beyond saturation; the SEND server keeps nearly \
     all of it with files of 1, 2 and 4 KB. With 6 and 8 KB the network was the limit. In the thesis \
     clients did not give up, which hides what is done for nobody.",
    "nginx: one worker, `multi_accept on`, files by copy from its cache. haproxy replies from \
     memory. A listener's queue has 4,096 places, if nothing else is said (by themselves: nginx 511, \
     ours 1,024; h2o takes what the system allows, 4,096 here). Most connections: ours, nginx and h2o 15,000, \
     haproxy 9,000, lighttpd 8,000, but 500 with select. Those of others shed no load: this is what \
     they do by themselves.",
    "The thesis' second core was for a server of one thread. Here a server on two cores has two \
     workers and twice the share, in one group; its second core is the generator's. Both are given \
     out in parts of 5 ms for each core in every 50 ms.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let quota = Quota::new(SHARE)?;
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = Site::bare(b"")?;
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 });
    let others = Others::watch()?;
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
        longest_warm_up: if cx.quick { 1.0 } else { 5.0 },
        generator: awake(),
    };
    let few = contestants::few(&mut outcome)?;
    let all = if cx.quick {
        quick(cx, &mut trials, usual)
    } else {
        full(cx, &few, usual, &mut trials, &mut outcome)?
    };
    for sweep in &all {
        against_rate(sweep, &mut outcome);
        sweep.goals(&mut outcome);
    }
    in_time(&all, &mut outcome);
    as_in_the_thesis(&all, &mut outcome);
    recovery::run(cx, &mut trials, &usual, &all, &mut outcome)?;
    if !cx.quick {
        by_backlog(cx, &few, &mut trials, usual, &all, &mut outcome);
        by_cores(cx, &few, &mut trials, usual, &mut outcome)?;
        by_size(cx, &few, &mut trials, usual, &all, &mut outcome);
    }
    shows(&mut outcome);
    outcome.notes.extend(others.note()?);
    trials.tell(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Those of ours that can run here.
fn ours(names: &[&'static str]) -> Vec<Peer> {
    contestants::available(names).into_iter().map(Peer::Ours).collect()
}

/// Without admission.
fn unbounded(usual: Setting<'_>) -> Setting<'_> {
    let conditions = Conditions { unbounded: true, ..usual.conditions };
    Setting { conditions, mark: UNBOUNDED_MARK, ..usual }
}

/// With requests that cost more than a connection does.
fn spinning(usual: Setting<'_>) -> Setting<'_> {
    Setting { mark: "spin", file: SPIN, ..usual }
}

/// What the goals are about, once.
fn quick<'a>(cx: &Context, trials: &mut Trials<'_>, usual: Setting<'a>) -> Vec<Sweep<'a>> {
    let mut sends = sweep::of(ours(&[SEND]), usual);
    let mut rest = sweep::of(ours(&[SEND]), spinning(usual));
    rest.extend(sweep::of(vec![contestants::NGINX], usual));
    rest.extend(sweep::of(ours(&["epoll"]), unbounded(usual)));
    let runs = sends.len() * (QUICK.len() + 1) + rest.len() * (FEW.len() + 1) + 1;
    cx.progress.set_length(runs as u64);
    sweep::all(cx, trials, &mut sends, &QUICK);
    sweep::all(cx, trials, &mut rest, &FEW);
    sends.append(&mut rest);
    sends
}

/// Everybody at some rates, a few at all; what the goals are about several times.
fn full<'a>(
    cx: &Context,
    few: &[Peer],
    usual: Setting<'a>,
    trials: &mut Trials<'_>,
    outcome: &mut Outcome,
) -> Result<Vec<Sweep<'a>>, Failure> {
    // With admission queues grow no more.
    let often = Setting { seconds: "1.5", longest_warm_up: 1.0, ..usual };
    let mut goals = sweep::of(ours(&[SEND]), often);
    goals.extend(sweep::of(ours(&[SEND]), spinning(often)));
    let mut few = few.to_vec();
    let mut others = contestants::all(cx, outcome)?;
    others.retain(|peer| !few.contains(peer));
    few.retain(|peer| *peer != Peer::Ours(SEND));
    let mut few = sweep::of(few, usual);
    few.extend(sweep::of(ours(&[SEND]), unbounded(usual)));
    let mut others = sweep::of(others, usual);
    others.extend(sweep::of(ours(&UNBOUNDED), unbounded(usual)));
    let runs = (ROUNDS * goals.len() + few.len()) * (FULL.len() + 1)
        + others.len() * (FEW.len() + 1)
        + recovery::ROUNDS;
    cx.progress.set_length(runs as u64);
    (0..ROUNDS).for_each(|_| sweep::all(cx, trials, &mut goals, &FULL));
    sweep::all(cx, trials, &mut few, &FULL);
    sweep::all(cx, trials, &mut others, &FEW);
    goals.append(&mut few);
    goals.append(&mut others);
    Ok(goals)
}

/// The sweep of one of ours, with a mark.
fn of<'a, 'b>(all: &'a [Sweep<'b>], name: &'static str, mark: &str) -> Option<&'a Sweep<'b>> {
    all.iter().find(|sweep| sweep.peer == Peer::Ours(name) && sweep.mark() == mark)
}

/// How long those who are served past saturation wait for it.
fn in_time(all: &[Sweep<'_>], outcome: &mut Outcome) {
    let Some(send) = of(all, SEND, "") else { return };
    let ratio = ratios(&send.p99_ms(2.0), &send.p99_ms(0.9));
    if let Some(ratio) = spread(&ratio) {
        outcome.ratios.insert("served_p99_over_09c".to_owned(), ratio.median);
    }
}

/// What the thesis compares, without admission (figures 4.3, 4.4, 4.12 and 4.13).
fn as_in_the_thesis(all: &[Sweep<'_>], outcome: &mut Outcome) {
    let of = |name: &'static str| of(all, name, UNBOUNDED_MARK);
    let past = |sweep: &Sweep<'_>| [sweep.goodput(2.0), sweep.goodput(3.0)].concat();
    let mut tell = |name: &str, above: Vec<f64>, below: Vec<f64>| {
        if let Some(ratio) = spread(&ratios(&above, &below)) {
            outcome.point("Ratios", "", name, X::Name(UNBOUNDED_MARK.to_owned()), ratio);
            outcome.ratios.insert(name.to_owned(), ratio.median);
        }
    };
    for (name, above, below) in [
        ("send_over_devpoll_past_saturation", SEND, "devpoll"),
        ("ps1_over_devpoll", "send-ps1", "devpoll"),
        ("ps2_over_send", "send-ps2", SEND),
    ] {
        if let (Some(above), Some(below)) = (of(above), of(below)) {
            tell(name, past(above), past(below));
        }
    }
    if let (Some(send), Some(devpoll)) = (of(SEND), of("devpoll")) {
        tell("send_saturation_over_devpoll", send.saturation(), devpoll.saturation());
    }
}

/// What it shows.
fn shows(outcome: &mut Outcome) {
    let (twice, thrice) = (outcome.percentages("_r2"), outcome.percentages("_r3"));
    outcome.shows.push(format!(
        "Of its best goodput each keeps, asked for three times what it can do: {thrice}; for twice: \
         {twice}. That is with room for {BACKLOG} connections in the listener's queue, more than a \
         second's work, which those of ours that have admission make shorter. What falls works for \
         clients that have gone."
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
            "How much depends on the length of that queue, without admission: at twice saturation, of \
             what it does at saturation, {}.",
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
        "SEND, figures 4.6 and 4.7: with files of 6 and 8 KB both servers come to more than 80 Mbit/s \
         on a network of 100 Mbit/s, which then is the limit.",
    );
    outcome.paper(
        "Mean connection time of those that were made against request rate",
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

/// Figures 4.3 to 4.9, 4.12 and 4.13.
fn against_rate(sweep: &Sweep<'_>, outcome: &mut Outcome) {
    let mut add = |figure: &str, unit: &str, of: fn(&Trial) -> Option<f64>| {
        sweep.against_rate(outcome, &format!("{figure} against request rate"), unit, of);
    };
    add("Goodput", "replies/s", |t| Some(t.goodput()));
    add("Throughput", "MB/s", |t| Some(t.megabytes()));
    add("Mean connection time of those that were made", "ms", |t| {
        (t.seen.connects > 0).then_some(t.seen.connect_us.mean / 1e3)
    });
    add("Mean response time of good replies", "ms", Trial::mean_ms);
    add("99th percentile of the times of good replies", "ms", Trial::p99_ms);
    add("Server CPU per good reply", "us", Trial::cpu_us_per_reply);
    add("Context switches per good reply", "", Trial::switches_per_reply);
    add("Connections dropped in the listener's queue", "per second", |t| Some(t.dropped()));
    for multiple in sweep.multiples() {
        if let Some(y) = spread(&sweep.over_saturation(multiple)) {
            let figure = "Goodput over saturation, against the rate as a multiple of it";
            outcome.point(figure, "", &sweep.name(), X::Number(multiple), y);
        }
    }
}

/// Who is asked for larger files.
const BY_SIZE: [Peer; 2] = [Peer::Ours(SEND), contestants::NGINX];

/// At twice saturation, by the size of the file; `known` has that of the usual one.
fn by_size(
    cx: &Context,
    few: &[Peer],
    trials: &mut Trials<'_>,
    usual: Setting<'_>,
    known: &[Sweep<'_>],
    outcome: &mut Outcome,
) {
    let mut tell = |kib: usize, sweep: &Sweep<'_>| {
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
    known.iter().filter(usual_one).for_each(|sweep| tell(1, sweep));
    let few: Vec<_> = few.iter().copied().filter(|peer| BY_SIZE.contains(peer)).collect();
    for kib in [2, 4, 6, 8] {
        let path = format!("/{kib}k.txt");
        let setting = Setting { file: (&path, kib << 10), ..usual };
        let mut sweeps = sweep::of(few.clone(), setting);
        sweep::all(cx, trials, &mut sweeps, &[2.0]);
        sweeps.iter().for_each(|sweep| tell(kib, sweep));
    }
}

/// At twice saturation, by the length of the listener's queue (section 4.6); `known` has that of the
/// usual one.
fn by_backlog(
    cx: &Context,
    few: &[Peer],
    trials: &mut Trials<'_>,
    usual: Setting<'_>,
    known: &[Sweep<'_>],
    outcome: &mut Outcome,
) {
    let mut tell = |backlog: u32, sweep: &Sweep<'_>| {
        if let Some(y) = spread(&sweep.over_saturation(2.0)) {
            let (name, x) = (sweep.peer.to_string(), X::Name(backlog.to_string()));
            outcome.point(BY_BACKLOG, "", &name, x, y);
        }
    };
    for backlog in [128, 511] {
        let conditions = Conditions { backlog: Some(backlog), unbounded: true, ..usual.conditions };
        let mut sweeps = sweep::of(few.to_vec(), Setting { conditions, ..usual });
        sweep::all(cx, trials, &mut sweeps, &[2.0]);
        sweeps.iter().for_each(|sweep| tell(backlog, sweep));
    }
    let is_alike = |sweep: &&Sweep<'_>| match sweep.peer {
        Peer::Ours(_) => sweep.mark() == UNBOUNDED_MARK && few.contains(&sweep.peer),
        peer => few.contains(&peer),
    };
    known.iter().filter(is_alike).for_each(|sweep| tell(BACKLOG, sweep));
}

/// Figure 4.5.
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
        // The second core is the generator's, too.
        let setting = Setting { conditions, generator: &[], ..usual };
        let mut sweeps = sweep::of(few.to_vec(), setting);
        sweep::all(cx, trials, &mut sweeps, &[]);
        for sweep in &sweeps {
            if let Some(y) = spread(&sweep.saturation()) {
                let x = X::Name(sweep.peer.to_string());
                outcome.point("Saturation by number of cores", "replies/s", cores, x, y);
            }
        }
    }
    Ok(())
}
