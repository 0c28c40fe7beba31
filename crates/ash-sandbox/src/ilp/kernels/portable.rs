//! Vectors of four words, which the compiler makes the target's own vectors of.

use super::fused::fused;
use super::instances::Instances;
use super::stages::swap_word;
use super::vector::{
    BLOCK_VECTORS, Crc, Function, Registers, Slots, Stage, Sum, Swapped, VECTOR_BYTES, Vector,
};
use crate::ilp::Gauge;
use crate::ilp::castagnoli::{update_byte, update_word_by_tables};

// SAFETY, for all of this file: no processor feature is needed. Where there is more to say it is said.

#[derive(Clone, Copy)]
pub(crate) struct Portable([u64; VECTOR_BYTES / 8]);

impl Portable {
    #[inline(always)]
    fn map(self, change: impl Fn(u64) -> u64) -> Portable {
        Portable(self.0.map(change))
    }
}

impl Vector for Portable {
    type Sum = PortableSum;
    type Crc = PortableCrc;
    type Order = Gauge;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Portable {
        // SAFETY: the caller says that 32 bytes can be read.
        Portable(unsafe { from.cast::<[u64; 4]>().read_unaligned() }).map(u64::from_le)
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller says that 32 bytes can be written.
        unsafe { to.cast::<[u64; 4]>().write_unaligned(self.map(u64::to_le).0) };
    }
    #[inline(always)]
    unsafe fn splat(word: u64) -> Portable {
        Portable([word; 4])
    }
    #[inline(always)]
    unsafe fn xor(self, other: Portable) -> Portable {
        let [a, b, c, d] = self.0;
        let [e, f, g, h] = other.0;
        Portable([a ^ e, b ^ f, c ^ g, d ^ h])
    }
    #[inline(always)]
    unsafe fn order(swapped: &Swapped) -> Gauge {
        swapped.gauge
    }
    #[inline(always)]
    unsafe fn swap(self, gauge: Gauge) -> Portable {
        self.map(|word| swap_word(gauge, word))
    }
    #[inline(always)]
    unsafe fn swap_word(word: u64, gauge: Gauge) -> u64 {
        swap_word(gauge, word)
    }
    #[inline(always)]
    unsafe fn first_equal(self, other: Portable) -> Option<u32> {
        // SAFETY: see above.
        let different = unsafe { self.xor(other) }.0;
        let marks = different
            .map(|word| word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080);
        let word = marks.iter().position(|marks| *marks != 0)?;
        Some(word as u32 * 8 + marks[word].trailing_zeros() / 8)
    }
}

/// Sums of 32-bit words: 2^31 vectors fit.
pub(crate) struct PortableSum([u64; 4]);

impl Sum<Portable> for PortableSum {
    #[inline(always)]
    unsafe fn new() -> PortableSum {
        PortableSum([0; 4])
    }
    #[inline(always)]
    unsafe fn add(&mut self, vector: Portable, _: usize) {
        for (sum, word) in self.0.iter_mut().zip(vector.0) {
            *sum += (word & 0xffff_ffff) + (word >> 32);
        }
    }
    #[inline(always)]
    unsafe fn total(self, _: usize) -> u64 {
        self.0.iter().sum()
    }
}

pub(crate) struct PortableCrc(u32);

impl Crc<Portable> for PortableCrc {
    #[inline(always)]
    unsafe fn new(crc: u32) -> PortableCrc {
        PortableCrc(crc)
    }
    #[inline(always)]
    unsafe fn add_block(&mut self, block: &[Portable; BLOCK_VECTORS]) {
        for vector in block {
            // SAFETY: see above.
            unsafe { self.add(*vector) };
        }
    }
    #[inline(always)]
    unsafe fn end_blocks(&mut self) {}
    #[inline(always)]
    unsafe fn add(&mut self, vector: Portable) {
        for word in vector.0 {
            self.0 = update_word_by_tables(self.0, word);
        }
    }
    #[inline(always)]
    unsafe fn add_word(&mut self, word: u64) {
        self.0 = update_word_by_tables(self.0, word);
    }
    #[inline(always)]
    unsafe fn add_byte(&mut self, byte: u8) {
        self.0 = update_byte(self.0, byte);
    }
    #[inline(always)]
    fn value(&self) -> u32 {
        self.0
    }
}

impl Instances for Portable {
    fn instance<A: Stage<Portable>, M: Stage<Portable>, B: Stage<Portable>, const WRITE: bool>()
    -> Function {
        run::<A, M, B, WRITE>
    }
}

/// # Safety
///
/// As for [`fused`].
unsafe fn run<A: Stage<Portable>, M: Stage<Portable>, B: Stage<Portable>, const WRITE: bool>(
    slots: &Slots,
    registers: Registers,
    source: *const u8,
    destination: *mut u8,
    len: usize,
    keystream: *const u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        fused::<Portable, A, M, B, WRITE>(slots, registers, source, destination, len, keystream)
    };
}
