//! A table that the application shares with a handler: `examples/handlers/kv_get.wat` answers from it, while the
//! application writes it.

#![cfg(feature = "sandbox")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread;
use std::time::Instant;

use ash_sandbox::sandbox::{
    Abort, Handler, MAX_TABLE_BYTES, Outcome, Pass, Policy, Sandboxer, SharedTable,
};

const BUCKETS: usize = 64;
const BUCKET_WORDS: usize = 512 / 8;

fn sandboxer() -> Sandboxer {
    let policy = Policy::default().with(|p| p.operations_per_second = 1 << 40);
    Sandboxer::new(policy).unwrap()
}

/// The application's side of `kv_get.wat`.
struct Items(Arc<SharedTable>);

impl Items {
    fn new() -> Self {
        let table = SharedTable::new(64 + BUCKETS * 512).unwrap();
        table.words()[0].store(BUCKETS as u64, Ordering::Relaxed);
        Items(table)
    }

    fn set(&self, key: &str, data: &str) {
        let hash = key
            .bytes()
            .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let start = 8 + hash as usize % BUCKETS * BUCKET_WORDS;
        let bucket = &self.0.words()[start..start + BUCKET_WORDS];
        let reply = format!("VALUE {key} 0 {}\r\n{data}\r\nEND\r\n", data.len());
        let mut bytes = [0; 512 - 8];
        bytes[..4].copy_from_slice(&(key.len() as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&(reply.len() as u32).to_le_bytes());
        bytes[8..8 + key.len()].copy_from_slice(key.as_bytes());
        bytes[120..120 + reply.len()].copy_from_slice(reply.as_bytes());
        let version = bucket[0].load(Ordering::Relaxed);
        bucket[0].store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, bytes) in bucket[1..].iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().unwrap()), Ordering::Relaxed);
        }
        bucket[0].store(version + 2, Ordering::Release);
    }
}

fn kv(items: &Items) -> Handler {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers/kv_get.wat");
    let wasm = wat::parse_file(path).unwrap();
    sandboxer().load(&wasm).unwrap().instantiate_with(1, &items.0).unwrap()
}

fn ask(handler: &mut Handler, message: &str) -> (Outcome, String) {
    let outcome = handler.handle_copy(message.as_bytes(), 1, Instant::now());
    let sent: Vec<u8> = handler.sent().flatten().copied().collect();
    (outcome, String::from_utf8(sent).unwrap())
}

#[test]
fn handler_answers_get_from_the_table_of_the_application() {
    let items = Items::new();
    let mut handler = kv(&items);
    let passed = (Outcome::Passed(Pass::ByHandler), String::new());
    assert_eq!(ask(&mut handler, "get key\r\n"), passed, "there is none yet");
    items.set("key", "value");
    let reply = "VALUE key 0 5\r\nvalue\r\nEND\r\n".to_owned();
    assert_eq!(ask(&mut handler, "get key\r\n"), (Outcome::Handled, reply));
    items.set("key", "other");
    let reply = "VALUE key 0 5\r\nother\r\nEND\r\n".to_owned();
    assert_eq!(ask(&mut handler, "get key\r\n"), (Outcome::Handled, reply));
    let long = "k".repeat(112);
    items.set(&long, "long");
    let reply = format!("VALUE {long} 0 4\r\nlong\r\nEND\r\n");
    assert_eq!(ask(&mut handler, &format!("get {long}\r\n")), (Outcome::Handled, reply));
    for other in [
        "get key key\r\n",
        "get key\r\nget key\r\n",
        "get kex\r\n",
        "get ke",
        "get \r\n",
        "set key 0 0 1\r\nx\r\n",
        &format!("get {}\r\n", "k".repeat(113)),
        "",
    ] {
        assert_eq!(ask(&mut handler, other), passed, "{other:?}");
    }
}

#[test]
fn handler_aborts_instead_of_answering_what_is_being_written() {
    let items = Items::new();
    let mut handler = kv(&items);
    items.set("key", "value");
    let is_over = AtomicBool::new(false);
    let (mut answers, mut aborts) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut letters = ('a'..='z').cycle();
            while !is_over.load(Ordering::Relaxed) {
                items.set("key", &letters.next().unwrap().to_string().repeat(300));
            }
        });
        let start = Instant::now();
        while answers < 2_000 || aborts < 20 {
            match ask(&mut handler, "get key\r\n") {
                (Outcome::Handled, reply) => {
                    let data = reply.split("\r\n").nth(1).unwrap();
                    assert!(data == "value" || data.len() == 300, "{reply}");
                    let first = data.as_bytes()[0];
                    assert!(data == "value" || data.bytes().all(|b| b == first), "torn: {reply}");
                    answers += 1;
                }
                (Outcome::Passed(Pass::Voluntary), _) => aborts += 1,
                other => panic!("{other:?}"),
            }
            // On a machine with one core, the writer is rarely interrupted while it writes.
            if start.elapsed().as_secs() > 5 && answers > 0 {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{answers} answers, {aborts} aborts");
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
