//! The trace file of a run: the case in the first line, then the events.

use std::fs;
use std::path::Path;

use simulate::{Case, run};

use crate::failure::Failure;
use crate::say::say;

/// Writes the trace of a run.
pub(super) fn write(path: &Path, case: &Case, lines: &[String]) -> Result<(), Failure> {
    fs::write(path, format!("{case}\n{}\n", lines.join("\n")))
        .map_err(|error| Failure::new(format_args!("cannot write {}", path.display()), error))
}

/// Repeats the run in a trace file, and prints its events.
pub(super) fn repeat(path: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::new(format_args!("cannot read {}", path.display()), error))?;
    let (first, recorded) = text.split_once('\n').unwrap_or((&text, ""));
    let mut case: Case = first.parse().map_err(|reason| {
        let path = path.display();
        Failure::Request(format!("{path} is not a trace: the first line is not a case: {reason}"))
    })?;
    case.plan.trace_steps = true;
    let verdict = run(&case).verdict;
    say(&case)?;
    for line in &verdict.trace {
        say(line)?;
    }
    let expected: Vec<_> = recorded.lines().collect();
    let differs = verdict.trace.iter().zip(&expected).position(|(now, then)| now != then);
    let same = differs.is_none() && (expected.is_empty() || expected.len() == verdict.trace.len());
    if !same {
        let line = differs.unwrap_or(expected.len().min(verdict.trace.len())) + 2;
        say(format_args!(
            "The run differs from the file from line {line} on: the program or the file has changed."
        ))?;
    }
    match verdict.failure {
        Some(failure) => Err(Failure::Run(failure)),
        None => say("The run did not fail."),
    }
}
