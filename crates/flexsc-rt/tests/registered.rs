//! Files that are registered with the ring.

mod support;

use std::fs::{self, File};
use std::future::Future;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use flexsc_rt::operations::{raw, read, read_at};
use flexsc_rt::{
    Call, Config, Descriptor, Direction, EventLoop, Executor, Pages, Runtime, Scratch, Waits,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use support::{Pipe, complete, post, register};

/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(10);

fn config(places: u32) -> Config {
    let mut config = Config::default();
    config.registered_files = places;
    config
}

/// Returns a file in memory with one byte.
fn file(byte: u8) -> OwnedFd {
    let mut file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(&[byte]).unwrap();
    file.into()
}

/// Has an executor read the first byte of a file.
fn first_byte(pages: &mut Pages, file: &Descriptor, executor: Executor) -> u8 {
    let mut byte = [0];
    let fd = file.as_fd().as_raw_fd() as usize;
    let call = Call::bounded(libc::SYS_pread64, [fd, byte.as_mut_ptr() as usize, 1, 0, 0, 0]);
    let id = post(pages, &call.about(file).pinned(executor));
    assert_eq!(complete(pages, id).unwrap(), 1);
    byte[0]
}

/// Returns the events of the reading end of a pipe.
fn events(reads: &OwnedFd) -> PollFlags {
    let mut polled = [PollFd::new(reads, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    polled[0].revents()
}

#[test]
fn ring_finds_the_file_in_its_table_and_other_executors_by_its_number() {
    let mut pages = register(config(8));
    let table = Descriptor::new(file(b't'));
    assert!(pages.register_file(&table), "these tests need io_uring");
    assert!(pages.register_file(&table), "it is registered");
    let plain = Descriptor::new(file(b'p'));
    // Its number is another file now.
    let other = file(b'n');
    for file in [&table, &plain] {
        let number = file.as_fd().as_raw_fd();
        // SAFETY: both are open, and the file has no other user.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
    }
    assert_eq!(first_byte(&mut pages, &table, Executor::Ring), b't');
    assert_eq!(first_byte(&mut pages, &plain, Executor::Ring), b'n');
    for executor in [Executor::InPlace, Executor::Threads] {
        assert_eq!(first_byte(&mut pages, &table, executor), b'n');
    }
    let counters = pages.counters();
    assert_eq!((counters.on_ring, counters.ring_refused), (2, 0));
    assert_eq!((counters.files_registered, counters.files_not_registered), (2, 0));
}

#[test]
fn argument_that_names_another_file_is_not_that_of_the_table() {
    let mut pages = register(config(8));
    let (registered, other) = (Descriptor::new(file(b'r')), file(b'o'));
    assert!(pages.register_file(&registered));
    let mut byte = [0];
    let args = [other.as_raw_fd() as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
    let call = Call::bounded(libc::SYS_pread64, args).about(&registered);
    let id = post(&mut pages, &call.pinned(Executor::Ring));
    assert_eq!(complete(&mut pages, id).unwrap(), 1);
    assert_eq!(byte, [b'o']);
}

#[test]
fn descriptor_beyond_a_full_table_is_an_ordinary_one() {
    let mut pages = register(config(1));
    let [first, second] = [b'1', b'2'].map(|byte| Descriptor::new(file(byte)));
    assert!(pages.register_file(&first));
    assert!(!pages.register_file(&second));
    assert_eq!(first_byte(&mut pages, &second, Executor::Ring), b'2');
    // Clones share the registration.
    let clone = first.clone();
    drop(first);
    assert!(!pages.register_file(&second));
    assert_eq!(first_byte(&mut pages, &clone, Executor::Ring), b'1');
    drop(clone);
    assert!(pages.register_file(&second));
    assert_eq!(first_byte(&mut pages, &second, Executor::Ring), b'2');
    let counters = pages.counters();
    assert_eq!((counters.files_registered, counters.files_not_registered), (2, 2));
}

#[test]
fn file_is_closed_at_the_next_submission_after_the_drop_of_its_descriptor() {
    let mut pages = register(config(2));
    let Pipe { reads, writes } = Pipe::new();
    let writes = Descriptor::new(writes);
    assert!(pages.register_file(&writes));
    // In another thread, as a descriptor may be sent there.
    thread::spawn(move || drop(writes)).join().unwrap();
    assert_eq!(events(&reads), PollFlags::empty());
    pages.submit().unwrap();
    assert_eq!(events(&reads), PollFlags::HUP);
}

/// Drops the descriptor once a thread sleeps.
fn drop_while_asleep(descriptor: Descriptor, thread: i32) {
    let state = || {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit_once(") ").map(|(_, state)| state.starts_with('S'))
    };
    while state() != Some(true) {
        thread::yield_now();
    }
    drop(descriptor);
}

/// The owner slept in a read of a pipe, the only writing end of which the table had.
#[test]
fn drop_of_a_registered_descriptor_did_not_wake_the_owner() {
    for sleep_in_ring in [false, true] {
        let mut config = config(2);
        config.sleep_in_ring = sleep_in_ring;
        let mut pages = register(config);
        let Pipe { reads, writes } = Pipe::new();
        let (fd, mut byte) = (reads.as_raw_fd(), [0]);
        let writes = Descriptor::new(writes);
        assert!(pages.register_file(&writes));
        let args = [fd as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
        let read =
            Call::new(libc::SYS_read, args).waits(Waits::ReadyThenBlocks(fd, Direction::Read));
        let id = post(&mut pages, &read);
        let owner = rustix::thread::gettid().as_raw_nonzero().get();
        let dropping = thread::spawn(move || drop_while_asleep(writes, owner));
        assert!(pages.wait(Some(LONG)).unwrap(), "the read did not end");
        assert_eq!(complete(&mut pages, id).unwrap(), 0);
        dropping.join().unwrap();
    }
}

/// A waker that tells that it was woken.
struct Woken(mpsc::Sender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

#[test]
fn drop_of_a_registered_descriptor_did_not_wake_the_task_that_waits() {
    let runtime = Runtime::new(&config(2)).unwrap();
    let Pipe { reads, writes } = Pipe::new();
    let writes = Descriptor::new(writes);
    assert!(runtime.register_file(&writes));
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Woken(sender)));
    let mut context = Context::from_waker(&waker);
    let mut future = runtime.call(read(&Descriptor::new(reads), Vec::with_capacity(1)));
    // It is woken until all tasks that are ready have posted calls.
    assert!(Pin::new(&mut future).poll(&mut context).is_pending());
    while woken.try_recv().is_ok() {
        assert!(Pin::new(&mut future).poll(&mut context).is_pending());
    }
    drop(writes);
    let result = loop {
        woken.recv_timeout(LONG).expect("the task was not woken");
        if let Poll::Ready((result, _)) = Pin::new(&mut future).poll(&mut context) {
            break result;
        }
    };
    assert_eq!(result.unwrap(), 0);
}

#[test]
fn files_are_closed_with_the_pages() {
    let mut pages = register(config(2));
    let Pipe { reads, writes } = Pipe::new();
    let writes = Descriptor::new(writes);
    assert!(pages.register_file(&writes));
    drop(pages);
    assert_eq!(events(&reads), PollFlags::empty());
    drop(writes);
    assert_eq!(events(&reads), PollFlags::HUP);
}

#[test]
fn call_in_flight_keeps_the_place_of_its_file() {
    let runtime = Runtime::new(&config(1)).unwrap();
    let Pipe { reads, writes } = Pipe::new();
    let reads = Descriptor::new(reads);
    assert!(runtime.register_file(&reads));
    // SAFETY: the call writes to the byte on the heap, and the descriptor is its own.
    let read = unsafe {
        let prepare = |(file, byte): &mut (Descriptor, Box<[u8; 1]>), _: &mut Scratch| {
            let args = [file.as_fd().as_raw_fd() as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
            Call::new(libc::SYS_read, args).pinned(Executor::Ring).about(file)
        };
        raw((reads, Box::new([0])), prepare, |_, result: io::Result<usize>, _| result)
    };
    let mut context = Context::from_waker(Waker::noop());
    let mut future = runtime.call(read);
    for _ in 0..2 {
        assert!(Pin::new(&mut future).poll(&mut context).is_pending());
    }
    assert_eq!(runtime.counters().on_ring, 1);
    // Nothing but the call has the descriptor.
    let other = Descriptor::new(file(b'x'));
    assert!(!runtime.register_file(&other), "the call uses the only place");
    drop(future);
    let turn = || {
        let mut turn = runtime.call(read_at(&other, 0, Vec::with_capacity(1)));
        while Pin::new(&mut turn).poll(&mut context).is_pending() {}
    };
    let mut turn = turn;
    while !runtime.register_file(&other) {
        turn();
    }
    // The pipe has no reader any more.
    assert_eq!(rustix::io::write(&writes, b"x"), Err(rustix::io::Errno::PIPE));
}

#[test]
fn file_of_other_pages_is_an_ordinary_one() {
    let [mut first, mut second] = [(), ()].map(|()| register(config(4)));
    let [at_first, at_second] = [b'1', b'2'].map(|byte| Descriptor::new(file(byte)));
    assert!(first.register_file(&at_first));
    assert!(second.register_file(&at_second));
    assert!(!second.register_file(&at_first));
    // Both are in the first place of their table.
    assert_eq!(first_byte(&mut second, &at_first, Executor::Ring), b'1');
    assert_eq!(first_byte(&mut first, &at_second, Executor::Ring), b'2');
}

#[test]
fn kernel_that_refuses_the_table_makes_the_calls_by_number() {
    // More places than the limit on descriptors are refused, as by a kernel without such tables.
    for places in [u32::MAX, 0] {
        let mut pages = register(config(places));
        let file = Descriptor::new(file(b'x'));
        for _ in 0..2 {
            assert!(!pages.register_file(&file));
        }
        assert_eq!(first_byte(&mut pages, &file, Executor::Ring), b'x');
        let counters = pages.counters();
        assert_eq!((counters.on_ring, counters.files_not_registered), (1, 2));
        assert_eq!(counters.ring_refused, 0);
    }
}

#[test]
fn without_a_ring_no_file_is_registered() {
    let mut without = config(4);
    without.uses_ring = false;
    let mut pages = register(without);
    let file = Descriptor::new(file(b'x'));
    assert!(!pages.register_file(&file));
    // No call was refused.
    assert_eq!(pages.counters().ring_refused, 0);
    assert_eq!(first_byte(&mut pages, &file, Executor::Ring), b'x');
    assert_eq!(pages.counters().ring_refused, 1);
}

#[test]
fn typed_operations_use_the_registration() {
    let mut on_ring = config(4);
    on_ring.executor = Some(Executor::Ring);
    let mut events = EventLoop::new(&on_ring).unwrap();
    let registered = Descriptor::new(file(b't'));
    assert!(events.register_file(&registered));
    let (number, other) = (registered.as_fd().as_raw_fd(), file(b'n'));
    // SAFETY: both are open, and the file has no other user.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
    let read = read_at(&registered, 0, Vec::with_capacity(1));
    let posted = events.post(read, |_, (result, bytes)| {
        assert_eq!((result.unwrap(), &bytes[..]), (1, &b"t"[..]));
    });
    assert!(posted.is_ok());
    events.run().unwrap();
    assert_eq!(events.counters().on_ring, 1);
}
