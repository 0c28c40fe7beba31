//! Simulated runs: none fails, and each is reproducible.

use std::alloc::System;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

use evring_sim::{Fault, Faults, WatchingAllocator};
use shared_ring::Counters;
use simulate::{Case, Choices, Mechanism, Program, run, run_script};

#[global_allocator]
static ALLOCATOR: WatchingAllocator<System> = WatchingAllocator(System);

/// Returns the seeds of the runs with these choices.
fn seeds_with(are_made: impl Fn(&Choices) -> bool) -> impl Iterator<Item = u64> {
    (1..).filter(move |seed| are_made(&Choices::of(*seed)))
}

/// They were residues of the seed, so that some excluded each other.
#[test]
fn choices_of_a_run_occur_in_all_pairs() {
    const KINDS: usize = 7;
    let mut values: [HashSet<String>; KINDS] = Default::default();
    let mut pairs = HashSet::new();
    for seed in 1..=2_000 {
        let (case, choices) = (Case::of(seed, 1_000), Choices::of(seed));
        let each: [String; KINDS] = [
            case.mechanism.name().to_owned(),
            format!("{:?}", choices.end),
            format!("{:?}", choices.has_multishot),
            format!("{:?}", choices.delivery),
            format!("{:?}", choices.has_second_group),
            format!("{:?}", choices.has_layer),
            format!("{:?}", choices.panics_after.is_some()),
        ];
        for (kind, value) in each.iter().enumerate() {
            values[kind].insert(value.clone());
            pairs.extend((0..kind).map(|other| (kind, value.clone(), other, each[other].clone())));
        }
    }
    let counts = values.map(|values| values.len());
    assert_eq!(counts, [Mechanism::ALL.len(), 3, 2, 5, 2, 2, 2]);
    let all: usize =
        (0..KINDS).map(|kind| counts[kind] * counts[..kind].iter().sum::<usize>()).sum();
    assert_eq!(pairs.len(), all);
}

#[test]
fn every_server_on_every_mechanism_holds() {
    let seeds = if std::env::var_os("EXHAUSTIVE").is_some() { 8 } else { 5 };
    for mechanism in Mechanism::ALL {
        let mut counted = HashSet::new();
        for program in Program::ALL {
            // In the run of the last one, files are not cached.
            for seed in (1..=seeds).chain([11]) {
                let case = Case { program: *program, mechanism, ..Case::of(seed, 1_000) };
                let report = run(&case);
                assert_eq!(report.verdict.failure, None, "{case}");
                let counts = report.stats.kernel.each();
                counted.extend(counts.filter(|(_, n)| *n > 0).map(|(name, _)| name));
            }
        }
        let all = Counters::default();
        let never = all.each().map(|(name, _)| name).filter(|name| !counted.contains(name));
        // No server makes system calls by number.
        let never: Vec<_> = never.filter(|name| *name != "offloaded_calls").collect();
        assert_eq!(never, mechanism.unused_counters(), "{mechanism:?}");
    }
}

#[test]
fn memory_of_all_connections_together_is_bounded() {
    for mechanism in Mechanism::ALL {
        let mut overruns = 0;
        let programs = [Program::Httpd, Program::Echo].into_iter().cycle();
        for (program, seed) in programs.zip(seeds_with(|c| c.is_short_of_memory)).take(6) {
            let case = Case { program, mechanism, clients: 12, ..Case::of(seed, 1_000) };
            let report = run(&case);
            assert_eq!(report.verdict.failure, None, "{case}");
            overruns += report.stats.overruns;
        }
        assert!(overruns > 0, "{mechanism:?}");
    }
}

/// What its kernel has queued would reach the next owners of its descriptors.
#[test]
fn panic_of_the_application_leaves_nothing_open_or_queued() {
    for mechanism in Mechanism::ALL {
        let (mut panics, mut with_queued) = (0, 0);
        let programs = Program::ALL.iter().cycle();
        for (program, seed) in programs.zip(seeds_with(|c| c.panics_after.is_some())).take(20) {
            let case = Case { program: *program, mechanism, ..Case::of(seed, 1_000) };
            let report = run(&case);
            assert_eq!(report.verdict.failure, None, "{case}");
            panics += usize::from(report.queued_at_panic.is_some());
            with_queued += usize::from(report.queued_at_panic.is_some_and(|queued| queued > 0));
        }
        assert!(panics > 10, "{mechanism:?}: {panics}");
        // FlexSC posts calls to its pages instead.
        let has_ring = !matches!(mechanism, Mechanism::Polling(_) | Mechanism::FlexSc);
        assert!(!has_ring || with_queued > panics / 2, "{mechanism:?}: {with_queued} of {panics}");
    }
}

#[test]
fn web_server_in_a_layer_holds() {
    for (mechanism, seed) in Mechanism::ALL.into_iter().zip(seeds_with(|c| c.has_layer)) {
        let program = Program::Httpd;
        let case = Case { program, mechanism, ..Case::of(seed, 1_000) };
        assert_eq!(run(&case).verdict.failure, None, "{case}");
    }
}

/// The clients check that no block follows one with bytes of two versions.
#[test]
fn replies_from_files_that_change_are_not_continued_with_another_version() {
    for mechanism in Mechanism::ALL {
        for program in [Program::Httpd, Program::Wild] {
            let mut changes = 0;
            for seed in 1..=20 {
                let mut case = Case { program, mechanism, ..Case::of(seed, 1_000) };
                // A first part that is read in two reads may be of two versions.
                case.plan.faults = Faults::NONE
                    .with(Fault::FileChanges)
                    .with(Fault::Cold)
                    .with(Fault::ShortRead)
                    .with(Fault::ShortSend);
                let report = run(&case);
                assert_eq!(report.verdict.failure, None, "{case}");
                changes += report.verdict.faults[Fault::FileChanges as usize];
            }
            assert!(changes > 0, "{program:?} on {mechanism:?}: no file has changed");
        }
    }
}

/// The contract once looked for the deadlines of connections that had ended and waited for the disk.
#[test]
fn servers_of_a_disk_that_hangs_hold() {
    let mut hangs = 0;
    for seed in 1..=100 {
        let (program, mechanism) = (Program::Httpd, Mechanism::Immediate);
        let mut case = Case { program, mechanism, clients: 12, ..Case::of(seed, 1_000) };
        case.plan.faults =
            Faults::NONE.with(Fault::Cold).with(Fault::DiskHangs).with(Fault::SlowDisk);
        let report = run(&case);
        assert_eq!(report.verdict.failure, None, "{case}");
        hangs += report.verdict.faults[Fault::DiskHangs as usize];
    }
    assert!(hangs > 0);
}

/// One of them is of a client that waited forever for a disk that hangs. In another one, 61 kB that were received in
/// pieces of a byte counted as calls without progress.
#[test]
fn scripts_from_which_the_fuzzer_starts_hold() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/server");
    let mut mechanisms = HashSet::new();
    for seed in fs::read_dir(seeds).unwrap() {
        let path = seed.unwrap().path();
        let script = fs::read(&path).unwrap();
        assert_eq!(run_script(&script, false).verdict.failure, None, "{path:?}");
        // The first byte chooses the mechanism.
        mechanisms.insert(usize::from(script[0]) % Mechanism::ALL.len());
    }
    assert_eq!(mechanisms, (0..Mechanism::ALL.len()).collect());
}

#[test]
fn run_without_faults_serves_every_client() {
    for seed in 1..=20 {
        let mut case = Case::of(seed, 1_000);
        case.plan.faults = Faults::NONE;
        let report = run(&case);
        assert_eq!(report.verdict.failure, None, "{case}");
        // A small descriptor table fills up without faults.
        let few = case.plan.descriptors < 100;
        for fault in Fault::ALL.into_iter().filter(|fault| !few || *fault != Fault::TableFull) {
            assert_eq!(report.verdict.faults[fault as usize], 0, "{}: {case}", fault.name());
        }
    }
}

/// Runs 20,000 requests, or `KV_OPERATIONS`.
#[test]
fn operations_of_the_cache_agree_with_a_model() {
    let min_requests: u64 =
        std::env::var("KV_OPERATIONS").map_or(20_000, |n| n.parse().expect("a number"));
    let (mut seed, mut requests) = (0, 0);
    while requests < min_requests {
        seed += 1;
        let case = Case { program: Program::Kv, ..Case::of(seed, 3_000) };
        let report = run(&case);
        assert_eq!(report.verdict.failure, None, "{case}");
        requests += report.requests;
    }
    println!("{requests} requests in {seed} runs");
}

#[test]
fn run_is_reproducible() {
    let mut lines = 0;
    let panicking = seeds_with(|c| c.panics_after.is_some()).take(5);
    for seed in (1..=25).chain(panicking) {
        let mut case = Case::of(seed, 600);
        case.plan.trace_steps = true;
        let (one, other) = (run(&case), run(&case));
        lines += one.verdict.trace.len();
        let differ = one.verdict.trace.iter().zip(&other.verdict.trace).find(|(a, b)| a != b);
        assert_eq!(differ, None, "{case}");
        assert_eq!(one.verdict.trace.len(), other.verdict.trace.len(), "{case}");
        assert_eq!(one.stats.kernel, other.stats.kernel, "{case}");
        assert_eq!(one.queued_at_panic, other.queued_at_panic, "{case}");
    }
    assert!(lines > 10_000, "too few events: {lines}");
}
