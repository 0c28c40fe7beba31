//! Throughput with twenty requests per connection.

use std::fmt::Write;
use std::fs;

use super::sweep::{self, Setting};
use super::{Context, Experiment, servers};
use crate::failure::Failure;
use crate::measure::{Conditions, OtherPrograms, Quota, Site, Trial, Trials};
use crate::outcome::{self, Outcome, X};
use crate::statistics::spread;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "http-sessions",
    title: "throughput against the rate of requests, 20 of them on each connection, for files of 64 \
            bytes to 8 KB; on one core and on two",
    source: "FlexSC, section 6.2.2, figure 9",
    own_network: true,
    run,
};

/// CPU share of a server on one core, in percent of a core.
const SHARE: u32 = 10;
const REQUESTS: usize = 20;
const SIZES: [usize; 8] = [64, 128, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10];
const QUICK: [f64; 2] = [1.0, 2.0];
const FULL: [f64; 6] = [0.25, 0.5, 0.75, 1.0, 2.0, 3.0];

const NOTES: [&str; 3] = [
    "A session is a connection with 20 successive requests for files of 64 bytes to 8 KB in turn. \
     Sessions start at random times (partially open, in httperf's terms). A client gives up a request, \
     and its session, after one second.",
    "Beyond saturation, load is applied until queues have grown before the measurement begins: 13 and \
     26 s at three times and twice saturation, as the 20 requests are successive. With --quick it is \
     1 s, which overstates all results.",
    "The server has 10 % of one core, 5 ms in every 50. On two cores it has two workers and twice that \
     share, in one group; the generator shares the second core.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let (quota, double) = (Quota::in_slices(SHARE)?, Quota::in_slices(2 * SHARE)?);
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = Site::bare(b"")?;
    let sessions = outcome::directory()?.join("http.sessions");
    fs::write(&sessions, session(&site)?)?;
    let path = sessions.display().to_string();
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 }).may_fail();
    let others = OtherPrograms::watch()?;
    let one = Conditions { quota: Some(&quota), ..Conditions::default() };
    let two = Conditions { quota: Some(&double), cores: &[0, 1], ..Conditions::default() };
    let multiples = if cx.quick { &QUICK[..] } else { &FULL[..] };
    let peers = servers::few(&mut outcome)?;
    cx.progress.set_length((2 * peers.len() * (multiples.len() + 1)) as u64);
    for (cores, conditions) in [("one core", one), ("two cores", two)] {
        let setting = Setting {
            mark: "",
            conditions,
            file: ("/1k.txt", 1 << 10),
            session: ["--sessions", &path],
            requests: REQUESTS as f64,
            seconds: if cx.quick { "1" } else { "3" },
            max_warm_up: if cx.quick { 1.0 } else { 30.0 },
            generator: &[],
        };
        let mut sweeps = sweep::of(peers.clone(), setting);
        for mut round in cx.rounds(1) {
            sweep::all(cx, &mut trials, &mut sweeps, multiples, &mut round);
        }
        for sweep in &sweeps {
            if let Some(failure) = &sweep.failed {
                outcome.notes.push(format!("{}, {cores}, failed: {failure}", sweep.peer));
            }
            let figure = format!("Throughput against request rate, {cores}");
            let megabits = |t: &Trial| Some(t.megabytes() * 8.0);
            sweep.against_rate(&mut outcome, &figure, "Mbit/s", megabits);
            if let Some(y) = spread(&sweep.saturation()) {
                let x = X::Name(sweep.peer.to_string());
                outcome.point("Saturation", "requests/s", cores, x, y);
            }
        }
    }
    papers(&mut outcome);
    outcome.notes.extend(others.note()?);
    trials.report(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// Adds the paper's results and ours.
fn papers(outcome: &mut Outcome) {
    let best = |cores: &str| {
        let series = outcome.series.iter().find(|s| s.figure == "Saturation" && s.name == cores)?;
        let mut all: Vec<_> = series.points.iter().map(|p| (p.x.to_string(), p.y.median)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let rates = all.iter().map(|(name, rate)| format!("{name} {rate:.0}"));
        Some(rates.collect::<Vec<_>>().join(", "))
    };
    let (one, two) = (best("one core"), best("two cores"));
    let all = [("one core", one), ("two cores", two)].map(|(cores, best)| {
        format!("on {cores}: {}", best.unwrap_or_else(|| "no data".to_owned()))
    });
    outcome.shows.push(format!("Requests per second at saturation, {}.", all.join("; ")));
    let results = [
        (
            "one core",
            "epoll saturates at 20,000 requests per second, FlexSC at 40,000; at 50,000 FlexSC is up to \
             120 % faster",
        ),
        ("two cores", "epoll reaches 35,000 requests per second, FlexSC 60,000, up to 77 % more"),
    ];
    for (cores, what) in results {
        let figure = format!("Throughput against request rate, {cores}");
        outcome.paper(&figure, &format!("FlexSC, figure 9, nginx on {cores}: {what}."));
    }
    let numbers = [("one core", 20_000.0, 40_000.0), ("two cores", 35_000.0, 60_000.0)];
    for (cores, epoll, flexsc) in numbers {
        for (name, rate) in [("paper: epoll", epoll), ("paper: FlexSC", flexsc)] {
            if let Some(y) = spread(&[rate]) {
                outcome.point("Saturation", "requests/s", cores, X::Name(name.to_owned()), y);
            }
        }
    }
    outcome.paper(
        "Saturation",
        "The paper's nginx had a whole core or two of a 2.3 GHz Core i7, and a network of 1 Gbit/s.",
    );
}

/// Creates the files and the session that requests them.
fn session(site: &Site) -> Result<String, Failure> {
    for bytes in SIZES {
        site.add(&format!("{bytes}.bin"), bytes)?;
    }
    let mut text = String::new();
    for bytes in SIZES.iter().cycle().take(REQUESTS) {
        writeln!(text, "/{bytes}.bin size={bytes}").expect("writing to a string cannot fail");
    }
    Ok(text)
}
