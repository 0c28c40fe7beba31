//! Runs cases for a number of seconds, from a seed on, and prints the first failure.
//!
//! `cargo run --release -p simulate -- SECONDS [SEED]`. `lab run simulate` also prints a report and
//! counts, and shrinks a failing run.

use std::alloc::System;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evring_sim::WatchingAllocator;
use simulate::{Case, run};

#[global_allocator]
static ALLOCATOR: WatchingAllocator<System> = WatchingAllocator(System);

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse().ok());
    let (Some(Some(seconds)), Some(first)) = (numbers.next(), numbers.next().unwrap_or(Some(1)))
    else {
        eprintln!("usage: simulate SECONDS [SEED]");
        return ExitCode::from(2);
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut runs = 0;
    for seed in first.. {
        let case = Case::of(seed, 2_000);
        if let Some(failure) = run(&case).verdict.failure {
            eprintln!("{case}\n{failure}");
            return ExitCode::FAILURE;
        }
        runs += 1;
        if Instant::now() > end {
            break;
        }
    }
    println!("{runs} runs, no failure");
    ExitCode::SUCCESS
}
