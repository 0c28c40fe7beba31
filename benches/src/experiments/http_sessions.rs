//! Connections with twenty requests each.

use std::fmt::Write;
use std::fs;

use super::sweep::{self, Setting};
use super::{Context, Experiment, contestants};
use crate::failure::Failure;
use crate::measure::{Conditions, Others, Quota, Site, Trial, Trials};
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

/// The share of a core that a server has on one core, in percent.
const SHARE: u32 = 10;
const REQUESTS: usize = 20;
const SIZES: [usize; 8] = [64, 128, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10];
const QUICK: [f64; 2] = [1.0, 2.0];
const FULL: [f64; 6] = [0.25, 0.5, 0.75, 1.0, 2.0, 3.0];

const NOTES: [&str; 3] = [
    "A session is a connection with 20 requests, one after the other, for files of 64 bytes to 8 KB \
     in turn; sessions begin at random moments (partially open, as httperf has it). A client gives \
     up a request after one second, and its session with it.",
    "Past saturation load is made for so long before anything counts that queues have grown: 13 \
     and 26 s at three times and twice saturation, as 20 requests come one after the other. With \
     --quick it is 1 s, which flatters everybody.",
    "The server has 10 % of one core, 5 ms in every 50, or on two cores two workers and twice that, \
     in one group; the second core is the generator's.",
];

fn run(cx: &Context) -> Result<Outcome, Failure> {
    let (quota, double) = (Quota::in_slices(SHARE)?, Quota::in_slices(2 * SHARE)?);
    let mut outcome = Outcome::new(EXPERIMENT.id);
    let site = Site::bare(b"")?;
    let sessions = outcome::directory()?.join("http.sessions");
    fs::write(&sessions, session(&site)?)?;
    let path = sessions.display().to_string();
    let mut trials = Trials::new(&site, if cx.quick { 1 } else { 2 });
    let others = Others::watch()?;
    let one = Conditions { quota: Some(&quota), ..Conditions::default() };
    let two = Conditions { quota: Some(&double), cores: &[0, 1], ..Conditions::default() };
    let multiples = if cx.quick { &QUICK[..] } else { &FULL[..] };
    let peers = contestants::few(&mut outcome)?;
    cx.progress.set_length((2 * peers.len() * (multiples.len() + 1)) as u64);
    for (cores, conditions) in [("one core", one), ("two cores", two)] {
        let setting = Setting {
            mark: "",
            conditions,
            file: ("/1k.txt", 1 << 10),
            session: ["--sessions", &path],
            requests: REQUESTS as f64,
            seconds: if cx.quick { "1" } else { "3" },
            longest_warm_up: if cx.quick { 1.0 } else { 30.0 },
            generator: &[],
        };
        let mut sweeps = sweep::of(peers.clone(), setting);
        sweep::all(cx, &mut trials, &mut sweeps, multiples);
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
    trials.tell(&mut outcome);
    outcome.notes.extend(NOTES.map(str::to_owned));
    Ok(outcome)
}

/// What the paper found, beside what was found here.
fn papers(outcome: &mut Outcome) {
    let best = |cores: &str| {
        let series = outcome.series.iter().find(|s| s.figure == "Saturation" && s.name == cores)?;
        let mut all: Vec<_> = series.points.iter().map(|p| (p.x.to_string(), p.y.median)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let words = all.iter().map(|(who, rate)| format!("{who} {rate:.0}"));
        Some(words.collect::<Vec<_>>().join(", "))
    };
    let (one, two) = (best("one core"), best("two cores"));
    let all = [("one core", one), ("two cores", two)].map(|(cores, best)| {
        format!("on {cores}: {}", best.unwrap_or_else(|| "nothing".to_owned()))
    });
    outcome.shows.push(format!("Requests per second at saturation, {}.", all.join("; ")));
    let said = [
        (
            "one core",
            "epoll levels off at 20,000 requests per second, FlexSC at 40,000; at 50,000 \
                      FlexSC does up to 120 % more",
        ),
        (
            "two cores",
            "epoll comes to 35,000 requests per second, FlexSC to 60,000, and up to 77 % \
                       more",
        ),
    ];
    for (cores, what) in said {
        let figure = format!("Throughput against request rate, {cores}");
        outcome.paper(&figure, &format!("FlexSC, figure 9, nginx on {cores}: {what}."));
    }
    let numbers = [("one core", 20_000.0, 40_000.0), ("two cores", 35_000.0, 60_000.0)];
    for (cores, epoll, flexsc) in numbers {
        for (who, rate) in [("paper: epoll", epoll), ("paper: FlexSC", flexsc)] {
            if let Some(y) = spread(&[rate]) {
                outcome.point("Saturation", "requests/s", cores, X::Name(who.to_owned()), y);
            }
        }
    }
    outcome.paper(
        "Saturation",
        "The paper's nginx had a whole core or two of a 2.3 GHz Core i7, and a network of 1 Gbit/s.",
    );
}

/// Makes the files, and the session that asks for them.
fn session(site: &Site) -> Result<String, Failure> {
    for bytes in SIZES {
        site.add(&format!("{bytes}.bin"), bytes)?;
    }
    let mut text = String::new();
    for bytes in SIZES.iter().cycle().take(REQUESTS) {
        writeln!(text, "/{bytes}.bin size={bytes}").expect("a string takes everything");
    }
    Ok(text)
}
