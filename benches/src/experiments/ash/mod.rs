//! The experiments on handlers in a sandbox (ASH).

mod client;
mod comparison;
pub(super) mod copies;
mod datagrams;
pub(super) mod dilp;
pub(super) mod model;
mod page;
mod pages;
mod parameters;
pub(super) mod procs;
pub(crate) mod recommend;
pub(crate) mod remote_write;
mod request;
pub(super) mod rtt;
pub(super) mod sandbox;
pub(crate) mod scheduling;
pub(crate) mod server;
pub(super) mod web;

use std::sync::Arc;
use std::time::Instant;

use ash_sandbox::sandbox::{Handler, Outcome as Handled, Policy, Sandboxer, SharedTable};

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
    load(&text_of(body))
}

/// Lets a handler handle the first bytes of its message area.
fn handle_landed(handler: &mut Handler, len: usize, now: Instant) -> Handled {
    let area = handler.memory().message_area();
    assert!(len <= area.len(), "a message of {len} bytes");
    // SAFETY: the bytes are in the area, and nothing writes to them until the handler has returned.
    let message =
        unsafe { std::slice::from_raw_parts(handler.memory().host_pointer(area.start), len) };
    handler.handle(message, 7, 0, now)
}

/// Returns the increment after the computation of a [request](request::Request), which may be longer than a handler's by
/// default.
fn computing_handler() -> Result<Handler, Failure> {
    let policy = policy().with(|p| p.max_operations = 10_000_000);
    load_with(&text_of(&request::computing(INCREMENT)), policy, None)
}

/// Returns the module of a handler with these instructions.
fn text_of(body: &str) -> String {
    format!(
        r#"(module
            (import "ash" "send" (func $send (param i32 i32) (result i32)))
            (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
            (memory (export "memory") 2 2)
            (func (export "ash_handle")
                (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32)
                (result i32)
                {body}
                (i32.const 1)))"#
    )
}

/// Returns the handler of a module in the text format.
fn load(text: &str) -> Result<Handler, Failure> {
    load_with(text, policy(), None)
}

/// The policy of the handlers that are measured: operations are not used up.
fn policy() -> Policy {
    Policy::default().with(|p| p.operations_per_second = remote_write::PLENTY)
}

/// Returns the handler of a module in the text format, with a policy and perhaps a table of the application.
fn load_with(
    text: &str,
    policy: Policy,
    table: Option<&Arc<SharedTable>>,
) -> Result<Handler, Failure> {
    let wasm = wat::parse_str(text).map_err(|e| Failure::new("the module of a handler", e))?;
    let ash = Sandboxer::new(policy).and_then(|sandboxer| sandboxer.load(&wasm));
    let handler = ash.and_then(|ash| match table {
        Some(table) => ash.instantiate_with(1, table),
        None => ash.instantiate(1),
    });
    handler.map_err(|e| Failure::new("cannot load a handler", e))
}

/// Adds to a counter, and sends its value: the remote increment of section 6.3.2.
const INCREMENT: &str =
    "(i64.store (i32.const 64) (i64.add (i64.load (i32.const 64)) (i64.const 1)))
    (drop (call $send (i32.const 64) (i32.const 8)))";
