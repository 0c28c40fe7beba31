//! The baselines of integrated loops: separate passes, and loops that were integrated by hand, with
//! vectors of the same width.

#![allow(unreachable_pub, reason = "shared by a benchmark and the lab")]

use std::arch::x86_64::*;

use ash_sandbox::ilp::{Gauge, Ilp, Mode, Pipe, PipeList, Prefer, State, byte_swap, checksum};

/// The sizes of messages: an acknowledgement, a small request, a frame, a page, a large read.
pub const SIZES: [usize; 5] = [40, 256, 1500, 4096, 65536];

/// Vectors that the loop by hand takes at a time, as many as the kernels.
const VECTORS: usize = 4;

/// Compiles a list.
pub fn compile(pipes: impl IntoIterator<Item = Pipe>, mode: Mode, prefer: Prefer) -> (Ilp, State) {
    let mut list = PipeList::new();
    for pipe in pipes {
        list.add(pipe).expect("a short list");
    }
    let ilp = list.compile_with(mode, prefer).expect("a list that this execution has");
    let state = ilp.state();
    (ilp, state)
}

/// A message and its destination, both at the beginning of a cache line.
///
/// They are half a page apart, modulo pages: processors take a load for one that depends on a store
/// before it when the addresses agree in the low 12 bits, and where an allocator puts two buffers would
/// decide what is measured.
pub struct Buffers {
    memory: Vec<u8>,
    size: usize,
}

impl Buffers {
    pub fn new(size: usize) -> Buffers {
        let memory = (0..2 * size + 4 * 4096).map(|byte| (byte * 7) as u8).collect();
        Buffers { memory, size }
    }

    pub fn split(&mut self) -> (&[u8], &mut [u8]) {
        let (size, begin) = (self.size, self.memory.as_ptr().align_offset(4096));
        let second = begin + size.next_multiple_of(4096) + 2048;
        let (first, second) = self.memory.split_at_mut(second);
        (&first[begin..begin + size], &mut second[..size])
    }
}

/// The same as three loops: copy, then checksum, then swap in place.
pub struct Separate {
    checksum: (Ilp, State),
    swap: (Ilp, State),
}

impl Separate {
    pub fn new(prefer: Prefer) -> Separate {
        Separate {
            checksum: compile([checksum::pipe()], Mode::Read, prefer),
            swap: compile([byte_swap::pipe(Gauge::Bits32)], Mode::Write, prefer),
        }
    }

    pub fn copy(&mut self, source: &[u8], destination: &mut [u8]) {
        destination.copy_from_slice(source);
    }

    pub fn checksum(&mut self, destination: &[u8]) {
        let (ilp, state) = &mut self.checksum;
        state.reset();
        ilp.read(state, destination).expect("a loop that reads");
    }

    pub fn swap(&mut self, destination: &mut [u8]) {
        let (ilp, state) = &mut self.swap;
        state.reset();
        ilp.write_in_place(state, destination).expect("a loop that writes");
    }
}

/// Copies, adds 16-bit words and, if `SWAP`, swaps the bytes of 32-bit words, written by hand
/// for just this: AVX2, sums of 32-bit words in lanes of 64 bits, four vectors at a time.
///
/// # Safety
///
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub unsafe fn by_hand<const SWAP: bool>(source: &[u8], destination: &mut [u8]) -> u64 {
    assert!(destination.len() >= source.len(), "no room");
    let order = _mm256_broadcastsi128_si256(_mm_set_epi8(
        12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3,
    ));
    let low = _mm256_set1_epi64x(0xffff_ffff);
    let (mut even, mut odd) =
        ([_mm256_setzero_si256(); VECTORS], [_mm256_setzero_si256(); VECTORS]);
    let (mut from, mut to) = (source.as_ptr(), destination.as_mut_ptr());
    let mut vector = |n: usize, from: *const u8, to: *mut u8| {
        // SAFETY: the loops below stay within both slices.
        unsafe {
            let vector = _mm256_loadu_si256(from.add(n * 32).cast());
            even[n] = _mm256_add_epi64(even[n], _mm256_and_si256(vector, low));
            odd[n] = _mm256_add_epi64(odd[n], _mm256_srli_epi64::<32>(vector));
            let vector = if SWAP { _mm256_shuffle_epi8(vector, order) } else { vector };
            _mm256_storeu_si256(to.add(n * 32).cast(), vector);
        }
    };
    let vectors = source.len() / 32;
    for _ in 0..vectors / VECTORS {
        for n in 0..VECTORS {
            vector(n, from, to);
        }
        (from, to) = (from.wrapping_add(VECTORS * 32), to.wrapping_add(VECTORS * 32));
    }
    for n in 0..vectors % VECTORS {
        vector(n, from, to);
    }
    let mut sums = _mm256_setzero_si256();
    for n in 0..VECTORS {
        sums = _mm256_add_epi64(sums, _mm256_add_epi64(even[n], odd[n]));
    }
    let sums = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let mut sum = (_mm_cvtsi128_si64(sums) as u64) + (_mm_extract_epi64::<1>(sums) as u64);
    let (source, destination) = (&source[vectors * 32..], &mut destination[vectors * 32..]);
    let mut words = source.chunks_exact(4);
    let mut places = destination.chunks_exact_mut(4);
    for (word, place) in (&mut words).zip(&mut places) {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        sum += u64::from(word);
        let word = if SWAP { word.swap_bytes() } else { word };
        place.copy_from_slice(&word.to_le_bytes());
    }
    let rest = words.remainder();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_le_bytes(last));
    let at = source.len() - rest.len();
    destination[at..source.len()].copy_from_slice(rest);
    sum
}
