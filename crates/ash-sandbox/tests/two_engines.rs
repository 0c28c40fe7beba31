//! Generated modules in the sandbox, whose compiler is wasmtime's, and in another engine, an interpreter: both
//! give the same results and leave the same memory, whatever the sandboxer rewrites and instruments.

#![cfg(feature = "sandbox")]

use crate::generated;

use std::collections::BTreeMap;
use std::slice::from_raw_parts;
use std::time::{Duration, Instant};

use arbitrary::Unstructured;
use ash_sandbox::sandbox::{Abort, Loops, Outcome, Pass, Policy, Sandboxer};
use wasm_smith::{Config, Module};
use wasmi::{Engine, Instance, Linker, Store, TrapCode, TypedFunc};

const MODULES: u64 = 600;
/// Invocations of each module, which keeps its memory and globals between them.
const INVOCATIONS: usize = 4;
const PAGE: usize = 1 << 16;

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

    fn memory(&self) -> &[u8] {
        self.instance.get_memory(&self.store, "memory").unwrap().data(&self.store)
    }
}

#[test]
fn generated_modules_do_the_same_in_two_engines() {
    let policy = Policy::default().with(|p| {
        p.allows_floats = true;
        p.max_aborts = u32::MAX;
        p.max_operations = 1_000_000;
        p.operations_per_second = 1 << 40;
    });
    let epochs = policy.clone().with(|p| p.loops = Loops::Epoch(Duration::from_millis(20)));
    let sandboxers = [policy, epochs].map(|policy| Sandboxer::new(policy).unwrap());
    let (mut ends, mut compared, mut given_up) = (BTreeMap::new(), 0, BTreeMap::new());
    for seed in 0..MODULES {
        let Some(wasm) = generate(seed) else { continue };
        let sandboxer = &sandboxers[(seed / 4) as usize % 2];
        let Ok(ash) = sandboxer.load(&wasm) else { continue };
        let (ours, theirs) = (ash.instantiate(1), Interpreted::new(&wasm));
        let (mut handler, mut other) = match (ours, theirs) {
            (Ok(handler), Ok(other)) => (handler, other),
            // Elements that do not fit their table.
            (Err(_), Err(_)) => continue,
            (ours, theirs) => panic!("seed {seed}: {:?}, {:?}", ours.err(), theirs.err()),
        };
        let offset = handler.memory().message_area().start;
        for n in 0..INVOCATIONS {
            // Without a message, as it would lie outside of the other engine's memory.
            // SAFETY: no bytes.
            let nothing = unsafe { from_raw_parts(handler.memory().host_pointer(offset), 0) };
            let outcome = handler.handle(nothing, n as u64, n as u32, Instant::now());
            let ours = Ended::of(&outcome);
            let theirs = other.invoke((offset as i32, 0, n as i64, n as i32)).as_outcome();
            let areas_were_read = theirs == Ended::Memory && ours != Ended::Memory;
            if areas_were_read
                || [ours, theirs].iter().any(|end| matches!(end, Ended::OutOfFuel | Ended::Stack))
            {
                // The message and reply areas lie behind the memory here, and the engines count fuel and stack
                // differently. What follows in this module is not comparable.
                *given_up.entry((ours, theirs)).or_insert(0) += 1;
                break;
            }
            assert_eq!(ours, theirs, "the module of seed {seed}, invocation {n}");
            let start = handler.memory().host_pointer(0);
            // SAFETY: the range is in the memory, and no handler runs.
            let memory = unsafe { std::slice::from_raw_parts(start, PAGE) };
            assert!(memory == other.memory(), "memories differ: seed {seed}, invocation {n}");
            compared += 1;
            *ends.entry(ours).or_insert(0) += 1;
        }
    }
    println!("{compared} invocations compared: {ends:?}; given up: {given_up:?}");
    assert!(compared > 500, "{compared} invocations were compared");
    assert!(ends.len() > 2, "{ends:?}");
}
