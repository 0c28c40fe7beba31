//! Ways to find out whether a part of a file is in the page cache, for parts that are.

use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use io_uring::{IoUring, opcode, types};
use rustix::io::{ReadWriteFlags, preadv2};
use shared_ring::author::System;
use shared_ring::nonblocking::FileRange;
use shared_ring::{Fd, Linux};

const LENGTHS: [(&str, usize); 2] = [("64 KiB", 64 << 10), ("256 KiB", 256 << 10)];

/// Number of bytes that preadv2(2) copies at a time, into memory that remains in the processor's caches.
const PIECE: usize = 32 << 10;

/// The number of cachestat(2), which libc lacks, on most architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// Reads a part, unless that would block.
fn read_all(file: &File, len: usize, piece: &mut [u8; PIECE]) {
    for at in (0..len).step_by(PIECE) {
        let mut into = [IoSliceMut::new(piece)];
        let read = preadv2(file, &mut into, at as u64, ReadWriteFlags::NOWAIT);
        assert_eq!(read, Ok(PIECE));
    }
}

/// Returns the number of pages of a part that are cached; 0 if the kernel cannot tell.
fn cached_pages(file: &File, len: usize) -> u64 {
    let (range, mut counts) = ([0, len as u64], [0_u64; 5]);
    // SAFETY: the kernel reads a `cachestat_range`, two integers, and writes a `cachestat`, five.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    if result == 0 { counts[0] } else { 0 }
}

/// Reads a part by a ring, and waits for that.
fn read_by_ring(ring: &mut IoUring, file: &File, into: &mut [u8]) {
    let (fd, len) = (types::Fd(file.as_raw_fd()), into.len() as u32);
    let read = opcode::Read::new(fd, into.as_mut_ptr(), len).offset(0).build();
    // SAFETY: the file is open, and the memory valid, until the read ends below.
    unsafe { ring.submission().push(&read) }.expect("the queue has room");
    ring.submit_and_wait(1).expect("the ring can be entered");
    let done = ring.completion().next().expect("a read was waited for");
    assert_eq!(done.result(), len.cast_signed());
}

fn find(c: &mut Criterion) {
    let mut group = c.benchmark_group("find a cached part");
    for (name, len) in LENGTHS {
        let mut file = tempfile::tempfile().expect("a file can be created");
        file.write_all(&vec![7; len]).expect("a file can be written");
        file.sync_all().expect("a file can be synchronized");
        // SAFETY: the file is open until the end of the measurement.
        let fd = unsafe { Fd::lent(file.as_fd()) };
        let part = FileRange { file: fd, offset: 0, len: len as u32 };
        let mut linux = Linux::default();
        if linux.is_cold(part) {
            eprintln!("{name} is skipped: the file system of temporary files has no RWF_NOWAIT");
            continue;
        }
        if cached_pages(&file, len) == 0 {
            eprintln!("{name} is skipped: this kernel has no cachestat(2)");
            continue;
        }
        let mut piece = [0; PIECE];
        group.bench_function(BenchmarkId::new("preadv2 of all bytes", name), |b| {
            b.iter(|| read_all(&file, len, &mut piece));
        });
        group.bench_function(BenchmarkId::new("cachestat", name), |b| {
            b.iter(|| cached_pages(&file, len));
        });
        // What a server does.
        let both = BenchmarkId::new("cachestat, and preadv2 of two bytes", name);
        group.bench_function(both, |b| b.iter(|| linux.is_cold(part)));
        match IoUring::new(8) {
            Ok(mut ring) => {
                let mut bytes = vec![0; len];
                group.bench_function(BenchmarkId::new("read of the ring", name), |b| {
                    b.iter(|| read_by_ring(&mut ring, &file, &mut bytes));
                });
            }
            Err(reason) => eprintln!("the ring is skipped: {reason}"),
        }
    }
    group.finish();
}

criterion_group!(benches, find);
criterion_main!(benches);
