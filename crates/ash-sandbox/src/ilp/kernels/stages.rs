//! The stages that kernels are composed of.

use super::fused::tail_mask;
use super::vector::{BLOCK_VECTORS, Crc, Registers, Slots, Stage, Sum, VECTOR_BYTES, Vector};
use crate::ilp::Gauge;
use crate::ilp::search::NOT_FOUND;

// SAFETY, for all of this file: the functions are unsafe as the vectors' are, and what they call is
// the same tier's. Where there is more to say it is said.

/// Nothing happens.
pub(crate) struct Nothing;

impl<V: Vector> Stage<V> for Nothing {
    #[inline(always)]
    unsafe fn begin(_: &Slots, _: Registers, _: *const u8) -> Nothing {
        Nothing
    }
    #[inline(always)]
    unsafe fn vector(&mut self, vector: V, _: usize) -> V {
        vector
    }
    #[inline(always)]
    unsafe fn word(&mut self, word: u64) -> u64 {
        word
    }
    #[inline(always)]
    unsafe fn tail(&mut self, _: &Slots, word: u64, _: usize) -> u64 {
        word
    }
}

/// One stage after another.
impl<V: Vector, A: Stage<V>, B: Stage<V>> Stage<V> for (A, B) {
    #[inline(always)]
    unsafe fn begin(slots: &Slots, registers: Registers, keystream: *const u8) -> (A, B) {
        // SAFETY: see above.
        unsafe { (A::begin(slots, registers, keystream), B::begin(slots, registers, keystream)) }
    }
    #[inline(always)]
    unsafe fn vector(&mut self, vector: V, place: usize) -> V {
        // SAFETY: see above.
        unsafe { self.1.vector(self.0.vector(vector, place), place) }
    }
    #[inline(always)]
    unsafe fn block(&mut self, block: &mut [V; BLOCK_VECTORS]) {
        // SAFETY: see above.
        unsafe {
            self.0.block(block);
            self.1.block(block);
        }
    }
    #[inline(always)]
    unsafe fn end_blocks(&mut self) {
        // SAFETY: see above.
        unsafe {
            self.0.end_blocks();
            self.1.end_blocks();
        }
    }
    #[inline(always)]
    unsafe fn word(&mut self, word: u64) -> u64 {
        // SAFETY: see above.
        unsafe { self.1.word(self.0.word(word)) }
    }
    #[inline(always)]
    unsafe fn tail(&mut self, slots: &Slots, word: u64, bytes: usize) -> u64 {
        // SAFETY: see above.
        unsafe { self.1.tail(slots, self.0.tail(slots, word, bytes), bytes) }
    }
    #[inline(always)]
    unsafe fn end(self, slots: &Slots, registers: Registers, len: usize) {
        // SAFETY: see above.
        unsafe {
            self.0.end(slots, registers, len);
            self.1.end(slots, registers, len);
        }
    }
}

/// The pipe `checksum`.
pub(crate) struct Checksum<V: Vector> {
    /// The sum but for what is in `vectors`. It cannot overflow: it begins below 2^33, four words and `vectors` add
    /// less than 2^57.
    words: u64,
    vectors: V::Sum,
}

impl<V: Vector> Stage<V> for Checksum<V> {
    #[inline(always)]
    unsafe fn begin(slots: &Slots, registers: Registers, _: *const u8) -> Self {
        // SAFETY: see above.
        let (vectors, sum) = unsafe { (V::Sum::new(), registers.get(slots.sum)) };
        Checksum { words: (sum & 0xffff_ffff) + (sum >> 32), vectors }
    }
    #[inline(always)]
    unsafe fn vector(&mut self, vector: V, place: usize) -> V {
        // SAFETY: see above.
        unsafe { self.vectors.add(vector, place) };
        vector
    }
    #[inline(always)]
    unsafe fn word(&mut self, word: u64) -> u64 {
        self.words += (word & 0xffff_ffff) + (word >> 32);
        word
    }
    #[inline(always)]
    unsafe fn tail(&mut self, _: &Slots, word: u64, _: usize) -> u64 {
        self.words += (word & 0xffff_ffff) + (word >> 32);
        word
    }
    #[inline(always)]
    unsafe fn end(mut self, slots: &Slots, registers: Registers, len: usize) {
        // SAFETY: see above, and the caller's promise.
        unsafe {
            if len >= VECTOR_BYTES {
                self.words += self.vectors.total(len / VECTOR_BYTES);
            }
            registers.set(slots.sum, self.words);
        }
    }
}

/// The pipe `crc32c`.
pub(crate) struct Crc32c<V: Vector> {
    crc: V::Crc,
}

impl<V: Vector> Stage<V> for Crc32c<V> {
    #[inline(always)]
    unsafe fn begin(slots: &Slots, registers: Registers, _: *const u8) -> Self {
        // SAFETY: see above.
        Crc32c { crc: unsafe { V::Crc::new(registers.get(slots.crc) as u32) } }
    }
    #[inline(always)]
    unsafe fn vector(&mut self, vector: V, _: usize) -> V {
        // SAFETY: see above.
        unsafe { self.crc.add(vector) };
        vector
    }
    #[inline(always)]
    unsafe fn block(&mut self, block: &mut [V; BLOCK_VECTORS]) {
        // SAFETY: see above.
        unsafe { self.crc.add_block(block) };
    }
    #[inline(always)]
    unsafe fn end_blocks(&mut self) {
        // SAFETY: see above.
        unsafe { self.crc.end_blocks() };
    }
    #[inline(always)]
    unsafe fn word(&mut self, word: u64) -> u64 {
        // SAFETY: see above.
        unsafe { self.crc.add_word(word) };
        word
    }
    #[inline(always)]
    unsafe fn tail(&mut self, _: &Slots, word: u64, bytes: usize) -> u64 {
        for place in 0..bytes {
            // SAFETY: see above.
            unsafe { self.crc.add_byte((word >> (place * 8)) as u8) };
        }
        word
    }
    #[inline(always)]
    unsafe fn end(self, slots: &Slots, registers: Registers, len: usize) {
        // The register may have more than the 32 bits of a CRC, and keeps them if nothing has passed.
        if len > 0 {
            // SAFETY: the caller's promise.
            unsafe { registers.set(slots.crc, self.crc.value().into()) };
        }
    }
}

/// The pipe `search`.
pub(crate) struct Search<V: Vector> {
    found: u64,
    searched: u64,
    byte: u64,
    bytes: V,
}

impl<V: Vector> Search<V> {
    /// Searches a vector of which the first place is the one that means [`NOT_FOUND`], word by word as the pipe does.
    #[cold]
    unsafe fn words_of(&mut self, vector: V) {
        let mut bytes = [0; VECTOR_BYTES];
        // SAFETY: see above, and there is room.
        unsafe { vector.store(bytes.as_mut_ptr()) };
        for word in bytes.as_chunks().0 {
            // SAFETY: see above.
            unsafe { Stage::<V>::word(self, u64::from_le_bytes(*word)) };
        }
    }
}

impl<V: Vector> Stage<V> for Search<V> {
    #[inline(always)]
    unsafe fn begin(slots: &Slots, registers: Registers, _: *const u8) -> Self {
        // SAFETY: see above.
        unsafe {
            let [found, searched, byte] =
                [0, 1, 2].map(|register| registers.get(slots.search + register));
            Search { found, searched, byte, bytes: V::splat(byte) }
        }
    }
    #[inline(always)]
    unsafe fn vector(&mut self, vector: V, _: usize) -> V {
        if self.found == NOT_FOUND {
            // SAFETY: see above.
            if let Some(place) = unsafe { vector.first_equal(self.bytes) } {
                self.found = self.searched.wrapping_add(place.into());
                if self.found == NOT_FOUND {
                    // SAFETY: see above.
                    unsafe { self.words_of(vector) };
                    return vector;
                }
            }
        }
        self.searched = self.searched.wrapping_add(VECTOR_BYTES as u64);
        vector
    }
    #[inline(always)]
    unsafe fn word(&mut self, word: u64) -> u64 {
        if self.found == NOT_FOUND {
            let places = (word ^ self.byte).to_le_bytes();
            if let Some(place) = places.iter().position(|other| *other == 0) {
                self.found = self.searched.wrapping_add(place as u64);
            }
        }
        self.searched = self.searched.wrapping_add(8);
        word
    }
    #[inline(always)]
    unsafe fn tail(&mut self, _: &Slots, word: u64, bytes: usize) -> u64 {
        // The pipe compares the last bytes with the lowest one of its register.
        for byte in &word.to_le_bytes()[..bytes] {
            if self.found == NOT_FOUND && *byte == self.byte as u8 {
                self.found = self.searched;
            }
            self.searched = self.searched.wrapping_add(1);
        }
        word
    }
    #[inline(always)]
    unsafe fn end(self, slots: &Slots, registers: Registers, _: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            registers.set(slots.search, self.found);
            registers.set(slots.search + 1, self.searched);
        }
    }
}

/// The pipe `byte_swap`, of 16, 32 or 64 bits.
pub(crate) struct Swap<V: Vector> {
    order: V::Order,
}

impl<V: Vector> Stage<V> for Swap<V> {
    #[inline(always)]
    unsafe fn begin(slots: &Slots, _: Registers, _: *const u8) -> Self {
        // SAFETY: see above.
        Swap { order: unsafe { V::order(&slots.swap) } }
    }
    #[inline(always)]
    unsafe fn vector(&mut self, vector: V, _: usize) -> V {
        // SAFETY: see above.
        unsafe { vector.swap(self.order) }
    }
    #[inline(always)]
    unsafe fn word(&mut self, word: u64) -> u64 {
        // SAFETY: see above.
        unsafe { V::swap_word(word, self.order) }
    }
    #[inline(always)]
    unsafe fn tail(&mut self, slots: &Slots, word: u64, bytes: usize) -> u64 {
        // Words that are complete are swapped, the bytes behind them stay.
        let complete = tail_mask(bytes - bytes % slots.swap.gauge.bytes());
        // SAFETY: see above.
        unsafe { V::swap_word(word, self.order) & complete | word & !complete }
    }
}

/// Swaps the bytes within each part of a word.
#[inline(always)]
pub(crate) fn swap_word(gauge: Gauge, word: u64) -> u64 {
    match gauge {
        Gauge::Bits8 => word,
        Gauge::Bits16 => {
            let low = 0x00ff_00ff_00ff_00ff;
            (word & low) << 8 | word >> 8 & low
        }
        Gauge::Bits32 => word.swap_bytes().rotate_left(32),
        Gauge::Bits64 => word.swap_bytes(),
    }
}

/// The pipe `xor`.
pub(crate) struct Xor<V> {
    stream: u64,
    vector: V,
}

impl<V: Vector> Stage<V> for Xor<V> {
    #[inline(always)]
    unsafe fn begin(slots: &Slots, registers: Registers, _: *const u8) -> Self {
        // SAFETY: see above.
        unsafe {
            let stream = registers.get(slots.xor);
            Xor { stream, vector: V::splat(stream) }
        }
    }
    #[inline(always)]
    unsafe fn vector(&mut self, vector: V, _: usize) -> V {
        // SAFETY: see above.
        unsafe { vector.xor(self.vector) }
    }
    #[inline(always)]
    unsafe fn word(&mut self, word: u64) -> u64 {
        word ^ self.stream
    }
    #[inline(always)]
    unsafe fn tail(&mut self, _: &Slots, word: u64, bytes: usize) -> u64 {
        (word ^ self.stream) & tail_mask(bytes)
    }
}

/// The pipe `chacha20`: XORs with a keystream that was made before.
pub(crate) struct Keystream {
    next: *const u8,
}

impl<V: Vector> Stage<V> for Keystream {
    #[inline(always)]
    unsafe fn begin(_: &Slots, _: Registers, keystream: *const u8) -> Keystream {
        Keystream { next: keystream }
    }
    #[inline(always)]
    unsafe fn vector(&mut self, vector: V, _: usize) -> V {
        // SAFETY: `begin` was promised as many bytes as pass.
        unsafe {
            let stream = V::load(self.next);
            self.next = self.next.add(VECTOR_BYTES);
            vector.xor(stream)
        }
    }
    #[inline(always)]
    unsafe fn word(&mut self, word: u64) -> u64 {
        // SAFETY: `begin` was promised as many bytes as pass.
        unsafe {
            let stream = u64::from_le(self.next.cast::<u64>().read_unaligned());
            self.next = self.next.add(8);
            word ^ stream
        }
    }
    #[inline(always)]
    unsafe fn tail(&mut self, _: &Slots, mut word: u64, bytes: usize) -> u64 {
        for place in 0..bytes {
            // SAFETY: `begin` was promised as many bytes as pass.
            word ^= u64::from(unsafe { self.next.add(place).read() }) << (place * 8);
        }
        word
    }
}
