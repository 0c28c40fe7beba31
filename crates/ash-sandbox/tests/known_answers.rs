//! The pipes that ship give what their standards say, in every execution.

use ash_sandbox::ilp::{
    CompileError, Gauge, Mode, Pipe, PipeId, PipeList, Prefer, State, byte_swap, chacha20,
    checksum, copy, count, crc32c, search, xor,
};

/// Applies one pipe to a message, by every execution that it has, both modes, and looks at what it
/// wrote and what is in its registers.
fn each(
    pipe: impl Fn() -> Pipe,
    message: &[u8],
    prepare: impl Fn(&mut State, PipeId),
    look: impl Fn(&[u8], &State, PipeId),
) {
    for prefer in [
        Prefer::Interpreted,
        Prefer::Generated,
        Prefer::PortableKernel,
        Prefer::Avx2Kernel,
        Prefer::Kernel,
    ] {
        let mut list = PipeList::new();
        let id = list.add(pipe()).unwrap();
        let ilp = match list.compile_with(Mode::Write, prefer) {
            // A processor without AVX2.
            Err(CompileError::NoKernel) if prefer == Prefer::Avx2Kernel => continue,
            ilp => ilp.unwrap(),
        };
        let mut state = ilp.state();
        prepare(&mut state, id);
        let mut written = vec![0; message.len()];
        ilp.write(&mut state, message, &mut written).unwrap();
        look(&written, &state, id);

        let ilp = match list.compile_with(Mode::Read, prefer) {
            Err(CompileError::NoKernel) => continue,
            ilp => ilp.unwrap(),
        };
        let mut state = ilp.state();
        prepare(&mut state, id);
        ilp.read(&mut state, message).unwrap();
        look(&written, &state, id);
    }
}

/// Asserts that all executions agree on a result, and returns it.
fn agreed<T: PartialEq + std::fmt::Debug>(
    pipe: impl Fn() -> Pipe,
    message: &[u8],
    look: impl Fn(&State, PipeId) -> T,
) -> T {
    let found = std::cell::RefCell::new(Vec::new());
    each(
        pipe,
        message,
        |_, _| {},
        |written, state, id| {
            assert_eq!(written, message, "a pipe that only reads");
            found.borrow_mut().push(look(state, id));
        },
    );
    let mut found = found.into_inner();
    let last = found.pop().unwrap();
    assert!(found.iter().all(|other| *other == last), "{found:?} {last:?}");
    last
}

fn checksum_of(message: &[u8]) -> u16 {
    agreed(checksum::pipe, message, |state, id| {
        checksum::finish(state.import(id, checksum::SUM).unwrap())
    })
}

fn crc32c_of(message: &[u8]) -> u32 {
    agreed(crc32c::pipe, message, |state, id| {
        crc32c::finish(state.import(id, crc32c::CRC).unwrap())
    })
}

#[test]
fn the_checksum_is_that_of_rfc_1071() {
    // Section 3: the sum is ddf2.
    assert_eq!(!checksum_of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
}

#[test]
fn the_checksum_of_an_ip_header_is_the_one_in_it() {
    let mut header = *b"\x45\0\0\x73\0\0\x40\0\x40\x11\0\0\xc0\xa8\0\x01\xc0\xa8\0\xc7";
    assert_eq!(checksum_of(&header), 0xb861);
    header[10..12].copy_from_slice(&[0xb8, 0x61]);
    assert_eq!(checksum_of(&header), 0);
}

#[test]
fn the_checksum_is_the_sum_of_words_for_long_messages_too() {
    // All ones add up to the most that accumulators have to hold; 3 MiB is beyond one piece of a kernel.
    for (byte, len) in [(0xff, 3 << 20), (0x80, (1 << 20) + 7), (0x00, 5000), (0x7f, 4095)] {
        let message = vec![byte; len];
        let words = message.chunks(2).map(|word| match *word {
            [high, low] => u64::from(u16::from_be_bytes([high, low])),
            [high] => u64::from(high) << 8,
            _ => unreachable!(),
        });
        let mut sum: u64 = words.sum();
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        assert_eq!(!checksum_of(&message), sum as u16, "{len} bytes of {byte:#x}");
    }
}

#[test]
fn the_checksum_begins_with_what_was_exported() {
    // The header's sum as if the first words were those of a pseudo-header.
    each(
        checksum::pipe,
        &[0xf4, 0xf5, 0xf6, 0xf7],
        |state, id| state.export(id, checksum::SUM, checksum::seed(0xf204)).unwrap(),
        |_, state, id| {
            assert_eq!(checksum::fold(state.import(id, checksum::SUM).unwrap()), 0xddf2);
        },
    );
}

#[test]
fn the_crc_is_that_of_rfc_3720() {
    // Appendix B.4.
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    let read_command =
        *b"\x01\xc0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x14\0\0\0\0\0\x04\0\0\0\0\x14\0\0\0\x18\
        \x28\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0";
    assert_eq!(crc32c_of(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c_of(&[0xff; 32]), 0x62a8_ab43);
    assert_eq!(crc32c_of(&ascending), 0x46dd_794e);
    assert_eq!(crc32c_of(&descending), 0x113f_db5c);
    assert_eq!(crc32c_of(&read_command), 0xd996_3a56);
    assert_eq!(crc32c_of(b"123456789"), 0xe306_9283);
}

#[test]
fn the_crc_of_long_messages_is_that_of_its_definition() {
    let message: Vec<u8> =
        (0..1_500_000_u32).map(|byte| (byte.wrapping_mul(byte) >> 3) as u8).collect();
    for len in [127, 128, 129, 255, 256, 1500, 4096, 70_001, 1_500_000] {
        let mut crc = u32::MAX;
        for byte in &message[..len] {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            }
        }
        assert_eq!(crc32c_of(&message[..len]), !crc, "{len} bytes");
    }
}

#[test]
fn chacha20_is_that_of_rfc_8439() {
    // Section 2.4.2.
    let key: [u8; 32] = std::array::from_fn(|byte| byte as u8);
    let nonce = *b"\0\0\0\0\0\0\0\x4a\0\0\0\0";
    let plain = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for \
        the future, sunscreen would be it.";
    let encrypted = [
        0x6e, 0x2e, 0x35, 0x9a, 0x25, 0x68, 0xf9, 0x80, 0x41, 0xba, 0x07, 0x28, 0xdd, 0x0d, 0x69,
        0x81, 0xe9, 0x7e, 0x7a, 0xec, 0x1d, 0x43, 0x60, 0xc2, 0x0a, 0x27, 0xaf, 0xcc, 0xfd, 0x9f,
        0xae, 0x0b, 0xf9, 0x1b, 0x65, 0xc5, 0x52, 0x47, 0x33, 0xab, 0x8f, 0x59, 0x3d, 0xab, 0xcd,
        0x62, 0xb3, 0x57, 0x16, 0x39, 0xd6, 0x24, 0xe6, 0x51, 0x52, 0xab, 0x8f, 0x53, 0x0c, 0x35,
        0x9f, 0x08, 0x61, 0xd8, 0x07, 0xca, 0x0d, 0xbf, 0x50, 0x0d, 0x6a, 0x61, 0x56, 0xa3, 0x8e,
        0x08, 0x8a, 0x22, 0xb6, 0x5e, 0x52, 0xbc, 0x51, 0x4d, 0x16, 0xcc, 0xf8, 0x06, 0x81, 0x8c,
        0xe9, 0x1a, 0xb7, 0x79, 0x37, 0x36, 0x5a, 0xf9, 0x0b, 0xbf, 0x74, 0xa3, 0x5b, 0xe6, 0xb4,
        0x0b, 0x8e, 0xed, 0xf2, 0x78, 0x5e, 0x42, 0x87, 0x4d,
    ];
    let export = |state: &mut State, id| state.export_key(id, &key, &nonce, 1).unwrap();
    each(chacha20::pipe, plain, export, |written, _, _| assert_eq!(written, encrypted));
    each(chacha20::pipe, &encrypted, export, |written, _, _| assert_eq!(written, plain));
}

#[test]
fn bytes_are_swapped_within_words_and_an_incomplete_word_stays() {
    let message: Vec<u8> = (0..203).collect();
    for gauge in Gauge::ALL {
        let mut swapped = message.clone();
        for word in swapped.chunks_exact_mut(gauge.bytes()) {
            word.reverse();
        }
        let pipe = || byte_swap::pipe(gauge);
        each(pipe, &message, |_, _| {}, |written, _, _| assert_eq!(written, swapped));
    }
}

#[test]
fn a_frame_is_unmasked_as_in_rfc_6455() {
    // Section 5.7: "Hello", masked.
    let pipe = || xor::pipe(xor::repeat([0x37, 0xfa, 0x21, 0x3d]));
    let masked = [0x7f, 0x9f, 0x4d, 0x51, 0x58];
    each(pipe, &masked, |_, _| {}, |written, _, _| assert_eq!(written, b"Hello"));
    // The same with the mask exported.
    let other = || xor::pipe([0; 8]);
    let export = |state: &mut State, id| {
        let stream = xor::repeat([0x37, 0xfa, 0x21, 0x3d]);
        state.export(id, xor::STREAM, u64::from_le_bytes(stream)).unwrap();
    };
    each(other, &masked, export, |written, _, _| assert_eq!(written, b"Hello"));
}

#[test]
fn bytes_are_copied_and_counted() {
    for len in [0, 1, 7, 8, 9, 4095] {
        let message = vec![7; len];
        each(copy::pipe, &message, |_, _| {}, |written, _, _| assert_eq!(written, message));
        let counted =
            agreed(count::pipe, &message, |state, id| state.import(id, count::BYTES).unwrap());
        assert_eq!(counted, len as u64);
    }
}

#[test]
fn the_first_such_byte_is_found_wherever_it_is() {
    let len = 300;
    for place in 0..=len {
        let mut message = vec![b'-'; len];
        // The one before differs in a bit, and others follow.
        if place > 0 {
            message[place - 1] = b'\n' ^ 1;
        }
        message[place..].iter_mut().step_by(3).for_each(|byte| *byte = b'\n');
        let found = agreed(
            || search::pipe(b'\n'),
            &message,
            |state, id| state.import(id, search::FOUND).unwrap(),
        );
        let expected = if place == len { search::NOT_FOUND } else { place as u64 };
        assert_eq!(found, expected);
    }
}

/// Kernels take messages in pieces of half a megabyte.
#[test]
fn pieces_of_a_long_message_are_one_message() {
    const PIECE: usize = 512 << 10;
    for len in [PIECE, PIECE + 1, 2 * PIECE + 13] {
        let mut message = vec![b'-'; len];
        message[len - 1] = b'\n';
        let found = agreed(
            || search::pipe(b'\n'),
            &message,
            |state, id| state.import(id, search::FOUND).unwrap(),
        );
        assert_eq!(found, len as u64 - 1);
        let counted =
            agreed(count::pipe, &message, |state, id| state.import(id, count::BYTES).unwrap());
        assert_eq!(counted, len as u64);
        let ascending: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
        each(
            || byte_swap::pipe(Gauge::Bits16),
            &ascending,
            |_, _| {},
            |written, _, _| {
                let swapped = |byte: usize| ascending.get(byte ^ 1).unwrap_or(&ascending[byte]);
                assert!((0..len).all(|byte| written[byte] == *swapped(byte)), "{len} bytes");
            },
        );
    }
}

#[test]
fn zeros_behind_the_end_are_not_found() {
    for len in 0..20 {
        let found = agreed(
            || search::pipe(0),
            &vec![1; len],
            |state, id| state.import(id, search::FOUND).unwrap(),
        );
        assert_eq!(found, search::NOT_FOUND, "{len} bytes");
    }
}
