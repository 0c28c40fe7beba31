//! Files, the files that they use, and the circles among them.

use std::collections::{BTreeMap, BTreeSet};

/// Files by name, with the files that each uses and the path by which it does.
pub type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the sets of files that reach each other, without files that are in no circle.
pub fn circles(uses: &Uses) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = uses.keys().map(|file| (file, reached(uses, file))).collect();
    let circle = |file| {
        reached[file].iter().filter(|other| reached[other].contains(file)).cloned().collect()
    };
    let all: BTreeSet<BTreeSet<String>> = uses.keys().map(circle).collect();
    all.into_iter().filter(|circle| !circle.is_empty()).collect()
}

/// Returns the files that a file uses, directly or through others.
fn reached(uses: &Uses, file: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut left = vec![file];
    while let Some(file) = left.pop() {
        left.extend(
            uses[file].keys().filter(|other| reached.insert((*other).clone())).map(String::as_str),
        );
    }
    reached
}
