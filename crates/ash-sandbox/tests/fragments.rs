//! A message that comes in fragments is one message.

use crate::support;

use ash_sandbox::ilp::{ApplyError, Mode, Prefer, UNIT_BYTES};
use proptest::prelude::*;
use support::{Composed, Which};

fn message(len: usize) -> Vec<u8> {
    (0..len as u32).map(|byte| (byte.wrapping_mul(byte).wrapping_mul(7) >> 2) as u8).collect()
}

/// Cuts a message at these places.
fn cut<'a>(message: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = places.iter().map(|place| place % (message.len() + 1)).collect();
    places.push(0);
    places.push(message.len());
    places.sort_unstable();
    places.windows(2).map(|pair| &message[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn fragments_of_any_lengths_are_gathered(
        which in prop::collection::vec(prop::sample::select(Which::ALL.to_vec()), 1..5),
        len in 0..2500_usize,
        places in prop::collection::vec(any::<usize>(), 0..12),
        near in prop::collection::vec(0..40_usize, 0..6),
    ) {
        let message = message(len);
        let fragments = cut(&message, &[places, near].concat());
        let composed = Composed::new(&which);
        for prefer in [Prefer::Fastest, Prefer::Generated, Prefer::Interpreted] {
            let ilp = composed.list.compile_with(Mode::Write, prefer).unwrap();
            let (mut whole, mut gathered) = (vec![0; len], vec![0; len + 3]);
            let mut state = ilp.state();
            composed.prepare(&mut state);
            ilp.write(&mut state, &message, &mut whole).unwrap();
            let expected = composed.results(&state);

            composed.prepare(&mut state);
            ilp.gather(&mut state, &fragments, &mut gathered).unwrap();
            prop_assert_eq!(&gathered[..len], &whole[..]);
            prop_assert_eq!(&gathered[len..], &[0; 3]);
            prop_assert_eq!(composed.results(&state), &expected[..]);

            let ilp = composed.list.compile_with(Mode::Read, prefer).unwrap();
            let mut state = ilp.state();
            composed.prepare(&mut state);
            ilp.read_fragments(&mut state, &fragments).unwrap();
            prop_assert_eq!(composed.results(&state), expected);
        }
    }

    #[test]
    fn fragments_of_whole_units_may_come_one_by_one(
        which in prop::collection::vec(prop::sample::select(Which::ALL.to_vec()), 1..5),
        len in 0..2500_usize,
        places in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let message = message(len);
        let places: Vec<usize> =
            places.iter().map(|place| place % (len + 1) / UNIT_BYTES * UNIT_BYTES).collect();
        let composed = Composed::new(&which);
        let ilp = composed.list.compile(Mode::Write).unwrap();
        let mut whole = vec![0; len];
        let mut state = ilp.state();
        composed.prepare(&mut state);
        ilp.write(&mut state, &message, &mut whole).unwrap();
        let expected = composed.results(&state);

        composed.prepare(&mut state);
        let mut written = Vec::new();
        for fragment in cut(&message, &places) {
            let mut fragment = fragment.to_vec();
            ilp.write_in_place(&mut state, &mut fragment).unwrap();
            written.extend(fragment);
        }
        prop_assert_eq!(written, whole);
        prop_assert_eq!(composed.results(&state), expected);
    }

    #[test]
    fn fragments_come_in_any_order_where_all_pipes_are_commutative(
        which in prop::collection::vec(prop::sample::select(Which::ALL.to_vec()), 1..4),
        units in prop::collection::vec(0..40_usize, 1..6).prop_shuffle(),
        tail in 0..UNIT_BYTES,
        first in any::<prop::sample::Index>(),
    ) {
        let composed = Composed::new(&which);
        let ordered = [Which::Crc32c, Which::Search, Which::ChaCha20];
        for prefer in [Prefer::Fastest, Prefer::Generated, Prefer::Interpreted] {
            let ilp = composed.list.compile_with(Mode::Write, prefer).unwrap();
            prop_assert_eq!(ilp.is_commutative(), !which.iter().any(|pipe| ordered.contains(pipe)));
            if !ilp.is_commutative() {
                continue;
            }
            let message = message(units.iter().sum::<usize>() * UNIT_BYTES + tail);
            let mut whole = vec![0; message.len()];
            let mut state = ilp.state();
            ilp.write(&mut state, &message, &mut whole).unwrap();
            let expected = composed.results(&state);
            state.reset();
            // From the end of the message, which may have a part of a unit, or from any other fragment.
            let (mut fragments, mut end) = (Vec::new(), message.len());
            for (n, units) in units.iter().rev().enumerate() {
                let start = end - units * UNIT_BYTES - if n == 0 { tail } else { 0 };
                fragments.push(start..end);
                end = start;
            }
            let first = first.index(fragments.len());
            fragments.rotate_left(first);
            let mut written = vec![0; message.len()];
            for range in fragments {
                ilp.write(&mut state, &message[range.clone()], &mut written[range]).unwrap();
            }
            prop_assert_eq!(written, whole);
            prop_assert_eq!(composed.results(&state), expected);
        }
    }
}

#[test]
fn nothing_follows_a_fragment_that_is_not_of_whole_units() {
    let composed = Composed::new(&[Which::Count, Which::Swap64, Which::Crc32c]);
    let ilp = composed.list.compile(Mode::Read).unwrap();
    let mut state = ilp.state();
    ilp.read(&mut state, &[0; 16]).unwrap();
    ilp.read(&mut state, &[0; 13]).unwrap();
    let counted = composed.results(&state);
    let error = ilp.read(&mut state, &[0; 8]).unwrap_err();
    assert_eq!(error, ApplyError::MessageEnded);
    assert!(error.to_string().contains("reset the state for another message"), "{error}");
    assert_eq!(ilp.read_fragments(&mut state, &[&[0; 8]]).unwrap_err(), error);
    assert_eq!(composed.results(&state), counted, "nothing was counted");
    state.reset();
    ilp.read(&mut state, &[0; 8]).unwrap();
}

#[test]
fn end_of_a_message_of_commutative_pipes_had_to_be_the_last_fragment() {
    let composed = Composed::new(&[Which::Count, Which::Swap64]);
    let ilp = composed.list.compile(Mode::Read).unwrap();
    let mut state = ilp.state();
    ilp.read(&mut state, &[0; 13]).unwrap();
    ilp.read(&mut state, &[0; 8]).unwrap();
    ilp.read_fragments(&mut state, &[&[0; 3], &[0; 5]]).unwrap();
    // A message has one end.
    let counted = composed.results(&state);
    assert_eq!(ilp.read(&mut state, &[0; 9]), Err(ApplyError::MessageEnded));
    let fragments = [&[0; 8][..], &[0; 9]];
    assert_eq!(ilp.read_fragments(&mut state, &fragments), Err(ApplyError::MessageEnded));
    assert_eq!(composed.results(&state), counted, "nothing was counted");
    assert_eq!(counted[0], [29]);
}
