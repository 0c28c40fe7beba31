//! A switch between green threads, beside one between threads of the kernel.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use flexsc_rt::green::{Config, Threads, call, yield_now};
use flexsc_rt::{Call, Executor, operations};

/// A green thread that repeats its work as often as it is asked to.
fn in_green_thread(c: &mut Criterion, name: &str, threads: u64, work: fn()) {
    c.bench_function(name, |b| {
        b.iter_custom(|iterations| {
            let scheduler = Threads::new(&Config::default()).expect("pages");
            let left = Rc::new(Cell::new(threads));
            let begin = Rc::new(RefCell::new(None));
            for _ in 0..threads {
                let (left, begin) = (Rc::clone(&left), Rc::clone(&begin));
                let repeats = move || {
                    // The clock starts when all have begun.
                    left.set(left.get() - 1);
                    if left.get() == 0 {
                        *begin.borrow_mut() = Some(Instant::now());
                    }
                    for _ in 0..iterations.div_ceil(threads) {
                        work();
                    }
                };
                scheduler.spawn(repeats).expect("room");
            }
            scheduler.run().expect("they end");
            let begin = begin.borrow().expect("all have begun");
            begin.elapsed()
        });
    });
}

fn null_call() {
    let prepare =
        |_: &mut (), _: &mut _| Call::bounded(libc::SYS_getppid, [0; 6]).pinned(Executor::InPlace);
    // SAFETY: a call without arguments.
    let null = unsafe { operations::raw((), prepare, |(), result, _| result) };
    let _ = black_box(call(null));
}

fn green(c: &mut Criterion) {
    in_green_thread(c, "green switch, 2 threads", 2, yield_now);
    in_green_thread(c, "green switch, 1000 threads", 1_000, yield_now);
    in_green_thread(c, "green null call, 1 thread", 1, null_call);
    in_green_thread(c, "green null call, 64 threads", 64, null_call);
}

/// Two threads wake each other in turn; each time, one waits and the other goes on.
fn of_the_kernel(c: &mut Criterion) {
    c.bench_function("kernel switch, 2 threads", |b| {
        b.iter_custom(|iterations| {
            let ((to_other, of_this), (to_this, of_other)) = (sync_channel(0), sync_channel(0));
            let other = thread::spawn(move || {
                for token in of_this {
                    to_this.send(token).expect("the other waits");
                }
            });
            let begin = Instant::now();
            // Each round has two switches.
            for token in 0..iterations.div_ceil(2) {
                to_other.send(token).expect("the other waits");
                of_other.recv().expect("it answers");
            }
            let elapsed = begin.elapsed();
            drop(to_other);
            other.join().expect("it ends");
            elapsed
        });
    });
    c.bench_function("kernel yield, 2 threads on a core", |b| {
        b.iter_custom(|iterations| {
            let yields = move || {
                let mut core = rustix::thread::CpuSet::new();
                core.set(0);
                rustix::thread::sched_setaffinity(None, &core).expect("core 0");
                for _ in 0..iterations.div_ceil(2) {
                    thread::yield_now();
                }
            };
            let begin = Instant::now();
            let both = [thread::spawn(yields), thread::spawn(yields)];
            both.into_iter().for_each(|thread| thread.join().expect("it ends"));
            begin.elapsed()
        });
    });
}

criterion_group!(benches, green, of_the_kernel);
criterion_main!(benches);
