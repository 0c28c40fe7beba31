//! The thread that ticks for handlers which are bounded by a clock. No other test of this program starts one.

#![cfg(feature = "sandbox")]

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{Loops, Policy, Sandboxer};

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn clock_ticked_without_handlers_that_it_bounds() {
    let module = |body: &str| {
        let text = format!(
            r#"(module
                (memory (export "memory") 1 1)
                (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) {body}))"#
        );
        wat::parse_str(text).unwrap()
    };
    let policy = Policy::default().with(|p| p.loops = Loops::Epoch(Duration::from_secs(60)));
    let before = threads();
    let sandboxer = Sandboxer::new(policy).unwrap();
    let acyclic = sandboxer.load(&module("(i32.const 1)")).unwrap();
    acyclic.instantiate(1).unwrap();
    assert_eq!(threads(), before);
    // One thread for all of them, until the last one is dropped.
    for _ in 0..2 {
        let handlers = [(); 2].map(|()| {
            let cyclic = sandboxer.load(&module("(loop $l) (i32.const 1)")).unwrap();
            let handler = cyclic.instantiate(1).unwrap();
            assert_eq!(threads(), before + 1);
            handler
        });
        drop(handlers);
        let until = Instant::now() + Duration::from_secs(10);
        while threads() > before {
            assert!(Instant::now() < until, "the thread of the clock runs without handlers");
            thread::yield_now();
        }
    }
}
