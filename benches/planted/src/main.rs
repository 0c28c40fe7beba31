//! Searches for a failing run: `planted FIRST LAST [MECHANISM]` prints the first failing seed and
//! its failure. In the copy, the environment variable `PLANTED` selects a bug.

use std::alloc::System;
use std::process::ExitCode;

use shared_ring::sim::WatchingAllocator;
use simulate::{Case, Mechanism, run};

#[global_allocator]
static ALLOCATOR: WatchingAllocator<System> = WatchingAllocator(System);

/// Number of steps of each run.
const STEPS: u64 = 1_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse().ok());
    let mechanism = args.get(2).map(|arg| arg.parse::<Mechanism>()).transpose();
    let (Some(first), Some(last), Ok(mechanism)) = (number(0), number(1), mechanism) else {
        eprintln!("usage: planted FIRST LAST [MECHANISM]");
        return ExitCode::from(2);
    };
    for seed in first..=last {
        let case = Case::of(seed, STEPS);
        let mechanism = mechanism.unwrap_or(case.mechanism);
        if let Some(failure) = run(&Case { mechanism, ..case }).verdict.failure {
            println!("{seed} {failure}");
            break;
        }
    }
    ExitCode::SUCCESS
}
