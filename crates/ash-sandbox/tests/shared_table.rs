//! A table that the application shares with a handler, which can only read it. `examples/kv/tests/handler.rs` has the
//! tests of a handler that answers from it, while the application writes it.

#![cfg(feature = "sandbox")]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{Abort, MAX_TABLE_BYTES, Outcome, Pass, Policy, Sandboxer, SharedTable};

fn sandboxer() -> Sandboxer {
    let policy = Policy::default().with(|p| p.operations_per_second = 1 << 40);
    Sandboxer::new(policy).unwrap()
}

/// Does with the table what the first byte of the message says.
const HOSTILE: &str = r#"(module
    (import "ash" "table" (func $table (result i32)))
    (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (memory (export "memory") 1 1)
    (func (export "ash_handle") (param $offset i32) (param i32 i64 i32) (result i32) (local $what i32)
        (local.set $what (i32.load8_u (local.get $offset)))
        (if (i32.eq (local.get $what) (i32.const 0))
            (then (i32.store (call $table) (i32.const 1)) (return (i32.const 1))))
        (if (i32.eq (local.get $what) (i32.const 1))
            (then (return (call $copy (call $table) (i32.const 0) (i32.const 8)))))
        (if (i32.eq (local.get $what) (i32.const 2))
            (then (return (call $copy (i32.const 0) (i32.add (call $table) (i32.const 4092)) (i32.const 8)))))
        (if (i32.eq (local.get $what) (i32.const 3))
            (then (return (call $send (call $table) (i32.const 8)))))
        (if (i32.eq (local.get $what) (i32.const 4))
            (then (drop (i32.load offset=4096 (call $table))) (return (i32.const 1))))
        (if (i32.eq (local.get $what) (i32.const 5))
            (then (return (i32.add (call $copy (i32.const 0) (call $table) (i32.const 4096)) (i32.const 1)))))
        (i32.load (call $table))))"#;

#[test]
fn handler_can_only_read_the_table() {
    let ash = sandboxer().load(&wat::parse_str(HOSTILE).unwrap()).unwrap();
    let table = SharedTable::new(1).unwrap();
    assert_eq!((table.len(), table.is_empty(), table.words().len()), (4096, false, 512));
    let mut handler = ash.instantiate_with(1, &table).unwrap();
    let mut ask = |what| {
        handler.enable();
        handler.handle_copy(&[what], 1, Instant::now())
    };
    let memory = Outcome::Passed(Pass::Involuntary(Abort::Memory));
    assert_eq!(ask(0), memory, "a store to the table");
    assert_eq!(ask(4), memory, "a load behind it");
    for refused in [1, 2, 3] {
        assert_eq!(ask(refused), Outcome::Passed(Pass::Voluntary), "call {refused} returns -1");
    }
    assert_eq!(ask(5), Outcome::Handled);
    table.words()[0].store(2, Ordering::Relaxed);
    assert_eq!(ask(6), Outcome::Discarded, "it reads what the application has written");
    assert!(table.words()[1..].iter().all(|word| word.load(Ordering::Relaxed) == 0));
    // Others have none.
    let mut other = ash.instantiate(2).unwrap();
    assert_eq!(other.handle_copy(&[6], 1, Instant::now()), memory);
    // Two instances share it, and it outlives its owner's handle.
    let mut second = ash.instantiate_with(3, &table).unwrap();
    drop(table);
    assert_eq!(second.handle_copy(&[6], 1, Instant::now()), Outcome::Discarded);
    for bytes in [0, MAX_TABLE_BYTES + 1] {
        assert!(SharedTable::new(bytes).unwrap_err().to_string().contains("a table of"));
    }
}

#[test]
fn table_of_a_dropped_handler_existed_as_long_as_its_sandboxer() {
    let sandboxer = sandboxer();
    let ash = sandboxer.load(&wat::parse_str(HOSTILE).unwrap()).unwrap();
    let table = SharedTable::new(1).unwrap();
    let handler = ash.instantiate_with(1, &table).unwrap();
    let dropped = Arc::downgrade(&table);
    drop(table);
    assert!(dropped.upgrade().is_some(), "the handler reads it");
    drop(handler);
    assert!(dropped.upgrade().is_none());
    drop((ash, sandboxer));
}

#[test]
fn thread_that_waited_for_a_lock_used_its_core_until_it_was_free() {
    let table = SharedTable::with_sections(1, 8).unwrap();
    let section = table.try_lock(0).unwrap();
    let (started, starts) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            started.send(rustix::thread::gettid()).unwrap();
            drop(table.lock(0));
        });
        // A real-time thread that only yields keeps the core from the thread that has the lock.
        let stat = format!("/proc/self/task/{}/stat", starts.recv().unwrap().as_raw_nonzero());
        let sleeps = || fs::read_to_string(&stat).unwrap().contains(") S ");
        let until = Instant::now() + Duration::from_secs(20);
        while !sleeps() && Instant::now() < until {}
        let has_slept = Instant::now() < until;
        drop(section);
        assert!(has_slept);
    });
}
