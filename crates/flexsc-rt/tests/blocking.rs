//! Calls that may block although their descriptor is ready: one for a descriptor at a time, and a thread is left.

mod support;

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use flexsc_rt::{Busy, Call, Config, Direction, Executor, Waits};
use support::{Pipe, complete, post, register};

#[test]
fn wait_for_a_negative_descriptor_panicked() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        config.sleep_in_ring = sleep_in_ring;
        let mut pages = register(config);
        let waits = Waits::ReadyThenBlocks(-1, Direction::Read);
        let id =
            post(&mut pages, &Call::new(libc::SYS_read, [usize::MAX, 0, 0, 0, 0, 0]).waits(waits));
        let error = complete(&mut pages, id).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}

#[test]
fn connection_moved_several_accepts_onto_threads() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        (config.active_threads, config.sleep_in_ring) = (1, sleep_in_ring);
        // The thread that may be active stays so.
        config.heartbeat = Duration::from_secs(60);
        let mut pages = register(config);
        let (pipe, mut byte) = (Pipe::new(), [0; 1]);
        let read = post(&mut pages, &pipe.blocking_read_of(&mut byte));
        pages.submit().unwrap();
        while pages.counters().max_active_threads == 0 {
            thread::yield_now();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepts: Vec<_> = (0..4).map(|_| post(&mut pages, &accept_of(&listener))).collect();
        pages.submit().unwrap();
        let mut clients = vec![TcpStream::connect(listener.local_addr().unwrap()).unwrap()];
        for _ in 0..10 {
            assert!(!pages.wait(Some(Duration::from_millis(1))).unwrap());
        }
        assert_eq!(pages.counters().on_threads, 2, "the read, and one accept");
        pipe.write(b"x");
        assert_eq!(complete(&mut pages, read).unwrap(), 1);
        for accept in accepts {
            drop(connection(complete(&mut pages, accept)));
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        }
        assert_eq!(pages.counters().on_threads, 5);
    }
}

#[test]
fn calls_that_block_although_their_descriptors_are_ready_had_all_threads() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        (config.threads, config.sleep_in_ring) = (4, sleep_in_ring);
        let mut pages = register(config);
        let pipes: Vec<_> = (0..6).map(|_| Pipe::new()).collect();
        let bytes = vec![b'x'; 1 << 20];
        let write_of = |pipe: &Pipe| {
            let fd = pipe.writes.as_raw_fd();
            let args = [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
            Call::new(libc::SYS_write, args).waits(Waits::ReadyThenBlocks(fd, Direction::Write))
        };
        let writes: Vec<_> = pipes.iter().map(|pipe| post(&mut pages, &write_of(pipe))).collect();
        while pages.counters().on_threads < 3 {
            pages.wait(Some(Duration::from_millis(1))).unwrap();
        }
        let bounded = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::Threads);
        for _ in 0..10 {
            let id = post(&mut pages, &bounded);
            assert!(pages.wait(Some(Duration::from_secs(10))).unwrap(), "no thread is left");
            assert!(complete(&mut pages, id).is_ok());
        }
        let mut byte = [0; 1];
        // SAFETY: it is not posted.
        assert_eq!(unsafe { pages.post(&pipes[0].blocking_read_of(&mut byte)) }, Err(Busy));
        // One waits for a thread, another is on one.
        for write in [writes[5], writes[0]] {
            pages.cancel(write);
            complete(&mut pages, write).map(drop).unwrap_or_else(|error| {
                assert_eq!(error.raw_os_error(), Some(libc::EINTR));
            });
        }
        // The others follow when one has ended.
        let mut part = vec![0; 1 << 16];
        while pages.outstanding() > 0 {
            pages.wait(Some(Duration::ZERO)).unwrap();
            while let Some(completion) = pages.next() {
                assert_eq!(completion.result.unwrap(), bytes.len());
            }
            for pipe in pipes.iter().filter(|pipe| pipe.available() > 0) {
                rustix::io::read(&pipe.reads, &mut part).unwrap();
            }
        }
    }
}
