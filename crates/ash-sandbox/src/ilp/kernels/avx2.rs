//! Vectors of AVX2.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::fused::fused;
use super::instances::Instances;
use super::vector::{
    BLOCK_VECTORS, Crc, Function, Registers, Slots, Stage, Sum, Swapped, VECTOR_BYTES, Vector,
};
use crate::ilp::castagnoli::power_of_x;

// SAFETY, for all of this file: the functions are unsafe as they need AVX2, SSE 4.2 and PCLMULQDQ, those
// of `DotSum` AVX-VNNI too; they are called by `run` and `run_vnni` only, which are called after these
// were detected. They are always inlined into them, and so compiled for these features. Where there is
// more to say it is said.

/// A vector, and the way in which its words are added.
pub(crate) struct Avx2<S>(__m256i, PhantomData<S>);

impl<S> Clone for Avx2<S> {
    #[inline(always)]
    fn clone(&self) -> Avx2<S> {
        *self
    }
}

impl<S> Copy for Avx2<S> {}

impl<S> Avx2<S> {
    #[inline(always)]
    fn new(vector: __m256i) -> Avx2<S> {
        Avx2(vector, PhantomData)
    }
}

impl<S: Sum<Avx2<S>>> Vector for Avx2<S> {
    type Sum = S;
    type Crc = Avx2Crc;
    type Order = __m256i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Avx2<S> {
        // SAFETY: the caller says that 32 bytes can be read.
        Avx2::new(unsafe { _mm256_loadu_si256(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller says that 32 bytes can be written.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) };
    }
    #[inline(always)]
    unsafe fn splat(word: u64) -> Avx2<S> {
        // SAFETY: see above.
        Avx2::new(unsafe { _mm256_set1_epi64x(word as i64) })
    }
    #[inline(always)]
    unsafe fn xor(self, other: Avx2<S>) -> Avx2<S> {
        // SAFETY: see above.
        Avx2::new(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn order(swapped: &Swapped) -> __m256i {
        // SAFETY: see above; an order has 16 bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(swapped.order.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn swap(self, order: __m256i) -> Avx2<S> {
        // SAFETY: see above.
        Avx2::new(unsafe { _mm256_shuffle_epi8(self.0, order) })
    }
    #[inline(always)]
    unsafe fn swap_word(word: u64, order: __m256i) -> u64 {
        // SAFETY: see above.
        unsafe {
            let word = _mm_cvtsi64_si128(word as i64);
            _mm_cvtsi128_si64(_mm_shuffle_epi8(word, _mm256_castsi256_si128(order))) as u64
        }
    }
    #[inline(always)]
    unsafe fn first_equal(self, other: Avx2<S>) -> Option<u32> {
        // SAFETY: see above.
        let equal = unsafe { _mm256_movemask_epi8(_mm256_cmpeq_epi8(self.0, other.0)) } as u32;
        (equal != 0).then(|| equal.trailing_zeros())
    }
}

/// Sums of 64-bit words, which may overflow, and of their upper halves, which show by how much.
pub(crate) struct WideSum {
    words: [__m256i; 2],
    upper: [__m256i; 2],
}

impl Sum<Avx2<WideSum>> for WideSum {
    #[inline(always)]
    unsafe fn new() -> WideSum {
        // SAFETY: see above.
        let zeros = unsafe { [_mm256_setzero_si256(); 2] };
        WideSum { words: zeros, upper: zeros }
    }
    #[inline(always)]
    unsafe fn add(&mut self, vector: Avx2<WideSum>, place: usize) {
        let (words, upper) = (&mut self.words[place % 2], &mut self.upper[place % 2]);
        // SAFETY: see above.
        unsafe {
            *words = _mm256_add_epi64(*words, vector.0);
            *upper = _mm256_add_epi64(*upper, _mm256_srli_epi64::<32>(vector.0));
        }
    }
    #[inline(always)]
    unsafe fn total(self, _: usize) -> u64 {
        // SAFETY: see above.
        unsafe {
            let words = _mm256_add_epi64(self.words[0], self.words[1]);
            let upper = _mm256_add_epi64(self.upper[0], self.upper[1]);
            let lower = _mm256_sub_epi64(words, _mm256_slli_epi64::<32>(upper));
            sum_of_lanes(_mm256_add_epi64(lower, upper)) as u64
        }
    }
}

/// Sums of signed words, 32 bits each, by dot products of AVX-VNNI. Words are made signed by
/// subtracting 2^15, which `total` adds again; so a pair is within 2^16, and 2^15 vectors fit.
pub(crate) struct DotSum([__m256i; BLOCK_VECTORS]);

impl Sum<Avx2<DotSum>> for DotSum {
    #[inline(always)]
    unsafe fn new() -> DotSum {
        // SAFETY: see above.
        DotSum(unsafe { [_mm256_setzero_si256(); BLOCK_VECTORS] })
    }
    #[inline(always)]
    unsafe fn add(&mut self, vector: Avx2<DotSum>, place: usize) {
        // SAFETY: see above.
        unsafe {
            let signed = _mm256_xor_si256(vector.0, _mm256_set1_epi16(i16::MIN));
            let ones = _mm256_set1_epi16(1);
            self.0[place] = _mm256_dpwssd_avx_epi32(self.0[place], signed, ones);
        }
    }
    #[inline(always)]
    unsafe fn total(self, vectors: usize) -> u64 {
        let [a, b, c, d] = self.0;
        // SAFETY: see above.
        unsafe {
            // Each lane is at most 2^16 times the vectors of a piece: at most 2^30.
            let lanes = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
            // Made unsigned by adding 2^31, they can be widened without crossing lanes.
            let lanes = _mm256_xor_si256(lanes, _mm256_set1_epi32(i32::MIN));
            let low = _mm256_and_si256(lanes, _mm256_set1_epi64x(0xffff_ffff));
            let sum = sum_of_lanes(_mm256_add_epi64(low, _mm256_srli_epi64::<32>(lanes)));
            let words = vectors * (VECTOR_BYTES / 2);
            (sum - (8 << 31) + ((words as i64) << 15)) as u64
        }
    }
}

#[inline(always)]
unsafe fn sum_of_lanes(lanes: __m256i) -> i64 {
    // SAFETY: see above.
    unsafe {
        let high = _mm256_extracti128_si256::<1>(lanes);
        let pair = _mm_add_epi64(_mm256_castsi256_si128(lanes), high);
        _mm_cvtsi128_si64(pair) + _mm_extract_epi64::<1>(pair)
    }
}

/// A CRC32C: of words by the instruction, of blocks by carry-less products, eight lanes of 128 bits at
/// a time. (V. Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ.)
pub(crate) struct Avx2Crc {
    crc: u32,
    /// Whether the lanes have the CRC, and not `crc`.
    in_lanes: bool,
    lanes: [[__m128i; 2]; BLOCK_VECTORS],
}

/// The factors that move a lane by a block: the low half by 1,024 bits and 32, the high half by 32 less.
/// Products of reversed bits come out shifted by one, for which the factors compensate.
const BY_A_BLOCK: [u64; 2] =
    [(power_of_x(1024 + 32) as u64) << 1, (power_of_x(1024 - 32) as u64) << 1];

impl<S> Crc<Avx2<S>> for Avx2Crc {
    #[inline(always)]
    unsafe fn new(crc: u32) -> Avx2Crc {
        // SAFETY: see above.
        let zeros = unsafe { _mm_setzero_si128() };
        Avx2Crc { crc, in_lanes: false, lanes: [[zeros; 2]; BLOCK_VECTORS] }
    }
    #[inline(always)]
    unsafe fn add_block(&mut self, block: &[Avx2<S>; BLOCK_VECTORS]) {
        // SAFETY: see above.
        unsafe {
            if !self.in_lanes {
                self.in_lanes = true;
                // The CRC so far belongs to the first bytes.
                let crc = _mm_cvtsi32_si128(self.crc as i32);
                self.lanes =
                    [halves(block[0]), halves(block[1]), halves(block[2]), halves(block[3])];
                self.lanes[0][0] = _mm_xor_si128(self.lanes[0][0], crc);
                return;
            }
            let by = _mm_set_epi64x(BY_A_BLOCK[1] as i64, BY_A_BLOCK[0] as i64);
            // Not a loop, so that the lanes stay in registers.
            self.lanes[0] = fold_halves(self.lanes[0], by, block[0]);
            self.lanes[1] = fold_halves(self.lanes[1], by, block[1]);
            self.lanes[2] = fold_halves(self.lanes[2], by, block[2]);
            self.lanes[3] = fold_halves(self.lanes[3], by, block[3]);
        }
    }
    #[inline(always)]
    unsafe fn end_blocks(&mut self) {
        if self.in_lanes {
            self.in_lanes = false;
            let mut crc = 0;
            for lane in self.lanes.into_iter().flatten() {
                // SAFETY: see above.
                unsafe {
                    crc = _mm_crc32_u64(crc, _mm_cvtsi128_si64(lane) as u64);
                    crc = _mm_crc32_u64(crc, _mm_extract_epi64::<1>(lane) as u64);
                }
            }
            self.crc = crc as u32;
        }
    }
    #[inline(always)]
    unsafe fn add(&mut self, vector: Avx2<S>) {
        // SAFETY: see above.
        unsafe {
            for half in halves(vector) {
                <Avx2Crc as Crc<Avx2<S>>>::add_word(self, _mm_cvtsi128_si64(half) as u64);
                <Avx2Crc as Crc<Avx2<S>>>::add_word(self, _mm_extract_epi64::<1>(half) as u64);
            }
        }
    }
    #[inline(always)]
    unsafe fn add_word(&mut self, word: u64) {
        // SAFETY: see above.
        self.crc = unsafe { _mm_crc32_u64(self.crc.into(), word) } as u32;
    }
    #[inline(always)]
    unsafe fn add_byte(&mut self, byte: u8) {
        // SAFETY: see above.
        self.crc = unsafe { _mm_crc32_u8(self.crc, byte) };
    }
    #[inline(always)]
    fn value(&self) -> u32 {
        self.crc
    }
}

#[inline(always)]
unsafe fn halves<S>(vector: Avx2<S>) -> [__m128i; 2] {
    // SAFETY: see above.
    unsafe { [_mm256_castsi256_si128(vector.0), _mm256_extracti128_si256::<1>(vector.0)] }
}

#[inline(always)]
unsafe fn fold_halves<S>(lanes: [__m128i; 2], by: __m128i, vector: Avx2<S>) -> [__m128i; 2] {
    // SAFETY: see above.
    unsafe {
        let [low, high] = halves(vector);
        [fold(lanes[0], by, low), fold(lanes[1], by, high)]
    }
}

/// Moves a lane by a block, and adds what is there.
#[inline(always)]
unsafe fn fold(lane: __m128i, by: __m128i, data: __m128i) -> __m128i {
    // SAFETY: see above.
    unsafe {
        let low = _mm_clmulepi64_si128::<0x00>(lane, by);
        let high = _mm_clmulepi64_si128::<0x11>(lane, by);
        _mm_xor_si128(_mm_xor_si128(low, high), data)
    }
}

impl Instances for Avx2<WideSum> {
    fn instance<A: Stage<Self>, M: Stage<Self>, B: Stage<Self>, const WRITE: bool>() -> Function {
        run::<A, M, B, WRITE>
    }
}

/// # Safety
///
/// As for [`fused`].
#[target_feature(enable = "avx2,sse4.2,pclmulqdq")]
unsafe fn run<A, M, B, const WRITE: bool>(
    slots: &Slots,
    registers: Registers,
    source: *const u8,
    destination: *mut u8,
    len: usize,
    keystream: *const u8,
) where
    A: Stage<Avx2<WideSum>>,
    M: Stage<Avx2<WideSum>>,
    B: Stage<Avx2<WideSum>>,
{
    // SAFETY: the caller's promise.
    unsafe {
        fused::<Avx2<WideSum>, A, M, B, WRITE>(
            slots,
            registers,
            source,
            destination,
            len,
            keystream,
        )
    };
}

impl Instances for Avx2<DotSum> {
    fn instance<A: Stage<Self>, M: Stage<Self>, B: Stage<Self>, const WRITE: bool>() -> Function {
        run_vnni::<A, M, B, WRITE>
    }
}

/// # Safety
///
/// As for [`fused`].
#[target_feature(enable = "avx2,avxvnni,sse4.2,pclmulqdq")]
unsafe fn run_vnni<A, M, B, const WRITE: bool>(
    slots: &Slots,
    registers: Registers,
    source: *const u8,
    destination: *mut u8,
    len: usize,
    keystream: *const u8,
) where
    A: Stage<Avx2<DotSum>>,
    M: Stage<Avx2<DotSum>>,
    B: Stage<Avx2<DotSum>>,
{
    // SAFETY: the caller's promise.
    unsafe {
        fused::<Avx2<DotSum>, A, M, B, WRITE>(slots, registers, source, destination, len, keystream)
    };
}
