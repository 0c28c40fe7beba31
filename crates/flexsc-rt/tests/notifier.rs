//! The thread that waits for the pages of a runtime; alone in its process, as it is found by its name.

use std::fs;
use std::future::Future;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Waker};

use flexsc_rt::operations::{receive, stat_file};
use flexsc_rt::{Config, Descriptor, Runtime};
use futures_lite::future::block_on;

/// Returns the directory of the thread, which has its name soon after its start.
fn notifier() -> PathBuf {
    let is_notifier = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "flexsc notifier")
    };
    loop {
        let threads = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
        if let Some(notifier) = threads.into_iter().find(is_notifier) {
            return notifier;
        }
        std::thread::yield_now();
    }
}

/// Returns how often a thread has slept.
fn sleeps(thread: &Path) -> u64 {
    let status = fs::read_to_string(thread.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn turns_of_a_busy_runtime_woke_the_thread() {
    const CALLS: u64 = 20_000;
    let mut config = Config::default();
    // All calls are made in place.
    (config.threads, config.uses_ring) = (0, false);
    let runtime = Runtime::new(&config).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Descriptor::new(ours);
    let mut driver = runtime.call(receive(&ours, Vec::with_capacity(1)));
    for _ in 0..2 {
        // The second time it starts the thread, and sleeps.
        let poll = Pin::new(&mut driver).poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
    }
    theirs.write_all(b"x").unwrap();
    block_on(driver).0.unwrap();
    let notifier = notifier();
    let before = sleeps(&notifier);
    for _ in 0..CALLS {
        block_on(runtime.call(stat_file(&ours))).unwrap();
    }
    let during = sleeps(&notifier) - before;
    assert!(during < CALLS / 100, "it slept {during} times");
}
