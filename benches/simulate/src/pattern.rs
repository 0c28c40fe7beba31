//! Test data in which a piece reveals its position.

use std::sync::LazyLock;

use evring_sim::Machine;

/// Bytes in which almost every piece is unique.
pub(super) static PATTERN: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..300_000).map(|at: usize| (at * 7 + at / 251) as u8).collect());

/// Adds files, given by name and length, that contain the start of the pattern.
pub(super) fn add_files(machine: &Machine, files: &[(&str, usize)]) {
    for (name, len) in files {
        machine.add_file(&format!("site/{name}"), &PATTERN[..*len]);
    }
}
