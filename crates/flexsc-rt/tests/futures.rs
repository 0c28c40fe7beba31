//! Futures under executors that know nothing of them; and their drop.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use flexsc_rt::operations::{close, poll, raw, receive, send, sleep, stat_file};
use flexsc_rt::{
    Call, CallFuture, Config, Descriptor, Direction, Executor, Operation, Runtime, Scratch,
};

/// An executor of one future.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

fn runtime(config: Config) -> Runtime {
    Runtime::new(&config).expect("pages")
}

/// Calls that complete at once, that wait for a socket, and that block a thread.
async fn mixed(runtime: Runtime, number: u8) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (ours, theirs) = (Descriptor::new(ours), Descriptor::new(theirs));
    for round in 0..10 {
        let stat = runtime.call(stat_file(&ours)).await.unwrap();
        assert_eq!(u32::from(stat.stx_mode) & libc::S_IFMT, libc::S_IFSOCK);
        let (sent, bytes) = runtime.call(send(&theirs, vec![number, round])).await;
        let (received, buffer) = runtime.call(receive(&ours, Vec::with_capacity(16))).await;
        assert_eq!((sent.unwrap(), received.unwrap()), (2, 2));
        assert_eq!(bytes, buffer);
        runtime.call(sleep(Duration::from_micros(10))).await.unwrap();
    }
}

#[test]
fn futures_run_under_a_simple_executor() {
    block_on(mixed(runtime(Config::default()), 1));
}

#[test]
fn futures_run_under_tokio() {
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let runtime = runtime(Config::default());
    local.block_on(&tokio, async {
        let tasks: Vec<_> =
            (0..20).map(|n| tokio::task::spawn_local(mixed(runtime.clone(), n))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn futures_run_under_async_executor() {
    let executor = async_executor::LocalExecutor::new();
    let runtime = runtime(Config::default());
    let tasks: Vec<_> = (0..20).map(|n| executor.spawn(mixed(runtime.clone(), n))).collect();
    futures_lite::future::block_on(executor.run(async {
        for task in tasks {
            task.await;
        }
    }));
}

/// Tasks that are ready together make one batch.
#[test]
fn calls_of_ready_tasks_are_executed_together() {
    let executor = async_executor::LocalExecutor::new();
    let runtime = runtime(Config::default());
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    let tasks: Vec<_> = (0..100).map(|_| executor.spawn(runtime.call(stat_file(&file)))).collect();
    futures_lite::future::block_on(executor.run(async {
        for task in tasks {
            task.await.unwrap();
        }
    }));
    assert_eq!((runtime.counters().posted, runtime.counters().sleeps), (100, 0));
}

#[test]
fn futures_wait_for_a_free_entry() {
    let mut config = Config::with_entries(64);
    config.reserve = 0;
    let runtime = runtime(config);
    let executor = async_executor::LocalExecutor::new();
    let file = Descriptor::new(tempfile::tempfile().unwrap());
    let tasks: Vec<_> =
        (0..1_000).map(|_| executor.spawn(runtime.call(stat_file(&file)))).collect();
    futures_lite::future::block_on(executor.run(async {
        for task in tasks {
            task.await.unwrap();
        }
    }));
    assert!(runtime.counters().throttled > 0);
}

/// Counts how often it wakes.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn wake_up_for_a_free_entry_went_to_a_future_that_was_gone() {
    let runtime = runtime(Config::with_entries(64));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Descriptor::new(ours);
    let driver = Waker::from(Arc::new(Count::default()));
    let mut posted = Vec::new();
    while runtime.counters().throttled == 0 {
        let mut future = runtime.call(receive(&ours, Vec::with_capacity(1)));
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&driver)).is_pending());
        posted.push(future);
    }
    drop(posted.pop());
    // The first two are gone when an entry becomes free, and one more when it was woken.
    let throttled: Vec<_> = (0..4)
        .map(|_| {
            let count = Arc::new(Count::default());
            let mut future = runtime.call(receive(&ours, Vec::with_capacity(1)));
            let waker = Waker::from(Arc::clone(&count));
            assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
            (future, count)
        })
        .collect();
    let mut throttled = throttled.into_iter();
    drop((throttled.next(), throttled.next()));
    theirs.write_all(b"x").unwrap();
    loop {
        let mut context = Context::from_waker(&driver);
        let mut all = posted.iter_mut();
        if let Some(at) = all.position(|future| Pin::new(future).poll(&mut context).is_ready()) {
            drop(posted.swap_remove(at));
            break;
        }
    }
    let (third, count) = throttled.next().unwrap();
    assert_eq!(count.0.load(Relaxed), 2, "by itself, when it was polled first, and for the entry");
    let (_fourth, count) = throttled.next().unwrap();
    // It may have been woken to have calls executed.
    let before = count.0.load(Relaxed);
    drop(third);
    assert_eq!(count.0.load(Relaxed), before + 1);
}

/// A future may be polled by another task than before, which is to be woken from then on.
#[test]
fn future_that_moves_to_another_task_wakes_that_one() {
    let mut config = Config::with_entries(64);
    config.reserve = 0;
    let runtime = runtime(config);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Descriptor::new(ours);
    let receive = || runtime.call(receive(&ours, Vec::with_capacity(1)));
    let counts = [(); 5].map(|()| Arc::new(Count::default()));
    let wakers = counts.each_ref().map(|count| Waker::from(Arc::clone(count)));
    let wakes = || counts.each_ref().map(|count| count.0.load(Relaxed));
    let mut tasks = wakers.each_ref().map(Context::from_waker);
    let [first, second, other, third, fourth] = &mut tasks;

    // The driver, which sleeps: the post of another task wakes it.
    let mut driver = receive();
    for task in [first, &mut *second] {
        assert!(Pin::new(&mut driver).poll(task).is_pending());
    }
    let before = wakes();
    let mut posted = vec![receive()];
    assert!(Pin::new(&mut posted[0]).poll(other).is_pending());
    assert_eq!(wakes()[..2], [before[0], before[1] + 1]);

    // One that waits for an entry.
    while runtime.counters().throttled == 0 {
        posted.push(receive());
        assert!(Pin::new(posted.last_mut().unwrap()).poll(other).is_pending());
    }
    let mut throttled = posted.pop().unwrap();
    assert!(Pin::new(&mut driver).poll(second).is_pending());
    for task in [third, fourth] {
        assert!(Pin::new(&mut throttled).poll(task).is_pending());
    }
    let before = wakes();
    theirs.write_all(&[0; 64]).unwrap();
    while Pin::new(&mut driver).poll(second).is_pending() {}
    assert_eq!(wakes()[3..], [before[3], before[4] + 1]);
}

/// Each of them ends before the others have ended many times.
#[test]
fn futures_starved_behind_bounded_calls_that_were_posted_again() {
    const TASKS: usize = 100;
    let mut config = Config::with_entries(64);
    config.reserve = 8;
    let runtime = runtime(config);
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writes, b"x").unwrap();
    let (reads, file) = (Descriptor::new(reads), Descriptor::new(tempfile::tempfile().unwrap()));
    let ended: [_; TASKS] = std::array::from_fn(|_| Cell::new(0));
    let all = || ended.iter().map(Cell::get).sum::<usize>();
    let polled = Cell::new(None);
    let executor = async_executor::LocalExecutor::new();
    let tasks: Vec<_> = ended
        .iter()
        .map(|ended| {
            executor.spawn(async {
                while all() < 100 * TASKS {
                    runtime.call(stat_file(&file)).await.unwrap();
                    ended.set(ended.get() + 1);
                }
            })
        })
        .collect();
    let waits = executor.spawn(async {
        runtime.call(poll(&reads, Direction::Read)).await.unwrap();
        polled.set(Some(all()));
    });
    futures_lite::future::block_on(executor.run(async {
        for task in tasks {
            task.await;
        }
        waits.await;
    }));
    assert!(polled.get().is_some_and(|others| others <= 16 * TASKS), "{polled:?}");
    let counts = ended.each_ref().map(Cell::get);
    assert!(counts.iter().all(|count| *count >= 50), "{counts:?}");
}

#[test]
fn entries_kept_for_bounded_calls_woke_futures_that_cannot_use_them() {
    let mut config = Config::with_entries(64);
    config.reserve = 2;
    let runtime = runtime(config);
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let ours = Descriptor::new(ours);
    let driver = Waker::from(Arc::new(Count::default()));
    let mut context = Context::from_waker(&driver);
    let mut receives = Vec::new();
    while runtime.counters().throttled < 3 {
        let mut future = runtime.call(receive(&ours, Vec::with_capacity(1)));
        assert!(Pin::new(&mut future).poll(&mut context).is_pending());
        receives.push(future);
    }
    let mut kept: Vec<_> = (0..2).map(|_| runtime.call(stat_file(&ours))).collect();
    for future in &mut kept {
        assert!(Pin::new(future).poll(&mut context).is_pending());
    }
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut last = runtime.call(stat_file(&ours));
    assert!(Pin::new(&mut last).poll(&mut Context::from_waker(&waker)).is_pending());
    let by_itself = count.0.load(Relaxed);
    for mut future in kept {
        while Pin::new(&mut future).poll(&mut context).is_pending() {}
    }
    assert_eq!(count.0.load(Relaxed), by_itself + 1, "three receives have waited for longer");
    assert!(Pin::new(&mut last).poll(&mut context).is_pending());
    while Pin::new(&mut last).poll(&mut context).is_pending() {}
}

/// Notes that it is dropped.
struct SetsOnDrop(Arc<AtomicUsize>);

impl Drop for SetsOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Panics when it is dropped.
struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("a destructor panics");
    }
}

#[test]
fn panic_of_a_destructor_freed_the_memory_of_a_call_in_flight() {
    let runtime = runtime(Config::default());
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    let freed = Arc::new(AtomicUsize::new(0));
    let memory = (vec![0_u8; 1], SetsOnDrop(Arc::clone(&freed)));
    let fd = reads.as_raw_fd() as usize;
    // SAFETY: the operation owns the byte; the pipe is open until the read has ended.
    let read = unsafe {
        let prepare = move |(byte, _): &mut (Vec<u8>, SetsOnDrop), _: &mut Scratch| {
            let args = [fd, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
            Call::new(libc::SYS_read, args).uncancellable()
        };
        raw(memory, prepare, |_, result, _| result)
    };
    let (first_reads, first_writes) = rustix::pipe::pipe().unwrap();
    let first = first_reads.as_raw_fd() as usize;
    // SAFETY: the operation owns the byte; the pipe is open until the read has ended.
    let panics = unsafe {
        let prepare = move |(byte, _): &mut (Vec<u8>, Panics), _: &mut Scratch| {
            let args = [first, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
            Call::new(libc::SYS_read, args).uncancellable()
        };
        raw((vec![0_u8; 1], Panics), prepare, |_, result, _| result)
    };
    let mut context = Context::from_waker(Waker::noop());
    let (mut read, mut panics) = (runtime.call(read), runtime.call(panics));
    assert!(Pin::new(&mut read).poll(&mut context).is_pending());
    // Submits the read, to a thread.
    assert!(Pin::new(&mut read).poll(&mut context).is_pending());
    assert!(Pin::new(&mut panics).poll(&mut context).is_pending());
    drop((read, panics));
    // It ends first, while the runtime is dropped.
    rustix::io::write(&first_writes, b"x").unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(runtime))).is_err());
    assert_eq!(freed.load(Relaxed), 0, "the kernel reads into it");
    rustix::io::write(&writes, b"x").unwrap();
}

#[test]
fn dropped_future_keeps_its_memory_until_the_call_has_ended() {
    let runtime = runtime(Config::default());
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Descriptor::new(ours);
    block_on(async {
        for _ in 0..100 {
            let mut dropped = runtime.call(receive(&ours, Vec::with_capacity(64)));
            let mut asleep = runtime.call(sleep(Duration::from_secs(1_000)));
            poll_fn(|context| {
                assert!(pin!(&mut dropped).poll(context).is_pending());
                assert!(pin!(&mut asleep).poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            // Submits both.
            runtime.call(stat_file(&ours)).await.unwrap();
            drop((dropped, asleep));
        }
        theirs.write_all(b"x").unwrap();
        let (result, bytes) = runtime.call(receive(&ours, Vec::with_capacity(8))).await;
        assert_eq!((result.unwrap(), &bytes[..]), (1, &b"x"[..]));
    });
}

#[test]
fn drop_of_the_future_that_was_to_drive_left_the_others_pending() {
    let runtime = runtime(Config::default());
    let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
    let (ours, mut theirs): (Vec<_>, Vec<_>) =
        pairs.into_iter().map(|(ours, theirs)| (Descriptor::new(ours), theirs)).unzip();
    let counts = [(); 3].map(|()| Arc::new(Count::default()));
    let wakers = counts.each_ref().map(|count| Waker::from(Arc::clone(count)));
    let mut futures: Vec<_> =
        ours.iter().map(|end| Some(runtime.call(receive(end, Vec::with_capacity(1))))).collect();
    for (future, waker) in futures.iter_mut().zip(&wakers) {
        let future = Pin::new(future.as_mut().unwrap());
        assert!(future.poll(&mut Context::from_waker(waker)).is_pending());
    }
    let by_itself = counts.each_ref().map(|count| count.0.load(Relaxed));
    theirs[0].write_all(b"x").unwrap();
    let mut first = futures[0].take().unwrap();
    while Pin::new(&mut first).poll(&mut Context::from_waker(&wakers[0])).is_pending() {}
    drop(first);
    let woken = |n: usize| counts[n].0.load(Relaxed) > by_itself[n];
    let (next, last) = if woken(1) { (1, 2) } else { (2, 1) };
    assert!(woken(next) && !woken(last), "one of the others is to drive");
    drop(futures[next].take());
    assert!(woken(last), "the last one was not woken");
}

/// The driver is dropped: another future has the calls executed.
#[test]
fn dropped_driver_is_replaced() {
    let executor = Rc::new(async_executor::LocalExecutor::new());
    let runtime = runtime(Config::default());
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Descriptor::new(ours);
    let driver = executor.spawn(runtime.call(receive(&ours, Vec::with_capacity(8))));
    let other = executor.spawn(runtime.call(receive(&ours, Vec::with_capacity(8))));
    let sleeper = executor.spawn(runtime.call(sleep(Duration::from_millis(5))));
    futures_lite::future::block_on(executor.run(async {
        sleeper.await.unwrap();
        driver.cancel().await;
        let writer = thread::spawn(move || theirs.write_all(b"x").unwrap());
        assert_eq!(other.await.1, b"x");
        writer.join().unwrap();
    }));
}

#[test]
fn drop_of_a_future_beside_a_sleeping_driver_kept_its_socket_open() {
    let runtime = runtime(Config::default());
    let pair = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Descriptor::new(ours), theirs)
    };
    let ((first, _first_end), (second, mut second_end)) = (pair(), pair());
    let count = Arc::new(Count::default());
    let of_driver = Waker::from(Arc::clone(&count));
    let mut driver = runtime.call(receive(&first, Vec::with_capacity(1)));
    let mut other = runtime.call(receive(&second, Vec::with_capacity(1)));
    drop(second);
    let mut poll_driver = || {
        let poll = Pin::new(&mut driver).poll(&mut Context::from_waker(&of_driver));
        assert!(poll.is_pending());
    };
    poll_driver();
    assert!(Pin::new(&mut other).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Submits both, and sleeps.
    poll_driver();
    let before = count.0.load(Relaxed);
    drop(other);
    assert_eq!(count.0.load(Relaxed), before + 1);
    poll_driver();
    assert_eq!(second_end.read(&mut [0; 1]).unwrap(), 0);
}

/// Polls a future of a call that does not end so often, and drops it.
fn poll_and_drop<O: Operation>(mut future: CallFuture<O>, polls: u32) {
    for _ in 0..polls {
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}

/// Of the only future, or of the last one.
#[test]
fn drop_of_a_future_without_another_one_kept_its_socket_open() {
    let pair = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Descriptor::new(ours), theirs)
    };
    // The first poll posts the call, and the second one has it executed.
    for polls in 1..3 {
        let runtime = runtime(Config::default());
        let (ours, mut theirs) = pair();
        let only = runtime.call(receive(&ours, Vec::with_capacity(1)));
        drop(ours);
        poll_and_drop(only, polls);
        assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0, "{polls} polls");
        let ((first, mut first_end), (second, mut second_end)) = (pair(), pair());
        let mut kept = runtime.call(receive(&first, Vec::with_capacity(1)));
        let dropped = runtime.call(receive(&second, Vec::with_capacity(1)));
        drop((first, second));
        assert!(Pin::new(&mut kept).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        poll_and_drop(dropped, polls);
        drop(kept);
        for end in [&mut first_end, &mut second_end] {
            assert_eq!(end.read(&mut [0; 1]).unwrap(), 0, "{polls} polls");
        }
    }
}

#[test]
fn close_of_a_future_without_another_one_was_not_made() {
    let runtime = runtime(Config::default());
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    poll_and_drop(runtime.call(close(Descriptor::new(ours))), 1);
    assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn read_in_the_ring_went_on_after_the_drop_of_its_future() {
    let runtime = runtime(Config::default());
    let (reads, writes) = rustix::pipe::pipe().unwrap();
    let fd = reads.as_raw_fd() as usize;
    let prepare = move |byte: &mut Vec<u8>, _: &mut Scratch| {
        let args = [fd, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
        Call::new(libc::SYS_read, args).pinned(Executor::Ring)
    };
    // SAFETY: the operation owns the byte; the pipe is open until the runtime is dropped.
    let read = unsafe { raw(vec![0_u8; 1], prepare, |_, result, _| result) };
    poll_and_drop(runtime.call(read), 2);
    if runtime.counters().on_ring == 0 {
        return println!("not tested: there is no io_uring");
    }
    rustix::io::write(&writes, b"x").unwrap();
    assert_eq!(rustix::io::ioctl_fionread(&reads).unwrap(), 1);
}

#[test]
fn future_waits_for_room_of_a_peer_that_has_shut_down_its_side() {
    let runtime = runtime(Config::default());
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while let Ok(n) = ours.write(&[7; 4096]) {
        sent += n;
    }
    let ours = Descriptor::new(ours);
    block_on(async {
        let mut room = runtime.call(poll(&ours, Direction::Write));
        let mut waits = [0; 2];
        for waits in &mut waits {
            for _ in 0..50 {
                poll_fn(|context| {
                    assert!(pin!(&mut room).poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                runtime.call(sleep(Duration::ZERO)).await.unwrap();
            }
            *waits = runtime.counters().readiness_waits;
        }
        // It began to wait once.
        assert_eq!(waits[1], waits[0]);
        theirs.read_exact(&mut vec![0; sent]).unwrap();
        let events = room.await.unwrap();
        assert_eq!(events & libc::POLLOUT, libc::POLLOUT, "{events}");
        assert_eq!(runtime.call(send(&ours, b"reply".to_vec())).await.0.unwrap(), 5);
    });
}

/// Runs a task that polls a receive so often, keeps it, and waits for another task, whose call has to end.
fn wait_for_another_task(polls: usize, other_is_first: bool) {
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let runtime = runtime(Config::default());
    local.block_on(&tokio, async {
        let (idle, _peer) = UnixStream::pair().unwrap();
        let idle = Descriptor::new(idle);
        let spawn = || {
            let sleeps = runtime.call(sleep(Duration::from_millis(5)));
            tokio::task::spawn_local(async move { sleeps.await.unwrap() })
        };
        let other = other_is_first.then(spawn);
        let mut kept = pin!(runtime.call(receive(&idle, Vec::with_capacity(1))));
        for _ in 0..polls {
            poll_fn(|context| {
                assert!(kept.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
        other.unwrap_or_else(spawn).await.unwrap();
    });
}

#[test]
fn task_that_polled_a_future_once_kept_others_from_ending() {
    wait_for_another_task(1, false);
}

#[test]
fn driver_that_waited_for_another_task_kept_it_from_ending() {
    for polls in 2..5 {
        for other_is_first in [false, true] {
            wait_for_another_task(polls, other_is_first);
        }
    }
}

/// A free entry goes to the task that has waited for longest. If that one waits for something else, the next one gets it.
#[test]
fn task_that_did_not_use_a_free_entry_kept_the_next_one_waiting() {
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let mut config = Config::with_entries(64);
    config.reserve = 0;
    let runtime = runtime(config);
    local.block_on(&tokio, async {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = Descriptor::new(ours);
        let full: Vec<_> = (0..64)
            .map(|_| {
                let receives = runtime.call(receive(&ours, Vec::with_capacity(1)));
                tokio::task::spawn_local(async move { receives.await.0.unwrap() })
            })
            .collect();
        while runtime.counters().posted < 64 {
            tokio::task::yield_now().await;
        }
        let mut kept = pin!(runtime.call(stat_file(&ours)));
        for _ in 0..3 {
            poll_fn(|context| {
                assert!(kept.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
        let stats = runtime.call(stat_file(&ours));
        let next = tokio::task::spawn_local(async move { stats.await.unwrap() });
        // It is polled, and waits for an entry.
        let throttled = runtime.counters().throttled;
        while runtime.counters().throttled == throttled {
            tokio::task::yield_now().await;
        }
        theirs.write_all(b"x").unwrap();
        next.await.unwrap();
        full.into_iter().for_each(|task| task.abort());
    });
}
