//! Calls that are made by io_uring: results, counters, cancellation, refused calls, bounds.

mod support;

use std::collections::HashSet;
use std::io;
use std::thread;
use std::time::Duration;

use flexsc_rt::{Call, Config, Executor, Pages};
use support::{Pipe, complete, post, register};

fn register_with_ring(config: Config) -> Pages {
    let pages = register(config);
    assert_eq!(pages.ring_error(), None, "these tests need io_uring");
    pages
}

fn errno(result: &io::Result<usize>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}

#[test]
fn ring_makes_the_calls_that_are_pinned_to_it() {
    let mut pages = register_with_ring(Config::default());
    let (pipe, mut bytes) = (Pipe::new(), [0; 8]);
    let id = post(&mut pages, &pipe.write_of(b"posted").pinned(Executor::Ring));
    assert_eq!(complete(&mut pages, id).unwrap(), 6);
    let id = post(&mut pages, &pipe.blocking_read_of(&mut bytes).pinned(Executor::Ring));
    assert_eq!(complete(&mut pages, id).unwrap(), 6);
    assert_eq!(&bytes, b"posted\0\0");
    let closed = Call::bounded(libc::SYS_fsync, [usize::MAX, 0, 0, 0, 0, 0]);
    let id = post(&mut pages, &closed.pinned(Executor::Ring));
    assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EBADF));
    let counters = pages.counters();
    assert_eq!((counters.on_ring, counters.in_place, counters.on_threads), (3, 0, 0));
    assert_eq!((counters.ring_refused, counters.threads_started), (0, 0));
}

#[test]
fn configuration_pins_bounded_calls_to_the_ring() {
    let mut config = Config::default();
    config.executor = Some(Executor::Ring);
    let mut pages = register_with_ring(config);
    let pipe = Pipe::new();
    let id = post(&mut pages, &pipe.write_of(b"x"));
    assert_eq!(complete(&mut pages, id).unwrap(), 1);
    // Calls about the calling thread stay in place.
    let id = post(&mut pages, &Call::bounded(libc::SYS_gettid, [0; 6]));
    // SAFETY: it returns a number.
    assert_eq!(complete(&mut pages, id).unwrap(), unsafe { libc::gettid() } as usize);
    assert_eq!((pages.counters().on_ring, pages.counters().in_place), (1, 1));
}

#[test]
fn threads_make_calls_that_the_ring_has_no_operation_for() {
    let mut pages = register_with_ring(Config::default());
    let call = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::Ring);
    let id = post(&mut pages, &call);
    assert_eq!(complete(&mut pages, id).unwrap(), std::process::id() as usize);
    let counters = pages.counters();
    assert_eq!((counters.ring_refused, counters.on_threads, counters.on_ring), (1, 1, 0));
}

#[test]
fn more_calls_than_the_submission_queue_holds_all_complete() {
    let mut pages = register_with_ring(Config::with_entries(2048));
    let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&null) as usize;
    let call = Call::bounded(libc::SYS_write, [fd, b"x".as_ptr() as usize, 1, 0, 0, 0]);
    for _ in 0..3 {
        let posted: HashSet<_> =
            (0..2048).map(|_| post(&mut pages, &call.pinned(Executor::Ring))).collect();
        let mut ended = HashSet::new();
        while pages.outstanding() > 0 {
            assert!(pages.wait(None).unwrap());
            while let Some(completion) = pages.next() {
                assert_eq!(completion.result.unwrap(), 1);
                assert!(ended.insert(completion.id));
            }
        }
        assert_eq!(ended, posted);
    }
    assert_eq!(pages.counters().on_ring, 3 * 2048);
}

#[test]
fn idle_reads_in_the_ring_need_no_thread_and_are_cancelled() {
    let mut pages = register_with_ring(Config::default());
    let (pipe, mut bytes) = (Pipe::new(), [0; 800]);
    let mut ids = HashSet::new();
    for byte in bytes.chunks_mut(1) {
        ids.insert(post(&mut pages, &pipe.blocking_read_of(byte).pinned(Executor::Ring)));
    }
    assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
    for id in &ids {
        pages.cancel(*id);
        // The second request has no effect.
        pages.cancel(*id);
    }
    while pages.outstanding() > 0 {
        assert!(pages.wait(None).unwrap());
        while let Some(completion) = pages.next() {
            assert!(ids.remove(&completion.id));
            assert_eq!(errno(&completion.result), Some(libc::EINTR));
        }
    }
    let counters = pages.counters();
    assert_eq!((counters.on_ring, counters.interrupted, counters.threads_started), (800, 800, 0));
}

#[test]
fn late_cancellation_reaches_no_later_call_of_the_entry() {
    let mut pages = register_with_ring(Config::with_entries(64));
    let (pipe, mut byte) = (Pipe::new(), [0; 1]);
    let read = pipe.blocking_read_of(&mut byte).pinned(Executor::Ring);
    for _ in 0..200 {
        // The cancellation is on its way while data comes; either may win.
        let id = post(&mut pages, &read);
        assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
        pipe.write(b"x");
        pages.cancel(id);
        let first = complete(&mut pages, id);
        let id = post(&mut pages, &read);
        if first.is_ok() {
            pipe.write(b"x");
        }
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
    }
}

#[test]
fn call_that_was_cancelled_before_it_was_submitted_is_not_made() {
    let mut pages = register_with_ring(Config::default());
    let pipe = Pipe::new();
    let id = post(&mut pages, &pipe.write_of(b"x").pinned(Executor::Ring));
    pages.cancel(id);
    assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EINTR));
    assert_eq!((pipe.available(), pages.counters().on_ring), (0, 0));
}

#[test]
fn sleeping_owner_is_woken_by_the_ring() {
    let mut pages = register_with_ring(Config::default());
    let (pipe, mut byte) = (Pipe::new(), [0; 1]);
    let id = post(&mut pages, &pipe.blocking_read_of(&mut byte).pinned(Executor::Ring));
    pages.submit().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pipe.write(b"x"));
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
    });
    // Dropped pages end what is in flight.
    post(&mut pages, &pipe.blocking_read_of(&mut byte).pinned(Executor::Ring));
    pages.submit().unwrap();
    assert!(pages.shut_down());
    assert_eq!(pages.outstanding(), 0);
}
