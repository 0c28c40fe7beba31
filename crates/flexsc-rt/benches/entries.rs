//! The way of an entry through each executor, of a wait, and of a future.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flexsc_rt::{Call, Config, Executor, Pages, Runtime, operations};

fn null() -> Call {
    Call::bounded(libc::SYS_getppid, [0; 6])
}

/// Posts a batch, and takes its completions. Other calls may be outstanding.
fn batch(pages: &mut Pages, call: &Call, depth: usize) {
    let others = pages.outstanding();
    for _ in 0..depth {
        // SAFETY: a null call.
        unsafe { pages.post(call) }.expect("room");
    }
    while pages.outstanding() > others {
        pages.wait(None).expect("a completion");
        while let Some(completion) = pages.next() {
            let _ = black_box(completion);
        }
    }
}

fn executors(c: &mut Criterion) {
    let mut group = c.benchmark_group("null call");
    for depth in [1, 8, 64, 512] {
        group.throughput(Throughput::Elements(depth as u64));
        group.bench_function(BenchmarkId::new("direct", depth), |b| {
            b.iter(|| {
                for _ in 0..depth {
                    // SAFETY: a null call.
                    black_box(unsafe { libc::syscall(libc::SYS_getppid) });
                }
            });
        });
        for (name, call) in [
            ("in place", null().pinned(Executor::InPlace)),
            // close(2) of no descriptor, for which the ring has an operation.
            (
                "ring",
                Call::bounded(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]).pinned(Executor::Ring),
            ),
            ("thread", null().pinned(Executor::Threads)),
            ("shared", null().pinned(Executor::Shared)),
            ("adaptive", null()),
        ] {
            let mut pages = Pages::register(&Config::default()).expect("pages");
            group.bench_function(BenchmarkId::new(name, depth), |b| {
                b.iter(|| batch(&mut pages, &call, depth));
            });
        }
        let runtime = Runtime::new(&Config::default()).expect("pages");
        let executor = async_executor::LocalExecutor::new();
        group.bench_function(BenchmarkId::new("future", depth), |b| {
            b.iter(|| {
                let tasks: Vec<_> = (0..depth)
                    .map(|_| {
                        // SAFETY: a null call.
                        let null = unsafe { operations::raw((), |_, _| null(), |(), r, _| r) };
                        executor.spawn(runtime.call(null))
                    })
                    .collect();
                futures_lite::future::block_on(executor.run(async {
                    for task in tasks {
                        black_box(task.await.expect("a number"));
                    }
                }));
            });
        });
    }
    group.finish();
}

/// A call for which the ring has an operation, by each executor.
fn writes(c: &mut Criterion) {
    let null = std::fs::File::options().write(true).open("/dev/null").expect("/dev/null");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&null) as usize;
    let write = Call::bounded(libc::SYS_write, [fd, b"x".as_ptr() as usize, 1, 0, 0, 0]);
    let mut group = c.benchmark_group("write to /dev/null");
    for depth in [1, 64] {
        group.throughput(Throughput::Elements(depth as u64));
        for (name, call) in [
            ("in place", write.pinned(Executor::InPlace)),
            ("thread", write.pinned(Executor::Threads)),
            ("ring", write.pinned(Executor::Ring)),
            ("adaptive", write),
        ] {
            let mut pages = Pages::register(&Config::default()).expect("pages");
            group.bench_function(BenchmarkId::new(name, depth), |b| {
                b.iter(|| batch(&mut pages, &call, depth));
            });
        }
    }
    group.finish();
}

/// The cost of a completion does not depend on the calls outstanding: in place, by the ring, by a syscall thread, and of a
/// wait for a descriptor that is ready.
fn outstanding(c: &mut Criterion) {
    let mut group = c.benchmark_group("completion with calls outstanding");
    for outstanding in [100, 10_000] {
        let (reads, _writes) = std::io::pipe().expect("a pipe");
        let mut byte = [0; 1];
        let mut pages = Pages::register(&Config::with_entries(10_200)).expect("pages");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reads);
        let args = [fd as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
        let waits = flexsc_rt::Waits::ReadyThenBlocks(fd, flexsc_rt::Direction::Read);
        for _ in 0..outstanding {
            // SAFETY: the byte outlives the pages, which are dropped first.
            unsafe { pages.post(&Call::new(libc::SYS_read, args).waits(waits)) }.expect("room");
        }
        pages.wait(Some(Duration::ZERO)).expect("nothing");
        let (readable, mut writes) = std::io::pipe().expect("a pipe");
        std::io::Write::write_all(&mut writes, b"x").expect("room");
        let readable = std::os::fd::AsRawFd::as_raw_fd(&readable);
        let null_file = std::fs::File::options().write(true).open("/dev/null").expect("/dev/null");
        let null_fd = std::os::fd::AsRawFd::as_raw_fd(&null_file) as usize;
        let write = Call::bounded(libc::SYS_write, [null_fd, b"x".as_ptr() as usize, 1, 0, 0, 0]);
        for (name, depth, call) in [
            ("in place", 1, null().pinned(Executor::InPlace)),
            ("ring", 64, write.pinned(Executor::Ring)),
            ("thread", 64, null().pinned(Executor::Threads)),
            ("readiness", 1, Call::until_ready(readable, flexsc_rt::Direction::Read)),
        ] {
            group.throughput(Throughput::Elements(depth as u64));
            group.bench_function(BenchmarkId::new(name, outstanding), |b| {
                b.iter(|| batch(&mut pages, &call, depth));
            });
        }
        drop(pages);
    }
    group.finish();
}

/// A wait with nothing to do, and one that looks for ready descriptors.
fn wait(c: &mut Criterion) {
    let mut group = c.benchmark_group("wait");
    let mut pages = Pages::register(&Config::default()).expect("pages");
    group.bench_function("without calls", |b| b.iter(|| pages.wait(Some(Duration::ZERO))));
    let (reads, _writes) = std::io::pipe().expect("a pipe");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&reads);
    let waits = flexsc_rt::Waits::AfterReady(fd, flexsc_rt::Direction::Read);
    // SAFETY: a null call.
    unsafe { pages.post(&null().waits(waits)) }.expect("room");
    group.bench_function("for a descriptor", |b| b.iter(|| pages.wait(Some(Duration::ZERO))));
    group.finish();
}

criterion_group!(benches, executors, writes, outstanding, wait);
criterion_main!(benches);
