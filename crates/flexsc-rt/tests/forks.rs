//! A child of fork(2) has a copy of the pages, and no threads. It executes nothing of its parent's.

use std::fs::{self, File};
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use flexsc_rt::operations::{close, sleep, stat};
use flexsc_rt::{
    Call, Config, Descriptor, Direction, Error, EventLoop, Executor, Pages, Runtime, Waits,
};
use rustix::fs::AtFlags;

/// Runs a child for at most ten seconds. Returns whether it has succeeded.
fn fork(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes system calls and allocates; other threads hold no lock, as they wait.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: passes a number.
        unsafe { libc::alarm(10) };
        let code = i32::from(!child());
        // SAFETY: ends the process without the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    while unsafe { libc::waitpid(pid, &mut status, 0) } != pid {}
    status == 0
}

/// Wakes another task than that of the parent.
struct Other;

impl Wake for Other {
    fn wake(self: Arc<Self>) {}
}

/// Ends the sleep of the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn drop_in_a_child_kept_the_parent_awake() {
    let runtime = Runtime::new(&Config::default()).unwrap();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let polls_of_a_sleep = || {
        let mut future = pin!(runtime.call(sleep(Duration::from_millis(50))));
        let mut polls = 1;
        while future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            thread::park();
            polls += 1;
        }
        polls
    };
    // Starts the thread that waits for the pages.
    assert!(polls_of_a_sleep() < 10);
    assert!(fork(|| {
        runtime.counters();
        // SAFETY: the child does not use it any more.
        drop(unsafe { std::ptr::read(&runtime) });
        true
    }));
    let polls = polls_of_a_sleep();
    assert!(polls < 10, "{polls}");
}

/// Returns pages with one thread for calls that wait indefinitely, a completion of such a call, and another one that
/// waits for the thread: a read of the pipe.
fn with_a_call_that_waits_for_a_thread(pipe: &OwnedFd, byte: &mut [u8; 1]) -> Pages {
    let mut config = Config::default();
    config.threads = 1;
    let mut pages = Pages::register(&config).unwrap();
    let fd = pipe.as_raw_fd();
    let read = Call::new(libc::SYS_read, [fd as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0]);
    let when_ready = read.waits(Waits::ReadyThenBlocks(fd, Direction::Read));
    // SAFETY: the caller keeps the byte; the second read is cancelled before it begins.
    let cancelled = unsafe {
        pages.post(&when_ready).unwrap();
        pages.post(&read).unwrap()
    };
    pages.cancel(cancelled);
    // A busy owner looks for ready descriptors in each eighth turn.
    for _ in 0..8 {
        assert!(pages.wait(None).unwrap());
    }
    pages
}

fn take_in_a_child_made_the_call_of_the_parent() {
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writes, b"x").unwrap();
    let mut byte = [0; 1];
    let mut pages = with_a_call_that_waits_for_a_thread(&reads, &mut byte);
    assert!(fork(|| {
        // The call that had ended before the fork has its result.
        let result = pages.next().unwrap().result;
        let interrupted = result.unwrap_err().raw_os_error() == Some(libc::EINTR);
        let threads = fs::read_dir("/proc/self/task").unwrap().count();
        let none = pages.next().is_none();
        drop(pages);
        interrupted && threads == 1 && none
    }));
    assert_eq!(rustix::io::ioctl_fionread(&reads).unwrap(), 1);
}

fn calls_that_were_posted_and_not_submitted_are_not_made_in_a_child() {
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    let mut pages = Pages::register(&Config::default()).unwrap();
    let fd = writes.as_raw_fd() as usize;
    for executor in [Executor::InPlace, Executor::Threads, Executor::Ring, Executor::Shared] {
        let write = Call::bounded(libc::SYS_write, [fd, b"x".as_ptr() as usize, 1, 0, 0, 0]);
        // SAFETY: the byte is static.
        unsafe { pages.post(&write.pinned(executor)) }.unwrap();
    }
    assert!(fork(|| {
        let refused = matches!(pages.submit(), Err(Error::InChild));
        let none = pages.next().is_none();
        drop(pages);
        refused && none
    }));
    assert_eq!(rustix::io::ioctl_fionread(&reads).unwrap(), 0);
}

/// A ring that the child sets up must not be watched by the set of its parent.
fn post_in_a_child_changed_the_set_of_the_parent() {
    let mut pages = Pages::register(&Config::default()).unwrap();
    assert!(fork(|| {
        let call = Call::bounded(libc::SYS_fsync, [0; 6]).pinned(Executor::Ring);
        // SAFETY: no memory.
        let posted = unsafe { pages.post(&call) }.is_ok();
        let rings = fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
            let target = fs::read_link(fd.as_ref().unwrap().path()).unwrap_or_default();
            target.to_string_lossy().contains("io_uring")
        });
        posted && rings.count() == 0
    }));
}

/// The child has another descriptor of the number.
fn close_that_the_parent_had_made_was_made_again_in_a_child() {
    let mut config = Config::default();
    config.executor = Some(Executor::InPlace);
    let mut events = EventLoop::new(&config).unwrap();
    let closed = File::open("/dev/null").unwrap();
    let number = closed.as_raw_fd();
    // The close is made, and its completion not taken.
    events.post(stat(c"/", AtFlags::empty()), |events, _| events.stop()).unwrap();
    events.post(close(Descriptor::new(closed)), |_, result| result.unwrap()).unwrap();
    events.turn(None).unwrap();
    assert_eq!(events.outstanding(), 1);
    assert!(fork(|| {
        let file = File::open("/dev/null").unwrap();
        // SAFETY: the child does not use it any more.
        drop(unsafe { std::ptr::read(&events) });
        file.as_raw_fd() == number && rustix::io::fcntl_getfd(&file).is_ok()
    }));
    events.run().unwrap();
}

/// A peer would wait for the end of the stream until the child ends.
fn close_that_was_not_submitted_left_its_descriptor_open_in_a_child() {
    let mut events = EventLoop::new(&Config::default()).unwrap();
    let file = File::open("/dev/null").unwrap();
    let number = file.as_raw_fd();
    events.post(close(Descriptor::new(file)), |_, result| result.unwrap()).unwrap();
    assert!(fork(|| {
        // SAFETY: the child does not use it any more.
        drop(unsafe { std::ptr::read(&events) });
        // SAFETY: the number is only asked about.
        rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_err()
    }));
    events.run().unwrap();
}

/// A place that the child emptied would be empty in the parent.
fn registered_file_stays_in_the_table_of_the_parent() {
    let mut pages = Pages::register(&Config::default()).unwrap();
    let file = Descriptor::new(File::open("/dev/zero").unwrap());
    if !pages.register_file(&file) {
        return println!("not tested: there is no io_uring");
    }
    assert!(fork(|| {
        let other = Descriptor::new(File::open("/dev/null").unwrap());
        let refused = !pages.register_file(&other) && !pages.register_file(&file);
        // SAFETY: the child does not use them any more.
        unsafe {
            drop(std::ptr::read(&file));
            drop(std::ptr::read(&pages));
        }
        refused
    }));
    let mut byte = [1];
    let fd = file.as_fd().as_raw_fd() as usize;
    let read = Call::bounded(libc::SYS_read, [fd, byte.as_mut_ptr() as usize, 1, 0, 0, 0]);
    // SAFETY: the byte outlives the call.
    unsafe { pages.post(&read.about(&file).pinned(Executor::Ring)) }.unwrap();
    while !pages.wait(None).unwrap() {}
    assert_eq!((pages.next().unwrap().result.unwrap(), byte), (1, [0]));
    assert_eq!(pages.counters().on_ring, 1);
}

#[cfg(feature = "green-threads")]
fn green_threads_make_no_call_in_a_child() {
    use flexsc_rt::Descriptor;
    use flexsc_rt::green;
    use flexsc_rt::operations::read;

    let (reads, writes) = rustix::pipe::pipe().unwrap();
    let (reads, writes) = (Descriptor::new(reads), Descriptor::new(writes));
    let threads = green::Threads::new(&green::Config::default()).unwrap();
    let reader = {
        let reads = reads.clone();
        threads.spawn(move || green::call(read(&reads, Vec::with_capacity(1))).1).unwrap()
    };
    // A call that has ended, and whose thread did not run since.
    let ended = threads.spawn(|| green::call(sleep(Duration::ZERO)).is_ok()).unwrap();
    threads.turn(Some(Duration::ZERO)).unwrap();
    rustix::io::write(&writes, b"x").unwrap();
    assert!(fork(|| {
        // Their next calls end with an error.
        let late = threads.spawn(|| green::call(sleep(Duration::ZERO)).is_err()).unwrap();
        let refused = matches!(threads.run(), Err(Error::InChild));
        let has_failed = late.is_finished() && late.join().unwrap();
        // SAFETY: the child does not use them any more.
        drop(unsafe { std::ptr::read(&threads) });
        refused && has_failed
    }));
    threads.run().unwrap();
    assert_eq!(reader.join().unwrap(), b"x");
    assert!(ended.join().unwrap());
}

fn main() {
    let mut pages = Pages::register(&Config::default()).unwrap();
    let pipe = rustix::pipe::pipe().unwrap();
    let mut byte = [0_u8; 1];
    let fd = pipe.0.as_raw_fd() as usize;
    let read = Call::new(libc::SYS_read, [fd, byte.as_mut_ptr() as usize, 1, 0, 0, 0]);
    // SAFETY: the byte outlives the call, which ends below.
    let id = unsafe { pages.post(&read) }.unwrap();
    pages.submit().unwrap();
    assert!(fork(|| {
        let refused = matches!(pages.wait(Some(Duration::ZERO)), Err(Error::InChild));
        pages.cancel(id);
        let none = pages.next().is_none();
        // Its own pages work, with threads.
        let mut own = Pages::register(&Config::default()).unwrap();
        let call = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::Threads);
        // SAFETY: it returns a number.
        unsafe { own.post(&call) }.unwrap();
        own.wait(None).unwrap();
        let works = own.next().unwrap().result.unwrap() == std::process::id() as usize;
        refused && none && works
    }));
    // The parent's call was not cancelled.
    rustix::io::write(&pipe.1, b"x").unwrap();
    while !pages.wait(None).unwrap() {}
    assert_eq!(pages.next().unwrap().result.unwrap(), 1);
    assert_eq!(byte, *b"x");

    let runtime = Runtime::new(&Config::default()).unwrap();
    assert!(fork(|| {
        let mut future = pin!(runtime.call(sleep(Duration::ZERO)));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..10 {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                return result.is_err();
            }
        }
        false
    }));
    // A future of the parent has the others' calls executed, but not in the child.
    let mut of_parent = pin!(runtime.call(sleep(Duration::from_secs(1_000))));
    assert!(of_parent.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(fork(|| {
        let mut future = pin!(runtime.call(sleep(Duration::ZERO)));
        let waker = Waker::from(Arc::new(Other));
        let mut context = Context::from_waker(&waker);
        (0..10).any(|_| future.as_mut().poll(&mut context).is_ready())
    }));
    drop_in_a_child_kept_the_parent_awake();
    take_in_a_child_made_the_call_of_the_parent();
    calls_that_were_posted_and_not_submitted_are_not_made_in_a_child();
    post_in_a_child_changed_the_set_of_the_parent();
    close_that_the_parent_had_made_was_made_again_in_a_child();
    close_that_was_not_submitted_left_its_descriptor_open_in_a_child();
    registered_file_stays_in_the_table_of_the_parent();
    #[cfg(feature = "green-threads")]
    green_threads_make_no_call_in_a_child();
    println!("test forks ... ok");
}
