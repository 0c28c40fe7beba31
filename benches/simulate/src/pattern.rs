//! Test data in which a piece reveals its position.

use evring_sim::Machine;

/// Bytes in which almost every piece is unique.
pub(super) static PATTERN: [u8; 150_000] = pattern();

const fn pattern<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        bytes[at] = (at * 7 + at / 251) as u8;
        at += 1;
    }
    bytes
}

/// Adds files, given by name and length, that contain the start of the pattern.
pub(super) fn add_files(machine: &Machine, files: &[(&str, usize)]) {
    for (name, len) in files {
        machine.add_file(&format!("site/{name}"), &PATTERN[..*len]);
    }
}
