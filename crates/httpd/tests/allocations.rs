//! A small file in memory is served without allocating, also when it is confirmed anew.

mod stage;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::time::{Duration, SystemTime};

use httpd::Limits;
use stage::Stage;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_small_file_in_memory_is_served_without_allocating() {
    let root = tempfile::tempdir().unwrap();
    for (name, len) in [("short", 12), ("long", 40_000)] {
        let path = root.path().join(name);
        fs::write(&path, vec![b'x'; len]).unwrap();
        let hour_ago = SystemTime::now() - Duration::from_secs(3600);
        fs::File::options().write(true).open(&path).unwrap().set_modified(hour_ago).unwrap();
    }
    const REQUESTS: [&[u8]; 4] = [
        b"GET /short HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /long HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nUser-Agent: test\r\n\r\n",
        b"HEAD /long HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        b"GET /short HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ];
    let mut stage = Stage::new(root.path());
    let round = |stage: &mut Stage| {
        for request in REQUESTS {
            stage.feed(request);
            assert!(!stage.io.sent.is_empty());
            stage.io.sent.clear();
        }
    };
    // Every other round finds the files to be asked about, and the second to have passed.
    let rounds = |stage: &mut Stage, n| {
        for _ in 0..n {
            round(stage);
            stage.pass(Limits::default().cached_time);
            round(stage);
        }
    };
    rounds(&mut stage, 2);
    let (before, asked) = (COUNT.get(), stage.io.works.1);
    rounds(&mut stage, 100);
    assert_eq!(COUNT.get() - before, 0);
    assert_eq!((stage.io.works.0, stage.io.works.1 - asked), (2, 200));
}
