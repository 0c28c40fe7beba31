//! Generated hostile modules through the whole path: load, check, compile, run, abort. None writes outside of
//! its memory or to a message, none exceeds a bound, and each rejection has a reason.
//!
//! A run is 400 modules. `ASH_SANDBOX_SECONDS` sets a time instead: `ci/sandbox.sh` uses two minutes, or an
//! hour.

#![cfg(feature = "sandbox")]

use crate::generated;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Unstructured};
use ash_sandbox::ilp::{Gauge, Mode, PipeList, byte_swap, chacha20, checksum};
use ash_sandbox::sandbox::{Handler, Loops, Outcome, Pass, Policy, Sandboxer, SharedTable};
use wasm_smith::{Config, Module};

/// The modules of a run without a time.
const MODULES: u64 = 400;
/// The messages for each module.
const MESSAGES: usize = 8;
/// The content of memory to which a module may not write.
const CANARY: u8 = 0xa5;

/// The imports and exports of a handler, for modules that the sandboxer should accept.
const SHAPE: &str = r#"
(module
  (import "ash" "clock" (func (result i64)))
  (import "ash" "send" (func (param i32 i32) (result i32)))
  (import "ash" "id" (func (result i64)))
  (import "ash" "copy" (func (param i32 i32 i32) (result i32)))
  (import "ash" "read_apply" (func (param i32 i32 i32) (result i32)))
  (import "ash" "write_apply" (func (param i32 i32 i32 i32) (result i32)))
  (import "ash" "import" (func (param i32 i32) (result i64)))
  (import "ash" "export" (func (param i32 i32 i64) (result i32)))
  (import "ash" "key" (func (param i32 i32 i32 i32) (result i32)))
  (import "ash" "post" (func (param i64 i64) (result i32)))
  (import "ash" "upcall" (func (result i32)))
  (import "ash" "count" (func (param i32 i64) (result i32)))
  (import "ash" "reply" (func (param i32) (result i32)))
  (import "ash" "keep" (func (result i32)))
  (import "ash" "give_back" (func (param i32) (result i32)))
  (import "ash" "table" (func (result i32)))
  (import "ash" "lock" (func (param i32) (result i32)))
  (import "ash" "store" (func (param i32 i32 i32) (result i32)))
  (import "ash" "abort" (func))
  (memory (export "memory") 1 1)
  (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) unreachable))
"#;

/// Generates a module: one in four of any shape and with any feature, the others like a handler.
fn generate(seed: u64) -> Option<Vec<u8>> {
    let bytes = generated::bytes(seed);
    let mut bytes = Unstructured::new(&bytes);
    let config = if seed.is_multiple_of(4) {
        Config::arbitrary(&mut bytes).ok()?
    } else {
        // The second policy accepts floats, and the sandboxer some instructions on ranges of memory.
        generated::like_handlers(SHAPE, (seed / 4) % 3 == 1, seed % 8 == 1)
    };
    Some(Module::new(config, &mut bytes).ok()?.to_bytes())
}

/// Fills a range of a handler's memory, by the mapping of the host.
fn fill(handler: &Handler, range: Range<usize>, value: u8) {
    // SAFETY: the range is in the memory, and no handler runs.
    unsafe { handler.memory().host_pointer(range.start).write_bytes(value, range.len()) };
}

/// Returns whether a range of a handler's memory has this value everywhere.
fn is_filled(handler: &Handler, range: Range<usize>, value: u8) -> bool {
    let start = handler.memory().host_pointer(range.start);
    // SAFETY: as in `fill`.
    unsafe { std::slice::from_raw_parts(start, range.len()) }.iter().all(|byte| *byte == value)
}

fn is_intact(handler: &Handler) -> bool {
    is_filled(handler, 0..handler.memory().len(), CANARY)
}

/// A tenant whose whole memory is canaries.
fn neighbour(sandboxer: &Sandboxer) -> Handler {
    let idle = r#"(module (memory (export "memory") 1 1)
        (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) (i32.const 0)))"#;
    let ash = sandboxer.load(&wat::parse_str(idle).unwrap()).unwrap();
    let handler = ash.instantiate(0).unwrap();
    fill(&handler, 0..handler.memory().len(), CANARY);
    handler
}

/// Runs a handler on messages that lie among canaries, and counts the outcomes.
fn run(handler: &mut Handler, policy: &Policy, outcomes: &mut BTreeMap<String, u64>) {
    let mut pipes = PipeList::new();
    let sum = pipes.add(checksum::pipe()).unwrap();
    let read = pipes.compile(Mode::Read).unwrap();
    handler.add_pipes(read, vec![(sum, checksum::SUM)]);
    let mut pipes = PipeList::new();
    pipes.add(byte_swap::pipe(Gauge::Bits32)).unwrap();
    pipes.add(chacha20::pipe()).unwrap();
    handler.add_pipes(pipes.compile(Mode::Write).unwrap(), vec![]);
    let area = handler.memory().message_area();
    fill(handler, area.clone(), CANARY);
    let start = Instant::now();
    for n in 0..MESSAGES {
        let message = area.start + n * 8192..area.start + n * 8192 + n * n * 20;
        let before = handler.counters();
        // So that no budget of a second ends the run.
        let now = start + Duration::from_secs(n as u64 + 1);
        let first = handler.memory().host_pointer(message.start);
        // SAFETY: the bytes are in the message area, and nothing writes to them until the handler has returned.
        let bytes = unsafe { std::slice::from_raw_parts(first, message.len()) };
        let outcome = handler.handle(bytes, n as u64, n as u32, now);
        let name = match &outcome {
            Outcome::Passed(Pass::Involuntary(abort)) => format!("abort: {abort}"),
            outcome => format!("{outcome:?}"),
        };
        *outcomes.entry(name).or_default() += 1;
        assert!(is_filled(handler, area.clone(), CANARY), "the message area has changed");
        let is_handled = outcome == Outcome::Handled || outcome == Outcome::Discarded;
        assert!(is_handled || handler.sends().is_empty() && handler.events().is_empty());
        assert!(handler.sends().len() <= policy.max_sends);
        assert!(handler.events().len() <= policy.max_events);
        for sent in handler.sends() {
            assert!(sent.start <= sent.end && sent.end <= handler.memory().len());
            let is_message = sent.start >= message.start && sent.end <= message.end;
            let is_own = sent.end <= area.start || sent.start >= area.end;
            assert!(is_message || is_own, "{sent:?} was sent, which is not the handler's");
        }
        if policy.loops == Loops::Fuel {
            let used = handler.counters().operations - before.operations;
            assert!(used <= policy.max_operations, "{used} operations");
        }
        handler.enable();
    }
}

#[test]
fn no_generated_module_leaves_its_sandbox() {
    let seconds = std::env::var("ASH_SANDBOX_SECONDS").ok();
    let seconds = seconds.map(|seconds| seconds.parse().expect("a number of seconds"));
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    // A long run is another one each time; its seeds are printed when it fails.
    let first = if until.is_some() { fastrand::u64(..) & !0xffff_ffff } else { 0 };
    let policies = [
        Policy::default(),
        Policy::default().with(|p| {
            p.allows_floats = true;
            p.max_operations = 5_000;
        }),
        Policy::default().with(|p| p.loops = Loops::Epoch(Duration::from_millis(1))),
    ];
    let sandboxers: Vec<_> =
        policies.into_iter().map(|policy| Sandboxer::new(policy).unwrap()).collect();
    let neighbours: Vec<_> = sandboxers.iter().map(neighbour).collect();
    let heap = vec![CANARY; 1 << 20];
    let (mut reasons, mut outcomes) = (BTreeMap::new(), BTreeMap::new());
    let (mut modules, mut accepted) = (0, 0);
    for seed in first.. {
        match until {
            Some(until) if Instant::now() >= until => break,
            None if seed == first + MODULES => break,
            _ => {}
        }
        let Some(wasm) = generate(seed) else { continue };
        modules += 1;
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let n = (seed / 4) as usize % sandboxers.len();
            // Two sections, and behind them what is the application's.
            let table = SharedTable::with_sections(2, 64).unwrap();
            match sandboxers[n].load(&wasm) {
                Ok(ash) => {
                    accepted += 1;
                    let mut handler = ash.instantiate_with(seed, &table).unwrap();
                    run(&mut handler, sandboxers[n].policy(), &mut outcomes);
                    assert!((0..2).all(|section| table.try_lock(section).is_some()), "a lock");
                    let mut behind = table.words()[16..].iter();
                    assert!(behind.all(|word| word.load(Ordering::Relaxed) == 0), "the table");
                }
                Err(rejection) => {
                    assert!(!rejection.to_string().is_empty());
                    let reason = format!("{:?}", rejection.reason);
                    let reason = reason.split(['(', ' ']).next().unwrap_or_default().to_owned();
                    *reasons.entry(reason).or_default() += 1;
                }
            }
            assert!(neighbours.iter().all(is_intact), "the memory of another tenant has changed");
            assert!(heap.iter().all(|byte| *byte == CANARY), "memory of the host has changed");
        }));
        assert!(failed.is_ok(), "the module of seed {seed} has left its sandbox");
    }
    println!("{modules} modules, {accepted} accepted");
    println!("rejected: {reasons:?}");
    let reasons: BTreeMap<String, u64> = reasons;
    println!("outcomes of messages: {outcomes:#?}");
    assert!(accepted * 4 > modules, "{accepted} of {modules} modules were accepted");
    assert!(reasons.len() > 3, "{reasons:?}");
}
