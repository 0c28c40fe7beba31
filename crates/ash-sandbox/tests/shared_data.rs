//! Data that handlers and application change, by locks for which handlers do not wait (section 5.4.1):
//! `examples/handlers/account.rs` transfers between accounts of a bank.

#![cfg(feature = "sandbox")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use ash_sandbox::sandbox::{
    Abort, Handler, MAX_LOCKS, MAX_STORES, Outcome, Pass, Policy, Sandboxer, SharedTable,
};

fn sandboxer() -> Sandboxer {
    let policy = Policy::default().with(|p| p.operations_per_second = 1 << 40);
    Sandboxer::new(policy).unwrap()
}

fn text(module: &str, table: &Arc<SharedTable>) -> Handler {
    let ash = sandboxer().load(&wat::parse_str(module).unwrap()).unwrap();
    ash.instantiate_with(1, table).unwrap()
}

/// Accounts of 64 bytes, with this balance each.
fn bank(accounts: usize, balance: u64) -> Arc<SharedTable> {
    let table = SharedTable::with_sections(accounts, 64).unwrap();
    (0..accounts).for_each(|n| table.lock(n)[0].store(balance, Ordering::Relaxed));
    table
}

fn account(table: &Arc<SharedTable>) -> Handler {
    let path = match std::env::var_os("ASH_HANDLERS") {
        Some(modules) => Path::new(&modules).join("account.wasm"),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers/account.wasm"),
    };
    let ash = sandboxer().load(&std::fs::read(path).unwrap()).unwrap();
    ash.instantiate_with(1, table).unwrap()
}

fn transfer(handler: &mut Handler, from: u32, to: u32, amount: u32) -> Outcome {
    let message = [from, to, amount].map(u32::to_be_bytes);
    handler.handle_copy(message.as_flattened(), 1, Instant::now())
}

fn balances(table: &SharedTable) -> Vec<u64> {
    (0..table.sections()).map(|n| table.lock(n)[0].load(Ordering::Relaxed)).collect()
}

const ABORTED: Outcome = Outcome::Passed(Pass::Voluntary);

#[test]
fn handler_changes_data_of_the_application_by_its_locks_and_does_not_wait() {
    let table = bank(3, 100);
    let mut handler = account(&table);
    assert_eq!(transfer(&mut handler, 0, 1, 30), Outcome::Handled);
    assert_eq!(handler.sent(b"").collect::<Vec<_>>(), [70u64.to_le_bytes()]);
    assert_eq!(balances(&table), [70, 130, 100]);
    // Either lock is taken by the application.
    for section in [0, 1] {
        let lock = table.lock(section);
        assert_eq!(transfer(&mut handler, 0, 1, 1), ABORTED);
        drop(lock);
        assert_eq!(balances(&table), [70, 130, 100], "the other lock is free");
    }
    // Too little on it, the same one, none.
    for [from, to, amount] in [[0, 1, 71], [2, 2, 1], [0, 3, 1], [u32::MAX, 0, 1]] {
        assert_eq!(transfer(&mut handler, from, to, amount), ABORTED);
        assert_eq!(balances(&table), [70, 130, 100], "{from} to {to}");
    }
    assert_eq!(transfer(&mut handler, 1, 2, 130), Outcome::Handled);
    assert_eq!(balances(&table), [70, 0, 230]);
    // More than an account can have.
    table.lock(1)[0].store(u64::MAX - 9, Ordering::Relaxed);
    assert_eq!(transfer(&mut handler, 0, 1, 10), ABORTED);
    assert_eq!(transfer(&mut handler, 0, 1, 9), Outcome::Handled);
    assert_eq!(balances(&table), [61, u64::MAX, 230]);
    let _locked = table.lock(0);
    assert!(table.try_lock(0).is_none() && table.try_lock(1).is_some());
}

/// Two handlers in threads of their own, and the application, transfer at the same time.
#[test]
fn transfers_of_handlers_and_application_lose_nothing() {
    const ACCOUNTS: u32 = 3;
    const TRANSFERS: u32 = 20_000;
    let table = bank(ACCOUNTS as usize, 1_000);
    let pair = |n: u32| (n % ACCOUNTS, (n + 1 + n / ACCOUNTS % 2) % ACCOUNTS);
    let handled: u32 = thread::scope(|scope| {
        let handlers: Vec<_> = (0..2)
            .map(|_| {
                let mut handler = account(&table);
                scope.spawn(move || {
                    let is_handled = |n: &u32| {
                        let (from, to) = pair(*n);
                        transfer(&mut handler, from, to, n % 7) == Outcome::Handled
                    };
                    (0..TRANSFERS).filter(is_handled).count() as u32
                })
            })
            .collect();
        for n in 0..TRANSFERS {
            let (from, to) = pair(n);
            // In the order of their numbers, as the application waits.
            let [low, high] = [from.min(to), from.max(to)].map(|n| table.lock(n as usize));
            let (from, to) = if from < to { (low, high) } else { (high, low) };
            let amount = u64::from(n % 5).min(from[0].load(Ordering::Relaxed));
            from[0].store(from[0].load(Ordering::Relaxed) - amount, Ordering::Relaxed);
            if n % 64 == 0 {
                // Between the halves, where handlers find the locks taken.
                thread::yield_now();
            }
            to[0].store(to[0].load(Ordering::Relaxed) + amount, Ordering::Relaxed);
        }
        handlers.into_iter().map(|handler| handler.join().unwrap()).sum()
    });
    assert_eq!(balances(&table).iter().sum::<u64>(), 1_000 * u64::from(ACCOUNTS));
    assert!(handled > 1_000, "{handled}");
}

/// Locks the first section, stores a word there, and then does what the first byte of the message says.
const ABORTS: &str = r#"(module
    (import "ash" "lock" (func $lock (param i32) (result i32)))
    (import "ash" "store" (func $store (param i32 i32 i32) (result i32)))
    (import "ash" "abort" (func $abort))
    (memory (export "memory") 1 1)
    (data (i32.const 0) "\07\00\00\00\00\00\00\00")
    (func $deep (param i32) (result i32) (call $deep (call $deep (local.get 0))))
    (func (export "ash_handle") (param $offset i32) (param i32 i64 i32) (result i32)
        (local $what i32) (local $section i32)
        (local.set $what (i32.load8_u (local.get $offset)))
        (local.set $section (call $lock (i32.const 0)))
        (if (i32.lt_s (local.get $section) (i32.const 0)) (then (return (i32.const -9))))
        (if (call $store (local.get $section) (i32.const 0) (i32.const 8)) (then (return (i32.const -9))))
        (if (i32.le_u (local.get $what) (i32.const 3)) (then (return (local.get $what))))
        (if (i32.eq (local.get $what) (i32.const 4)) (then (unreachable)))
        (if (i32.eq (local.get $what) (i32.const 5)) (then (loop $again (br $again))))
        (if (i32.eq (local.get $what) (i32.const 6))
            (then (i32.store (i32.const 0x7fff0000) (i32.const 1))))
        (if (i32.eq (local.get $what) (i32.const 7)) (then (call $abort)))
        (if (i32.eq (local.get $what) (i32.const 8)) (then (return (call $deep (i32.const 1)))))
        ;; To the section itself, which a handler can only read.
        (i32.store (local.get $section) (i32.const 1))
        (i32.const 1)))"#;

#[test]
fn abort_with_a_lock_changes_nothing_and_releases_it() {
    let table = SharedTable::with_sections(1, 8).unwrap();
    let mut handler = text(ABORTS, &table);
    let mut ask = |what: u8| {
        handler.enable();
        handler.handle_copy(&[what], 1, Instant::now())
    };
    let involuntary = |abort| Outcome::Passed(Pass::Involuntary(abort));
    for (what, outcome) in [
        (0, Outcome::Passed(Pass::ByHandler)),
        (2, Outcome::Discarded),
        (3, ABORTED),
        (4, involuntary(Abort::Trap)),
        (5, involuntary(Abort::TooManyOperations)),
        (6, involuntary(Abort::Memory)),
        (7, ABORTED),
        (8, involuntary(Abort::Stack)),
        (9, involuntary(Abort::Memory)),
    ] {
        assert_eq!(ask(what), outcome, "{what}");
        let section = table.try_lock(0).unwrap_or_else(|| panic!("{what} has kept the lock"));
        assert_eq!(section[0].load(Ordering::Relaxed), 0, "{what} has changed the data");
    }
    assert_eq!(ask(1), Outcome::Handled);
    assert_eq!(table.try_lock(0).unwrap()[0].load(Ordering::Relaxed), 7);
}

/// Makes the calls that the message lists, a number and three arguments of four bytes each: 0 `lock`, 1 `store`. It sends
/// their results.
const CALLS: &str = r#"(module
    (import "ash" "lock" (func $lock (param i32) (result i32)))
    (import "ash" "store" (func $store (param i32 i32 i32) (result i32)))
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (memory (export "memory") 1 1)
    (data (i32.const 4096) "\01\02\03\04\05\06\07\08")
    (func (export "ash_handle") (param $at i32) (param $length i32) (param i64 i32) (result i32)
        (local $n i32) (local $end i32) (local $result i32)
        (local.set $end (i32.add (local.get $at) (local.get $length)))
        (block $done (loop $next
            (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
            (local.set $result (if (result i32) (i32.eqz (i32.load (local.get $at)))
                (then (call $lock (i32.load offset=4 (local.get $at))))
                (else (call $store (i32.load offset=4 (local.get $at))
                    (i32.load offset=8 (local.get $at)) (i32.load offset=12 (local.get $at))))))
            (i32.store (local.get $n) (local.get $result))
            (local.set $n (i32.add (local.get $n) (i32.const 4)))
            (local.set $at (i32.add (local.get $at) (i32.const 16)))
            (br $next)))
        (drop (call $send (i32.const 0) (local.get $n)))
        (i32.const 1)))"#;

fn calls(handler: &mut Handler, calls: &[[u32; 4]]) -> Vec<i32> {
    let message: Vec<u8> = calls.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(handler.handle_copy(&message, 1, Instant::now()), Outcome::Handled);
    let sent: Vec<u8> = handler.sent(&message).flatten().copied().collect();
    sent.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()
}

#[test]
fn stores_are_bounded_and_stay_in_the_sections_that_are_locked() {
    const WORD: u32 = 4096;
    let table = SharedTable::with_sections(6, 64).unwrap();
    let mut handler = text(CALLS, &table);
    let start = calls(&mut handler, &[[0, 0, 0, 0]])[0] as u32;
    let lock = |n: u32| [0, n, 0, 0];
    let store = |to: u32| [1, to, WORD, 8];
    assert_eq!(calls(&mut handler, &[lock(5), lock(5)]), [(start + 5 * 64) as i32; 2]);
    let unlocked = calls(&mut handler, &[store(start)]);
    assert_eq!(unlocked, [-1], "the locks of the message before are released");
    for refused in [
        store(start + 64),
        store(start - 8),
        store(start + 60),
        store(start + 128),
        [1, start + 4, WORD, 8],
        [1, start, WORD, 4],
        [1, start, WORD, 72],
        [1, start, 65_532, 8],
        [1, start, start, 8],
        [1, start, WORD, 1 << 16],
        [1, 0, WORD, 8],
        [1, u32::MAX - 7, WORD, 8],
        lock(6),
        lock(u32::MAX),
    ] {
        assert_eq!(calls(&mut handler, &[lock(0), refused])[1], -1, "{refused:?}");
    }
    assert!(table.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
    let all: Vec<_> = (0..=MAX_LOCKS as u32).map(lock).collect();
    assert_eq!(calls(&mut handler, &all)[MAX_LOCKS..], [-2]);
    let stores = [store(start + 56); MAX_STORES + 1];
    assert_eq!(calls(&mut handler, &[&[lock(0)], &stores[..]].concat())[1 + MAX_STORES..], [-2]);
    let written = u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(table.words()[7].load(Ordering::Relaxed), written);
    let taken = table.lock(2);
    assert_eq!(calls(&mut handler, &[lock(1), lock(2)])[1], -4);
    drop(taken);
    assert!((0..6).all(|n| table.try_lock(n).is_some()));
    // A table without sections, and none.
    let mut handler = text(CALLS, &SharedTable::new(4096).unwrap());
    assert_eq!(calls(&mut handler, &[lock(0), store(start)]), [-1, -1]);
    let ash = sandboxer().load(&wat::parse_str(CALLS).unwrap()).unwrap();
    assert_eq!(calls(&mut ash.instantiate(1).unwrap(), &[lock(0), store(start)]), [-1, -1]);
    assert!(SharedTable::with_sections(2, 12).unwrap_err().to_string().contains("of eight"));
    assert!(SharedTable::with_sections(usize::MAX, 8).is_err());
}
