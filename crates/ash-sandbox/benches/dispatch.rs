//! A handler in and out, with the accounting of its budgets; host calls; and loading.

use std::hint::black_box;
use std::time::Instant;

use ash_sandbox::ilp::{Mode, PipeList, checksum, copy};
use ash_sandbox::model::{Governor, Machine, Workload};
use ash_sandbox::sandbox::{Handler, Loops, Outcome, Policy, Sandboxer, SharedTable};
use criterion::{Criterion, criterion_group, criterion_main};

/// A module whose entry has these instructions.
fn module(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "ash" "count" (func $count (param i32 i64) (result i32)))
            (import "ash" "send" (func $send (param i32 i32) (result i32)))
            (import "ash" "clock" (func $clock (result i64)))
            (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
            (import "ash" "reply" (func $reply (param i32) (result i32)))
            (import "ash" "read_apply" (func $read_apply (param i32 i32 i32) (result i32)))
            (import "ash" "write_apply" (func $write_apply (param i32 i32 i32 i32) (result i32)))
            (import "ash" "lock" (func $lock (param i32) (result i32)))
            (import "ash" "store" (func $store (param i32 i32 i32) (result i32)))
            (memory (export "memory") 1 1)
            (func (export "ash_handle") (param $offset i32) (param $length i32) (param i64 i32) (result i32)
                {body}
                (i32.const 1)))"#
    );
    wat::parse_str(text).expect("a module")
}

fn handler(policy: Policy, body: &str) -> Handler {
    let ash = Sandboxer::new(policy).expect("code can be generated").load(&module(body));
    ash.expect("the policy accepts it").instantiate(1).expect("its memory is mapped")
}

/// Lets a handler handle a message in the message area.
fn handle_landed(handler: &mut Handler, now: Instant) -> Outcome {
    let first = handler.memory().host_pointer(handler.memory().message_area().start);
    // SAFETY: the bytes are in the area, and nothing writes to them until the handler has returned.
    let message = unsafe { std::slice::from_raw_parts(first, 64) };
    handler.handle(black_box(message), 7, 0, now)
}

/// A policy whose budget is never used up.
fn endless() -> Policy {
    Policy::default().with(|p| p.operations_per_second = u64::MAX / 4)
}

fn dispatch(c: &mut Criterion) {
    let mut group = c.benchmark_group("dispatch");
    let cyclic = "(loop $again (br_if $again (i32.const 0)))";
    let epoch = Loops::Epoch(std::time::Duration::from_secs(1));
    let cases = [
        ("acyclic", endless(), ""),
        ("fuel", endless(), cyclic),
        ("epoch", endless().with(|p| p.loops = epoch), cyclic),
        ("a count", endless(), "(drop (call $count (i32.const 0) (i64.const 1)))"),
        ("a send", endless(), "(drop (call $send (local.get $offset) (local.get $length)))"),
        ("a clock", endless(), "(drop (call $clock))"),
    ];
    for (name, policy, body) in cases {
        let mut handler = handler(policy, body);
        let now = Instant::now();
        group.bench_function(name, |b| {
            b.iter(|| handle_landed(&mut handler, now));
        });
    }
    // Each call has to succeed, else the entry divides by zero.
    let succeeds = |call: &str| format!("(drop (i32.div_s (i32.const 1) (i32.eqz {call})))");
    let range = "(local.get $offset) (local.get $length)";
    let calls = [
        ("a copy", succeeds(&format!("(call $copy (i32.const 0) {range})"))),
        ("a reply slot", "(drop (call $reply (local.get $length)))".to_owned()),
        ("a read_apply", succeeds(&format!("(call $read_apply (i32.const 0) {range})"))),
        (
            "a write_apply",
            succeeds(
                "(call $write_apply (i32.const 1) (local.get $offset) (i32.const 0) (local.get $length))",
            ),
        ),
        (
            "a lock and a store",
            succeeds("(call $store (call $lock (i32.const 3)) (i32.const 0) (i32.const 64))"),
        ),
    ];
    let table = SharedTable::with_sections(16, 64).expect("memory");
    let sandboxer = Sandboxer::new(endless()).expect("code can be generated");
    for (name, body) in calls {
        let ash = sandboxer.load(&module(&body)).expect("the policy accepts it");
        let mut handler = ash.instantiate_with(1, &table).expect("its memory is mapped");
        for mode in [Mode::Read, Mode::Write] {
            let mut list = PipeList::new();
            list.add(checksum::pipe()).and_then(|_| list.add(copy::pipe())).expect("a short list");
            handler.add_pipes(list.compile(mode).expect("a kernel"), Vec::new());
        }
        let now = Instant::now();
        group.bench_function(name, |b| {
            b.iter(|| handle_landed(&mut handler, now));
        });
        assert_eq!(handler.counters().involuntary_aborts, 0, "{name}");
    }
    let mut handler = handler(endless(), "");
    handler.set_governor(Some(Governor::new(Machine::AEGIS, Workload::default())));
    let now = Instant::now();
    group.bench_function("governed", |b| {
        b.iter(|| handle_landed(&mut handler, now));
    });
    group.finish();
}

fn loading(c: &mut Criterion) {
    let sandboxer = Sandboxer::new(Policy::default()).expect("code can be generated");
    let wasm = module("(drop (call $clock))");
    c.bench_function("load", |b| b.iter(|| sandboxer.load(&wasm).expect("it is accepted")));
    let directory = tempfile::tempdir().expect("a directory");
    let sandboxer = sandboxer.with_cache(directory.path()).expect("a directory of this user");
    sandboxer.load(&wasm).expect("it is accepted");
    c.bench_function("load, cached", |b| b.iter(|| sandboxer.load(&wasm).expect("it is accepted")));
    let ash = sandboxer.load(&wasm).expect("it is accepted");
    c.bench_function("instantiate", |b| b.iter(|| ash.instantiate(1).expect("a memory")));
}

criterion_group!(benches, dispatch, loading);
criterion_main!(benches);
