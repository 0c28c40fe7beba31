//! Modules that know addresses of the host, and use them in each argument of each call and as places in their memory:
//! nothing outside of a handler's memory is read or written. Memory of each kind has a canary, which is a secret, too.

#![cfg(feature = "sandbox")]

use crate::memory;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ash_sandbox::ilp::{Gauge, Mode, PipeList, byte_swap, checksum};
use ash_sandbox::sandbox::{Handler, Policy, Sandboxer, SharedTable};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The content of memory that no handler may see or change.
const CANARY: [u8; 16] = *b"a secret of host";

/// Does what a message says: the number of an operation, and four arguments of four bytes each. It sends what the operation
/// has read or returned, so that the host can look for secrets in it.
const MODULE: &str = r#"(module
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
    (import "ash" "read_apply" (func $read_apply (param i32 i32 i32) (result i32)))
    (import "ash" "write_apply" (func $write_apply (param i32 i32 i32 i32) (result i32)))
    (import "ash" "import" (func $import (param i32 i32) (result i64)))
    (import "ash" "export" (func $export (param i32 i32 i64) (result i32)))
    (import "ash" "key" (func $key (param i32 i32 i32 i32) (result i32)))
    (import "ash" "post" (func $post (param i64 i64) (result i32)))
    (import "ash" "count" (func $count (param i32 i64) (result i32)))
    (import "ash" "reply" (func $reply (param i32) (result i32)))
    (import "ash" "lock" (func $lock (param i32) (result i32)))
    (import "ash" "store" (func $store (param i32 i32 i32) (result i32)))
    (memory (export "memory") 1 1)
    (table 4 4 funcref)
    (type $entry (func (result i32)))
    (func $element (type $entry) (i32.const 1))
    (elem (i32.const 0) $element)
    (func $do (param $what i32) (param $a i32) (param $b i32) (param $c i32) (param $d i32) (result i64)
        (local $ab i64)
        (local.set $ab (i64.or (i64.extend_i32_u (local.get $a))
            (i64.shl (i64.extend_i32_u (local.get $b)) (i64.const 32))))
        (block $17 (block $16 (block $15 (block $14 (block $13 (block $12 (block $11 (block $10 (block $9 (block $8
        (block $7 (block $6 (block $5 (block $4 (block $3 (block $2 (block $1 (block $0
            (br_table $0 $1 $2 $3 $4 $5 $6 $7 $8 $9 $10 $11 $12 $13 $14 $15 $16 $17 (local.get $what)))
        (; 0 ;) (return (i64.extend_i32_s (call $send (local.get $a) (local.get $b)))))
        (; 1 ;) (return (i64.extend_i32_s (call $copy (local.get $a) (local.get $b) (local.get $c)))))
        (; 2 ;) (return (i64.extend_i32_s (call $read_apply (local.get $a) (local.get $b) (local.get $c)))))
        (; 3 ;) (return (i64.extend_i32_s
            (call $write_apply (local.get $a) (local.get $b) (local.get $c) (local.get $d)))))
        (; 4 ;) (return (call $import (local.get $a) (local.get $b))))
        (; 5 ;) (return (i64.extend_i32_s (call $export (local.get $c) (local.get $d) (local.get $ab)))))
        (; 6 ;) (return (i64.extend_i32_s
            (call $key (local.get $a) (local.get $b) (local.get $c) (local.get $d)))))
        (; 7 ;) (return (i64.extend_i32_s (call $post (local.get $ab) (local.get $ab)))))
        (; 8 ;) (return (i64.extend_i32_s (call $count (local.get $c) (local.get $ab)))))
        (; 9 ;) (return (i64.extend_i32_s (call $reply (local.get $a)))))
        (; 10 ;) (return (i64.extend_i32_s (call $lock (local.get $a)))))
        (; 11 ;) (return (i64.extend_i32_s
            (call $store (i32.add (call $lock (i32.const 0)) (local.get $a)) (local.get $b) (local.get $c)))))
        (; 12 ;) (return (i64.load (local.get $a))))
        (; 13 ;) (i64.store (local.get $a) (i64.const -1)) (return (i64.const 0)))
        (; 14 ;) (return (i64.load offset=0xfffffff8 (local.get $a))))
        (; 15 ;) (memory.copy (local.get $a) (local.get $b) (local.get $c)) (return (i64.const 0)))
        (; 16 ;) (memory.fill (local.get $a) (local.get $b) (local.get $c)) (return (i64.const 0)))
        (; 17 ;) (i64.extend_i32_u (call_indirect (type $entry) (local.get $a))))
    (func (export "ash_handle") (param $at i32) (param i32 i64 i32) (result i32)
        (i64.store (i32.const 32768) (call $do (i32.load (local.get $at))
            (i32.load offset=4 (local.get $at)) (i32.load offset=8 (local.get $at))
            (i32.load offset=12 (local.get $at)) (i32.load offset=16 (local.get $at))))
        (drop (call $send (i32.const 32768) (i32.const 8)))
        (i32.const 1)))"#;

/// Arguments with which each operation succeeds.
const VALID: [[u32; 4]; 18] = [
    [0, 8, 0, 0],
    [4096, 0, 8, 0],
    [0, 0, 8, 0],
    [1, 0, 4096, 8],
    [0, 0, 0, 0],
    [0, 0, 0, 0],
    [2, 0, 0, 0],
    [0, 0, 0, 0],
    [0, 0, 0, 0],
    [8, 0, 0, 0],
    [0, 0, 0, 0],
    [0, 0, 8, 0],
    [0, 0, 0, 0],
    [4096, 0, 0, 0],
    [0, 0, 0, 0],
    [4096, 0, 8, 0],
    [4096, 0, 8, 0],
    [0, 0, 0, 0],
];

fn handler(sandboxer: &Sandboxer, tenant: u64, table: &Arc<SharedTable>) -> Handler {
    let ash = sandboxer.load(&wat::parse_str(MODULE).unwrap()).unwrap();
    let mut handler = ash.instantiate_with(tenant, table).unwrap();
    let mut list = PipeList::new();
    let sum = list.add(checksum::pipe()).unwrap();
    handler.add_pipes(list.compile(Mode::Read).unwrap(), vec![(sum, checksum::SUM)]);
    let mut list = PipeList::new();
    list.add(byte_swap::pipe(Gauge::Bits32)).unwrap();
    handler.add_pipes(list.compile(Mode::Write).unwrap(), vec![]);
    let mut list = PipeList::new();
    list.add(ash_sandbox::ilp::chacha20::pipe()).unwrap();
    handler.add_pipes(list.compile(Mode::Write).unwrap(), vec![]);
    handler
}

/// Returns the numbers that a module can make of an address.
fn derived(address: u64, base: u64, numbers: &mut BTreeSet<u32>) {
    let relative = address.wrapping_sub(base);
    for number in [address, relative, address >> 32, relative >> 32, address >> 12, !address] {
        let low = number as u32;
        numbers.extend([low, low.wrapping_sub(8), low.wrapping_add(8), low & !4095, low >> 1]);
    }
}

#[test]
fn addresses_of_the_host_lead_nowhere() {
    let policy = Policy::default().with(|p| {
        p.operations_per_second = 1 << 40;
        p.max_aborts = u32::MAX;
    });
    let sandboxer = Sandboxer::new(policy).unwrap();
    // A section of two words that the handler may write to, and one of the application.
    let table = SharedTable::with_sections(2, 16).unwrap();
    let others_table = SharedTable::new(4096).unwrap();
    let mut hostile = handler(&sandboxer, 1, &table);
    let victim = handler(&sandboxer, 2, &others_table);

    // Canaries on the heap, on the stack, in mappings, in the memory of another handler, in tables.
    let heap = CANARY.repeat(256).into_boxed_slice();
    let stack = [CANARY; 64];
    // SAFETY: a new mapping of a page.
    let mapping = unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        mmap_anonymous(std::ptr::null_mut(), 4096, protection, MapFlags::PRIVATE).unwrap()
    };
    // SAFETY: the page is mapped until the end of the test, and only this function names it.
    let mapped = unsafe { std::slice::from_raw_parts_mut(mapping.cast::<u8>(), 4096) };
    mapped.copy_from_slice(&CANARY.repeat(256));
    let victim_bytes = victim.memory().len();
    for offset in (0..victim_bytes).step_by(4096) {
        // SAFETY: the page is in the memory of a handler that does not run.
        let page =
            unsafe { std::slice::from_raw_parts_mut(victim.memory().host_pointer(offset), 4096) };
        page.copy_from_slice(&CANARY.repeat(256));
    }
    let canary = |n: usize| u64::from_le_bytes(CANARY.as_chunks().0[n % 2]);
    for (n, word) in others_table.words().iter().enumerate() {
        word.store(canary(n), Ordering::Relaxed);
    }
    // The handler may read all of its table, and write to a section that it has locked.
    for (n, word) in table.words().iter().enumerate() {
        word.store(n as u64, Ordering::Relaxed);
    }
    let is_kept = |words: Range<usize>| {
        { words }.all(|n| table.words()[n].load(Ordering::Relaxed) == n as u64)
    };

    let address = |bytes: *const u8| bytes.expose_provenance() as u64;
    let own = hostile.memory();
    let base = address(own.host_pointer(0));
    let mut numbers = BTreeSet::new();
    for planted in [
        address(heap.as_ptr()),
        address(stack.as_ptr().cast()),
        address(mapped.as_ptr()),
        address(victim.memory().host_pointer(0)),
        address(victim.memory().host_pointer(victim_bytes)),
        base,
        address(own.host_pointer(own.len())),
        address(table.words().as_ptr().cast()),
        address(others_table.words().as_ptr().cast()),
        address((&raw const hostile).cast()),
        address(Arc::as_ptr(hostile.memory()).cast()),
        address(addresses_of_the_host_lead_nowhere as fn() as *const u8),
    ] {
        derived(planted, base, &mut numbers);
    }
    // The ends of what the handler has, too.
    let ends = [0, 65_536, own.message_area().end, own.reply_area().end, own.len() + table.len()];
    numbers.extend(ends.map(|end| end as u32).iter().flat_map(|end| [end.wrapping_sub(4), *end]));

    let has_secret =
        |bytes: &[u8]| bytes.windows(8).any(|part| CANARY.windows(8).any(|c| c == part));
    let mut succeeded = BTreeSet::new();
    for (what, valid) in (0u32..).zip(VALID) {
        for argument in 0..valid.len() {
            for number in numbers.iter().copied().chain([valid[argument]]) {
                let mut arguments = valid;
                arguments[argument] = number;
                let message = [what, arguments[0], arguments[1], arguments[2], arguments[3]];
                let message = message.map(u32::to_le_bytes);
                let message = message.as_flattened();
                let outcome = hostile.handle_copy(message, 1, Instant::now());
                let name = format!("operation {what} with {arguments:x?}: {outcome:?}");
                let result = hostile.sent(message).last().map(|sent| sent.as_chunks().0[0]);
                if arguments == valid
                    && result.is_some_and(|result| i64::from_le_bytes(result) >= 0)
                {
                    succeeded.insert(what);
                }
                for sent in hostile.sent(message) {
                    assert!(!has_secret(sent), "{name} has sent a secret");
                }
                assert!(is_kept(2..table.words().len()), "{name} has written to the table");
                assert_eq!(black_box(&stack), &[CANARY; 64], "{name}");
            }
        }
        // More rarely, as there is more to compare.
        let page = CANARY.repeat(256);
        assert_eq!(black_box(&heap)[..], page[..], "operation {what}");
        assert_eq!(black_box(&*mapped), &page[..], "operation {what}");
        for offset in (0..victim_bytes).step_by(4096) {
            assert_eq!(memory::bytes(&victim, offset..offset + 4096), page, "operation {what}");
        }
        for (n, word) in others_table.words().iter().enumerate() {
            assert_eq!(word.load(Ordering::Relaxed), canary(n), "operation {what}");
        }
        let memory = memory::bytes(&hostile, 0..hostile.memory().len());
        assert!(!has_secret(&memory), "operation {what} has read a secret");
    }
    assert!((0..2).all(|section| table.try_lock(section).is_some()));
    // Each operation succeeds with valid arguments, or the test would say nothing; 14 has an offset behind all memory.
    let never: Vec<_> = (0..VALID.len() as u32).filter(|what| !succeeded.contains(what)).collect();
    assert_eq!(never, [14]);
    // SAFETY: it was mapped above, and is not used any more.
    unsafe { munmap(mapping, 4096) }.unwrap();
}
