//! Calls that are made by io_uring: results, counters, cancellation, refused calls, bounds.

#[path = "../../httpd/tests/serving/refused.rs"]
mod refused;
mod support;

use std::collections::HashSet;
use std::io;
use std::thread;
use std::time::Duration;

use flexsc_rt::{Call, Config, Direction, Executor, Pages, SetupError};
use support::{Pipe, complete, post, read_of, register};

fn register_with_ring(config: Config) -> Pages {
    let mut pages = register(config.clone());
    let id = post(&mut pages, &Call::bounded(libc::SYS_fsync, [0; 6]).pinned(Executor::Ring));
    let _ = complete(&mut pages, id);
    assert_eq!(pages.ring_error(), None, "these tests need io_uring");
    register(config)
}

/// Posts a call so many times in batches, which all succeed.
fn run_batches(pages: &mut Pages, call: &Call, batches: u32, depth: u32) {
    for _ in 0..batches {
        for _ in 0..depth {
            post(pages, call);
        }
        while pages.outstanding() > 0 {
            assert!(pages.wait(None).unwrap());
            while let Some(completion) = pages.next() {
                completion.result.unwrap();
            }
        }
    }
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
    // The same, once there is a ring.
    let pipe = Pipe::new();
    let id = post(&mut pages, &pipe.write_of(b"x").pinned(Executor::Ring));
    assert_eq!(complete(&mut pages, id).unwrap(), 1);
    let id = post(&mut pages, &call);
    assert_eq!(complete(&mut pages, id).unwrap(), std::process::id() as usize);
    let counters = pages.counters();
    assert_eq!((counters.ring_refused, counters.on_threads, counters.on_ring), (2, 2, 1));
}

#[test]
fn owner_without_threads_makes_calls_that_the_ring_has_no_operation_for() {
    let mut config = Config::default();
    (config.threads, config.executor) = (0, Some(Executor::Ring));
    let mut pages = register_with_ring(config);
    let pipe = Pipe::new();
    let id = post(&mut pages, &pipe.write_of(b"x"));
    assert_eq!(complete(&mut pages, id).unwrap(), 1);
    let id = post(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]));
    assert_eq!(complete(&mut pages, id).unwrap(), std::process::id() as usize);
    let counters = pages.counters();
    assert_eq!((counters.ring_refused, counters.in_place, counters.on_ring), (1, 1, 1));
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

fn sleeps_in_ring() -> Config {
    let mut config = Config::default();
    config.sleep_in_ring = true;
    config
}

#[test]
fn owner_sleeps_in_the_ring_until_a_descriptor_is_ready() {
    let mut pages = register(sleeps_in_ring());
    let (pipe, mut byte) = (Pipe::new(), [0; 1]);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&pipe.reads);
    let ready = Call::until_ready(fd, Direction::Read);
    let id = post(&mut pages, &ready);
    assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
    assert!(!pages.wait(Some(Duration::from_millis(1))).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| pipe.write(b"x"));
        assert_eq!(complete(&mut pages, id).unwrap(), 0);
    });
    rustix::io::read(&pipe.reads, &mut byte).unwrap();
    // A cancelled wait ends, whether the ring has it or not.
    for is_submitted in [false, true] {
        let id = post(&mut pages, &ready);
        if is_submitted {
            assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
        }
        pages.cancel(id);
        assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EINTR));
    }
    // A call that was not ready is made again.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let read = read_of(std::os::fd::AsRawFd::as_raw_fd(&ours), &mut byte);
    let id = post(&mut pages, &read);
    assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| rustix::io::write(&theirs, b"y").unwrap());
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
    });
    assert_eq!(&byte, b"y");
    let counters = pages.counters();
    assert_eq!((counters.epoll_calls, counters.threads_started), (0, 0), "{counters:?}");
    assert!(counters.ring_entries > 0);
}

#[test]
fn syscall_thread_wakes_the_owner_that_sleeps_in_the_ring() {
    let mut pages = register(sleeps_in_ring());
    let (pipe, mut byte) = (Pipe::new(), [0; 1]);
    for _ in 0..100 {
        let id = post(&mut pages, &pipe.blocking_read_of(&mut byte));
        pages.submit().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| pipe.write(b"x"));
            assert_eq!(complete(&mut pages, id).unwrap(), 1);
        });
    }
    assert_eq!(pages.counters().epoll_calls, 0);
    post(&mut pages, &pipe.blocking_read_of(&mut byte));
    assert!(pages.shut_down());
}

#[test]
fn choice_tries_the_ring_and_loses_nothing() {
    let mut pages = register_with_ring(Config::default());
    let pipe = Pipe::new();
    let mut bytes = vec![0; 64];
    for _ in 0..40 {
        run_batches(&mut pages, &pipe.write_of(b"x"), 1, 64);
        rustix::io::read(&pipe.reads, &mut bytes).unwrap();
    }
    let counters = pages.counters();
    // The first trial is the ring's.
    assert!(counters.on_ring >= 64, "{counters:?}");
    assert_eq!(counters.on_ring + counters.in_place + counters.on_threads, 40 * 64);
    // A pinned call is not part of a trial.
    let pinned = pipe.write_of(b"x").pinned(Executor::InPlace);
    run_batches(&mut pages, &pinned, 40, 64);
    assert_eq!(pages.counters().in_place, counters.in_place + 40 * 64);
}

#[test]
fn choice_gives_the_ring_no_call_that_it_has_no_operation_for() {
    let mut pages = register_with_ring(Config::default());
    run_batches(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]), 40, 64);
    let counters = pages.counters();
    assert_eq!((counters.on_ring, counters.ring_refused), (0, 1));
    assert_eq!(counters.in_place + counters.on_threads, 40 * 64);
}

#[test]
fn ring_that_refuses_a_measured_batch_gets_no_other_one() {
    let mut pages = register_with_ring(Config::default());
    // The ring is set up.
    let fsync = Call::bounded(libc::SYS_fsync, [usize::MAX, 0, 0, 0, 0, 0]);
    let id = post(&mut pages, &fsync.pinned(Executor::Ring));
    assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EBADF));
    run_batches(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]), 400, 64);
    assert_eq!((pages.counters().on_ring, pages.counters().ring_refused), (1, 64));
}

#[test]
fn configuration_turns_the_ring_off() {
    let mut config = Config::default();
    config.uses_ring = false;
    let mut pages = register(config);
    let pipe = Pipe::new();
    let id = post(&mut pages, &pipe.write_of(b"x").pinned(Executor::Ring));
    assert_eq!(complete(&mut pages, id).unwrap(), 1);
    let counters = pages.counters();
    assert_eq!((counters.on_ring, counters.on_threads, counters.ring_refused), (0, 1, 1));
    assert_eq!(pages.ring_error(), None);
}

#[test]
fn where_io_uring_is_forbidden_other_executors_make_all_calls() {
    thread::spawn(|| {
        refused::refuse_io_uring().expect("cannot install a seccomp filter");
        let mut pages = register(sleeps_in_ring());
        // No call has wanted the ring.
        run_batches(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]), 40, 64);
        assert_eq!(pages.ring_error(), None);
        let pipe = Pipe::new();
        let id = post(&mut pages, &pipe.write_of(b"x").pinned(Executor::Ring));
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
        assert_eq!(pages.ring_error(), Some(&SetupError::Forbidden));
        let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&null) as usize;
        let write = Call::bounded(libc::SYS_write, [fd, b"x".as_ptr() as usize, 1, 0, 0, 0]);
        run_batches(&mut pages, &write, 40, 64);
        assert_eq!(pages.counters().on_ring, 0);
        // A call that waits for a descriptor waits without a thread.
        let started = pages.counters().threads_started;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut byte = [0; 1];
        let read = read_of(std::os::fd::AsRawFd::as_raw_fd(&ours), &mut byte);
        let id = post(&mut pages, &read.pinned(Executor::Ring));
        assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
        rustix::io::write(&theirs, b"x").unwrap();
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
        assert_eq!(pages.counters().threads_started, started);
    })
    .join()
    .unwrap();
}
