//! The memory of a table is allocated when it is created.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Instant;

use ecem::{Config, Delivery, Event, EventKind, EventManager, PairTable, Readiness};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAIRS: usize = 100_000;
const CYCLES: i32 = 200_000;

/// Returns the events of a pair of objects that no other pair has.
fn pair(n: i32) -> (Event, Event) {
    let read = Event::new(2 * n, EventKind::DiskReadResponse);
    (read, Event::new(2 * n + 1, EventKind::NetworkWriteRequest))
}

#[test]
fn full_table_grew_as_pairs_were_replaced() {
    let mut table = PairTable::new(PAIRS);
    let mut ids = VecDeque::with_capacity(PAIRS + 1);
    let before = ALLOCATED.get();
    for n in 0..PAIRS as i32 + CYCLES {
        if table.len() == PAIRS {
            table.remove(ids.pop_front().unwrap()).unwrap();
        }
        let (pre, post) = pair(n);
        ids.push_back(table.add(pre, post).unwrap());
    }
    assert_eq!(ALLOCATED.get(), before);
}

#[test]
fn full_manager_grew_as_pairs_were_replaced() {
    let mut config = Config::default();
    (config.max_pairs, config.max_deferred) = (PAIRS, PAIRS);
    let mut manager = EventManager::new(&config);
    let mut ids = VecDeque::with_capacity(PAIRS + 1);
    let (before, now) = (ALLOCATED.get(), Instant::now());
    for n in 0..PAIRS as i32 + CYCLES {
        if manager.table().len() == PAIRS {
            assert!(manager.remove(ids.pop_front().unwrap(), |_| {}));
        }
        let (pre, post) = pair(n);
        let id = manager.add(pre, post, Readiness::Wait).unwrap();
        assert_eq!(manager.deliver(id, n, now), Delivery::Deferred);
        ids.push_back(id);
    }
    assert_eq!(ALLOCATED.get(), before);
}
