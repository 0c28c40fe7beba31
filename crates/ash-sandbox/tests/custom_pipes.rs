//! Pipes that users write: the thesis' own, pipes between gauges, tables, and pipes at random.

use std::sync::Arc;

use ash_sandbox::ilp::{
    Binary, Execution, Gauge, Mode, Operand, Pipe, PipeBuilder, PipeList, Prefer, Register, Tail,
    Unary, byte_swap, checksum, xor,
};
use proptest::prelude::*;

/// Figure 3-3: a checksum of 32-bit words.
fn checksum32() -> (Pipe, Register) {
    let mut pipe = Pipe::builder("checksum32", Gauge::Bits32);
    pipe.commutative().no_mod();
    let sum = pipe.persistent(0);
    let word = pipe.input();
    pipe.binary(Binary::AddEndAroundCarry, Gauge::Bits32, sum, sum, word);
    pipe.output(word);
    (pipe.build().unwrap(), sum)
}

/// Returns the bytes that a list writes and the values of all registers, by one execution.
fn run(pipes: &[(Pipe, Vec<Register>)], message: &[u8], prefer: Prefer) -> (Vec<u8>, Vec<u64>) {
    let mut list = PipeList::new();
    let ids: Vec<_> = pipes.iter().map(|(pipe, _)| list.add(pipe.clone()).unwrap()).collect();
    let ilp = list.compile_with(Mode::Write, prefer).unwrap();
    let mut state = ilp.state();
    let mut written = vec![0; message.len()];
    ilp.write(&mut state, message, &mut written).unwrap();
    let registers = ids.iter().zip(pipes).flat_map(|(id, (_, registers))| {
        registers.iter().map(|register| state.import(*id, *register).unwrap())
    });
    (written, registers.collect())
}

#[test]
fn the_checksum_of_figure_3_3_is_the_one_that_ships() {
    let message: Vec<u8> = (0..1999_u32).map(|byte| ((byte * 31) >> 3) as u8).collect();
    let (pipe, sum) = checksum32();
    for prefer in [Prefer::Interpreted, Prefer::Generated, Prefer::Fastest] {
        let (written, registers) = run(&[(pipe.clone(), vec![sum])], &message, prefer);
        let ready = (checksum::pipe(), vec![checksum::SUM]);
        let (_, expected) = run(&[ready], &message, Prefer::Fastest);
        assert_eq!(written, message);
        assert_eq!(checksum::fold(registers[0]), checksum::fold(expected[0]));
    }
}

#[test]
fn a_list_with_a_pipe_of_ones_own_runs_as_generated_code() {
    let mut list = PipeList::new();
    list.add(checksum32().0).unwrap();
    list.add(byte_swap::pipe(Gauge::Bits16)).unwrap();
    let ilp = list.compile(Mode::Write).unwrap();
    assert!(
        matches!(ilp.execution(), Execution::Generated { code_bytes: 1.. }),
        "{:?}",
        ilp.execution()
    );
    assert!(ilp.is_commutative());
}

#[test]
fn words_are_put_together_and_cut_between_gauges() {
    // Takes bytes and gives 32-bit words with the bytes in reverse order; then the other way round.
    let mut wider = Pipe::builder("wider", Gauge::Bits8);
    wider.output_gauge(Gauge::Bits32).tail(Tail::Pass);
    let bytes: Vec<Register> = (0..4).map(|_| wider.input()).collect();
    let word = wider.temporary();
    wider.unary(Unary::Move, Gauge::Bits8, word, bytes[0]);
    for byte in &bytes[1..] {
        wider.binary(Binary::ShiftLeft, Gauge::Bits32, word, word, 8);
        wider.binary(Binary::Or, Gauge::Bits32, word, word, *byte);
    }
    wider.output(word);
    let wider = wider.build().unwrap();

    let mut narrower = Pipe::builder("narrower", Gauge::Bits64);
    narrower.output_gauge(Gauge::Bits16).tail(Tail::Pass);
    let word = narrower.input();
    for _ in 0..4 {
        // The highest part first.
        narrower.binary(Binary::RotateLeft, Gauge::Bits64, word, word, 16);
        narrower.output(word);
    }
    let narrower = narrower.build().unwrap();

    let message: Vec<u8> = (0..=99).collect();
    for prefer in [Prefer::Interpreted, Prefer::Generated] {
        let pipes = [(wider.clone(), vec![]), (narrower.clone(), vec![])];
        let (written, _) = run(&pipes, &message, prefer);
        let mut expected = message.clone();
        expected.chunks_exact_mut(4).for_each(<[u8]>::reverse);
        for word in expected.chunks_exact_mut(8) {
            word.rotate_left(4);
            for half in word.chunks_exact_mut(4) {
                half.rotate_left(2);
            }
        }
        assert_eq!(written, expected, "{prefer:?}");
    }
}

#[test]
fn characters_are_converted_by_a_table() {
    let table = Arc::new(std::array::from_fn(|byte| u64::from((byte as u8).to_ascii_uppercase())));
    let mut pipe = Pipe::builder("upper case", Gauge::Bits8);
    pipe.commutative();
    let byte = pipe.input();
    pipe.lookup(byte, &table, byte);
    pipe.output(byte);
    let pipe = pipe.build().unwrap();
    drop(table);
    for prefer in [Prefer::Interpreted, Prefer::Generated] {
        let (written, _) = run(&[(pipe.clone(), vec![])], b"Get /index.html, please", prefer);
        assert_eq!(written, b"GET /INDEX.HTML, PLEASE");
    }
}

#[test]
fn a_list_of_the_most_and_longest_pipes_compiles_and_runs() {
    let mut pipe = Pipe::builder("long", Gauge::Bits8);
    let registers: Vec<Register> = (0..8).map(|value| pipe.persistent(value)).collect();
    let byte = pipe.input();
    for place in 0..62 {
        let register = registers[place % 8];
        pipe.binary(Binary::Add, Gauge::Bits64, register, register, byte);
    }
    pipe.output(registers[0]);
    let pipe = (pipe.build().unwrap(), registers);
    let pipes = vec![pipe; 16];
    let message = [3; 100];
    let expected = run(&pipes, &message, Prefer::Interpreted);
    assert_eq!(run(&pipes, &message, Prefer::Generated), expected);
}

#[test]
fn a_pipe_may_have_a_keystream_at_any_gauge() {
    for gauge in Gauge::ALL {
        let mut pipe = Pipe::builder("cipher", gauge);
        let word = pipe.input();
        let stream = pipe.keystream();
        pipe.binary(Binary::Xor, gauge, word, word, stream);
        pipe.output(word);
        let pipe = pipe.build().unwrap();
        let message = [0x55; 2059];
        let apply = |pipe: Pipe, prefer| {
            let mut list = PipeList::new();
            // Another stream before it, so that it is not the first.
            let other = list.add(ash_sandbox::ilp::chacha20::pipe()).unwrap();
            let id = list.add(pipe).unwrap();
            let ilp = list.compile_with(Mode::Write, prefer).unwrap();
            let mut state = ilp.state();
            state.export_key(other, &[1; 32], &[2; 12], 0).unwrap();
            state.export_key(id, &[3; 32], &[4; 12], 7).unwrap();
            let mut written = message;
            ilp.write_in_place(&mut state, &mut written).unwrap();
            written
        };
        let expected = apply(ash_sandbox::ilp::chacha20::pipe(), Prefer::Interpreted);
        assert_ne!(expected, message);
        for prefer in [Prefer::Interpreted, Prefer::Generated] {
            assert_eq!(apply(pipe.clone(), prefer), expected, "{gauge:?} {prefer:?}");
        }
    }
}

#[test]
fn keystream_behind_the_end_of_the_message_is_not_seen() {
    for gauge in Gauge::ALL {
        let mut pipe = Pipe::builder("sum of the keystream", gauge);
        let sum = pipe.persistent(0);
        let word = pipe.input();
        let stream = pipe.keystream();
        pipe.binary(Binary::Add, Gauge::Bits64, sum, sum, stream);
        pipe.output(word);
        let pipe = pipe.build().unwrap();
        for len in 0..24 {
            let [expected, given] = [Prefer::Interpreted, Prefer::Generated].map(|prefer| {
                let mut list = PipeList::new();
                let id = list.add(pipe.clone()).unwrap();
                let ilp = list.compile_with(Mode::Read, prefer).unwrap();
                let mut state = ilp.state();
                state.export_key(id, &[3; 32], &[4; 12], 7).unwrap();
                // More of it than the next message has.
                ilp.read(&mut state, &[0; 64]).unwrap();
                ilp.read(&mut state, &[0; 24][..len]).unwrap();
                state.import(id, sum).unwrap()
            });
            assert_eq!(given, expected, "{gauge:?}, {len} bytes");
        }
    }
}

/// One instruction at random. Registers and operands are chosen among those that there are.
#[derive(Clone, Debug)]
enum Step {
    Unary(usize, Gauge, usize, usize),
    Binary(usize, Gauge, usize, Choice, Choice),
    Select(usize, Choice, Choice, Choice),
    Crc32c(Gauge, usize, Choice),
    Lookup(usize, Choice),
    Keep(usize, Choice),
}

#[derive(Clone, Debug)]
enum Choice {
    Register(usize),
    Constant(u64),
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        3 => (0..100_usize).prop_map(Choice::Register),
        1 => prop_oneof![any::<u64>(), 0..70_u64, Just(u64::MAX), Just(1 << 31)]
            .prop_map(Choice::Constant),
    ]
}

fn gauge() -> impl Strategy<Value = Gauge> {
    prop::sample::select(Gauge::ALL.to_vec())
}

fn step() -> impl Strategy<Value = Step> {
    let register = || 0..100_usize;
    prop_oneof![
        2 => (register(), gauge(), register(), register())
            .prop_map(|(o, g, t, f)| Step::Unary(o, g, t, f)),
        6 => (register(), gauge(), register(), choice(), choice())
            .prop_map(|(o, g, t, l, r)| Step::Binary(o, g, t, l, r)),
        1 => (register(), choice(), choice(), choice())
            .prop_map(|(t, c, a, b)| Step::Select(t, c, a, b)),
        1 => (gauge(), register(), choice()).prop_map(|(g, t, w)| Step::Crc32c(g, t, w)),
        1 => (register(), choice()).prop_map(|(t, i)| Step::Lookup(t, i)),
        2 => (register(), choice()).prop_map(|(t, v)| Step::Keep(t, v)),
    ]
}

/// A pipe of these gauges and instructions.
fn build(input: Gauge, output: Gauge, tail: Tail, steps: &[Step]) -> (Pipe, Vec<Register>) {
    let mut pipe = Pipe::builder("random", input);
    pipe.output_gauge(output).tail(tail);
    let persistent: Vec<Register> =
        [0, 1, u64::MAX].map(|initial| pipe.persistent(initial)).to_vec();
    let wider = input.max(output).bytes();
    body(&mut pipe, wider / input.bytes(), wider / output.bytes(), &persistent, steps);
    if tail == Tail::Bytes {
        pipe.tail_body();
        body(&mut pipe, 1, 1, &persistent, &steps[..steps.len() / 2]);
    }
    (pipe.build().unwrap(), persistent)
}

fn body(
    pipe: &mut PipeBuilder,
    inputs: usize,
    outputs: usize,
    persistent: &[Register],
    steps: &[Step],
) {
    let table = Arc::new(std::array::from_fn(|byte| (byte as u64).wrapping_mul(0x9e37_79b9_7f4a)));
    let inputs: Vec<Register> = (0..inputs.min(8)).map(|_| pipe.input()).collect();
    let registers = [&inputs, persistent].concat();
    let register = |number: usize| registers[number % registers.len()];
    let kept = |number: usize| persistent[number % persistent.len()];
    let operand = |choice: &Choice| -> Operand {
        match choice {
            Choice::Register(number) => register(*number).into(),
            Choice::Constant(constant) => (*constant).into(),
        }
    };
    for step in steps {
        match step {
            Step::Unary(operation, gauge, to, from) => {
                let operation = Unary::ALL[operation % Unary::ALL.len()];
                pipe.unary(operation, *gauge, register(*to), register(*from));
            }
            Step::Binary(operation, gauge, to, left, right) => {
                let operation = Binary::ALL[operation % Binary::ALL.len()];
                pipe.binary(operation, *gauge, register(*to), operand(left), operand(right));
            }
            Step::Select(to, condition, then, otherwise) => {
                let (then, otherwise) = (operand(then), operand(otherwise));
                pipe.select(register(*to), operand(condition), then, otherwise);
            }
            Step::Crc32c(gauge, to, word) => pipe.crc32c(*gauge, register(*to), operand(word)),
            Step::Lookup(to, index) => pipe.lookup(register(*to), &table, operand(index)),
            Step::Keep(to, value) => {
                pipe.binary(Binary::Add, Gauge::Bits64, kept(*to), kept(*to), operand(value));
            }
        }
    }
    for number in 0..outputs {
        pipe.output(register(number));
    }
}

fn random_pipe() -> impl Strategy<Value = (Pipe, Vec<Register>)> {
    let tail = prop::sample::select(vec![Tail::Pad, Tail::Pass, Tail::Bytes]);
    (gauge(), gauge(), tail, prop::collection::vec(step(), 0..24))
        .prop_map(|(input, output, tail, steps)| build(input, output, tail, &steps))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn generated_code_does_what_the_interpreter_does(
        pipes in prop::collection::vec(random_pipe(), 1..5),
        message in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let expected = run(&pipes, &message, Prefer::Interpreted);
        prop_assert_eq!(run(&pipes, &message, Prefer::Generated), expected);
    }

    #[test]
    fn pipes_fused_do_what_they_do_one_after_another(
        pipes in prop::collection::vec(random_pipe(), 1..5),
        message in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let fused = run(&pipes, &message, Prefer::Fastest);
        let mut data = message;
        let mut registers = Vec::new();
        for pipe in pipes {
            let (written, found) = run(&[pipe], &data, Prefer::Fastest);
            data = written;
            registers.extend(found);
        }
        prop_assert_eq!(fused, (data, registers));
    }

    #[test]
    fn pipes_that_only_read_may_be_in_any_order(
        message in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let (sum32, register) = checksum32();
        let pipes = [
            (sum32, vec![register]),
            (ash_sandbox::ilp::crc32c::pipe(), vec![ash_sandbox::ilp::crc32c::CRC]),
            (xor::pipe(*b"12345678"), vec![xor::STREAM]),
        ];
        let [a, b, c] = pipes;
        let (written, one) = run(&[a.clone(), b.clone(), c.clone()], &message, Prefer::Fastest);
        let (again, other) = run(&[b, a, c], &message, Prefer::Fastest);
        prop_assert_eq!(written, again);
        prop_assert_eq!([one[0], one[1]], [other[1], other[0]]);
    }
}
