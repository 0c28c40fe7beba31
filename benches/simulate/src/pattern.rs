//! Test data in which a piece reveals its position.

use std::sync::LazyLock;

use evring_sim::Machine;

/// A file of several blocks: name and length. Only the first client of a few runs requests it, so that most are short.
pub(super) const LONG_FILE: (&str, usize) = ("long.bin", 3_200_000);

/// Bytes in which almost every piece is unique.
pub(super) static PATTERN: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..LONG_FILE.1).map(|at| (at * 7 + at / 251 + at / 64_007) as u8).collect());

/// Adds files, given by name and length, that contain the start of the pattern.
pub(super) fn add_files(machine: &Machine, files: &[(&str, usize)]) {
    for (name, len) in files {
        machine.add_file(&format!("site/{name}"), &PATTERN[..*len]);
    }
}
