//! A child of fork(2) has copies of its parent's handlers, and shares their memory.

#![cfg(feature = "sandbox")]

use crate::child::in_child;
use crate::memory::bytes;
use crate::sandbox::{handler, module, run};

use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{Loops, Outcome, Pass, Policy, Reason, Sandboxer};

#[test]
fn child_of_fork_wrote_to_the_memory_of_a_handler_of_its_parent() {
    let mut handler = handler("(i32.store (i32.const 64) (i32.const 7)) (i32.const 1)");
    let (area, now) = (handler.memory().message_area(), Instant::now());
    let at = handler.memory().host_pointer(area.start);
    let off = Outcome::Passed(Pass::Off);
    assert!(in_child(|| {
        // SAFETY: the area has room for five bytes there, no handler runs, and nothing writes to them.
        let landed = unsafe { std::slice::from_raw_parts(at, 5) };
        handler.handle_copy(b"child", 1, now) == off && handler.handle(landed, 1, 0, now) == off
    }));
    assert_eq!(bytes(&handler, 64..68), [0; 4]);
    assert_eq!(bytes(&handler, area.start..area.start + 5), [0; 5]);
    assert_eq!(run(&mut handler, b"parent"), Outcome::Handled);
    assert_eq!(bytes(&handler, 64..68), 7u32.to_le_bytes());
}

#[test]
fn handler_in_a_child_of_fork_had_no_clock_that_bounds_it() {
    let policy = Policy::default().with(|p| p.loops = Loops::Epoch(Duration::from_millis(1)));
    let sandboxer = Sandboxer::new(policy).unwrap();
    let ash = sandboxer.load(&module("(loop $l (br $l)) (i32.const 1)")).unwrap();
    assert!(in_child(|| ash.instantiate(1).is_err_and(|e| e.reason == Reason::OtherProcess)));
    ash.instantiate(1).unwrap();
}
