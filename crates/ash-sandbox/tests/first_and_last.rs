//! What a handler costs the thread that serves messages when it is new, and when it is dropped.

#![cfg(feature = "sandbox")]

use std::sync::Arc;
use std::time::Instant;

use ash_sandbox::sandbox::{Ash, Outcome, Policy, Sandboxer};

fn load(sandboxer: &Sandboxer, result: u32) -> Ash {
    let text = format!(
        r#"(module (memory (export "memory") 1 1)
            (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) (i32.const {result})))"#
    );
    sandboxer.load(&wat::parse_str(text).unwrap()).unwrap()
}

#[test]
fn drop_of_a_handler_unmapped_its_memory_while_others_waited() {
    let sandboxer = Sandboxer::new(Policy::default()).unwrap();
    let ash = load(&sandboxer, 1);
    let mut handler = ash.instantiate(1).unwrap();
    assert_eq!(handler.handle_copy(b"a", 0, Instant::now()), Outcome::Handled);
    let memory = Arc::downgrade(handler.memory());
    drop(handler);
    assert!(memory.upgrade().is_some(), "this thread has unmapped it");
    // Another handler of the same sandboxer.
    let other = load(&sandboxer, 2).instantiate(1).unwrap();
    assert!(memory.upgrade().is_none(), "the next one has not unmapped it");
    let memory = Arc::downgrade(other.memory());
    drop((other, sandboxer));
    assert!(memory.upgrade().is_some(), "this thread has unmapped it");
    drop(ash);
    assert!(memory.upgrade().is_none(), "nothing unmaps it any more");
}

#[test]
fn memories_of_dropped_handlers_are_bounded() {
    let ash = load(&Sandboxer::new(Policy::default()).unwrap(), 1);
    let handlers: Vec<_> = (0..40).map(|_| ash.instantiate(1).unwrap()).collect();
    let memories: Vec<_> =
        handlers.iter().map(|handler| Arc::downgrade(handler.memory())).collect();
    drop(handlers);
    let mapped = || memories.iter().filter(|memory| memory.upgrade().is_some()).count();
    assert_eq!(mapped(), 32);
    drop(ash);
    assert_eq!(mapped(), 0);
}

#[test]
fn handlers_without_a_sandboxer_were_kept_until_the_last_was_dropped() {
    let ash = load(&Sandboxer::new(Policy::default()).unwrap(), 1);
    let [first, second] = [(); 2].map(|()| ash.instantiate(1).unwrap());
    let memory = Arc::downgrade(first.memory());
    drop(ash);
    drop(first);
    assert!(memory.upgrade().is_none(), "nothing unmaps it before the other one is dropped");
    drop(second);
}
