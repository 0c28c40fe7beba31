//! Measures what fusing is worth on this machine, and what composing at run time costs beside a loop
//! that was integrated by hand (table 6-5 of the thesis).
//!
//!     cargo run --release -p ash-sandbox --example ilp_ratios
//!
//! What is compared runs in turn, round by round, and the medians of the rounds' ratios are printed; so
//! whatever else the machine does hits all.

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("the loop that was integrated by hand is written for x86-64");
}

#[cfg(target_arch = "x86_64")]
#[path = "../benches/shared/mod.rs"]
mod shared;

#[cfg(target_arch = "x86_64")]
fn main() {
    measure::main();
}

#[cfg(target_arch = "x86_64")]
mod measure {
    use std::hint::black_box;
    use std::time::Instant;

    use ash_sandbox::ilp::{Gauge, Mode, Pipe, Prefer, byte_swap, checksum, copy};

    use super::shared::{Buffers, SIZES, Separate, by_hand, compile};

    const ROUNDS: usize = 401;
    /// What a contestant takes in one round, in bytes of messages.
    const ROUND_BYTES: usize = 1 << 20;

    pub(super) fn main() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            eprintln!("the loop that was integrated by hand needs AVX2");
            return;
        }
        println!(
            "GB/s: medians of {ROUNDS} rounds; ratios: medians of the rounds' ratios, quartiles"
        );
        let two = || vec![copy::pipe(), checksum::pipe()];
        compare::<false>("copy, checksum", two, Separate::copy_checksum);
        let three = || vec![copy::pipe(), checksum::pipe(), byte_swap::pipe(Gauge::Bits32)];
        compare::<true>("copy, checksum, byte swap 32", three, Separate::copy_checksum_swap);
    }

    fn compare<const SWAP: bool>(
        title: &str,
        pipes: impl Fn() -> Vec<Pipe>,
        separate: impl Fn(&mut Separate, &[u8], &mut [u8]),
    ) {
        println!("\n{title}");
        println!(
            "{:>6} {:>7} {:>7} {:>9} {:>9}   fused_over_separate   fused_over_hand   generated_over_hand",
            "bytes", "fused", "hand", "separate", "generated"
        );
        let (ilp, mut state) = compile(pipes(), Mode::Write, Prefer::Fastest);
        let (code, mut code_state) = compile(pipes(), Mode::Write, Prefer::Generated);
        let mut passes = Separate::new();
        for size in SIZES {
            let mut buffers = Buffers::new(size);
            let (source, destination) = buffers.split();
            let turns = ROUND_BYTES / size;
            let mut seconds: [Vec<f64>; 4] = Default::default();
            for round in 0..ROUNDS {
                for turn in 0..4 {
                    // Each is first in a quarter of the rounds.
                    let which = (turn + round) % 4;
                    let (from, to) = (black_box(source), &mut destination[..]);
                    let begin = Instant::now();
                    for _ in 0..turns {
                        match which {
                            0 => {
                                state.reset();
                                ilp.write(&mut state, from, to).expect("there is room");
                                black_box(&mut state);
                            }
                            1 => {
                                // SAFETY: `main` has looked for AVX2.
                                black_box(unsafe { by_hand::<SWAP>(from, to) });
                            }
                            2 => separate(&mut passes, from, to),
                            _ => {
                                code_state.reset();
                                code.write(&mut code_state, from, to).expect("there is room");
                                black_box(&mut code_state);
                            }
                        }
                        black_box(&mut *to);
                    }
                    seconds[which].push(begin.elapsed().as_secs_f64());
                }
            }
            let speed = |which: usize| (turns * size) as f64 / quartiles(&seconds[which])[1] / 1e9;
            let ratio = |of: usize, over: usize| {
                let ratios: Vec<f64> =
                    seconds[over].iter().zip(&seconds[of]).map(|(over, of)| over / of).collect();
                let [low, median, high] = quartiles(&ratios);
                format!("{median:.2} ({low:.2} to {high:.2})")
            };
            println!(
                "{size:>6} {:>7.1} {:>7.1} {:>9.1} {:>9.1}   {:<20}  {:<16}  {}",
                speed(0),
                speed(1),
                speed(2),
                speed(3),
                ratio(0, 2),
                ratio(0, 1),
                ratio(3, 1),
            );
        }
    }

    fn quartiles(values: &[f64]) -> [f64; 3] {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        [1, 2, 3].map(|quarter| sorted[(sorted.len() - 1) * quarter / 4])
    }
}
