//! Refusals and their messages, and bounds.

use std::sync::Arc;

use ash_sandbox::ilp::{
    ApplyError, Binary, CompileError, Execution, Gauge, MAX_INSTRUCTIONS, MAX_PERSISTENT,
    MAX_PIPES, MAX_TABLES, MAX_TEMPORARY, Mode, Pipe, PipeBuilder, PipeError, PipeList, Prefer,
    RegisterError, Tail, Unary, byte_swap, chacha20, checksum, copy, count, crc32c, search,
};

fn built(make: impl Fn(&mut PipeBuilder)) -> Result<Pipe, PipeError> {
    let mut pipe = Pipe::builder("mine", Gauge::Bits16);
    make(&mut pipe);
    pipe.build()
}

/// Why such a pipe is refused, and whether its message says so in these words.
#[track_caller]
fn refused(make: impl Fn(&mut PipeBuilder), error: PipeError, words: &str) {
    assert_eq!(built(make).unwrap_err(), error);
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn gauges_are_8_16_32_and_64_bits() {
    for (bits, gauge) in [8, 16, 32, 64].into_iter().zip(Gauge::ALL) {
        assert_eq!(Gauge::try_from(bits), Ok(gauge));
        assert_eq!(gauge.bits(), bits);
        assert_eq!(gauge.bytes() as u32 * 8, bits);
    }
    for bits in [0, 1, 7, 9, 24, 128, u32::MAX] {
        let error = Gauge::try_from(bits).unwrap_err();
        assert_eq!(error, PipeError::BadGauge { bits });
        assert!(error.to_string().contains("use 8, 16, 32 or 64"), "{error}");
    }
}

#[test]
fn a_pipe_has_so_many_registers_at_most() {
    let temporaries = |count| {
        move |pipe: &mut PipeBuilder| {
            (1..count).for_each(|_| {
                pipe.temporary();
            });
            let word = pipe.input();
            pipe.output(word);
        }
    };
    assert!(built(temporaries(MAX_TEMPORARY)).is_ok());
    let error = PipeError::TooManyTemporaries { pipe: "mine" };
    refused(temporaries(MAX_TEMPORARY + 1), error, "pipe mine: more than 16 temporary registers");

    let persistents = |count| {
        move |pipe: &mut PipeBuilder| {
            (0..count).for_each(|_| {
                pipe.persistent(0);
            });
            let word = pipe.input();
            pipe.output(word);
        }
    };
    assert!(built(persistents(MAX_PERSISTENT)).is_ok());
    let error = PipeError::TooManyPersistents { pipe: "mine" };
    refused(persistents(MAX_PERSISTENT + 1), error, "make two pipes of it");
}

#[test]
fn a_pipe_has_so_many_instructions_at_most() {
    let long = |count| {
        move |pipe: &mut PipeBuilder| {
            let word = pipe.input();
            for _ in 2..count {
                pipe.unary(Unary::Not, Gauge::Bits16, word, word);
            }
            pipe.output(word);
        }
    };
    assert!(built(long(MAX_INSTRUCTIONS)).is_ok());
    refused(
        long(MAX_INSTRUCTIONS + 1),
        PipeError::TooLong { pipe: "mine" },
        "more than 64 instructions",
    );
    let lookups = |count| {
        move |pipe: &mut PipeBuilder| {
            let table = Arc::new([0; 256]);
            let word = pipe.input();
            (0..count).for_each(|_| pipe.lookup(word, &table, word));
            pipe.output(word);
        }
    };
    assert!(built(lookups(MAX_TABLES)).is_ok());
    let error = PipeError::TooManyLookups { pipe: "mine" };
    refused(lookups(MAX_TABLES + 1), error, "lookups");
}

#[test]
fn registers_of_another_pipe_are_refused() {
    let mut other = Pipe::builder("other", Gauge::Bits64);
    (0..3).for_each(|_| {
        other.temporary();
    });
    let foreign = other.temporary();
    let kept = other.persistent(0);
    let error = PipeError::RegisterOutOfRange { pipe: "mine", instruction: 1 };
    for register in [foreign, kept] {
        refused(
            |pipe| {
                let word = pipe.input();
                pipe.unary(Unary::Move, Gauge::Bits16, word, register);
                pipe.output(word);
            },
            error.clone(),
            "instruction 1: the register is not one of this pipe's",
        );
        refused(
            |pipe| {
                let word = pipe.input();
                pipe.unary(Unary::Move, Gauge::Bits16, register, word);
                pipe.output(word);
            },
            error.clone(),
            "use those that its own builder returned",
        );
    }
}

#[test]
fn a_temporary_register_is_written_before_it_is_read() {
    refused(
        |pipe| {
            let word = pipe.input();
            let scratch = pipe.temporary();
            pipe.binary(Binary::Add, Gauge::Bits16, word, word, scratch);
            pipe.output(word);
        },
        PipeError::ReadBeforeWrite { pipe: "mine", instruction: 1 },
        "write it first, or allocate a persistent one",
    );
    // A word that the body has written is not available in the tail's body.
    refused(
        |pipe| {
            let word = pipe.input();
            pipe.output(word);
            pipe.tail_body();
            pipe.input();
            pipe.output(word);
        },
        PipeError::ReadBeforeWrite { pipe: "mine", instruction: 1 },
        "before any instruction writes it",
    );
}

#[test]
fn a_body_takes_and_gives_what_a_step_has() {
    refused(
        |pipe| pipe.output(0),
        PipeError::InputCount { pipe: "mine", expected: 1, found: 0 },
        "takes 0 words of input; at these gauges it has to take 1",
    );
    refused(
        |pipe| {
            pipe.input();
        },
        PipeError::OutputCount { pipe: "mine", expected: 1, found: 0 },
        "gives 0 words of output; at these gauges it has to give 1",
    );
    refused(
        |pipe| {
            pipe.output_gauge(Gauge::Bits64);
            let word = pipe.input();
            pipe.output(word);
        },
        PipeError::InputCount { pipe: "mine", expected: 4, found: 1 },
        "it has to take 4",
    );
    refused(
        |pipe| {
            let word = pipe.input();
            pipe.output(word);
            pipe.tail(Tail::Bytes);
        },
        PipeError::InputCount { pipe: "mine", expected: 1, found: 0 },
        "takes 0 words",
    );
}

#[test]
fn a_pipe_that_is_no_mod_gives_its_input() {
    let error = |instruction| PipeError::ModifiesInput { pipe: "mine", instruction };
    let words = "declared no_mod; give the input, or leave the attribute out";
    refused(
        |pipe| {
            pipe.no_mod();
            let word = pipe.input();
            pipe.unary(Unary::SwapBytes, Gauge::Bits16, word, word);
            pipe.output(word);
        },
        error(2),
        words,
    );
    refused(
        |pipe| {
            pipe.no_mod();
            pipe.input();
            pipe.output(0);
        },
        error(1),
        words,
    );
    // A move of the lower half is not the word, one of all of it is.
    for (gauge, is_it) in [(Gauge::Bits8, false), (Gauge::Bits16, true), (Gauge::Bits64, true)] {
        let pipe = built(|pipe| {
            pipe.no_mod();
            let (word, copy) = (pipe.input(), pipe.temporary());
            pipe.unary(Unary::Move, gauge, copy, word);
            pipe.output(copy);
        });
        assert_eq!(pipe.is_ok(), is_it, "{gauge:?}");
    }
    // Between gauges there is no such thing.
    refused(
        |pipe| {
            pipe.no_mod().output_gauge(Gauge::Bits8);
            let word = pipe.input();
            pipe.output(word);
            pipe.output(word);
        },
        error(2),
        words,
    );
}

#[test]
fn a_keystream_is_read_once_in_a_step() {
    let error = PipeError::KeystreamTwice { pipe: "mine" };
    refused(
        |pipe| {
            let word = pipe.input();
            pipe.keystream();
            pipe.keystream();
            pipe.output(word);
        },
        error.clone(),
        "read it once",
    );
    refused(
        |pipe| {
            let word = pipe.input();
            pipe.output(word);
            pipe.tail_body();
            let byte = pipe.input();
            pipe.keystream();
            pipe.output(byte);
        },
        error,
        "in its tail",
    );
}

#[test]
fn a_list_has_so_many_pipes_at_most_and_one_at_least() {
    let mut list = PipeList::new();
    assert_eq!(list.compile(Mode::Read).unwrap_err(), CompileError::NoPipes);
    for _ in 0..MAX_PIPES {
        list.add(checksum::pipe()).unwrap();
    }
    let error = list.add(copy::pipe()).unwrap_err();
    assert_eq!(error, CompileError::TooManyPipes);
    assert!(error.to_string().contains("at most 16 pipes"), "{error}");
    // There is no kernel of sixteen sums, but the list runs.
    assert_eq!(list.compile_with(Mode::Read, Prefer::Kernel).unwrap_err(), CompileError::NoKernel);
    assert!(list.compile(Mode::Read).is_ok());
}

#[test]
fn a_loop_does_what_it_was_compiled_for() {
    let mut list = PipeList::new();
    list.add(checksum::pipe()).unwrap();
    let (reads, writes) = (list.compile(Mode::Read).unwrap(), list.compile(Mode::Write).unwrap());
    let mut data = [1; 8];
    let error = reads.write_in_place(&mut reads.state(), &mut data).unwrap_err();
    assert_eq!(error, ApplyError::WrongMode { compiled: Mode::Read });
    assert!(error.to_string().contains("compile it with Mode::Write"), "{error}");
    let error = writes.read(&mut writes.state(), &data).unwrap_err();
    assert_eq!(error, ApplyError::WrongMode { compiled: Mode::Write });
    let error = reads.read(&mut writes.state(), &data).unwrap_err();
    assert_eq!(error, ApplyError::ForeignState);
    assert!(error.to_string().contains("use the one from Ilp::state"), "{error}");
}

#[test]
fn a_destination_that_is_too_short_is_not_written() {
    for prefer in [Prefer::Fastest, Prefer::Generated, Prefer::Interpreted] {
        let mut list = PipeList::new();
        let id = list.add(count::pipe()).unwrap();
        let ilp = list.compile_with(Mode::Write, prefer).unwrap();
        let mut state = ilp.state();
        let mut destination = [7; 99];
        let error = ApplyError::DestinationTooShort { message_bytes: 100, destination_bytes: 99 };
        let found = ilp.write(&mut state, &[0; 100], &mut destination).unwrap_err();
        assert_eq!(found, error);
        assert!(error.to_string().contains("has room for 99 bytes"), "{error}");
        let halves: [&[u8]; 2] = [&[0; 50], &[0; 50]];
        assert_eq!(ilp.gather(&mut state, &halves, &mut destination).unwrap_err(), error);
        assert_eq!(destination, [7; 99]);
        assert_eq!(state.import(id, count::BYTES), Ok(0));
        // One that is longer is written as far as the message goes.
        ilp.write(&mut state, &[0; 90], &mut destination).unwrap();
        assert_eq!((&destination[..90], &destination[90..]), (&[0; 90][..], &[7; 9][..]));
    }
}

#[test]
fn registers_are_reached_by_their_own_pipe_only() {
    let mut list = PipeList::new();
    let crc = list.add(crc32c::pipe()).unwrap();
    let swap = list.add(byte_swap::pipe(Gauge::Bits16)).unwrap();
    let mut state = list.compile(Mode::Write).unwrap().state();
    // One that comes when the list was compiled is not in what was compiled.
    let late = list.add(crc32c::pipe()).unwrap();
    let stranger = PipeList::new().add(crc32c::pipe()).unwrap();
    for id in [late, stranger] {
        assert_eq!(state.import(id, crc32c::CRC), Err(RegisterError::NoSuchPipe));
        assert_eq!(state.export(id, crc32c::CRC, 1), Err(RegisterError::NoSuchPipe));
        assert_eq!(state.export_key(id, &[0; 32], &[0; 12], 0), Err(RegisterError::NoSuchPipe));
    }
    let error = RegisterError::NoSuchRegister { pipe: "byte_swap16" };
    assert_eq!(state.import(swap, crc32c::CRC), Err(error.clone()));
    assert!(error.to_string().contains("no such persistent register"), "{error}");
    let temporary = Pipe::builder("other", Gauge::Bits8).temporary();
    let error = RegisterError::NoSuchRegister { pipe: "crc32c" };
    assert_eq!(state.export(crc, temporary, 1), Err(error));
    let error = RegisterError::NoKeystream { pipe: "crc32c" };
    assert_eq!(state.export_key(crc, &[0; 32], &[0; 12], 0), Err(error));
    assert_eq!(state.import(crc, crc32c::CRC), Ok(0xffff_ffff));
}

#[test]
fn pipes_of_a_list_and_of_its_clone_had_the_same_identifiers() {
    let mut list = PipeList::new();
    let crc = list.add(crc32c::pipe()).unwrap();
    let mut clone = list.clone();
    let sum = list.add(checksum::pipe()).unwrap();
    let found = clone.add(search::pipe(b'x')).unwrap();
    let state = |list: &PipeList| list.compile(Mode::Read).unwrap().state();
    let (mut state, mut other) = (state(&list), state(&clone));
    assert_ne!(sum, found);
    assert_eq!(other.export(sum, checksum::SUM, 5), Err(RegisterError::NoSuchPipe));
    assert_eq!(state.import(found, search::FOUND), Err(RegisterError::NoSuchPipe));
    // Those that the list had before are in both.
    for state in [&mut state, &mut other] {
        assert_eq!(state.export(crc, crc32c::CRC, 7), Ok(()));
        assert_eq!(state.import(crc, crc32c::CRC), Ok(7));
    }
    assert_eq!(state.export(sum, checksum::SUM, 5), Ok(()));
    assert_eq!(other.export(found, search::FOUND, 5), Ok(()));
}

#[test]
fn a_cipher_needs_a_key_for_each_message_and_ends_with_its_counter() {
    let mut list = PipeList::new();
    let id = list.add(chacha20::pipe()).unwrap();
    let ilp = list.compile(Mode::Write).unwrap();
    let mut state = ilp.state();
    let mut message = [9; 100];
    let error = ilp.write_in_place(&mut state, &mut message).unwrap_err();
    assert_eq!(error, ApplyError::NoKey { pipe: "chacha20" });
    assert!(error.to_string().contains("call State::export_key"), "{error}");
    // The last block has 64 bytes.
    state.export_key(id, &[1; 32], &[2; 12], u32::MAX).unwrap();
    let error = ilp.write_in_place(&mut state, &mut message).unwrap_err();
    assert_eq!(error, ApplyError::KeystreamExhausted { pipe: "chacha20" });
    assert!(error.to_string().contains("another nonce"), "{error}");
    assert_eq!(message, [9; 100], "nothing was written");
    let halves: [&[u8]; 2] = [&[9; 50], &[9; 50]];
    assert_eq!(ilp.gather(&mut state, &halves, &mut message).unwrap_err(), error);
    assert_eq!(message, [9; 100], "nothing was written");
    state.reset();
    let error = ilp.write_in_place(&mut state, &mut message).unwrap_err();
    assert_eq!(error, ApplyError::NoKey { pipe: "chacha20" });
}

#[test]
fn what_is_debugged_has_no_key_in_it() {
    let mut list = PipeList::new();
    let id = list.add(chacha20::pipe()).unwrap();
    let ilp = list.compile(Mode::Read).unwrap();
    let mut state = ilp.state();
    state.export_key(id, &[0xab; 32], &[0; 12], 0).unwrap();
    ilp.read(&mut state, &[0; 64]).unwrap();
    let shown = format!("{state:?}");
    assert_eq!(shown, "State { registers: [], .. }");
}

#[test]
fn a_loop_says_which_execution_it_has() {
    let execution = |pipes: Vec<Pipe>, prefer| {
        let mut list = PipeList::new();
        pipes.into_iter().for_each(|pipe| {
            list.add(pipe).unwrap();
        });
        list.compile_with(Mode::Write, prefer).unwrap().execution()
    };
    let ready = || vec![count::pipe(), checksum::pipe(), byte_swap::pipe(Gauge::Bits32)];
    let kernel = execution(ready(), Prefer::Fastest);
    let kernels = [Execution::Avx2VnniKernel, Execution::Avx2Kernel, Execution::PortableKernel];
    assert!(kernels.contains(&kernel), "{kernel:?}");
    assert_eq!(execution(ready(), Prefer::PortableKernel), Execution::PortableKernel);
    let code = execution(ready(), Prefer::Generated);
    assert!(matches!(code, Execution::Generated { .. }), "{code:?}");
    let interpreted = Execution::Interpreted { reason: None };
    assert_eq!(execution(ready(), Prefer::Interpreted), interpreted);
    // Sums on both sides of a swap have no kernel.
    let both = vec![checksum::pipe(), byte_swap::pipe(Gauge::Bits16), checksum::pipe()];
    let code = execution(both, Prefer::Fastest);
    assert!(matches!(code, Execution::Generated { .. }), "{code:?}");
}

#[test]
fn threads_share_a_loop_and_each_has_a_state() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    let mut list = PipeList::new();
    let sum = list.add(checksum::pipe()).unwrap();
    for prefer in [Prefer::Fastest, Prefer::Generated, Prefer::Interpreted] {
        let ilp = list.compile_with(Mode::Read, prefer).unwrap();
        is_shared(&ilp);
        let sums: Vec<u16> = std::thread::scope(|scope| {
            let apply = || {
                let mut state = ilp.state();
                ilp.read(&mut state, &[1; 1000]).unwrap();
                checksum::fold(state.import(sum, checksum::SUM).unwrap())
            };
            let threads = [scope.spawn(apply), scope.spawn(apply)];
            threads.map(|thread| thread.join().unwrap()).to_vec()
        });
        assert_eq!(sums, [(0x0101 * 500 % 0xffff) as u16; 2]);
    }
}
