//! Generated modules in the sandbox, whose compiler is wasmtime's, and in another engine, an interpreter: both
//! give the same results and leave the same memory, whatever the sandboxer rewrites and instruments. Both have the same
//! messages and, behind the module's own memory, the same areas.

#![cfg(feature = "sandbox")]

use crate::generated;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::time::{Duration, Instant};

use arbitrary::Unstructured;
use ash_sandbox::sandbox::{Abort, Loops, Outcome, Pass, Policy, Sandboxer};
use wasm_encoder::reencode::{self, Reencode, utils};
use wasm_encoder::{BlockType, CodeSection, Instruction};
use wasm_smith::{Config, Module};
use wasmi::{Engine, Instance, Linker, Store, TrapCode, TypedFunc};

const MODULES: u64 = 600;
/// Invocations of each module, which keeps its memory and globals between them.
const INVOCATIONS: usize = 4;
/// The size of the module's own memory, of the message area, and of the reply area.
const PAGE: usize = 1 << 16;
const OWN: Range<usize> = 0..PAGE;
const MESSAGE: Range<usize> = PAGE..2 * PAGE;
const REPLIES: Range<usize> = 2 * PAGE..3 * PAGE;

/// A handler that makes no calls: what they do is the host's, and the other engine has none.
const SHAPE: &str = r#"(module
  (memory (export "memory") 1 1)
  (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) unreachable))"#;

fn generate(seed: u64) -> Option<Vec<u8>> {
    let config = Config {
        // A NaN may have any bits, in both engines.
        canonicalize_nans: true,
        // So that many accesses are within the memory.
        memory_offset_choices: wasm_smith::MemoryOffsetChoices(95, 4, 1),
        ..generated::like_handlers(SHAPE, seed.is_multiple_of(2), seed % 4 == 1)
    };
    let bytes = generated::bytes(seed);
    Some(Module::new(config, &mut Unstructured::new(&bytes)).ok()?.to_bytes())
}

/// Gives a module the areas as a part of its memory, of which it sees its own page only.
struct WithAreas;

impl Reencode for WithAreas {
    type Error = Infallible;

    fn memory_type(
        &mut self,
        ty: wasmparser::MemoryType,
    ) -> Result<wasm_encoder::MemoryType, reencode::Error> {
        let pages = (REPLIES.end / PAGE) as u64;
        let ty = utils::memory_type(self, ty);
        Ok(wasm_encoder::MemoryType { minimum: pages, maximum: Some(pages), ..ty })
    }

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        body: wasmparser::FunctionBody<'_>,
    ) -> Result<(), reencode::Error> {
        let mut function = self.new_function_with_parsed_locals(&body)?;
        for operator in body.get_operators_reader()? {
            let instructions = match operator? {
                wasmparser::Operator::MemorySize { .. } => vec![Instruction::I32Const(1)],
                wasmparser::Operator::MemoryGrow { .. } => vec![
                    Instruction::I32Eqz,
                    Instruction::If(BlockType::Result(wasm_encoder::ValType::I32)),
                    Instruction::I32Const(1),
                    Instruction::Else,
                    Instruction::I32Const(-1),
                    Instruction::End,
                ],
                other => vec![utils::instruction(self, other)?],
            };
            instructions.iter().for_each(|instruction| {
                function.instruction(instruction);
            });
        }
        code.function(&function);
        Ok(())
    }
}

fn with_areas(wasm: &[u8]) -> Vec<u8> {
    let mut module = wasm_encoder::Module::new();
    WithAreas.parse_core_module(&mut module, wasmparser::Parser::new(0), wasm).unwrap();
    module.finish()
}

/// The result of an invocation, in the words of both engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ended {
    Returned(i32),
    OutOfFuel,
    Memory,
    Stack,
    Trap,
}

impl Ended {
    /// Returns what a handler's outcome says of a result: four values of it have meanings.
    fn as_outcome(self) -> Self {
        match self {
            Ended::Returned(value @ 0..=2) => Ended::Returned(value),
            Ended::Returned(_) => Ended::Returned(-1),
            other => other,
        }
    }

    fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Handled => Ended::Returned(1),
            Outcome::Discarded => Ended::Returned(2),
            Outcome::Passed(Pass::ByHandler) => Ended::Returned(0),
            Outcome::Passed(Pass::Voluntary) => Ended::Returned(-1),
            Outcome::Passed(Pass::Involuntary(abort)) => match abort {
                Abort::TooManyOperations => Ended::OutOfFuel,
                Abort::Memory => Ended::Memory,
                Abort::Stack => Ended::Stack,
                _ => Ended::Trap,
            },
            other => panic!("the handler was not invoked: {other:?}"),
        }
    }
}

/// A module in the other engine.
struct Interpreted {
    store: Store<()>,
    instance: Instance,
    entry: TypedFunc<(i32, i32, i64, i32), i32>,
}

impl Interpreted {
    fn new(wasm: &[u8]) -> Result<Self, wasmi::Error> {
        let mut config = wasmi::Config::default();
        config.consume_fuel(true);
        let engine = Engine::new(&config);
        let module = wasmi::Module::new(&engine, wasm).unwrap();
        let mut store = Store::new(&engine, ());
        store.set_fuel(u64::MAX / 2).unwrap();
        let instance = Linker::new(&engine).instantiate_and_start(&mut store, &module)?;
        let entry = instance.get_typed_func(&store, "ash_handle").unwrap();
        Ok(Interpreted { store, instance, entry })
    }

    fn invoke(&mut self, arguments: (i32, i32, i64, i32)) -> Ended {
        self.store.set_fuel(1_000_000).unwrap();
        match self.entry.call(&mut self.store, arguments) {
            Ok(value) => Ended::Returned(value),
            Err(error) => match error.as_trap_code() {
                Some(TrapCode::OutOfFuel) => Ended::OutOfFuel,
                Some(TrapCode::MemoryOutOfBounds) => Ended::Memory,
                Some(TrapCode::StackOverflow) => Ended::Stack,
                _ => Ended::Trap,
            },
        }
    }

    fn memory(&mut self) -> &mut [u8] {
        self.instance.get_memory(&self.store, "memory").unwrap().data_mut(&mut self.store)
    }
}

#[test]
fn generated_modules_do_the_same_in_two_engines() {
    let policy = Policy::default().with(|p| {
        p.allows_floats = true;
        p.max_aborts = u32::MAX;
        p.max_operations = 1_000_000;
        p.operations_per_second = 1 << 40;
        p.message_area_bytes = MESSAGE.len();
        p.reply_slots = 16;
        p.reply_slot_bytes = REPLIES.len() / 16;
    });
    let epochs = policy.clone().with(|p| p.loops = Loops::Epoch(Duration::from_millis(20)));
    let sandboxers = [policy, epochs].map(|policy| Sandboxer::new(policy).unwrap());
    let (mut ends, mut compared, mut given_up) = (BTreeMap::new(), 0, BTreeMap::new());
    for seed in 0..MODULES {
        let Some(wasm) = generate(seed) else { continue };
        let sandboxer = &sandboxers[(seed / 4) as usize % 2];
        let Ok(ash) = sandboxer.load(&wasm) else { continue };
        let theirs = Interpreted::new(&wasm).and_then(|_| Interpreted::new(&with_areas(&wasm)));
        let ours = ash.instantiate(1);
        let (mut handler, mut other) = match (ours, theirs) {
            (Ok(handler), Ok(other)) => (handler, other),
            // Elements that do not fit their table.
            (Err(_), Err(_)) => continue,
            (ours, theirs) => panic!("seed {seed}: {:?}, {:?}", ours.err(), theirs.err()),
        };
        assert_eq!(handler.memory().message_area(), MESSAGE);
        assert_eq!(handler.memory().reply_area(), REPLIES);
        let start = handler.memory().host_pointer(0);
        let mut random = fastrand::Rng::with_seed(seed);
        for n in 0..INVOCATIONS {
            // SAFETY: the area is in the memory, and no handler runs.
            let message = unsafe { from_raw_parts_mut(start.add(MESSAGE.start), MESSAGE.len()) };
            random.fill(message);
            other.memory()[MESSAGE].copy_from_slice(message);
            // SAFETY: as above; the handler only reads it.
            let message = unsafe { from_raw_parts(start.add(MESSAGE.start), MESSAGE.len()) };
            let outcome = handler.handle(message, n as u64, n as u32, Instant::now());
            let ours = Ended::of(&outcome);
            let (at, len) = (MESSAGE.start as i32, MESSAGE.len() as i32);
            let theirs = other.invoke((at, len, n as i64, n as i32)).as_outcome();
            // Only the handler cannot write to the message.
            let message_was_changed = other.memory()[MESSAGE] != *message;
            if message_was_changed && ours == Ended::Memory
                || [ours, theirs].iter().any(|end| matches!(end, Ended::OutOfFuel | Ended::Stack))
            {
                // The engines count fuel and stack differently. What follows in this module is not comparable.
                *given_up.entry((ours, theirs)).or_insert(0) += 1;
                break;
            }
            assert_eq!(ours, theirs, "the module of seed {seed}, invocation {n}");
            for range in [OWN, MESSAGE, REPLIES] {
                // SAFETY: the range is in the memory, and no handler runs.
                let area = unsafe { from_raw_parts(start.add(range.start), range.len()) };
                let is_same = area == &other.memory()[range.clone()];
                assert!(is_same, "{range:?} differs: seed {seed}, invocation {n}");
            }
            compared += 1;
            *ends.entry(ours).or_insert(0) += 1;
        }
    }
    println!("{compared} invocations compared: {ends:?}; given up: {given_up:?}");
    assert!(compared > 1000, "{compared} invocations were compared");
    assert!(ends.len() > 2, "{ends:?}");
}
