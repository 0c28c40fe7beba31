//! The experiments on handlers in a sandbox (ASH).

mod client;
pub(super) mod copies;
mod datagrams;
pub(super) mod dilp;
pub(super) mod model;
mod pages;
pub(super) mod procs;
pub(crate) mod recommend;
pub(crate) mod remote_write;
pub(super) mod rtt;
pub(super) mod sandbox;
pub(crate) mod scheduling;
pub(crate) mod server;
pub(super) mod web;

use std::time::Instant;

use ash_sandbox::sandbox::{Handler, Policy, Sandboxer};

use super::contestants::{Contestant, bars, ratio, run_rounds, values};
use crate::failure::Failure;

/// Returns the nanoseconds of one of `turns` executions.
fn ns_each(turns: usize, mut once: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..turns {
        once();
    }
    start.elapsed().as_nanos() as f64 / turns as f64
}

/// Removes bytes from all caches, where the processor lets programs do so.
fn flush(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_clflush, _mm_mfence};
        for line in bytes.chunks(64) {
            // SAFETY: the address is that of a byte that is borrowed; all x86-64 processors have both
            // instructions.
            unsafe { _mm_clflush(line.as_ptr()) };
        }
        // SAFETY: as above.
        unsafe { _mm_mfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = bytes;
        std::hint::black_box(vec![1u8; 64 << 20]);
    }
}

/// Returns a handler with these instructions, whose budget is not used up. Each handler ends by `1`.
fn handler(body: &str) -> Result<Handler, Failure> {
    let text = format!(
        r#"(module
            (import "ash" "send" (func $send (param i32 i32) (result i32)))
            (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
            (memory (export "memory") 2 2)
            (func (export "ash_handle")
                (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32)
                (result i32)
                {body}
                (i32.const 1)))"#
    );
    load(&text)
}

/// Returns the handler of a module in the text format.
fn load(text: &str) -> Result<Handler, Failure> {
    let wasm = wat::parse_str(text).map_err(|e| Failure::new("the module of a handler", e))?;
    let policy = Policy::default().with(|p| p.operations_per_second = remote_write::PLENTY);
    let ash = Sandboxer::new(policy).and_then(|sandboxer| sandboxer.load(&wasm));
    ash.and_then(|ash| ash.instantiate(1)).map_err(|e| Failure::new("cannot load a handler", e))
}

/// Adds to a counter, and sends its value: the remote increment of section 6.3.2.
const INCREMENT: &str =
    "(i64.store (i32.const 64) (i64.add (i64.load (i32.const 64)) (i64.const 1)))
    (drop (call $send (i32.const 64) (i32.const 8)))";
