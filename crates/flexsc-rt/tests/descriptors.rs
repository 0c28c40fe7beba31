//! Descriptors that raw calls name by number: wrong ones, and ones that are closed meanwhile.

mod support;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use flexsc_rt::{Call, Config, Direction, Executor, Waits};
use support::{Pipe, complete, post, read_of, register};

fn errno(result: &io::Result<usize>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}

/// Copies a descriptor to a number that no other test takes, as the kernel gives away the lowest ones.
fn copy_to_high_number(fd: impl AsFd, number: RawFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(fd, number).unwrap()
}

#[test]
fn wait_for_a_wrong_large_descriptor_took_memory_for_all_below() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        config.sleep_in_ring = sleep_in_ring;
        let mut pages = register(config);
        for fd in [i32::MAX, 1 << 24, -1] {
            let read = Call::new(libc::SYS_read, [fd as usize, 0, 0, 0, 0, 0]);
            for call in [
                Call::until_ready(fd, Direction::Read),
                read.waits(Waits::AfterReady(fd, Direction::Read)),
                read.waits(Waits::ReadyThenBlocks(fd, Direction::Write)),
                // It does not wait, but others that do would follow it.
                read.waits(Waits::ReadyThenBlocks(fd, Direction::Read)).pinned(Executor::Threads),
            ] {
                let id = post(&mut pages, &call);
                let result = complete(&mut pages, id);
                assert_eq!(errno(&result), Some(libc::EBADF), "{fd}, {call:?}");
            }
        }
    }
}

/// As [`Pages::post`](flexsc_rt::Pages::post) says of a call whose descriptor is closed.
#[test]
fn call_whose_descriptor_is_closed_before_it_begins_reaches_none_or_the_next_of_its_number() {
    for executor in [Executor::InPlace, Executor::Threads, Executor::Ring] {
        let mut pages = register(Config::default());
        let (pipe, other) = (Pipe::new(), Pipe::new());
        let writes = copy_to_high_number(&pipe.writes, 700);
        let fd = writes.as_raw_fd();
        let args = [fd as usize, b"x".as_ptr() as usize, 1, 0, 0, 0];
        let write = Call::bounded(libc::SYS_write, args).pinned(executor);
        let id = post(&mut pages, &write);
        drop(writes);
        let result = complete(&mut pages, id);
        assert_eq!(errno(&result), Some(libc::EBADF), "{executor:?}");

        let id = post(&mut pages, &write);
        let next = copy_to_high_number(&other.writes, fd);
        assert_eq!(next.as_raw_fd(), fd);
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
        assert_eq!((pipe.available(), other.available()), (0, 1), "{executor:?}");
    }
}

#[test]
fn call_that_waits_for_a_closed_descriptor_waits_until_it_is_cancelled() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        config.sleep_in_ring = sleep_in_ring;
        let mut pages = register(config);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = copy_to_high_number(&ours, 800);
        drop(ours);
        let fd = socket.as_raw_fd();
        let mut byte = [0; 1];
        let id = post(&mut pages, &read_of(fd, &mut byte));
        assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
        drop(socket);
        pages.cancel(id);
        assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EINTR));
        drop(theirs);

        // Another descriptor of the number is waited for, beside what remains of the first.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = copy_to_high_number(&ours, fd);
        assert_eq!(socket.as_raw_fd(), fd);
        let id = post(&mut pages, &read_of(fd, &mut byte));
        assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
        rustix::io::write(&theirs, b"y").unwrap();
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
        assert_eq!(byte, *b"y");
    }
}

/// A call in flight has the object, not the number.
#[test]
fn call_that_a_thread_makes_goes_on_after_its_descriptor_is_closed() {
    let mut pages = register(Config::default());
    let (low, writes) = rustix::pipe::pipe().unwrap();
    let reads = copy_to_high_number(&low, 900);
    let mut byte = [0; 1];
    let args = [reads.as_raw_fd() as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
    let id = post(&mut pages, &Call::new(libc::SYS_read, args));
    pages.submit().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while pages.counters().threads_blocked == 0 {
        assert!(Instant::now() < deadline, "the thread is not counted as blocked");
        thread::yield_now();
    }
    drop(reads);
    rustix::io::write(&writes, b"z").unwrap();
    assert_eq!(complete(&mut pages, id).unwrap(), 1);
    assert_eq!(byte, *b"z");
}
