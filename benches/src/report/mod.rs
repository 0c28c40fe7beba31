//! `lab report`: the last runs as one self-contained HTML file.

mod markup;
mod page;
mod plot;
mod regime;

use std::fs;
use std::path::Path;

use crate::command::Report;
use crate::experiments;
use crate::failure::Failure;
use crate::outcome::{self, Outcome};
use crate::say::say;
pub(crate) use plot::standalone;

/// Writes the report, and prints its path.
pub(crate) fn write(options: &Report) -> Result<(), Failure> {
    let directory = outcome::directory()?;
    let runs = last_runs(&directory);
    if runs.is_empty() {
        let text = "no runs to report; use `lab run ID` first".to_owned();
        return Err(Failure::Run(text));
    }
    let path = &options.output;
    fs::write(path, page::html(&runs)?)
        .map_err(|e| Failure::new(format_args!("cannot write {}", path.display()), e))?;
    say(path.display())?;
    if let Some(directory) = &options.figures {
        figures(&runs, directory, &options.series)?;
    }
    Ok(())
}

/// Writes each figure to a separate file, with all or the selected series.
fn figures(runs: &[Outcome], directory: &Path, selected: &[String]) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    for run in runs {
        for (number, name) in page::figures(run).into_iter().enumerate() {
            let is_selected = |name: &String| selected.is_empty() || selected.contains(name);
            let all = run.series.iter().filter(|s| s.figure == name && is_selected(&s.name));
            let series: Vec<_> = all.collect();
            if series.is_empty() {
                continue;
            }
            let path = directory.join(format!("{}-{}.svg", run.id, number + 1));
            fs::write(&path, standalone(name, &series)?)?;
            say(format_args!("{}: {name}", path.display()))?;
        }
    }
    Ok(())
}

/// Loads the last runs in the order of the list of experiments. Unreadable files are skipped.
fn last_runs(directory: &Path) -> Vec<Outcome> {
    let file = |e: &experiments::Experiment| directory.join(format!("{}.json", e.id));
    let files = experiments::ALL.iter().map(file).filter(|path| path.exists());
    let mut outcomes = Vec::new();
    for path in files {
        match Outcome::load(&path) {
            Ok(outcome) => outcomes.push(outcome),
            Err(failure) => eprintln!("lab: skipped: {failure}"),
        }
    }
    outcomes
}
