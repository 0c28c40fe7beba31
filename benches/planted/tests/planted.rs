//! Simulation finds each planted bug within a number of seeds.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use planted::{BUGS, Bug, VARIABLE, copy_with_bugs};
use simulate::Mechanism;

/// Number of seeds within which every bug must be found.
const SEEDS: u64 = 4_000;

/// The directory of the copy.
const COPY: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/planted");

fn copy(to: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    copy_with_bugs(&root, to).unwrap_or_else(|error| panic!("{error}"));
}

fn build() {
    copy(Path::new(COPY));
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--offline", "--package", "planted"])
        .args(["--config", "profile.dev.opt-level=1", "--target-dir", "target"])
        .current_dir(COPY)
        .status();
    assert!(built.unwrap().success(), "cannot build the copy in {COPY}");
}

/// Returns the first seed that fails, and its failure.
fn search(seeds: [u64; 2], bug: &Bug, planted: Option<usize>) -> Option<(u64, String)> {
    let mut search = Command::new(format!("{COPY}/target/debug/planted"));
    search.args(seeds.map(|seed| seed.to_string()));
    search.args(bug.only_on);
    search.args(bug.only_in.map(|program| program.name()));
    search.env_remove(VARIABLE).envs(planted.map(|number| (VARIABLE, number.to_string())));
    let found = search.output().unwrap();
    let stderr = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success(), "with {}: {}\n{stderr}", bug.name, found.status);
    let found = String::from_utf8_lossy(&found.stdout);
    let (seed, failure) = found.split_once(' ')?;
    Some((seed.parse().unwrap(), failure.trim().to_owned()))
}

#[test]
fn every_bug_replaces_a_piece_of_the_sources() {
    copy(Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/planted-pieces")));
}

#[test]
fn every_bug_names_a_simulated_mechanism() {
    for bug in BUGS {
        if let Some(name) = bug.only_on {
            name.parse::<Mechanism>().unwrap_or_else(|error| panic!("{}: {error}", bug.name));
        }
    }
}

#[test]
#[ignore = "it builds a copy of the sources and searches for minutes; ci/planted.sh runs it"]
fn every_planted_bug_is_found() {
    build();
    let remaining = Mutex::new(BUGS.iter().enumerate());
    let missed = Mutex::new(Vec::new());
    let worker = || {
        loop {
            let Some((number, bug)) = remaining.lock().unwrap().next() else { break };
            let Some((seed, failure)) = search([1, SEEDS], bug, Some(number)) else {
                missed.lock().unwrap().push(bug.name);
                continue;
            };
            println!("{:22} after {seed:3} seeds: {failure:.100}", bug.name);
            assert_eq!(search([seed, seed], bug, None), None, "without {}", bug.name);
        }
    };
    thread::scope(|scope| {
        scope.spawn(worker);
        scope.spawn(worker);
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
