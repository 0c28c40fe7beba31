//! Searches for a failing run: `planted FIRST LAST [MECHANISM] [PROGRAM]` prints the first failing
//! seed and its failure. In the copy, the environment variable `PLANTED` selects a bug.

use std::alloc::System;
use std::process::ExitCode;

use evring_sim::WatchingAllocator;
use simulate::{Case, Mechanism, Program, run};

#[global_allocator]
static ALLOCATOR: WatchingAllocator<System> = WatchingAllocator(System);

/// Number of steps of each run.
const STEPS: u64 = 1_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse().ok());
    let names = args.get(2..).unwrap_or_default();
    let mechanism = names.iter().find_map(|name| name.parse::<Mechanism>().ok());
    let program = names.iter().find_map(|name| name.parse::<Program>().ok());
    let known = usize::from(mechanism.is_some()) + usize::from(program.is_some());
    let (Some(first), Some(last), true) = (number(0), number(1), known == names.len()) else {
        eprintln!("usage: planted FIRST LAST [MECHANISM] [PROGRAM]");
        return ExitCode::from(2);
    };
    for seed in first..=last {
        let case = Case::of(seed, STEPS);
        let mechanism = mechanism.unwrap_or(case.mechanism);
        let program = program.unwrap_or(case.program);
        if let Some(failure) = run(&Case { mechanism, program, ..case }).verdict.failure {
            println!("{seed} {failure}");
            break;
        }
    }
    ExitCode::SUCCESS
}
