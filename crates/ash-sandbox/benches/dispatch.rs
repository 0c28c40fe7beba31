//! A handler in and out, with the accounting of its budgets; host calls; and loading.

use std::hint::black_box;
use std::time::Instant;

use ash_sandbox::model::{Governor, Machine, Workload};
use ash_sandbox::sandbox::{Handler, Loops, Policy, Sandboxer};
use criterion::{Criterion, criterion_group, criterion_main};

/// A module whose entry has these instructions.
fn module(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "ash" "count" (func $count (param i32 i64) (result i32)))
            (import "ash" "send" (func $send (param i32 i32) (result i32)))
            (import "ash" "clock" (func $clock (result i64)))
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
        let start = handler.memory().message_area().start;
        let now = Instant::now();
        group.bench_function(name, |b| {
            b.iter(|| handler.handle(black_box(start..start + 64), 7, 0, now));
        });
    }
    let mut handler = handler(endless(), "");
    handler.set_governor(Some(Governor::new(Machine::AEGIS, Workload::default())));
    let start = handler.memory().message_area().start;
    let now = Instant::now();
    group.bench_function("governed", |b| {
        b.iter(|| handler.handle(black_box(start..start + 64), 7, 0, now));
    });
    group.finish();
}

fn loading(c: &mut Criterion) {
    let sandboxer = Sandboxer::new(Policy::default()).expect("code can be generated");
    let wasm = module("(drop (call $clock))");
    c.bench_function("load", |b| b.iter(|| sandboxer.load(&wasm).expect("it is accepted")));
    let ash = sandboxer.load(&wasm).expect("it is accepted");
    c.bench_function("instantiate", |b| b.iter(|| ash.instantiate(1).expect("a memory")));
}

criterion_group!(benches, dispatch, loading);
criterion_main!(benches);
