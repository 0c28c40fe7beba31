//! The file of a run: the case in its first line, then what happened.

use std::fs;
use std::path::Path;

use simulate::{Case, run};

use crate::failure::Failure;
use crate::say::say;

/// Writes what happened in a run.
pub(super) fn write(path: &Path, case: &Case, lines: &[String]) -> Result<(), Failure> {
    fs::write(path, format!("{case}\n{}\n", lines.join("\n")))
        .map_err(|error| Failure::new(format_args!("can't write {}", path.display()), error))
}

/// Repeats the run that a file tells of, and shows it.
pub(super) fn repeat(path: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::new(format_args!("can't read {}", path.display()), error))?;
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let mut case: Case = first.parse().map_err(|why| {
        let path = path.display();
        Failure::Request(format!("{path} is no trace of a run: its first line is no case: {why}"))
    })?;
    case.plan.trace_steps = true;
    let verdict = run(&case).verdict;
    say(&case)?;
    for line in &verdict.trace {
        say(line)?;
    }
    let before: Vec<_> = rest.lines().collect();
    let differs = verdict.trace.iter().zip(&before).position(|(now, then)| now != then);
    let same = differs.is_none() && (before.is_empty() || before.len() == verdict.trace.len());
    if !same {
        let line = differs.unwrap_or(before.len().min(verdict.trace.len())) + 2;
        say(format_args!(
            "It went another way than in the file, from line {line} on: the program has changed, or \
             the file."
        ))?;
    }
    match verdict.failure {
        Some(failure) => Err(Failure::Run(failure)),
        None => say("It does not fail."),
    }
}
