//! A child of fork(2) has a copy of the pages, and no threads. It executes nothing of its parent's.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use flexsc_rt::operations::sleep;
use flexsc_rt::{Call, Config, Error, Executor, Pages, Runtime};

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

fn main() {
    let mut pages = Pages::register(&Config::default()).unwrap();
    let pipe = rustix::pipe::pipe().unwrap();
    let mut byte = [0_u8; 1];
    let fd = std::os::fd::AsRawFd::as_raw_fd(&pipe.0) as usize;
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
    println!("test forks ... ok");
}
