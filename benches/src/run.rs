//! `lab list` and `lab run`.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use std::{io, process, thread};

use httpdate::fmt_http_date;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::getpid;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command::{List, Run, Simulation};
use crate::experiments::{self, Context};
use crate::failure::Failure;
use crate::goals;
use crate::measure::{adopt_orphans, enter_own_network, kill_descendants, remove_all};
use crate::outcome::{self, Outcome};
use crate::ratio::{Met, Ratio};
use crate::say::{number, say};

/// Lists the experiments.
pub(crate) fn list(options: &List) -> Result<(), Failure> {
    if options.json {
        let entry = |e: &experiments::Experiment| json!({ "id": e.id, "title": e.title, "source": e.source });
        let all: Vec<_> = experiments::ALL.iter().map(entry).collect();
        let text = serde_json::to_string_pretty(&all)
            .map_err(|e| Failure::new("cannot serialize the list", e))?;
        return say(text);
    }
    let entry =
        |e: &experiments::Experiment| format!("{:14} {}\n{:14} {}", e.id, e.title, "", e.source);
    say(experiments::ALL.iter().map(entry).collect::<Vec<_>>().join("\n"))
}

/// Runs an experiment.
///
/// # Errors
/// Also if it missed a goal, after its outcome was saved.
pub(crate) fn run(options: &Run) -> Result<(), Failure> {
    let experiment = experiments::named(&options.id)?;
    let Simulation { seed, steps, trace } = &options.simulation;
    if options.id != "simulate" && (steps.is_some() || trace.is_some()) {
        let what = "--steps and --trace require the experiment `simulate`";
        return Err(Failure::Request(what.to_owned()));
    }
    if trace.is_some() && (options.json.is_some() || options.quick) {
        let what = "--trace repeats one run and excludes --json and --quick";
        return Err(Failure::Request(what.to_owned()));
    }
    // An unwritable file fails before the measurement, not after.
    if let Some(path) = &options.json {
        check_writable(path)
            .map_err(|e| Failure::new(format_args!("cannot write {}", path.display()), e))?;
    }
    if experiment.own_network {
        enter_own_network().map_err(|e| {
            let what = "cannot create the network namespace that this experiment needs";
            Failure::new(what, e)
        })?;
    }
    adopt_orphans().map_err(|e| Failure::new("cannot adopt orphans", e))?;
    clean_up_on_signal().map_err(|e| Failure::new("cannot install signal handlers", e))?;
    let progress = ProgressBar::new(0);
    progress.set_style(
        ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len} {msg}")
            .expect("the template is well-formed"),
    );
    // A full run may end earlier than this.
    let seconds = options.max_time.unwrap_or(if options.quick { 42 } else { 1_770 });
    let seed = seed.unwrap_or_else(|| fastrand::u32(..).into());
    let deadline = Instant::now() + Duration::from_secs(seconds.into());
    let (quick, simulation) = (options.quick, options.simulation.clone());
    let cx = Context { quick, deadline, seed, progress, simulation };
    let outcome = (experiment.run)(&cx);
    // A signal has ended the servers, and ends this process when it has cleaned up.
    while IS_ENDING.load(Ordering::Acquire) {
        thread::park();
    }
    // Those that a failure has left.
    kill_descendants(getpid());
    let mut outcome = outcome?;
    cx.progress.finish_and_clear();

    if trace.is_some() {
        return Ok(());
    }
    let unmeasured = goals::unmeasured(experiment.id, Some(&outcome));
    let note = |(name, goal)| format!("Not measured, with a goal: {name}, {goal}.");
    let notes: Vec<_> = unmeasured.map(note).collect();
    outcome.notes.extend(notes);
    outcome.quick = quick;
    outcome.seed = (experiment.id != "simulate").then_some(seed);
    outcome.date = fmt_http_date(SystemTime::now());
    let path = outcome::directory()?.join(format!("{}.json", experiment.id));
    outcome.save(&path)?;
    let saved = options.json.as_deref().map_or(Ok(()), |path| outcome.save(path));
    say(summary(&outcome))?;
    say(format_args!("saved to {}; `lab report` draws it", path.display()))?;
    saved?;
    missed(&outcome).map_or(Ok(()), Err)
}

/// Checks that a file can be written, and leaves it as it is.
fn check_writable(path: &Path) -> io::Result<()> {
    let is_new = !path.exists();
    File::options().append(true).create(true).open(path)?;
    if is_new { fs::remove_file(path) } else { Ok(()) }
}

/// Returns the failure that names the missed goals, if there are any.
fn missed(outcome: &Outcome) -> Option<Failure> {
    let missed = outcome.ratios.iter().filter(|(_, ratio)| ratio.met == Some(Met::No));
    let lines: Vec<_> =
        missed.map(|(name, ratio)| format!("{name}: {}", describe(ratio))).collect();
    (!lines.is_empty()).then(|| Failure::Missed(format!("goals missed:\n  {}", lines.join("\n  "))))
}

/// Formats a ratio with its interval, its rounds and its goal.
fn describe(ratio: &Ratio) -> String {
    let mut text = number(ratio.value);
    if ratio.low != ratio.high {
        text += &format!(" ({}, {} rounds)", ratio.interval(), ratio.per_round.len());
    }
    if let Some((goal, met)) = ratio.goal.zip(ratio.met) {
        text += &format!("; goal: {goal}; met: {met}");
    }
    text
}

/// Whether a signal ends this process.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Kills the servers, and removes control groups and temporary files, when a signal ends this process.
fn clean_up_on_signal() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        IS_ENDING.store(true, Ordering::Release);
        kill_descendants(getpid());
        remove_all();
        let mine = format!("-{}", std::process::id());
        let directory = outcome::directory().and_then(|path| Ok(fs::read_dir(path)?));
        for entry in directory.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let stem = name.split('.').next().unwrap_or("");
            if stem.ends_with(&mine) || stem.contains(&format!("{mine}-")) {
                let path = entry.path();
                let _ =
                    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
        }
        // The experiment may have started others meanwhile.
        kill_descendants(getpid());
        process::exit(128 + signal);
    });
    Ok(())
}

/// Maximum number of points printed for a series; longer ones are curves, for the plot.
const MAX_POINTS: usize = 24;

/// Formats the figures, the notes, the ratios and the findings.
fn summary(outcome: &Outcome) -> String {
    let mut lines = Vec::new();
    for series in &outcome.series {
        let unit = if series.unit.is_empty() { "" } else { &format!(" [{}]", series.unit) };
        lines.push(format!("{}, {}{unit}", series.figure, series.name));
        if series.points.len() > MAX_POINTS {
            lines.push(format!("  {} points", series.points.len()));
            continue;
        }
        for p in &series.points {
            let (low, high) = (number(p.y.low), number(p.y.high));
            let range = if low == high { String::new() } else { format!("  {low} to {high}") };
            lines.push(format!("  {:24} {:>12}{range}", p.x, number(p.y.median)));
        }
    }
    lines.extend(outcome.notes.iter().map(|note| format!("note: {note}")));
    lines.push("ratios".to_owned());
    let ratios = outcome.ratios.iter();
    lines.extend(ratios.map(|(name, ratio)| format!("  {name:40} {}", describe(ratio))));
    lines.extend(outcome.shows.iter().cloned());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_goals_are_a_failure_of_their_own() {
        let mut outcome = Outcome::new("preempt");
        outcome.ratio("wait_mode_over_send", "send", vec![11.0, 12.0, 9.0, 13.0, 12.5, 12.0]);
        outcome.ratio("uring_over_send", "send", vec![1.0; 6]);
        assert!(missed(&outcome).is_none());
        outcome.ratio(
            "kernel_entries_per_event_loaded",
            "send",
            vec![0.06, 0.07, 0.06, 0.07, 0.06, 0.06],
        );
        let failure = missed(&outcome).expect("a goal was missed");
        assert_eq!(failure.code(), 3);
        let text = failure.to_string();
        assert!(text.contains("kernel_entries_per_event_loaded: 0.060 (0.060 to 0.070, 6 rounds); goal: at most 0.05"), "{text}");
        assert!(!text.contains("wait_mode"), "{text}");
    }
}
