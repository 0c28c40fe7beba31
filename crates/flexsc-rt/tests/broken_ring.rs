//! A ring that the kernel refuses to enter. The only tests of their process, whose only ring they replace in turn.

mod support;

use std::fs::{self, File};
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Waker};

use flexsc_rt::operations::raw;
use flexsc_rt::{Call, Config, Executor, Operation, Runtime, Scratch};
use support::{complete, post, register};

fn ring_descriptor() -> Option<i32> {
    let all = fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let is_ring = |path: &std::path::Path| path.to_string_lossy().contains("io_uring");
    let mut rings = all.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| is_ring(&to)));
    rings.next()?.file_name().to_str()?.parse().ok()
}

/// Replaces the ring of the process. Returns false if there is none.
fn break_ring() -> bool {
    let Some(ring) = ring_descriptor() else { return false };
    let null = File::open("/dev/null").unwrap();
    // SAFETY: both are open; only the pages use the ring.
    assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), ring) }, ring);
    true
}

static ALONE: Mutex<()> = Mutex::new(());

/// A call that the ring makes. It cannot be cancelled, as a close cannot.
fn close() -> impl Operation<Output = io::Result<usize>> {
    let prepare = |(): &mut (), _: &mut Scratch| {
        let args = [usize::MAX, 0, 0, 0, 0, 0];
        Call::bounded(libc::SYS_close, args).pinned(Executor::Ring).uncancellable()
    };
    // SAFETY: the call takes numbers.
    unsafe { raw((), prepare, |(), result, _| result) }
}

#[test]
fn futures_stayed_pending_after_failed_entries() {
    let _alone = ALONE.lock();
    let runtime = Runtime::new(&Config::default()).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut future = runtime.call(close());
    while Pin::new(&mut future).poll(&mut context).is_pending() {}
    if !break_ring() {
        return println!("not tested: there is no io_uring");
    }
    let mut future = runtime.call(close());
    // It posts its call, and has it executed.
    assert!(Pin::new(&mut future).poll(&mut context).is_pending());
    let executed = || drop(Pin::new(&mut future).poll(&mut context));
    let message = catch_unwind(AssertUnwindSafe(executed)).unwrap_err();
    let message = message.downcast::<String>().unwrap();
    assert!(message.contains("enter io_uring"), "{message}");
}

#[test]
fn calls_in_place_were_made_again_after_a_failed_entry() {
    let _alone = ALONE.lock();
    let mut pages = register(Config::default());
    let on_ring =
        Call::bounded(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]).pinned(Executor::Ring);
    let in_place = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::InPlace);
    let id = post(&mut pages, &on_ring);
    complete(&mut pages, id).unwrap_err();
    if !break_ring() {
        return println!("not tested: there is no io_uring");
    }
    for made in 1..3 {
        let id = post(&mut pages, &in_place);
        post(&mut pages, &on_ring);
        let error = pages.wait(None).unwrap_err();
        assert!(error.to_string().contains("enter io_uring"), "{error}");
        let completions: Vec<_> = std::iter::from_fn(|| pages.next()).collect();
        assert_eq!(completions.iter().map(|done| done.id).collect::<Vec<_>>(), [id]);
        assert_eq!(pages.counters().in_place, made);
    }
}

#[cfg(feature = "green-threads")]
#[test]
fn green_thread_that_unwinds_waited_again_and_again_after_failed_entries() {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use flexsc_rt::green::{self, Threads};

    let _alone = ALONE.lock();
    let threads = Threads::new(&green::Config::default()).unwrap();
    threads.spawn(|| green::call(close())).unwrap();
    threads.run().unwrap();
    if !break_ring() {
        return println!("not tested: there is no io_uring");
    }
    let message = Rc::new(RefCell::new(String::new()));
    let of_thread = Rc::clone(&message);
    threads
        .spawn(move || {
            // The threads are dropped meanwhile.
            catch_unwind(green::yield_now).unwrap_err();
            let panic = catch_unwind(|| green::call(close())).unwrap_err();
            *of_thread.borrow_mut() = *panic.downcast::<String>().unwrap();
        })
        .unwrap();
    threads.turn(Some(Duration::ZERO)).unwrap();
    drop(threads);
    assert!(message.borrow().contains("enter io_uring"), "{message:?}");
}
