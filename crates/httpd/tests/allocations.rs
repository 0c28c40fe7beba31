//! Allocations: a cached small file is served without any, also when it is revalidated.
//! Requests to handlers allocate only what the handlers themselves use.

mod serving;
mod stage;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evring_httpd::handlers::constant;
use evring_httpd::options::Limits;
use evring_httpd::{Config, Head, Request, Site};
use serving::{Server, on_every_backend};
use stage::Stage;
use tempfile::TempDir;

/// Counts the allocations per thread, and those of all server threads.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

static SERVING: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        if SERVES.try_with(Cell::get) == Ok(true) {
            SERVING.fetch_add(1, Ordering::Relaxed);
        }
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

/// A directory with two files.
fn site() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, len) in [("short", 12), ("long", 40_000)] {
        fs::write(root.path().join(name), vec![b'x'; len]).unwrap();
    }
    root
}

#[test]
fn cached_file_is_served_without_allocation_on_every_backend() {
    const REQUESTS: u64 = 200;
    let root = site();
    on_every_backend(|backend| {
        let config = Config::default().with(|c| c.roots = vec![root.path().to_owned()]);
        // Every request revalidates its file.
        let mut limits = Limits::default();
        limits.cache_ttl = Duration::ZERO;
        let server = Server::start_with(backend, config, limits, || SERVES.set(true));
        let mut client = server.connect();
        // A new file is opened again until the second of its last change is over.
        let date = client.get("/short").field("Last-Modified").unwrap().to_owned();
        loop {
            let resume = format!("Range: bytes=0-0\r\nIf-Range: {date}\r\n");
            client.send(format!("GET /short HTTP/1.1\r\nHost: a\r\n{resume}\r\n").as_bytes());
            if client.response(true).status == 206 {
                break;
            }
        }
        let mut allocated = 0;
        // In the first rounds, buffers grow.
        for _ in 0..3 {
            let before = SERVING.load(Ordering::Relaxed);
            for _ in 0..REQUESTS {
                assert_eq!(client.get("/short").status, 200);
            }
            allocated = SERVING.load(Ordering::Relaxed) - before;
        }
        assert_eq!(allocated, 0, "{backend}");
    });
}

#[test]
fn cached_file_is_served_without_allocation() {
    let root = site();
    const REQUESTS: [&[u8]; 5] = [
        b"GET /short HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /long HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nUser-Agent: test\r\n\r\n",
        b"HEAD /long HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        b"GET /short HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET /short?v=1 HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let mut stage = Stage::new(root.path());
    let round = |stage: &mut Stage| {
        for request in REQUESTS {
            stage.feed(request);
            assert!(!stage.io.sent.is_empty());
            stage.io.sent.clear();
        }
    };
    // Every other round revalidates the files, and updates the date.
    let rounds = |stage: &mut Stage, n| {
        for _ in 0..n {
            round(stage);
            stage.pass(Limits::default().cache_ttl);
            round(stage);
        }
    };
    rounds(&mut stage, 2);
    let (before, stats) = (COUNT.get(), stage.io.file_ops.1);
    rounds(&mut stage, 100);
    assert_eq!(COUNT.get() - before, 0);
    assert_eq!((stage.io.file_ops.0, stage.io.file_ops.1 - stats), (2, 800));
}

#[test]
fn handler_call_allocates_only_its_header_map() {
    const REQUEST: &[u8] =
        b"POST /a?b=c HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nUser-Agent: test\r\n\r\n";
    let site = Site::new(None).route("/a", |request: Request| {
        assert_eq!(request.headers().len(), 3);
        "text"
    });
    let mut stage = Stage::with(site, "/nowhere".as_ref());
    let mut rounds = |n| {
        for _ in 0..n {
            stage.feed(REQUEST);
            assert!(!stage.io.sent.is_empty());
            stage.io.sent.clear();
        }
    };
    rounds(100);
    let before = COUNT.get();
    rounds(1000);
    // A header map is two allocations.
    assert_eq!(COUNT.get() - before, 2000);
}

#[test]
fn handler_of_a_head_allocates_nothing() {
    let site = Site::new(None)
        .route("/nothing", || "text")
        .route("/head", |head: &Head<'_>| if head.query().is_none() { "text" } else { "query" })
        .route("/constant", constant("text/plain", "text"));
    let mut stage = Stage::with(site, "/nowhere".as_ref());
    let mut rounds = |n| {
        for _ in 0..n {
            for path in ["/nothing", "/head", "/constant"] {
                stage.feed(b"GET ");
                stage.feed(path.as_bytes());
                stage.feed(b" HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n");
                assert!(stage.io.sent.ends_with(b"text"));
                stage.io.sent.clear();
            }
        }
    };
    rounds(100);
    let before = COUNT.get();
    rounds(1000);
    assert_eq!(COUNT.get() - before, 0);
}
