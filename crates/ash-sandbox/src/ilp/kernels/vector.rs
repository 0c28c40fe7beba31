//! The parts of a kernel: vectors, and stages through which they pass.

use std::array::from_fn;

use crate::ilp::Gauge;

/// The bytes of a vector, on every tier.
pub(crate) const VECTOR_BYTES: usize = 32;
/// The vectors of a block.
pub(crate) const BLOCK_VECTORS: usize = 4;
/// The bytes of a block.
pub(crate) const BLOCK_BYTES: usize = BLOCK_VECTORS * VECTOR_BYTES;
/// So many bytes at most are given to a loop: what sums can hold.
pub(crate) const PIECE_BYTES: usize = 4096 * BLOCK_BYTES;

/// Where a list has the registers of its pipes, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    pub(crate) sum: usize,
    pub(crate) crc: usize,
    pub(crate) search: usize,
    pub(crate) xor: usize,
    pub(crate) swap: Swapped,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots { sum: 0, crc: 0, search: 0, xor: 0, swap: Swapped::new(Gauge::Bits64) }
    }
}

/// The words whose bytes are swapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Swapped {
    pub(crate) gauge: Gauge,
    /// Byte `place` of 16 comes from the mirrored place within its word.
    pub(crate) order: [u8; 16],
}

impl Swapped {
    pub(crate) fn new(gauge: Gauge) -> Swapped {
        Swapped { gauge, order: from_fn(|place| (place ^ (gauge.bytes() - 1)) as u8) }
    }
}

/// A loop over a message: slots, registers, source, destination, length, keystream. The length is at most
/// [`PIECE_BYTES`].
pub(crate) type Function = unsafe fn(&Slots, Registers, *const u8, *mut u8, usize, *const u8);

/// The registers of a list, which has all those that its [`Slots`] name: they are not checked for each message.
#[derive(Clone, Copy)]
pub(crate) struct Registers(pub(crate) *mut u64);

impl Registers {
    /// # Safety
    ///
    /// The slot is one of the list whose registers these are.
    #[inline(always)]
    pub(crate) unsafe fn get(self, slot: usize) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(slot).read() }
    }

    /// # Safety
    ///
    /// As for [`get`](Self::get).
    #[inline(always)]
    pub(crate) unsafe fn set(self, slot: usize, value: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(slot).write(value) };
    }
}

/// 32 bytes of the message.
///
/// # Safety
///
/// Of all functions: the processor has what the tier needs.
pub(crate) trait Vector: Copy {
    /// Sums of 16-bit words.
    type Sum: Sum<Self>;
    /// A CRC32C.
    type Crc: Crc<Self>;
    /// Which bytes [`swap`](Vector::swap) swaps.
    type Order: Copy;

    /// # Safety
    ///
    /// 32 bytes can be read there.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    ///
    /// 32 bytes can be written there.
    unsafe fn store(self, to: *mut u8);
    unsafe fn splat(word: u64) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn order(swapped: &Swapped) -> Self::Order;
    unsafe fn swap(self, order: Self::Order) -> Self;
    /// The same for a word.
    unsafe fn swap_word(word: u64, order: Self::Order) -> u64;
    /// The place of the first byte that is equal to the other vector's.
    unsafe fn first_equal(self, other: Self) -> Option<u32>;
}

/// Adds the 16-bit words of a piece. The total is right modulo 65,535, 0 only if all words were 0, and less
/// than 2^56.
///
/// # Safety
///
/// Of all functions: the processor has what the tier needs.
pub(crate) trait Sum<V> {
    unsafe fn new() -> Self;
    /// Adds a vector; `place` is its number in a block.
    unsafe fn add(&mut self, vector: V, place: usize);
    /// The sum of the vectors that were added, of which there were so many.
    unsafe fn total(self, vectors: usize) -> u64;
}

/// Computes a CRC32C.
///
/// # Safety
///
/// Of all functions: the processor has what the tier needs.
pub(crate) trait Crc<V> {
    unsafe fn new(crc: u32) -> Self;
    unsafe fn add_block(&mut self, block: &[V; BLOCK_VECTORS]);
    /// Ends the blocks; vectors and words may follow.
    unsafe fn end_blocks(&mut self);
    unsafe fn add(&mut self, vector: V);
    unsafe fn add_word(&mut self, word: u64);
    unsafe fn add_byte(&mut self, byte: u8);
    fn value(&self) -> u32;
}

/// A stage through which the data pass: one pipe, or several.
///
/// # Safety
///
/// Of all functions: the processor has what the tier needs.
pub(crate) trait Stage<V: Vector>: Sized {
    /// Takes the registers.
    ///
    /// # Safety
    ///
    /// There are as many bytes of keystream as will pass, and the registers that the slots name.
    unsafe fn begin(slots: &Slots, registers: Registers, keystream: *const u8) -> Self;
    unsafe fn vector(&mut self, vector: V, place: usize) -> V;
    #[inline(always)]
    unsafe fn block(&mut self, block: &mut [V; BLOCK_VECTORS]) {
        // SAFETY: the caller's promise.
        unsafe {
            block[0] = self.vector(block[0], 0);
            block[1] = self.vector(block[1], 1);
            block[2] = self.vector(block[2], 2);
            block[3] = self.vector(block[3], 3);
        }
    }
    /// Ends the blocks; vectors and words may follow.
    #[inline(always)]
    unsafe fn end_blocks(&mut self) {}
    unsafe fn word(&mut self, word: u64) -> u64;
    /// The last 1 to 7 bytes, with zeros above them; what is returned has zeros there, too.
    unsafe fn tail(&mut self, slots: &Slots, word: u64, bytes: usize) -> u64;
    /// Puts the registers back, after `len` bytes.
    ///
    /// # Safety
    ///
    /// There are the registers that the slots name.
    #[inline(always)]
    unsafe fn end(self, _slots: &Slots, _registers: Registers, _len: usize) {}
}
