//! Generated code that takes several words at once does what the interpreter does, for each operation, gauge and register.

use ash_sandbox::ilp::{
    Binary, Gauge, Mode, Operand, Pipe, PipeBuilder, PipeList, Prefer, Register, Unary, checksum,
    crc32c, search, xor,
};
use proptest::prelude::*;

/// Returns whether the processor has the vectors that generated code needs.
fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("ssse3");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// One instruction at random. Operands are chosen among those that there are.
#[derive(Clone, Debug)]
enum Step {
    Unary(Unary, usize, usize),
    Binary(Binary, usize, usize, Choice),
    /// By this many bits.
    Shift(Binary, usize, usize, u64),
    Select(usize, usize, Choice, Choice),
}

#[derive(Clone, Debug)]
enum Choice {
    Temporary(usize),
    /// A persistent register that is only read.
    Read,
    Constant(u64),
}

/// A pipe at random: its gauge, its instructions, what it adds to two registers, and their initial values.
#[derive(Clone, Debug)]
struct Random {
    gauge: Gauge,
    steps: Vec<Step>,
    gathers: [(Binary, bool, Choice); 2],
    initial: [u64; 3],
}

const GATHERING: [Binary; 5] =
    [Binary::Add, Binary::AddEndAroundCarry, Binary::And, Binary::Or, Binary::Xor];
const TEMPORARIES: usize = 3;

fn word() -> impl Strategy<Value = u64> {
    let repeated = any::<u8>().prop_map(|byte| u64::from_ne_bytes([byte; 8]));
    prop_oneof![any::<u64>(), repeated, 0..3_u64, Just(u64::MAX), Just(0x8080_8080_8080_8080)]
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        3 => (0..TEMPORARIES).prop_map(Choice::Temporary),
        1 => Just(Choice::Read),
        1 => word().prop_map(Choice::Constant),
    ]
}

fn step(gauge: Gauge) -> impl Strategy<Value = Step> {
    use Binary::*;
    let is_of_bytes = gauge == Gauge::Bits8;
    let mut unary = vec![Unary::Move, Unary::Not, Unary::SwapBytes];
    unary.extend(is_of_bytes.then_some(Unary::CountOnes));
    let mut binary = vec![Add, Subtract, And, Or, Xor, AddEndAroundCarry, Equal, LessThan];
    binary.extend((!is_of_bytes).then_some(Multiply));
    let shift = vec![ShiftLeft, ShiftRight, RotateLeft];
    let temporary = || 0..TEMPORARIES;
    prop_oneof![
        2 => (prop::sample::select(unary), temporary(), temporary())
            .prop_map(|(o, to, from)| Step::Unary(o, to, from)),
        5 => (prop::sample::select(binary), temporary(), temporary(), choice())
            .prop_map(|(o, to, left, right)| Step::Binary(o, to, left, right)),
        2 => (prop::sample::select(shift), temporary(), temporary(), 0..70_u64)
            .prop_map(|(o, to, from, bits)| Step::Shift(o, to, from, bits)),
        2 => (temporary(), temporary(), choice(), choice())
            .prop_map(|(to, condition, then, other)| Step::Select(to, condition, then, other)),
    ]
}

fn random() -> impl Strategy<Value = Random> {
    let gauge = prop::sample::select(Gauge::ALL.to_vec());
    gauge.prop_flat_map(|gauge| {
        let gather = || (prop::sample::select(GATHERING.to_vec()), any::<bool>(), choice());
        let steps = prop::collection::vec(step(gauge), 0..10);
        let initial = [word(), word(), word()];
        (steps, [gather(), gather()], initial).prop_map(move |(steps, gathers, initial)| Random {
            gauge,
            steps,
            gathers,
            initial,
        })
    })
}

impl Random {
    fn build(&self) -> (Pipe, Vec<Register>) {
        let gauge = self.gauge;
        let mut pipe = Pipe::builder("random", gauge);
        let persistent = self.initial.map(|initial| pipe.persistent(initial));
        let word = pipe.input();
        let temporaries: [Register; TEMPORARIES] = std::array::from_fn(|_| pipe.temporary());
        pipe.unary(Unary::Move, gauge, temporaries[0], word);
        pipe.unary(Unary::Not, gauge, temporaries[1], word);
        pipe.unary(Unary::Move, gauge, temporaries[2], persistent[2]);
        let operand = |choice: &Choice| -> Operand {
            match choice {
                Choice::Temporary(number) => temporaries[*number].into(),
                Choice::Read => persistent[2].into(),
                Choice::Constant(constant) => (*constant).into(),
            }
        };
        // A selection takes words as they are, and a lane has no more bits than the gauge.
        let selected = |choice: &Choice| match operand(choice) {
            Operand::Constant(constant) => Operand::Constant(constant & mask(gauge)),
            Operand::Register(_) if gauge != Gauge::Bits64 && matches!(choice, Choice::Read) => {
                word.into()
            }
            operand => operand,
        };
        for step in &self.steps {
            match step {
                Step::Unary(operation, to, from) => {
                    pipe.unary(*operation, gauge, temporaries[*to], temporaries[*from]);
                }
                Step::Binary(operation, to, left, right) => {
                    let (to, left) = (temporaries[*to], temporaries[*left]);
                    pipe.binary(*operation, gauge, to, left, operand(right));
                }
                Step::Shift(operation, to, from, bits) => {
                    pipe.binary(*operation, gauge, temporaries[*to], temporaries[*from], *bits);
                }
                Step::Select(to, condition, then, otherwise) => {
                    let (to, condition) = (temporaries[*to], temporaries[*condition]);
                    pipe.select(to, condition, selected(then), selected(otherwise));
                }
            }
        }
        for ((operation, is_left, word), register) in self.gathers.iter().zip(persistent) {
            let word = operand(word);
            let (left, right) =
                if *is_left { (register.into(), word) } else { (word, register.into()) };
            pipe.binary(*operation, gauge, register, left, right);
        }
        pipe.output(temporaries[0]);
        (pipe.build().unwrap(), persistent.to_vec())
    }
}

fn mask(gauge: Gauge) -> u64 {
    u64::MAX >> (64 - gauge.bits())
}

/// Returns what a list writes, in place, and its registers.
fn run(
    pipes: &[(Pipe, Vec<Register>)],
    messages: &[&[u8]],
    prefer: Prefer,
) -> (Vec<Vec<u8>>, Vec<u64>) {
    let mut list = PipeList::new();
    let ids: Vec<_> = pipes.iter().map(|(pipe, _)| list.add(pipe.clone()).unwrap()).collect();
    let ilp = list.compile_with(Mode::Write, prefer).unwrap();
    if prefer == Prefer::Generated {
        assert_eq!(ilp.vector_bytes().is_some(), has_vectors());
    }
    let mut state = ilp.state();
    let written = messages.iter().map(|message| {
        let mut written = message.to_vec();
        ilp.write_in_place(&mut state, &mut written).unwrap();
        written
    });
    let written = written.collect();
    let registers = ids.iter().zip(pipes).flat_map(|(id, (_, registers))| {
        registers.iter().map(|register| state.import(*id, *register).unwrap())
    });
    (written, registers.collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn vectors_do_what_the_interpreter_does(
        pipes in prop::collection::vec(random(), 1..4),
        first in prop::collection::vec(any::<u8>(), 0..40),
        last in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let pipes: Vec<_> = pipes.iter().map(Random::build).collect();
        // Registers are kept from fragment to fragment, which have whole units.
        let first = &first[..first.len() / 8 * 8];
        let expected = run(&pipes, &[first, &last], Prefer::Interpreted);
        prop_assert_eq!(run(&pipes, &[first, &last], Prefer::Generated), expected);
    }
}

#[test]
fn pipes_that_depend_on_the_order_take_one_word_after_another() {
    let vector_bytes = |pipe: Pipe| {
        let mut list = PipeList::new();
        list.add(xor::pipe([7; 8])).unwrap();
        list.add(pipe).unwrap();
        list.compile_with(Mode::Write, Prefer::Generated).unwrap().vector_bytes()
    };
    let build = |of: &dyn Fn(&mut PipeBuilder, Register, Register)| {
        let mut pipe = Pipe::builder("ordered", Gauge::Bits32);
        let register = pipe.persistent(1);
        let word = pipe.input();
        of(&mut pipe, register, word);
        pipe.output(word);
        vector_bytes(pipe.build().unwrap())
    };
    let gauge = Gauge::Bits32;
    assert_eq!(vector_bytes(checksum::pipe()).is_some(), has_vectors());
    assert_eq!(build(&|_, _, _| {}).is_some(), has_vectors());
    assert_eq!(vector_bytes(crc32c::pipe()), None);
    assert_eq!(vector_bytes(search::pipe(0)), None);
    // The sum so far is in the message.
    let sum_so_far = build(&|pipe, register, word| {
        pipe.binary(Binary::Add, gauge, register, register, word);
        pipe.unary(Unary::Move, gauge, word, register);
    });
    assert_eq!(sum_so_far, None);
    // A polynomial of the words.
    let polynomial = build(&|pipe, register, word| {
        pipe.binary(Binary::Multiply, gauge, register, register, 31);
        pipe.binary(Binary::Add, gauge, register, register, word);
    });
    assert_eq!(polynomial, None);
    let difference = build(&|pipe, register, word| {
        pipe.binary(Binary::Subtract, gauge, register, register, word);
    });
    assert_eq!(difference, None);
    let twice = build(&|pipe, register, _| {
        pipe.binary(Binary::Add, gauge, register, register, register);
    });
    assert_eq!(twice, None);
    let last = build(&|pipe, register, word| pipe.unary(Unary::Move, gauge, register, word));
    assert_eq!(last, None);
}

/// A lane has no more bits than the gauge, and Cranelift lacks some instructions.
#[test]
fn instructions_that_no_lane_can_execute_are_executed_word_by_word() {
    const WIDE: u64 = 1 << 40;
    let compare = |gauge, of: &dyn Fn(&mut PipeBuilder, Register, Register)| {
        let mut pipe = Pipe::builder("wide", gauge);
        // It is not 0, and its low bits are.
        let wide = pipe.persistent(WIDE);
        let word = pipe.input();
        of(&mut pipe, wide, word);
        pipe.output(word);
        let mut list = PipeList::new();
        list.add(pipe.build().unwrap()).unwrap();
        let message: Vec<u8> = (0..=255).collect();
        let [expected, given] = [Prefer::Interpreted, Prefer::Generated].map(|prefer| {
            let ilp = list.compile_with(Mode::Write, prefer).unwrap();
            assert_eq!(ilp.vector_bytes(), None);
            let mut written = message.clone();
            ilp.write_in_place(&mut ilp.state(), &mut written).unwrap();
            written
        });
        assert_eq!(given, expected);
    };
    let gauge = Gauge::Bits32;
    compare(gauge, &|pipe, wide, word| pipe.select(word, wide, 1, word));
    compare(gauge, &|pipe, _, word| pipe.select(word, WIDE, 1, word));
    compare(gauge, &|pipe, wide, word| {
        pipe.select(word, word, wide, 0);
        pipe.select(word, word, 1, 2);
    });
    compare(gauge, &|pipe, _, word| pipe.binary(Binary::Add, Gauge::Bits64, word, word, WIDE));
    compare(gauge, &|pipe, wide, word| pipe.binary(Binary::ShiftLeft, gauge, word, word, wide));
    compare(gauge, &|pipe, _, word| pipe.unary(Unary::CountOnes, gauge, word, word));
    compare(gauge, &|pipe, _, word| pipe.unary(Unary::TrailingZeros, gauge, word, word));
    let gauge = Gauge::Bits8;
    compare(gauge, &|pipe, _, word| pipe.binary(Binary::Multiply, gauge, word, word, 3));
}

#[test]
fn vectors_of_ready_made_kernels_have_a_width() {
    let compile = |prefer| {
        let mut list = PipeList::new();
        list.add(checksum::pipe()).unwrap();
        list.compile_with(Mode::Read, prefer).map(|ilp| ilp.vector_bytes())
    };
    assert_eq!(compile(Prefer::PortableKernel), Ok(None));
    assert_eq!(compile(Prefer::Interpreted), Ok(None));
    if let Ok(bytes) = compile(Prefer::Avx2Kernel) {
        assert_eq!(bytes, Some(32));
    }
}
