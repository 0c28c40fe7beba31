//! Simulation finds each bug that is planted on purpose, within a few seeds.

use std::alloc::System;
use std::thread;

use shared_ring::planted::{Bug, plant};
use shared_ring::sim::Watching;
use simulate::{Case, Mechanism, run};

#[global_allocator]
static ALLOCATOR: Watching<System> = Watching(System);

/// Within so many seeds every bug has to be found.
const SEEDS: u64 = 1_000;

/// Steps of each run.
const STEPS: u64 = 1_000;

/// Where a bug is looked for: one that only one mechanism can have, on that.
fn case(bug: Bug, seed: u64) -> Case {
    let case = Case::of(seed, STEPS);
    let mechanism = match bug {
        Bug::HintsLost => Mechanism::Interest,
        Bug::StaleSignalBelieved | Bug::OverflowIgnored | Bug::StateNotAsked => Mechanism::RtSig,
        _ => case.mechanism,
    };
    Case { mechanism, ..case }
}

/// The first seed that finds a bug, and what it says.
fn find(bug: Bug) -> Option<(u64, String)> {
    plant(Some(bug));
    let found = (1..=SEEDS).find_map(|seed| {
        let failure = run(&case(bug, seed)).verdict.failure?;
        Some((seed, failure))
    });
    plant(None);
    if let Some((seed, _)) = found {
        let case = case(bug, seed);
        assert_eq!(run(&case).verdict.failure, None, "without {bug:?}, {case}");
    }
    found
}

#[test]
fn every_planted_bug_is_found() {
    let half = Bug::ALL.len() / 2;
    let (one, other) = Bug::ALL.split_at(half);
    let search = |bugs: &'static [Bug]| {
        thread::spawn(move || bugs.iter().map(|bug| (*bug, find(*bug))).collect::<Vec<_>>())
    };
    let found = [search(one), search(other)].map(|search| search.join().unwrap());
    let mut missed = Vec::new();
    for (bug, found) in found.into_iter().flatten() {
        match found {
            Some((seed, failure)) => {
                let name = format!("{bug:?}");
                println!("{name:22} after {seed:3} seeds: {failure:.100}");
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}

#[test]
fn without_one_there_is_nothing_to_find() {
    for seed in 1..=60 {
        let case = Case::of(seed, STEPS);
        assert_eq!(run(&case).verdict.failure, None, "{case}");
    }
}
