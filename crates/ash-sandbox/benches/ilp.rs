//! Pipes fused, one after another, and integrated by hand; and what it costs to compile a list.
//!
//! `cargo lab run ash-dilp` compares the same in turns, for a machine that others use too.

#[cfg(target_arch = "x86_64")]
mod shared;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::hint::black_box;

    use ash_sandbox::ilp::{
        Gauge, Mode, Pipe, PipeList, Prefer, byte_swap, chacha20, checksum, copy, count, crc32c,
        search, xor,
    };
    use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};

    use super::shared::{Buffers, SIZES, Separate, by_hand, compile};

    fn two() -> Vec<Pipe> {
        vec![copy::pipe(), checksum::pipe()]
    }

    fn three() -> Vec<Pipe> {
        vec![copy::pipe(), checksum::pipe(), byte_swap::pipe(Gauge::Bits32)]
    }

    /// The methods of table 6-5.
    fn methods(c: &mut Criterion) {
        table::<false>(c, "copy, checksum", two);
        table::<true>(c, "copy, checksum, byte swap", three);
    }

    fn table<const SWAP: bool>(c: &mut Criterion, name: &str, pipes: impl Fn() -> Vec<Pipe>) {
        let mut group = c.benchmark_group(name);
        for size in SIZES {
            let mut buffers = Buffers::new(size);
            let (source, destination) = buffers.split();
            group.throughput(Throughput::Bytes(size as u64));
            for (execution, prefer) in [
                ("fused", Prefer::Fastest),
                ("fused, portable", Prefer::PortableKernel),
                ("fused, generated", Prefer::Generated),
                ("fused, interpreted", Prefer::Interpreted),
            ] {
                let (ilp, mut state) = compile(pipes(), Mode::Write, prefer);
                group.bench_function(BenchmarkId::new(execution, size), |b| {
                    b.iter(|| {
                        state.reset();
                        ilp.write(&mut state, black_box(source), destination).expect("room");
                        black_box(&mut *destination);
                    });
                });
            }
            let mut passes = Separate::new(Prefer::Fastest);
            group.bench_function(BenchmarkId::new("separate", size), |b| {
                b.iter(|| {
                    passes.copy(black_box(source), destination);
                    passes.checksum(destination);
                    if SWAP {
                        passes.swap(destination);
                    }
                    black_box(&mut *destination);
                });
            });
            if std::arch::is_x86_feature_detected!("avx2") {
                group.bench_function(BenchmarkId::new("by hand", size), |b| {
                    b.iter(|| {
                        // SAFETY: the processor has AVX2.
                        black_box(unsafe { by_hand::<SWAP>(black_box(source), destination) });
                        black_box(&mut *destination);
                    });
                });
            }
        }
    }

    /// Each pipe alone, over a page.
    fn pipes(c: &mut Criterion) {
        let mut group = c.benchmark_group("pipe");
        let mut buffers = Buffers::new(4096);
        let (source, destination) = buffers.split();
        group.throughput(Throughput::Bytes(source.len() as u64));
        let all = [
            copy::pipe(),
            count::pipe(),
            checksum::pipe(),
            crc32c::pipe(),
            search::pipe(0xff),
            xor::pipe([0x5a; 8]),
            byte_swap::pipe(Gauge::Bits16),
            byte_swap::pipe(Gauge::Bits32),
            byte_swap::pipe(Gauge::Bits64),
            chacha20::pipe(),
        ];
        for pipe in all {
            for (execution, prefer) in
                [("kernel", Prefer::Kernel), ("generated", Prefer::Generated)]
            {
                let mut list = PipeList::new();
                let id = list.add(pipe.clone()).expect("a short list");
                let ilp = list.compile_with(Mode::Write, prefer).expect("both are there");
                let mut state = ilp.state();
                group.bench_function(BenchmarkId::new(pipe.name(), execution), |b| {
                    b.iter(|| {
                        state.reset();
                        // Fails for all but one, and is part of what a message costs for that.
                        let _ = state.export_key(id, &[1; 32], &[2; 12], 1);
                        ilp.write(&mut state, black_box(source), destination).expect("room");
                        black_box(&mut *destination);
                    });
                });
            }
        }
    }

    fn compiling(c: &mut Criterion) {
        let mut list = PipeList::new();
        for pipe in three() {
            list.add(pipe).expect("a short list");
        }
        for (execution, prefer) in [("kernel", Prefer::Kernel), ("generated", Prefer::Generated)] {
            c.bench_function(&format!("compile three pipes, {execution}"), |b| {
                b.iter(|| list.compile_with(Mode::Write, prefer).expect("both are there"));
            });
        }
    }

    criterion_group!(benches, methods, pipes, compiling);
}

#[cfg(target_arch = "x86_64")]
criterion::criterion_main!(x86_64::benches);

#[cfg(not(target_arch = "x86_64"))]
fn main() {}
