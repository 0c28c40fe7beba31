//! Dynamic integrated layer processing against separate passes and loops integrated by hand.

use super::super::Experiment;

/// See the module.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    id: "ash-dilp",
    title: "pipes composed at run time: in one loop, in separate passes, and integrated by hand",
    source: "ASH, section 6.3.1, table 6-5",
    own_network: false,
    run,
};

#[cfg(not(target_arch = "x86_64"))]
fn run(_: &super::super::Context) -> Result<crate::outcome::Outcome, crate::failure::Failure> {
    let text = "the loop that is integrated by hand is written for x86-64";
    Err(crate::failure::Failure::Run(text.to_owned()))
}

#[cfg(target_arch = "x86_64")]
use x86_64::run;

#[cfg(target_arch = "x86_64")]
#[path = "../../../../crates/ash-sandbox/benches/shared/mod.rs"]
mod shared;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::hint::black_box;
    use std::time::Instant;

    use ash_sandbox::ilp::{Gauge, Mode, Pipe, Prefer, byte_swap, checksum, copy};

    use super::super::super::Context;
    use super::super::{Contestant, bars, flush, ns_each, ratio, run_rounds};
    use super::EXPERIMENT;
    use super::shared::{Buffers, SIZES, Separate, by_hand, compile};
    use crate::failure::Failure;
    use crate::measure::{OtherPrograms, SERVER_CORE, pin};
    use crate::outcome::Outcome;

    const QUICK: usize = 21;
    const FULL: usize = 401;
    /// The bytes of the messages of a contestant in one round.
    const ROUND_BYTES: usize = 1 << 19;
    /// Messages of a contestant whose buffers are flushed from the caches.
    const FLUSHED: usize = 64;

    const FUSED: &str = "fused";
    const GENERATED: &str = "generated";
    const HAND: &str = "by hand";
    const SEPARATE: &str = "separate";
    const SEPARATE_GENERATED: &str = "separate, generated";
    const UNCACHED: &str = "separate, uncached";
    const FUSED_UNCACHED: &str = "fused, uncached";

    pub(super) fn run(cx: &Context) -> Result<Outcome, Failure> {
        if !std::arch::is_x86_feature_detected!("avx2") {
            let text = "the loop that is integrated by hand needs AVX2";
            return Err(Failure::Run(text.to_owned()));
        }
        pin(&[SERVER_CORE])?;
        let others = OtherPrograms::watch()?;
        let mut outcome = Outcome::new(EXPERIMENT.id);
        let rounds = if cx.quick { QUICK } else { FULL };
        for bytes in SIZES {
            compare::<true>(cx, rounds, bytes, &mut outcome)?;
        }
        compare::<false>(cx, rounds, 4096, &mut outcome)?;
        outcome.notes.extend(others.note()?);
        outcome.notes.push(
            "A message and its destination are in the cache, except for the contestants that are \
             uncached: their buffers are flushed before each pass, as in the thesis; the flushes are not \
             in the times. The loop by hand has vectors of the same width (AVX2), four at a time."
                .to_owned(),
        );
        outcome.notes.push(
            "`fused` is what a list gets by default: these lists have kernels that were compiled with the crate, with \
             vectors. `generated` is the loop that is generated at run time for a list that has no kernel, with \
             vectors of 16 bytes here; `generated_over_separate_generated` compares it with such loops for each pipe."
                .to_owned(),
        );
        Ok(outcome)
    }

    /// Compares the methods: copy and checksum, and with `SWAP` a byte swap of 32-bit words.
    fn compare<const SWAP: bool>(
        cx: &Context,
        rounds: usize,
        bytes: usize,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let turns = (ROUND_BYTES / bytes).max(1);
        let fused = |name, prefer| {
            let (ilp, mut state) = compile(pipes::<SWAP>(), Mode::Write, prefer);
            let mut buffers = Buffers::new(bytes);
            Contestant::new(name, move || {
                let (source, destination) = buffers.split();
                Ok(ns_each(turns, || {
                    state.reset();
                    ilp.write(&mut state, black_box(source), destination).expect("there is room");
                    black_box((&mut state, &mut *destination));
                }))
            })
        };
        let mut all = vec![fused(FUSED, Prefer::Fastest), fused(GENERATED, Prefer::Generated)];
        let mut buffers = Buffers::new(bytes);
        all.push(Contestant::new(HAND, move || {
            let (source, destination) = buffers.split();
            Ok(ns_each(turns, || {
                // SAFETY: `run` has looked for AVX2.
                black_box(unsafe { by_hand::<SWAP>(black_box(source), destination) });
                black_box(&mut *destination);
            }))
        }));
        for (name, prefer) in [(SEPARATE, Prefer::Fastest), (SEPARATE_GENERATED, Prefer::Generated)]
        {
            let (mut passes, mut buffers) = (Separate::new(prefer), Buffers::new(bytes));
            all.push(Contestant::new(name, move || {
                let (source, destination) = buffers.split();
                Ok(ns_each(turns, || {
                    passes.copy(black_box(source), destination);
                    passes.checksum(destination);
                    if SWAP {
                        passes.swap(destination);
                    }
                    black_box(&mut *destination);
                }))
            }));
        }
        if bytes == 4096 {
            all.extend(uncached::<SWAP>(bytes));
        }
        run_rounds(cx, rounds, &mut all)?;
        let what = if SWAP { "copy, checksum and byte swap" } else { "copy and checksum" };
        let figure = format!("Time of {what}, {bytes} bytes");
        bars(outcome, &figure, "ns", "measured", &all);
        if SWAP {
            for (name, loop_of) in [("fused", FUSED), ("generated", GENERATED)] {
                let name = format!("{name}_over_hand_{bytes}");
                ratio(outcome, &name, "ilp", &all, (HAND, loop_of));
            }
        }
        if bytes == 4096 {
            let pipes = if SWAP { "" } else { "_two" };
            for (name, kind, separate, fused) in [
                ("fused", "", SEPARATE, FUSED),
                ("fused", "_uncached", UNCACHED, FUSED_UNCACHED),
                ("generated", "", SEPARATE, GENERATED),
                ("generated", "_generated", SEPARATE_GENERATED, GENERATED),
            ] {
                let name = format!("{name}_over_separate{pipes}{kind}");
                ratio(outcome, &name, "ilp", &all, (separate, fused));
            }
            let paper = if SWAP {
                "5.8 MB/s separate, 5.1 uncached, 8.3 integrated in C, 8.2 by dynamic ILP (1.41 and 1.61 \
                 times the speed of separate passes)"
            } else {
                "11 MB/s separate, 10 uncached, 16 integrated in C, 17 by dynamic ILP"
            };
            outcome.paper(&figure, &format!("ASH, table 6-5, a DECstation 5000/240: {paper}."));
        }
        Ok(())
    }

    fn pipes<const SWAP: bool>() -> Vec<Pipe> {
        let mut pipes = vec![copy::pipe(), checksum::pipe()];
        pipes.extend(SWAP.then(|| byte_swap::pipe(Gauge::Bits32)));
        pipes
    }

    /// Passes over messages that have left the cache.
    fn uncached<const SWAP: bool>(bytes: usize) -> [Contestant<'static>; 2] {
        let (mut passes, mut buffers) = (Separate::new(Prefer::Fastest), Buffers::new(bytes));
        let separate = Contestant::new(UNCACHED, move || {
            let (source, destination) = buffers.split();
            let mut ns = 0.0;
            for _ in 0..FLUSHED {
                for pass in 0..2 + usize::from(SWAP) {
                    flush(source);
                    flush(destination);
                    let start = Instant::now();
                    match pass {
                        0 => passes.copy(black_box(source), destination),
                        1 => passes.checksum(destination),
                        _ => passes.swap(destination),
                    }
                    black_box(&mut *destination);
                    ns += start.elapsed().as_nanos() as f64;
                }
            }
            Ok(ns / FLUSHED as f64)
        });
        let (ilp, mut state) = compile(pipes::<SWAP>(), Mode::Write, Prefer::Fastest);
        let mut buffers = Buffers::new(bytes);
        let fused = Contestant::new(FUSED_UNCACHED, move || {
            let (source, destination) = buffers.split();
            let mut ns = 0.0;
            for _ in 0..FLUSHED {
                flush(source);
                flush(destination);
                ns += ns_each(1, || {
                    state.reset();
                    ilp.write(&mut state, black_box(source), destination).expect("there is room");
                    black_box((&mut state, &mut *destination));
                });
            }
            Ok(ns / FLUSHED as f64)
        });
        [separate, fused]
    }
}
