//! Bytes that files have and that are said, of which any piece shows where it comes from.

use shared_ring::sim::Machine;

/// Bytes that are in no two places the same, nearly.
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

/// Puts files with the start of it on the machine: name and length.
pub(super) fn add_files(machine: &Machine, files: &[(&str, usize)]) {
    for (name, len) in files {
        machine.add_file(&format!("site/{name}"), &PATTERN[..*len]);
    }
}
