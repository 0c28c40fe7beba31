//! Bounds and counters of pages: reserved entries, turns of a busy owner, active threads.

mod support;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use flexsc_rt::{Busy, Call, Config, Direction, Executor, Pages};
use support::{Pipe, complete, post, read_of, register};

#[test]
fn reserve_beyond_the_entries_leaves_one_for_calls_that_wait() {
    let mut config = Config::with_entries(64);
    config.reserve = 1_000;
    let mut pages = register(config);
    let (pipe, waiting) = (Pipe::new(), Direction::Read);
    let call = Call::until_ready(pipe.reads.as_raw_fd(), waiting);
    post(&mut pages, &call);
    // SAFETY: it makes no call.
    assert_eq!(unsafe { pages.post(&call) }, Err(Busy));
    let bounded = Call::bounded(libc::SYS_getpid, [0; 6]);
    for _ in 0..63 {
        post(&mut pages, &bounded);
    }
    assert_eq!((pages.outstanding(), pages.counters().throttled), (64, 1));
}

#[test]
fn one_or_two_threads_have_one_call_that_waits_indefinitely() {
    for threads in [1, 2] {
        let mut config = Config::default();
        config.threads = threads;
        let mut pages = register(config);
        let (pipe, mut bytes) = (Pipe::new(), [0; 2]);
        let (first, second) = bytes.split_at_mut(1);
        let id = post(&mut pages, &pipe.blocking_read_of(first));
        // SAFETY: the byte outlives the pages.
        assert_eq!(unsafe { pages.post(&pipe.blocking_read_of(second)) }, Err(Busy), "{threads}");
        pipe.write(b"xy");
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
        let id = post(&mut pages, &pipe.blocking_read_of(second));
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
    }
}

/// A completion is there in each turn, so the owner does not sleep again.
#[test]
fn busy_owner_finds_a_ready_descriptor_within_eight_turns() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        config.sleep_in_ring = sleep_in_ring;
        config.executor = Some(Executor::InPlace);
        let mut pages = register(config);
        let pipe = Pipe::new();
        let ready = Call::until_ready(pipe.reads.as_raw_fd(), Direction::Read);
        let waiting = post(&mut pages, &ready);
        assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
        pipe.write(b"x");
        let mut turns = 0;
        let mut is_found = false;
        while !is_found {
            post(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]));
            assert!(pages.wait(None).unwrap());
            turns += 1;
            while let Some(completion) = pages.next() {
                is_found |= completion.id == waiting;
            }
            assert!(turns <= 16, "a ready descriptor is not found");
        }
        // One turn more may pass until the completion is taken.
        assert!(turns <= 9, "{turns} turns, in the ring: {sleep_in_ring}");
        assert_eq!(pages.counters().sleeps, 1);
    }
}

#[test]
fn waits_and_cancellations_are_counted() {
    let mut pages = register(Config::default());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let pipe = Pipe::new();
    let mut bytes = [0; 2];
    let (first, second) = bytes.split_at_mut(1);
    let counts = |pages: &Pages| {
        let counters = pages.counters();
        (counters.readiness_waits, counters.withdrawn, counters.interrupted)
    };
    let interrupted = |result: io::Result<usize>| {
        result.is_err_and(|error| error.raw_os_error() == Some(libc::EINTR))
    };
    // One that was not executed.
    let id = post(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]));
    pages.cancel(id);
    assert!(interrupted(complete(&mut pages, id)));
    assert_eq!((counts(&pages), pages.counters().in_place), ((0, 1, 0), 0));
    // One that waits for its descriptor.
    let id = post(&mut pages, &read_of(ours.as_raw_fd(), first));
    assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
    assert_eq!((counts(&pages), pages.counters().epoll_calls), ((1, 1, 0), 2));
    pages.cancel(id);
    assert!(interrupted(complete(&mut pages, id)));
    assert_eq!((counts(&pages), pages.counters().epoll_calls), ((1, 2, 0), 3));
    // One that has a thread.
    let id = post(&mut pages, &pipe.blocking_read_of(second));
    pages.submit().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while pages.counters().threads_blocked == 0 {
        assert!(Instant::now() < deadline, "the thread is not counted as blocked");
        thread::yield_now();
    }
    pages.cancel(id);
    assert!(interrupted(complete(&mut pages, id)));
    assert_eq!(counts(&pages), (1, 2, 1));
    // One that has ended.
    pages.cancel(id);
    assert_eq!(counts(&pages), (1, 2, 1));
    drop((ours, theirs));
}

#[test]
fn not_all_calls_that_changed_the_epoll_set_were_counted() {
    let mut pages = register(Config::default());
    let (first, peer) = UnixStream::pair().unwrap();
    let mut reader = OwnedFd::from(first);
    let (fd, mut byte) = (reader.as_raw_fd(), [0; 1]);
    let id = post(&mut pages, &read_of(fd, &mut byte));
    assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
    // It was added, and looked for.
    assert_eq!(pages.counters().epoll_calls, 2);
    rustix::io::write(&peer, b"x").unwrap();
    assert_eq!(complete(&mut pages, id).unwrap(), 1);
    assert_eq!(pages.counters().epoll_calls, 3);
    // Another socket gets the number.
    let (second, _peer) = UnixStream::pair().unwrap();
    rustix::io::dup2(&second, &mut reader).unwrap();
    let id = post(&mut pages, &read_of(fd, &mut byte));
    assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
    // A change that failed, and as before.
    assert_eq!(pages.counters().epoll_calls, 6);
    pages.cancel(id);
    assert_eq!(pages.counters().epoll_calls, 7, "it was removed");
    assert!(complete(&mut pages, id).is_err());
}

#[test]
fn calls_of_a_page_starved_while_another_page_was_refilled() {
    let mut config = Config::with_entries(128);
    (config.active_threads, config.heartbeat) = (1, Duration::from_secs(60));
    let mut pages = register(config);
    let mut memory = vec![1; 64 << 10];
    let args = [memory.as_mut_ptr() as usize, memory.len(), 0, 0, 0, 0];
    let slow = Call::bounded(libc::SYS_getrandom, args).pinned(Executor::Threads);
    // The entries of one page, and one of the other.
    for _ in 0..64 {
        post(&mut pages, &slow);
    }
    let other = post(&mut pages, &slow);
    let (mut ended, mut others) = (false, 0);
    while !ended && others < 2_000 {
        pages.wait(None).unwrap();
        while let Some(completion) = pages.next() {
            ended |= completion.id == other;
            others += usize::from(!ended);
            post(&mut pages, &slow);
        }
    }
    assert_eq!((ended, others), (true, 64));
    while pages.outstanding() > 0 {
        pages.wait(None).unwrap();
        while pages.next().is_some() {}
    }
}

#[test]
fn call_of_a_page_starved_behind_two_that_were_posted_again() {
    let mut config = Config::with_entries(64);
    (config.active_threads, config.heartbeat) = (1, Duration::from_secs(60));
    let mut pages = register(config);
    // The owner posts a call again while the thread makes another one.
    let mut memory = vec![1; 1 << 20];
    let args = [memory.as_mut_ptr() as usize, memory.len(), 0, 0, 0, 0];
    let slow = Call::bounded(libc::SYS_getrandom, args).pinned(Executor::Threads);
    let [_, _, third] = [(); 3].map(|()| post(&mut pages, &slow));
    let (mut ended, mut others) = (false, 0);
    while !ended && others < 200 {
        pages.wait(None).unwrap();
        while let Some(completion) = pages.next() {
            ended |= completion.id == third;
            others += usize::from(!ended);
            post(&mut pages, &slow);
        }
    }
    assert!(ended && others < 64, "{others} others ended first");
    while pages.outstanding() > 0 {
        pages.wait(None).unwrap();
        while pages.next().is_some() {}
    }
}

#[test]
fn thread_that_computes_in_the_kernel_was_counted_as_blocked() {
    let mut config = Config::default();
    config.heartbeat = Duration::from_micros(100);
    let mut pages = register(config);
    // Each takes the kernel many heartbeats.
    let mut memory = vec![1; 8 << 20];
    let args = [memory.as_mut_ptr() as usize, memory.len(), 0, 0, 0, 0];
    let call = Call::bounded(libc::SYS_getrandom, args).pinned(Executor::Threads);
    for _ in 0..3 {
        let id = post(&mut pages, &call);
        assert_eq!(complete(&mut pages, id).unwrap(), memory.len());
    }
    assert_eq!(pages.counters().threads_blocked, 0);
}
