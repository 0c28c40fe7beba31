//! Kernels and generated code do what the interpreter does: on all lengths, at all alignments, in all
//! lists of up to four of the pipes that ship, between pages that can be neither read nor written.
//!
//! By default, a part of these combinations runs: single pipes at all lengths, and all alignments of each kernel, at one length
//! each. With `EXHAUSTIVE=1` in the environment, as in `.ci/run`, all lists run, those of one and two pipes and each kernel at all
//! lengths, others at lengths around those that matter, and all alignments at several lengths, which takes minutes; with
//! `EXHAUSTIVE=all` all lists at all lengths, which takes hours.

use crate::support;

use proptest::prelude::*;

use support::{MAX_MESSAGE, Memory, Place, Subject, Which};

/// Lengths around the sizes of words, vectors, blocks and pieces of keystream.
const LENGTHS: [usize; 34] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 31, 32, 33, 40, 63, 64, 65, 95, 127, 128, 129, 161, 255,
    256, 391, 1023, 1024, 1025, 1151, 1500, 2053, 4096,
];

fn exhaustive() -> bool {
    std::env::var_os("EXHAUSTIVE").is_some()
}

/// The list with this number, when lists are counted by the digits of their pipes.
fn list(pipes: usize, mut number: usize) -> Vec<Which> {
    let mut list = Vec::new();
    for _ in 0..pipes {
        list.push(Which::ALL[number % Which::ALL.len()]);
        number /= Which::ALL.len();
    }
    list
}

fn compare_lengths(lists: impl Iterator<Item = Vec<Which>>, lengths: &[usize]) {
    let mut memory = Memory::new();
    for (number, list) in lists.enumerate() {
        let mut subject = Subject::new(&list);
        for len in lengths {
            // Alternately beside the page before and the one behind, so that each is beside it for
            // some lists; and a little away from it, at all alignments.
            let away = (number * 5 + len * 3) % 64;
            subject.compare(&mut memory, *len, Place::FromEnd(0), Place::FromStart(away));
            subject.compare(&mut memory, *len, Place::FromStart(away), Place::FromEnd(0));
            if number % 4 == 0 {
                subject.compare(&mut memory, *len, Place::FromStart(0), Place::FromEnd(away));
            }
        }
    }
}

/// All lengths.
fn all_lengths() -> Vec<usize> {
    (0..=MAX_MESSAGE).collect()
}

#[test]
fn on_all_lists_of_up_to_two_pipes() {
    let all = all_lengths();
    compare_lengths((0..10).map(|number| list(1, number)), &all);
    let lengths = if exhaustive() { &all[..] } else { &LENGTHS };
    compare_lengths((0..100).map(|number| list(2, number)), lengths);
}

#[test]
fn on_lists_of_three_and_four_pipes() {
    if exhaustive() {
        let all = all_lengths();
        let every_length = std::env::var("EXHAUSTIVE").is_ok_and(|what| what == "all");
        let lengths = if every_length { &all[..] } else { &LENGTHS };
        compare_lengths((0..1000).map(|number| list(3, number)), lengths);
        compare_lengths((0..10_000).map(|number| list(4, number)), lengths);
    } else {
        // Numbers that have no pattern in their digits.
        compare_lengths((0..1000).step_by(17).map(|number| list(3, number)), &LENGTHS);
        compare_lengths((0..10_000).step_by(127).map(|number| list(4, number)), &LENGTHS);
    }
}

/// Any value of a register, with those around which arithmetic changes more often than others.
fn value() -> impl Strategy<Value = u64> {
    let near_the_end = (0..200u64).prop_map(|n| u64::MAX - n);
    let repeated = any::<u8>().prop_map(|byte| u64::from_ne_bytes([byte; 8]));
    prop_oneof![any::<u64>(), near_the_end, repeated, 0..200u64, Just(u64::MAX), Just(0xffff_ffff)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The byte that kernels searched for in the last bytes, a place that meant that nothing was found, and a CRC of
    /// more than 32 bits before an empty message were others than the interpreter's.
    #[test]
    fn on_any_exported_values(
        list in prop::sample::select(kernel_lists()),
        values in prop::collection::vec(value(), 9),
        len in prop_oneof![Just(0), 0..300usize],
    ) {
        let mut subject = Subject::new(&list);
        let registers = list.iter().enumerate().flat_map(|(place, which)| {
            which.registers().iter().map(move |register| (place, *register))
        });
        let exports = registers.zip(values).map(|((place, register), value)| (place, register, value));
        subject.composed.exports = exports.collect();
        subject.compare(&mut Memory::new(), len, Place::FromEnd(0), Place::FromStart(len % 64));
    }
}

/// The first byte that is there is at the place that means that none was found; another one follows in the same vector.
#[test]
fn place_that_means_not_found_was_the_end_of_the_search() {
    use ash_sandbox::ilp::search::{BYTE, NOT_FOUND, SEARCHED, repeat};
    let mut subject = Subject::new(&[Which::Search]);
    let mut memory = Memory::new();
    for place in 0..64 {
        let exports =
            vec![(0, SEARCHED, NOT_FOUND - place as u64), (0, BYTE, repeat(memory.byte(place)))];
        subject.composed.exports = exports;
        for len in [64, 71, 128, 1024, 4096] {
            subject.compare(&mut memory, len, Place::FromEnd(0), Place::FromStart(0));
        }
    }
}

/// A list for each kernel that there is.
fn kernel_lists() -> Vec<Vec<Which>> {
    use Which::*;
    let readers: [&[Which]; 4] = [&[], &[Checksum], &[Crc32c], &[Checksum, Crc32c]];
    let changes: [&[Which]; 6] =
        [&[Swap16], &[Xor], &[ChaCha20], &[Swap32, Xor], &[Xor, Swap64], &[Xor, Copy, Swap16]];
    let mut lists =
        vec![vec![Copy], vec![Search], vec![Checksum, Search], vec![Crc32c, Count, Checksum]];
    for readers in readers {
        for change in changes {
            lists.push([readers, change].concat());
            lists.push([change, readers].concat());
        }
        lists.push([readers, &[Copy, Count]].concat());
    }
    lists
}

#[test]
fn on_all_lengths() {
    let lists = kernel_lists();
    let mut memory = Memory::new();
    for (number, list) in lists.iter().enumerate() {
        let mut subject = Subject::new(list);
        assert!(subject.has_kernels(), "{list:?}");
        let step = if exhaustive() { 1 } else { 7 };
        // All lengths of a vector and more, and beyond that a seventh of all, others for each list.
        let lengths = (0..160).chain((160 + number % step..=MAX_MESSAGE).step_by(step));
        for len in lengths {
            let away = (number + len) % 64;
            subject.compare(&mut memory, len, Place::FromEnd(0), Place::FromEnd(0));
            if len % 8 == 0 {
                subject.compare(&mut memory, len, Place::FromStart(away), Place::FromStart(0));
            }
        }
    }
}

#[test]
fn at_all_alignments() {
    use Which::*;
    let mut lists = kernel_lists();
    // And some without a kernel: of readers, of changes, and of both.
    let generated = [
        vec![Search, Crc32c, Count],
        vec![ChaCha20, Swap16, Xor],
        vec![Swap16, Search, Swap64, Checksum],
    ];
    assert!(generated.iter().all(|list| !Subject::new(list).has_kernels()));
    lists.extend(generated);
    let lengths: &[usize] =
        if exhaustive() { &[0, 1, 7, 8, 33, 129, 200, 391, 1500] } else { &[7, 33, 391] };
    let mut memory = Memory::new();
    for list in lists {
        let mut subject = Subject::new(&list);
        for source in 0..64 {
            for destination in 0..64 {
                let len = lengths[(source + destination) % lengths.len()];
                let (from, to) = (Place::FromStart(source), Place::FromStart(destination));
                if exhaustive() {
                    for len in lengths {
                        subject.compare(&mut memory, *len, from, to);
                    }
                } else {
                    subject.compare(&mut memory, len, from, to);
                }
            }
        }
    }
}
